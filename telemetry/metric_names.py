"""Which metrics there are: name, kind, labels and meaning of each, once.

Counting (`telemetry.metrics`), showing (`telemetry.metric_values`), docs/metrics.md and the rules in
dashboards/prometheus follow from here. Names end in their base unit; a counter's series has `_total` behind it. There
are counters and no ratios: a ratio of sums over any time is the reader's to form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

PREFIX = "roundscope_"

NS_PER_S = 1_000_000_000

BUCKETS_NS = (*(tenth * unit for unit in (10**4, 10**5, 10**6, 10**7, 10**8) for tenth in (10, 25, 50)), 10**10)
"""Upper bounds of the histograms' buckets: 0.1 ms to 10 s, three a decade [ns]."""

MAX_POSITION = 63
"""Last position, and longest m, of a proposal with a count of its own; what is beyond it is under `64+`."""

MAX_GROUPS = 100
"""Pairs of model and arm (or configuration and arm) with series of their own; further ones are under `other`."""

MAX_PROPOSERS = 100
"""Parts of composed drafters with series of their own; further ones are under `other`."""

MAX_DEVICES = 16
"""Devices shown: the latest ones."""

OTHER = "other"

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "info"]

ROUNDS = ("model", "arm", "timing", "warm_up", "policy")
"""Labels of what belongs to a generation with rounds. policy: greedy, stochastic, or relaxed, which is not exact."""

MILLIONTHS = 1_000_000
"""What is a sum of shares is counted in whole millionths, so that no sum depends on its order."""

LEVELS = ("config", "arm", "timing", "warm_up")
"""Labels of what belongs to a coarse-to-fine generation."""

DEVICE = ("host", "os", "machine", "cpu", "device", "mlx_version", "blas")
BUILD = ("version", "schema_version")


@dataclass(frozen=True)
class Metric:
    """A metric family. What is in seconds is counted in whole nanoseconds, so that no sum is rounded.

    parts: how many of what is counted make one that is shown.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    parts: int = 1

    @property
    def unit(self) -> str:
        """The base unit, or nothing: a number of things."""
        return next((unit for unit in ("seconds", "bytes") if self.name.endswith(f"_{unit}")), "")

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which samples appear."""
        ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum"), "info": ("_info",)}
        return tuple(self.name + end for end in ends[self.kind])


def _metric(name: str, kind: Kind, labels: tuple[str, ...], meaning: str, parts: int = 1) -> Metric:
    return Metric(PREFIX + name, kind, meaning, labels, NS_PER_S if name.endswith("_seconds") else parts)


