"""The dashboard about rounds: how much is accepted, and where the time goes."""

from __future__ import annotations

from dashboards.grafana.overview import ARM
from dashboards.grafana.shown import ATTRIBUTED, FUSED, JOB, Dashboard, Shown, over, quantile, rate

_LEGEND = "{{model}} {{arm}}"
_STAGE = f"{ARM}, stage"
_DRAFTED = "roundscope_draft_tokens_total", "roundscope_cut_tokens_total"
_JUDGED = "(" + " - ".join(f"sum by ({ARM}) (rate({name}{{{FUSED}}}[$__rate_interval]))" for name in _DRAFTED) + ")"


def _of_measured(metric: str) -> str:
    """A counter over the proposed tokens whose 1 - TV(p, q) was measured."""
    drawn = f'{ATTRIBUTED}, policy="stochastic"'
    return over(rate(metric, drawn, ARM), rate("overlap_positions_total", drawn, ARM))


SPECULATION = Dashboard(
    "speculation",
    "roundscope: speculation",
    "How much of what is proposed is accepted, and what rounds and their stages cost.",
    (
        (
            "Acceptance",
            (
                Shown(
                    "Accepted share of judged tokens",
                    "Accepted over proposed tokens less those that were never judged because the output ended.",
                    "percentunit",
                    [(over(rate("accepted_tokens_total", FUSED, ARM), _JUDGED), _LEGEND)],
                ),
                Shown(
                    "Committed tokens a round",
                    "What a round yields. Speculation pays where this is above the cost of a round in ordinary steps.",
                    "none",
                    [(over(rate("committed_tokens_total", FUSED, ARM), rate("rounds_total", FUSED, ARM)), _LEGEND)],
                ),
                Shown(
                    "Accepted at each position",
                    "Share of proposals whose token at this position was accepted, from 0. A line that falls early "
                    "asks for a shorter draft length. Proposals too short to have the position count as well.",
                    "percentunit",
                    [
                        (
                            f"{rate('accepted_tokens_per_position_total', FUSED, f'{ARM}, position')} "
                            f"/ on ({ARM}) group_left () {rate('proposals_total', FUSED, ARM)}",
                            "{{arm}} position {{position}}",
                        )
                    ],
                ),
                Shown(
                    "Rounds that proposed something",
                    "A drafter that finds nothing leaves the round an ordinary step.",
                    "percentunit",
                    [(over(rate("proposals_total", FUSED, ARM), rate("rounds_total", FUSED, ARM)), _LEGEND)],
                ),
                Shown(
                    "Acceptance at a temperature beside 1 - TV(p, q)",
                    "Of judged tokens of attributed rounds: the share that was accepted, and 1 - TV(p, q), which p/q "
                    "with the residual accepts on average. An arm coupled by equality stays below it unless q is a "
                    "point mass.",
                    "percentunit",
                    [
                        (_of_measured("accepted_tokens_total"), "{{arm}} accepted"),
                        (_of_measured("overlap_tokens_total"), "{{arm}} 1 - TV(p, q)"),
                    ],
                ),
                Shown(
                    "Rounds by outcome",
                    "correction: a token was rejected; bonus: all were accepted; step: none was proposed.",
                    "short",
                    [(rate("rounds_total", FUSED, f"{ARM}, outcome"), "{{arm}} {{outcome}}")],
                ),
            ),
        ),
        (
            "Cost",
            (
                *(
                    Shown(
                        f"Time of a round, p{q * 100:g}",
                        "From the start of drafting to the end of rewinding, of fused rounds; between the buckets' "
                        "bounds it is a guess.",
                        "s",
                        [(quantile(q, "round_seconds", FUSED, ARM), _LEGEND)],
                    )
                    for q in (0.5, 0.95, 0.99)
                ),
                Shown(
                    "Stages of attributed rounds",
                    "Mean time of a stage when it is entered, with a barrier after each. Only these shares are true; "
                    "what the barriers cost is in `roundscope report stages`.",
                    "s",
                    [
                        (
                            over(
                                rate("stage_seconds_sum", ATTRIBUTED, _STAGE),
                                rate("stage_seconds_count", ATTRIBUTED, _STAGE),
                            ),
                            "{{arm}} {{stage}}",
                        )
                    ],
                ),
                Shown(
                    "Device synchronisations a round",
                    "Times a round waited for the device. One is what a round needs.",
                    "none",
                    [(over(rate("device_syncs_total", FUSED, ARM), rate("rounds_total", FUSED, ARM)), _LEGEND)],
                ),
                Shown(
                    "Decoding outside of rounds",
                    "Share of the decoding time that no round has; what the consumer of the tokens takes is in it.",
                    "percentunit",
                    [
                        (
                            over(rate("unaccounted_seconds_total", JOB, ARM), rate("decode_seconds_total", JOB, ARM)),
                            _LEGEND,
                        )
                    ],
                ),
            ),
        ),
    ),
)
