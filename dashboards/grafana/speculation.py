"""The dashboard about rounds: how much is accepted, and where the time goes."""

from __future__ import annotations

from dashboards.grafana.overview import ARM
from dashboards.grafana.shown import (
    ATTRIBUTED,
    FUSED,
    JOB,
    Dashboard,
    Shown,
    over,
    quantile,
    rate,
    ratio_of_rates,
    ratio_of_totals,
)

_LEGEND = "{{model}} {{arm}}"
_STAGE = f"{ARM}, stage"
_CHOSEN = f'{FUSED}, arm=~".* m=auto.*"'
_FIXED = f'{FUSED}, arm=~".* m=[0-9]+.*"'
_DRAFTED = "roundscope_draft_tokens_total", "roundscope_cut_tokens_total"
_JUDGED = "(" + " - ".join(f"sum by ({ARM}) (rate({name}{{{FUSED}}}[$__rate_interval]))" for name in _DRAFTED) + ")"


def _per_token(selector: str, by: str) -> str:
    """Seconds per committed token since counting began."""
    return ratio_of_totals("round_seconds_sum", "committed_tokens_total", selector, by)


def _name_spec(per_token: str, m: str) -> str:
    """The same with a label `spec`: the arm's name without its draft length."""
    return f'label_replace({per_token}, "spec", "$1$2", "arm", "(.*) m={m}(.*)")'


_AUTO = _name_spec(_per_token(_CHOSEN, ARM), "auto")
_STEPS = _per_token(f'{FUSED}, arm="ordinary"', "model")
_BEST_FIXED = f"min by (model, spec) ({_name_spec(_per_token(_FIXED, ARM), '[0-9]+')})"


def _of_measured(metric: str) -> str:
    """A counter over the proposed tokens whose 1 - TV(p, q) was measured."""
    drawn = f'{ATTRIBUTED}, policy="stochastic"'
    return ratio_of_rates(metric, "overlap_positions_total", drawn, ARM)


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
                    [(ratio_of_rates("committed_tokens_total", "rounds_total", FUSED, ARM), _LEGEND)],
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
                    [(ratio_of_rates("proposals_total", "rounds_total", FUSED, ARM), _LEGEND)],
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
            "Draft lengths that a controller chooses",
            (
                Shown(
                    "Draft lengths chosen",
                    "Rounds of arms with m=auto by the draft length that the controller chose; 0 is an ordinary step.",
                    "short",
                    [(rate("controlled_rounds_total", FUSED, f"{ARM}, m"), "{{arm}}: {{m}}")],
                ),
                Shown(
                    "Why they were chosen",
                    "best: its estimates favour it; prior: nothing was judged yet; probe: to learn; budget: a probe "
                    "was due and too much had been lost; landing: a step was in flight; last: one token was left.",
                    "short",
                    [(rate("controlled_rounds_total", FUSED, f"{ARM}, reason"), "{{arm}}: {{reason}}")],
                ),
                Shown(
                    "Time spent probing",
                    "Share of the time of a controller's rounds that went into those made to learn. What they lost is "
                    "less, because they commit tokens too: `roundscope report controller` has it.",
                    "percentunit",
                    [
                        (
                            over(
                                rate("controlled_seconds_total", f'{FUSED}, reason="probe"', ARM),
                                rate("controlled_seconds_total", FUSED, ARM),
                            ),
                            _LEGEND,
                        )
                    ],
                ),
                Shown(
                    "Regret, since counting began",
                    "Time a token that m=auto took beyond the same drafter's best fixed draft length, and beyond "
                    "ordinary decoding; below 0 it took less. The larger one is what `roundscope report controller` "
                    "calls regret, if all arms had the same prompts.",
                    "percentunit",
                    [
                        (
                            f"{_AUTO} / on (model, spec) group_left () {_BEST_FIXED} - 1",
                            "{{arm}} over the best fixed m",
                        ),
                        (f"{_AUTO} / on (model) group_left () ({_STEPS}) - 1", "{{arm}} over ordinary decoding"),
                    ],
                    "stat",
                ),
            ),
        ),
        (
            "Parts of composed drafters",
            (
                Shown(
                    "Rounds in which each part proposed",
                    "Of A+B, A proposes where it has something and B elsewhere.",
                    "short",
                    [(rate("proposer_proposals_total", FUSED, f"{ARM}, proposer"), "{{arm}}: {{proposer}}")],
                ),
                Shown(
                    "Accepted tokens a proposal, by part",
                    "How far what each part proposes gets.",
                    "none",
                    [
                        (
                            ratio_of_rates(
                                "proposer_accepted_tokens_total", "proposer_proposals_total", FUSED, f"{ARM}, proposer"
                            ),
                            "{{arm}}: {{proposer}}",
                        )
                    ],
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
                            ratio_of_rates("stage_seconds_sum", "stage_seconds_count", ATTRIBUTED, _STAGE),
                            "{{arm}} {{stage}}",
                        )
                    ],
                ),
                Shown(
                    "Device synchronisations a round",
                    "Times a round waited for the device. One is what a round needs.",
                    "none",
                    [(ratio_of_rates("device_syncs_total", "rounds_total", FUSED, ARM), _LEGEND)],
                ),
                Shown(
                    "Decoding outside of rounds",
                    "Share of the decoding time that no round has; what the consumer of the tokens takes is in it.",
                    "percentunit",
                    [
                        (
                            ratio_of_rates("unaccounted_seconds_total", "decode_seconds_total", JOB, ARM),
                            _LEGEND,
                        )
                    ],
                ),
            ),
        ),
    ),
)