METRICS: dict[str, Metric] = {
    metric.name.removeprefix(PREFIX): metric
    for metric in (
        _metric("build", "info", BUILD, "the roundscope that counts, and the version of the records it knows"),
        _metric("device", "info", DEVICE, f"machines on which runs took place; the latest {MAX_DEVICES}"),
        _metric("runs_started", "counter", ("kind",), "runs that began"),
        _metric("runs", "counter", ("outcome",), "runs that ended"),
        _metric("generations_started", "counter", ROUNDS, "generations that began"),
        _metric(
            "generations",
            "counter",
            (*ROUNDS, "finish_reason"),
            "generations that ended; `aborted`: their process died in the middle",
        ),
        _metric("prompt_tokens", "counter", ROUNDS, "tokens of prompts"),
        _metric("cached_prompt_tokens", "counter", ROUNDS, "tokens of prompts that were in a kept cache already"),
        _metric("prefill_seconds", "counter", ROUNDS, "start of prefill to its barrier, of generations that ended"),
        _metric("decode_seconds", "counter", ROUNDS, "prefill's barrier to the end of the last round, of the same"),
        _metric(
            "unaccounted_seconds", "counter", ROUNDS, "part of decode_seconds outside rounds; consumers' time is in it"
        ),
        _metric("rounds", "counter", (*ROUNDS, "outcome"), "rounds, by how they ended"),
        _metric(
            "controlled_rounds",
            "counter",
            (*ROUNDS, "reason", "m"),
            f"rounds for which a controller chose m, by why and by m; `{MAX_POSITION + 1}+`: all longer ones",
        ),
        _metric(
            "controlled_seconds", "counter", (*ROUNDS, "reason"), "T_round of these rounds, by why; `probe`: to learn"
        ),
        _metric("proposals", "counter", ROUNDS, "rounds in which something was proposed"),
        _metric(
            "proposer_proposals",
            "counter",
            (*ROUNDS, "proposer"),
            "rounds in which this part of a composed drafter proposed",
        ),
        _metric("proposer_accepted_tokens", "counter", (*ROUNDS, "proposer"), "accepted tokens (A) of these rounds"),
        _metric("draft_tokens", "counter", ROUNDS, "proposed tokens"),
        _metric("accepted_tokens", "counter", ROUNDS, "proposed tokens that were accepted (A)"),
        _metric(
            "accepted_tokens_per_position",
            "counter",
            (*ROUNDS, "position"),
            f"rounds that accepted the proposed token at this position, from 0; `{MAX_POSITION + 1}+`: all beyond",
        ),
        _metric(
            "overlap_tokens",
            "counter",
            ROUNDS,
            "sum of 1 - TV(p, q) over proposed tokens that were judged: what p/q with the residual accepts on average; "
            "attributed rounds at a temperature",
            MILLIONTHS,
        ),
        _metric("overlap_positions", "counter", ROUNDS, "proposed tokens that overlap_tokens sums over"),
        _metric("committed_tokens", "counter", ROUNDS, "tokens that became output (C)"),
        _metric("cut_tokens", "counter", ROUNDS, "proposed tokens never judged: a stop or cancellation came first"),
        _metric("cache_trimmed_positions", "counter", ROUNDS, "rejected positions taken out of the target's cache"),
        _metric("cache_replayed_positions", "counter", ROUNDS, "positions fed again after a snapshot was put back"),
        _metric("cache_trims", "counter", (*ROUNDS, "way"), "rounds that took positions out of the target's cache"),
        _metric("rewinds", "counter", (*ROUNDS, "way"), "rounds that brought the drafter's state back"),
        _metric("device_syncs", "counter", ROUNDS, "device synchronisations of rounds"),
        _metric("round_seconds", "histogram", ROUNDS, "T_round: start of drafting to the end of rewinding"),
        _metric(
            "stage_seconds",
            "histogram",
            (*ROUNDS, "stage", "basis"),
            "a round's stages that were entered, with what they were timed by",
        ),
        _metric("comparisons", "counter", ("output",), "outputs compared with ordinary decoding's"),
        _metric("kv_cache_bytes", "gauge", ROUNDS, "K/V cache of the target at the end of the latest generation"),
        _metric("peak_memory_bytes", "gauge", ROUNDS, "MLX's peak memory during the latest generation"),
        _metric("ncm_generations_started", "counter", LEVELS, "coarse-to-fine generations that began"),
        _metric("ncm_generations", "counter", (*LEVELS, "finish_reason"), "coarse-to-fine generations that ended"),
        _metric("ncm_seconds", "counter", LEVELS, "start to output on the host, of generations that ended"),
        _metric("ncm_forwards", "counter", LEVELS, "forwards of the generator"),
        _metric("ncm_prefix_positions_computed", "counter", LEVELS, "prefix positions processed, over all samples"),
        _metric(
            "ncm_prefix_positions_reused",
            "counter",
            LEVELS,
            "prefix positions whose kept states were read instead, over all samples",
        ),
        _metric(
            "ncm_samples_exited",
            "counter",
            LEVELS,
            "samples that left because they were valid after a level; after the last one too",
        ),
        _metric("ncm_comparisons", "counter", ("output",), "cached generations compared with the uncached one's codes"),
        _metric("ncm_level_seconds", "histogram", LEVELS, "start of a level's forward to the end of its compaction"),
        _metric("ncm_stage_seconds", "histogram", (*LEVELS, "stage", "basis"), "a level's stages that were entered"),
        _metric("ncm_kv_cache_bytes", "gauge", LEVELS, "most that the prefix cache held in the latest generation"),
        _metric("open_generations", "gauge", (), "generations that have begun and not ended, of either kind"),
        _metric("journals", "gauge", ("writer",), "journals followed, by what is known of their writers"),
        _metric(
            "telemetry_dropped",
            "counter",
            ("sink", "reason"),
            "what did not arrive: records and lines of journals, spans of exports",
        ),
    )
}
"""All metrics, by their names less the prefix."""
