"""What is recorded of coarse-to-fine generations; `telemetry.records` says how records are used."""

# Without `from __future__ import annotations`: as text, 300 annotations would be compiled one by one at every start.
from typing import Annotated

from msgspec import Struct

from telemetry.fields import Basis, Count, Exit, LevelAttention, NcmFinish, Policy, PrefixAttention, Timing, about


class NcmRecord(Struct, tag="ncm", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A coarse-to-fine generation of a batch of samples begins."""

    generation_id: Annotated[str, about("id of the generation: 32 hexadecimal digits")]
    run_id: Annotated[str | None, about("run it belongs to; NULL: recorded outside a run")] = None
    arm: Annotated[str, about("what was done: `cache`, `no-cache`, `cache exit`, `no-cache exit`")]
    cache: Annotated[bool, about("whether prefix keys and values were kept between levels")]
    exit: Annotated[Exit, about("verified: a sample whose partial decode is valid ends; that selects other outputs")]
    reused_prefix: Annotated[bool, about("prefix states came from an earlier generation with the identical prefix")]
    timing: Annotated[Timing, about("timing mode")]
    config: Annotated[str, about("name of the configuration")]
    config_digest: Annotated[str, about("sha256 over the configuration")]
    policy: Annotated[Policy, about("attention policy")]
    prefix_attention: Annotated[
        PrefixAttention, about("what a head sees of the prefix there: all, or the row, column or box of a 9 x 9 grid")
    ]
    level_attention: Annotated[
        LevelAttention, about("what a level's position sees of the prefix: all, or the cells that it covers")
    ]
    dtype: Annotated[str, about("type of the weights")]
    n_layers: Annotated[Count, about("transformer layers")]
    n_heads: Annotated[Count, about("attention heads of a layer")]
    head_dim: Annotated[Count, about("width of a head")]
    prefix_length: Annotated[Count, about("prefix positions a sample (P)", "positions")]
    lengths: Annotated[list[int], about("positions a sample of each level (l[k])")]
    batch: Annotated[Count, about("samples at the beginning")]
    trace_id: Annotated[str | None, about("trace of the caller's context; NULL: one of its own, generation_id")] = None
    parent_span_id: Annotated[str | None, about("span of the caller that it is a child of; NULL: none")] = None
    sampled: Annotated[bool | None, about("the caller's sampling flag; NULL: no caller. It thins spans only")] = None
    batch_id: Annotated[str | None, about("which samples these are; generations of one batch_id and seed pair")] = None
    seed: Annotated[int, about("seed of code sampling")]
    temperature: Annotated[float, about("temperature of code sampling; 0: the most probable code")]
    repeat: Annotated[Count, about("which repetition of the batch, from 0")]
    sequence: Annotated[Count, about("position in the order of execution within the run, from 0")]
    warm_up: Annotated[bool, about("left out of every figure")]
    started_wall_ns: Annotated[Count, about("wall clock at the anchor, the start of the generation", "ns since epoch")]
    started_monotonic_ns: Annotated[Count, about("monotonic clock at the anchor", "ns")]


class NcmEnd(Struct, tag="ncm_end", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A coarse-to-fine generation is over."""

    generation_id: Annotated[str, about("id of the generation")]
    finish_reason: Annotated[
        NcmFinish,
        about(
            "complete (every level ran), exited (all samples left early), cancelled, error; "
            "without an end record: running, aborted, or unknown (another host's)"
        ),
    ]
    n_levels: Annotated[Count, about("levels recorded")]
    n_solved: Annotated[Count | None, about("samples whose output the checker found valid; NULL: not checked")] = None
    total_ns: Annotated[Count, about("start of the generation to its output on the host", "ns")]
    levels_ns: Annotated[Count, about("sum of the levels' durations", "ns")]
    finish_ns: Annotated[Count, about("after the last level: waiting for the device, last decoding and check", "ns")]
    decode_ns: Annotated[
        Count | None,
        about(
            "of finish_ns: decoding the whole hierarchy and reading it, with the wait for what the levels launched; "
            "NULL: decoded in the levels, or never",
            "ns",
        ),
    ] = None
    check_ns: Annotated[Count | None, about("of finish_ns: checking the outputs; NULL: not done there", "ns")] = None
    decode_basis: Annotated[Basis | None, about("what decode_ns was timed by")] = None
    check_basis: Annotated[Basis | None, about("what check_ns was timed by")] = None
    peak_memory_bytes: Annotated[Count, about("MLX's peak memory during the generation", "bytes")]
    kv_bytes: Annotated[
        Count,
        about("most that the prefix's kept keys and values took, without the room for a level's beside them", "bytes"),
    ]
    codes_digest: Annotated[str, about("sha256 over the codes of all levels and samples")]
    error_type: Annotated[str | None, about("class of the exception, if it failed")] = None


class NcmComparison(Struct, tag="ncm_comparison", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A cached generation's codes were compared with the uncached one's."""

    generation_id: Annotated[str, about("id of the generation")]
    pair_id: Annotated[str, about("uncached generation of the same batch, seed, repeat, exit and timing")]
    equal: Annotated[bool, about("all codes are the uncached one's; NULL: not compared")]
    diverged_level: Annotated[Count | None, about("first level with another code, of any sample")] = None
    tolerance: Annotated[float | None, about("how much greater a logit may be for a near tie")] = None
    near_tie: Annotated[bool | None, about("whether every sample's first other codes are near ties")] = None


class LevelRecord(Struct, tag="level", tag_field="type", omit_defaults=True, gc=False):
    """One level of a coarse-to-fine generation: one forward, codes, the reconstruction so far.

    Not keyword-only, as RoundRecord is not.
    """

    generation_id: Annotated[str, about("generation it belongs to")]
    level: Annotated[Count, about("position in the hierarchy, from 0")]
    start_ns: Annotated[Count, about("start of the level, after the generation's anchor", "ns")]
    t_level_ns: Annotated[Count, about("start of the forward to the end of checking and compaction", "ns")]
    length: Annotated[Count, about("positions a sample of this level (l[k])", "positions")]
    batch: Annotated[Count, about("samples that this level processed")]
    forwards: Annotated[Count, about("forwards of the generator")]
    prefix_processed: Annotated[
        Count, about("prefix positions that each layer processed, over all samples", "positions")
    ]
    level_processed: Annotated[Count, about("level positions that each layer processed, over all samples", "positions")]
    prefix_reused: Annotated[Count, about("prefix positions whose kept states each layer read instead", "positions")]
    pairs_allowed: Annotated[Count, about("query/key pairs the masks allow a head, over layers and samples", "pairs")]
    pairs_computed: Annotated[Count, about("query/key pairs of the shapes that ran, over layers and samples", "pairs")]
    kv_bytes: Annotated[
        Count, about("what the prefix's kept keys and values took, without the room for a level's beside them", "bytes")
    ]
    syncs: Annotated[Count, about("device synchronisations")]
    n_exited: Annotated[Count, about("samples whose partial decode was valid, and which left after this level")]
    forward_ns: Annotated[Count, about("the generator's forward", "ns")]
    sample_ns: Annotated[Count, about("choosing codes from logits", "ns")]
    reconstruct_ns: Annotated[Count, about("adding the codes to the cumulative reconstruction", "ns")]
    decode_ns: Annotated[Count, about("decoding the partial hierarchy, for the check", "ns")]
    check_ns: Annotated[Count, about("checking, and taking finished samples out of the batch", "ns")]
    forward_basis: Annotated[Basis | None, about("what forward_ns was timed by; NULL: the stage was not entered")] = (
        None
    )
    sample_basis: Annotated[Basis | None, about("what sample_ns was timed by")] = None
    reconstruct_basis: Annotated[Basis | None, about("what reconstruct_ns was timed by")] = None
    decode_basis: Annotated[Basis | None, about("what decode_ns was timed by")] = None
    check_basis: Annotated[Basis | None, about("what check_ns was timed by")] = None
    codes_digest: Annotated[
        str | None, about("sha256 over this level's codes; NULL: they were not read at this level")
    ] = None
