"""The dashboard about caches: K/V caches of targets, and prefix caches of coarse-to-fine generators."""

from __future__ import annotations

from dashboards.grafana.overview import ARM
from dashboards.grafana.shown import JOB, Dashboard, Shown, over, rate, ratio_of_rates, ratio_of_totals, total

_LEGEND = "{{model}} {{arm}}"
_CONFIG = "config, arm"
_NCM = "{{config}} {{arm}}"
_REUSED = "ncm_prefix_positions_reused_total"
_PREFIX = f"({total('ncm_prefix_positions_computed_total', JOB, _CONFIG)} + {total(_REUSED, JOB, _CONFIG)})"


def _largest(metric: str, by: str) -> str:
    return f"max by ({by}) (roundscope_{metric}{{{JOB}}})"


CACHE = Dashboard(
    "cache",
    "roundscope: caches",
    "What caches hold, what rejected tokens cost them, and what keeping a prefix saves.",
    (
        (
            "Targets",
            (
                Shown(
                    "K/V cache",
                    "Size of the target's cache at the end of the latest generation.",
                    "bytes",
                    [(_largest("kv_cache_bytes", ARM), _LEGEND)],
                ),
                Shown(
                    "Peak memory",
                    "Most that MLX held during the latest generation, weights among it.",
                    "bytes",
                    [(_largest("peak_memory_bytes", ARM), _LEGEND)],
                ),
                Shown(
                    "Rejected positions taken out",
                    "Positions a second that were trimmed from the target's cache.",
                    "short",
                    [(rate("cache_trimmed_positions_total", JOB, ARM), _LEGEND)],
                ),
                Shown(
                    "Positions fed again",
                    "Positions a second that were accepted, taken back with a snapshot, and fed again. Caches that can "
                    "be trimmed need none.",
                    "short",
                    [(rate("cache_replayed_positions_total", JOB, ARM), _LEGEND)],
                ),
                Shown(
                    "How rejected positions left the cache",
                    "Rounds a second by the way: trim, or a snapshot that was put back.",
                    "short",
                    [(rate("cache_trims_total", JOB, f"{ARM}, way"), "{{arm}} {{way}}")],
                ),
                Shown(
                    "Prompt tokens from a kept cache",
                    "Share of prompt tokens that an earlier turn had left in the cache.",
                    "percentunit",
                    [
                        (
                            ratio_of_totals("cached_prompt_tokens_total", "prompt_tokens_total", JOB, ARM),
                            _LEGEND,
                        )
                    ],
                ),
            ),
        ),
        (
            "Coarse-to-fine generators",
            (
                Shown(
                    "Prefix positions read instead of processed",
                    "Share of prefix positions whose kept states a level read. 0 without the prefix cache; with it, "
                    "all levels but the first.",
                    "percentunit",
                    [(over(total(_REUSED, JOB, _CONFIG), _PREFIX), _NCM)],
                ),
                Shown(
                    "Time of a level",
                    "Mean time from the start of a level's forward to the end of its compaction.",
                    "s",
                    [
                        (
                            ratio_of_rates(
                                "ncm_level_seconds_sum", "ncm_level_seconds_count", JOB, f"{_CONFIG}, timing"
                            ),
                            "{{config}} {{arm}} {{timing}}",
                        )
                    ],
                ),
                Shown(
                    "Prefix cache",
                    "Most that the prefix cache held in the latest generation.",
                    "bytes",
                    [(_largest("ncm_kv_cache_bytes", _CONFIG), _NCM)],
                ),
                Shown(
                    "Samples that left early",
                    "Samples whose partial decode was valid before the last level, since counting began.",
                    "short",
                    [(total("ncm_samples_exited_total", JOB, _CONFIG), _NCM)],
                ),
            ),
        ),
    ),
)
