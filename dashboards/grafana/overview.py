"""The dashboard to begin with: does it pay, and is anything going on?"""

from __future__ import annotations

from dashboards.grafana.shown import FUSED, JOB, Dashboard, Shown, rate, ratio_of_rates, ratio_of_totals, total

ARM = "model, arm"
_ORDINARY = f'{FUSED}, arm="ordinary"'
_PER_TOKEN = ratio_of_rates("round_seconds_sum", "committed_tokens_total", FUSED, ARM)
_PER_TOKEN_EVER = ratio_of_totals("round_seconds_sum", "committed_tokens_total", FUSED, ARM)
_ORDINARY_EVER = ratio_of_totals("round_seconds_sum", "committed_tokens_total", _ORDINARY, "model")

OVERVIEW = Dashboard(
    "overview",
    "roundscope: overview",
    "Whether speculation pays, and what is going on. An interval for the speedup is in `roundscope report`.",
    (
        (
            "Does it pay?",
            (
                Shown(
                    "Speedup over ordinary decoding, since counting began",
                    "Ordinary decoding's seconds per committed token over the arm's, for models that both ran. Above 1 "
                    "an arm is faster; whether that is more than chance, a verdict says and this does not.",
                    "none",
                    [(f"({_ORDINARY_EVER}) / on (model) group_right () ({_PER_TOKEN_EVER})", "{{model}} {{arm}}")],
                    "stat",
                ),
                Shown(
                    "Seconds per committed token",
                    "Time in rounds over the tokens they committed, warm-up and attributed rounds left out. The arm "
                    "with the lowest line is the cheapest, if the prompts are alike.",
                    "s",
                    [(_PER_TOKEN, "{{model}} {{arm}}")],
                ),
            ),
        ),
        (
            "What is going on",
            (
                Shown(
                    "Committed tokens",
                    "Tokens that became output, a second, by arm.",
                    "short",
                    [(rate("committed_tokens_total", JOB, ARM), "{{model}} {{arm}}")],
                ),
                Shown(
                    "Generations that ended",
                    "By how they ended. aborted: their process died in the middle.",
                    "short",
                    [(total("generations_total", JOB, "finish_reason"), "{{finish_reason}}")],
                ),
                Shown(
                    "Open generations",
                    "Generations that have begun and not ended, of either kind.",
                    "short",
                    [(f"sum (roundscope_open_generations{{{JOB}}})", "open")],
                    "stat",
                ),
                Shown(
                    "Outputs beside ordinary decoding's",
                    "Outputs that were compared, by the result. divergent ones are a fault.",
                    "short",
                    [(total("comparisons_total", JOB, "output"), "{{output}}")],
                    "stat",
                ),
                Shown(
                    "Prefill",
                    "Mean time from the start of prefill to its barrier; no part of seconds per committed token.",
                    "s",
                    [
                        (
                            ratio_of_rates("prefill_seconds_total", "generations_total", FUSED, ARM),
                            "{{model}} {{arm}}",
                        )
                    ],
                ),
                Shown(
                    "Machines",
                    "Where runs took place: device, MLX and the library behind its matrix products.",
                    "none",
                    [
                        (
                            f"roundscope_device_info{{{JOB}}}",
                            "{{host}}: {{cpu}}, {{device}}, MLX {{mlx_version}}, {{blas}}",
                        )
                    ],
                    "stat",
                ),
            ),
        ),
    ),
)
