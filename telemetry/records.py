"""What is recorded: every field once, with its type, unit and meaning.

The journal's lines, the tables in DuckDB, the checks at loading time and docs/records.md all follow from the
structs below and in `telemetry.ncm_records`. A struct is one kind of journal line (its `type`); `telemetry.tables` says
which kinds make up the rows of which table. Durations are nanoseconds of the monotonic clock; moments are nanoseconds
since the Unix epoch (`..._wall_ns`).
"""

# Without `from __future__ import annotations`: as text, 300 annotations would be compiled one by one at every start.
from typing import Annotated, TypeAlias, get_args

import msgspec
from msgspec import Struct

from telemetry.fields import (
    Basis,
    Count,
    Coupling,
    Drawing,
    FinishReason,
    Outcome,
    Power,
    ProposalSource,
    RankFinish,
    Reason,
    RunKind,
    RunOutcome,
    StopKind,
    Timing,
    Way,
    about,
)
from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord

SCHEMA_VERSION = 1
"""Raised whenever a field changes its meaning; a database of another version is rebuilt from the journals."""


class JournalRecord(Struct, tag="journal", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """The first line of a journal: who writes it."""

    schema_version: Annotated[Count, about("version of the records in this file")]
    host: Annotated[str, about("name of the writing machine")]
    pid: Annotated[Count, about("process id of the writer")]
    created_wall_ns: Annotated[Count, about("when the file was opened", "ns since epoch")]
    roundscope_version: Annotated[str, about("version of roundscope that wrote the file")]


class Environment(Struct, kw_only=True, omit_defaults=True, gc=False):
    """Where a run took place. What can change speed or numerics is here, so that two runs can be told apart."""

    roundscope_version: Annotated[str, about("version of roundscope")]
    python_version: Annotated[str, about("version of Python")]
    mlx_version: Annotated[str, about("version of mlx")]
    mlx_lm_version: Annotated[str | None, about("version of mlx-lm, if installed")] = None
    os: Annotated[str, about("operating system and its release")]
    machine: Annotated[str, about("processor architecture")]
    host: Annotated[str, about("name of the machine")]
    cpu: Annotated[str, about("processor model")]
    cores: Annotated[Count, about("processors this process may use")]
    device: Annotated[str, about("MLX's default device")]
    blas: Annotated[str, about("library behind float32 matmul on the CPU: openblas, stock, accelerate, ...")]
    blas_version: Annotated[str | None, about("version or build string of that library, if it tells")] = None
    blas_threads: Annotated[Count | None, about("threads that library uses, if it tells")] = None
    precision: Annotated[dict[str, str], about("environment variables that change precision, those that are set")]
    load1: Annotated[float | None, about("load average over one minute when the run began")] = None
    power: Annotated[Power | None, about("what the machine drew from then; NULL: the system does not tell")] = None
    speed_limit: Annotated[
        float | None, about("percentage of its processors' speed that the system allowed then, where it tells (macOS)")
    ] = None
    throttle_count: Annotated[
        Count | None, about("times processors had been slowed for heat until then, where the system counts (Linux)")
    ] = None


class RunRecord(Environment, tag="run", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A run begins: what was asked for, and where."""

    kind: Annotated[RunKind, about("speculation: rounds beside ordinary decoding; ncm: levels, cached and uncached")]
    run_id: Annotated[str, about("id of the run; sorts by time")]
    started_wall_ns: Annotated[Count, about("when the run began", "ns since epoch")]
    command: Annotated[str, about("command line, as a shell would take it")]
    model: Annotated[str, about("name of the target")]
    dtype: Annotated[str, about("type of the target's weights")]
    parameter_bytes: Annotated[Count, about("size of the target's weights", "bytes")]
    workload: Annotated[str, about("name of the workload")]
    workload_digest: Annotated[str, about("sha256 over the prompts")]
    n_prompts: Annotated[Count, about("prompts of the workload")]
    arms: Annotated[list[str], about("arms compared; the first is ordinary decoding")]
    timing: Annotated[Timing, about("timing mode asked for")]
    seed: Annotated[int, about("seed of the order of prompts and arms, and of what was drawn")]
    max_tokens: Annotated[Count, about("limit of output per generation", "tokens")]
    repeats: Annotated[Count, about("times every prompt is run by every arm")]
    record_text: Annotated[bool, about("whether token ids and text were kept")]


class RunEnd(Struct, tag="run_end", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A run is over."""

    run_id: Annotated[str, about("id of the run")]
    outcome: Annotated[
        RunOutcome, about("how the run ended; incomplete: a rank of it did not complete; NULL: it has not")
    ]
    ended_wall_ns: Annotated[Count, about("when the run ended", "ns since epoch")]
    load1_end: Annotated[float | None, about("load average over one minute when the run ended")] = None
    power_end: Annotated[Power | None, about("what the machine drew from then")] = None
    speed_limit_end: Annotated[float | None, about("percentage of its processors' speed allowed then")] = None
    throttle_count_end: Annotated[Count | None, about("times processors had been slowed for heat until then")] = None


class RankRecord(Struct, tag="rank", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A process takes its part in a distributed run, and its wall clock was held against rank 0's."""

    run_id: Annotated[str, about("id of the run, the same on all ranks")]
    rank: Annotated[Count, about("rank of the process, from 0")]
    size: Annotated[Count, about("ranks of the run")]
    host: Annotated[str, about("name of its machine")]
    pid: Annotated[Count, about("its process id")]
    backend: Annotated[str, about("backend of MLX's distributed engine: ring, mpi, nccl or jaccl")]
    n_prompts: Annotated[Count, about("prompts of the workload that fall to this rank")]
    started_wall_ns: Annotated[Count, about("when the ranks had found each other, by its own clock", "ns since epoch")]
    offset_ns: Annotated[int, about("its wall clock less rank 0's, estimated when the run began; of rank 0: 0", "ns")]
    uncertainty_ns: Annotated[
        Count, about("how far the offset may be off: half the round trip of the best exchange", "ns")
    ]


class RankEnd(Struct, tag="rank_end", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A rank of a distributed run is over."""

    run_id: Annotated[str, about("id of the run")]
    rank: Annotated[Count, about("rank of the process")]
    finish_reason: Annotated[
        RankFinish,
        about(
            "complete, interrupted, error; without an end record: running, aborted (its process died), or unknown "
            "(another host's)"
        ),
    ]
    error_type: Annotated[str | None, about("class of the exception, if it failed")] = None
    n_generations: Annotated[Count, about("generations that it began, warm-up included")]
    ended_wall_ns: Annotated[Count, about("when it ended, by its own clock", "ns since epoch")]


class GenerationRecord(Struct, tag="generation", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A generation begins. One pair of clock readings anchors every moment in it."""

    generation_id: Annotated[str, about("id of the generation: 32 hexadecimal digits")]
    run_id: Annotated[str | None, about("run it belongs to; NULL: recorded outside `roundscope run`")] = None
    arm: Annotated[str, about("what was done: `ordinary`, or drafter and draft length")]
    drafter: Annotated[str | None, about("name of the drafter; NULL: ordinary decoding")] = None
    draft_length: Annotated[Count, about("proposed tokens asked for per round at most (m)", "tokens")]
    controlled: Annotated[
        bool | None,
        about("a controller chose m for each round, up to draft_length; NULL: written before there was one"),
    ] = None
    pipelined: Annotated[bool, about("whether the next step is launched before the last one is read")]
    timing: Annotated[Timing, about("timing mode")]
    model: Annotated[str, about("name of the target")]
    prompt_id: Annotated[str | None, about("prompt's id in the workload")] = None
    class_: Annotated[str | None, about("prompt's class in the workload")] = msgspec.field(default=None, name="class")
    repeat: Annotated[Count, about("which repetition of the prompt, from 0")]
    sequence: Annotated[Count, about("position in the order of execution within the run, from 0")]
    warm_up: Annotated[bool, about("left out of every figure")]
    prompt_tokens: Annotated[Count, about("length of the prompt", "tokens")]
    cached_tokens: Annotated[Count, about("prompt tokens already in a kept cache", "tokens")]
    max_tokens: Annotated[Count, about("limit of the output", "tokens")]
    n_processors: Annotated[Count, about("logits processors applied to every token")]
    kv_bits: Annotated[Count | None, about("bits of a quantised K/V cache; NULL: not quantised", "bits")] = None
    policy: Annotated[
        Drawing | None,
        about(
            "greedy: the argmax; stochastic: draws, verified by p and q; relaxed: not exact, accepts more than the "
            "target's output allows; NULL: written before there was a choice"
        ),
    ] = None
    relaxation: Annotated[
        str | None, about("the rule of a relaxed generation, whose output is not the target's; NULL: exact")
    ] = None
    temperature: Annotated[float | None, about("temperature that divides the logits; NULL: greedy")] = None
    top_k: Annotated[Count | None, about("likeliest tokens that are kept; 0: all; NULL: greedy", "tokens")] = None
    top_p: Annotated[float | None, about("mass of the likeliest tokens that are kept; 1: all; NULL: greedy")] = None
    min_p: Annotated[
        float | None, about("share of the likeliest token's probability that is kept from; 0: all; NULL: greedy")
    ] = None
    seed: Annotated[Count | None, about("seed of what was drawn; NULL: greedy")] = None
    repetition_penalty: Annotated[
        float | None, about("what divides positive and multiplies negative logits of recent tokens; NULL: none")
    ] = None
    repetition_context: Annotated[
        Count | None, about("last tokens of the history that the penalty acts on; NULL: none", "tokens")
    ] = None
    q_source: Annotated[
        ProposalSource | None,
        about(
            "what proposals were judged by: point, a point mass; drafter, its own q (in a composed one rounds have "
            "theirs); NULL: by no q"
        ),
    ] = None
    coupling: Annotated[
        Coupling | None,
        about(
            "residual: accepted with min(1, p/q), corrected from the residual; equality: accepted if the target drew "
            "it too; NULL: greedy, relaxed, or no drafter"
        ),
    ] = None
    started_wall_ns: Annotated[Count, about("wall clock at the anchor, the start of prefill", "ns since epoch")]
    started_monotonic_ns: Annotated[Count, about("monotonic clock at the anchor", "ns")]
    trace_id: Annotated[str | None, about("trace of the caller's context; NULL: one of its own, generation_id")] = None
    parent_span_id: Annotated[str | None, about("span of the caller that it is a child of; NULL: none")] = None
    sampled: Annotated[bool | None, about("the caller's sampling flag; NULL: no caller. It thins spans only")] = None
    rank: Annotated[Count | None, about("rank of the process in a distributed run; NULL: it is none")] = None
    prompt_ids: Annotated[list[int] | None, about("the prompt's token ids; only with --record-text")] = None


class GenerationEnd(Struct, tag="generation_end", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A generation is over."""

    generation_id: Annotated[str, about("id of the generation")]
    finish_reason: Annotated[
        FinishReason,
        about("stop, length, cancelled, error; without an end record: running, aborted, or unknown (another host's)"),
    ]
    stop_kind: Annotated[StopKind | None, about("what ended it, if it was a stop")] = None
    n_rounds: Annotated[Count, about("rounds recorded")]
    n_committed: Annotated[Count, about("output", "tokens")]
    prefill_ns: Annotated[Count, about("start of prefill to its barrier; the drafter's reset is in it", "ns")]
    decode_ns: Annotated[Count, about("prefill's barrier to the end of the last round", "ns")]
    unaccounted_ns: Annotated[Count, about("decode_ns less the sum of T_round; the consumer's time is in it", "ns")]
    consumer_ns: Annotated[
        Count, about("part of unaccounted_ns between handing a round out and being asked again", "ns")
    ]
    ttft_ns: Annotated[Count | None, about("start of prefill to the first committed token; NULL: none", "ns")] = None
    total_ns: Annotated[Count, about("start of prefill to the end of closing", "ns")]
    peak_memory_bytes: Annotated[Count, about("MLX's peak memory during the generation", "bytes")]
    cache_bytes: Annotated[Count, about("K/V cache of the target at the end", "bytes")]
    snapshot_bytes: Annotated[Count, about("most that snapshots of target and drafter held in a round", "bytes")]
    error_type: Annotated[str | None, about("class of the exception, if it failed")] = None
    text: Annotated[str | None, about("the output; only with --record-text")] = None


class ComparisonRecord(Struct, tag="comparison", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """A generation's output was compared with ordinary decoding's."""

    generation_id: Annotated[str, about("id of the generation")]
    pair_id: Annotated[str, about("ordinary generation of the same prompt and repeat")]
    equal: Annotated[bool, about("committed ids are ordinary's; NULL: not compared")]
    diverged_at: Annotated[Count | None, about("first output position that differs", "tokens")] = None
    diverged_round: Annotated[Count | None, about("round that committed that position")] = None
    top2_gap: Annotated[float | None, about("gap between the target's two best logits there, on ordinary's prefix")] = (
        None
    )
    tolerance: Annotated[float | None, about("gap up to which a divergence counts as a near tie")] = None
    near_tie: Annotated[bool | None, about("whether the divergence is at a near tie")] = None


class RoundRecord(Struct, tag="round", tag_field="type", omit_defaults=True, gc=False):
    """One round: draft, verify, synchronize, trim, rewind. Ordinary decoding's rounds are single steps.

    Not keyword-only: it is made once a round, and 30 keywords cost eight times what the order of the fields does.
    """

    generation_id: Annotated[str, about("generation it belongs to")]
    index: Annotated[Count, about("position within the generation, from 0")]
    start_ns: Annotated[Count, about("start of drafting, after the generation's anchor", "ns")]
    t_round_ns: Annotated[Count, about("T_round: start of drafting to the end of rewinding", "ns")]
    requested: Annotated[Count, about("proposed tokens asked for: min(m, budget - 1)", "tokens")]
    proposed: Annotated[Count, about("proposed tokens returned", "tokens")]
    accepted: Annotated[
        Count,
        about("leading proposed tokens that equal the target's, or stand by p and q, and were committed (A)", "tokens"),
    ]
    committed: Annotated[Count, about("tokens that became output (C)", "tokens")]
    cut: Annotated[Count, about("proposed tokens never judged: EOS, a stop or cancellation came first", "tokens")]
    outcome: Annotated[Outcome, about("how the round ended")]
    width: Annotated[Count, about("positions in the verify forward; 0: none was made", "positions")]
    processed: Annotated[Count, about("rows that logits processors were applied to, one by one", "positions")]
    syncs: Annotated[Count, about("device synchronisations")]
    cache_length: Annotated[Count, about("positions the target's cache holds afterwards", "positions")]
    trim_way: Annotated[Way, about("how rejected positions left the target's cache")]
    replayed: Annotated[
        Count, about("accepted positions fed again in this round, after a snapshot took them back", "positions")
    ]
    rewind_way: Annotated[Way, about("how the drafter came back to the committed history")]
    draft_ns: Annotated[Count, about("drafting; what the drafter's model feeds again after a snapshot is in it", "ns")]
    verify_ns: Annotated[Count, about("verification's forward; what is fed again after a snapshot is in it", "ns")]
    synchronize_ns: Annotated[Count, about("reading the target's tokens", "ns")]
    trim_ns: Annotated[Count, about("taking rejected positions out of the target's cache", "ns")]
    rewind_ns: Annotated[Count, about("bringing the drafter back to the committed history", "ns")]
    draft_basis: Annotated[Basis | None, about("what draft_ns was timed by; NULL: the stage was not entered")] = None
    verify_basis: Annotated[Basis | None, about("what verify_ns was timed by")] = None
    synchronize_basis: Annotated[Basis | None, about("what synchronize_ns was timed by")] = None
    trim_basis: Annotated[Basis | None, about("what trim_ns was timed by")] = None
    rewind_basis: Annotated[Basis | None, about("what rewind_ns was timed by")] = None
    drafter_length: Annotated[Count | None, about("positions the drafter's state covers afterwards", "positions")] = (
        None
    )
    proposer: Annotated[
        str | None,
        about(
            "which part of a composed drafter proposed, or was chosen by the controller to, even if it had nothing; "
            "NULL: none, or the drafter is not composed"
        ),
    ] = None
    stop_kind: Annotated[StopKind | None, about("what ended the generation in this round")] = None
    proposal: Annotated[list[int] | None, about("the proposed ids; only with --record-text")] = None
    tokens: Annotated[list[int] | None, about("the committed ids; only with --record-text")] = None
    overlap: Annotated[
        float | None,
        about(
            "sum of 1 - TV(p, q) over the proposed tokens that were judged, p(y) of each where q is a point mass; "
            "measured after the round, in attributed timing at a temperature; NULL: not measured"
        ),
    ] = None
    overlap_positions: Annotated[Count | None, about("proposed tokens that overlap sums over", "tokens")] = None
    reason: Annotated[
        Reason | None,
        about(
            "why the controller chose this m (requested): best, by its estimates; prior, as nothing of that proposer "
            "was judged yet; probe, to learn; budget, 0, as a probe was due and too much had been lost; landing, 0, as "
            "a step was in flight; last, 0, as one token was left; NULL: there was no controller"
        ),
    ] = None
    expected_ns: Annotated[Count | None, about("time a committed token that it expected of its choice", "ns")] = None
    expected_step_ns: Annotated[Count | None, about("time that it expected of an ordinary step", "ns")] = None
    q_source: Annotated[
        ProposalSource | None,
        about(
            "what this round's proposal was judged by, where the parts of a composed drafter propose: point, a point "
            "mass; drafter, its own q; NULL: the same as in the generation"
        ),
    ] = None


class ForecastRecord(Struct, tag="forecast", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """What a drafter would have offered at every position of an ordinary output: counts, no tokens."""

    generation_id: Annotated[str, about("ordinary generation whose output it was")]
    spec: Annotated[str, about("drafter as the arms name it, with its options")]
    longest: Annotated[Count, about("proposed tokens asked for at every position", "tokens")]
    prompt_tokens: Annotated[Count, about("length of the prompt", "tokens")]
    offered: Annotated[list[int], about("tokens offered at each output position", "tokens")]
    right: Annotated[list[int], about("of these, leading ones that are the output's", "tokens")]


class VerifyCostRecord(Struct, tag="verify_cost", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """What a forward of the target costs, by its width and the length of the context."""

    calibration_id: Annotated[str, about("id of the measurement that all its widths and contexts share")]
    run_id: Annotated[str | None, about("run it was made in; NULL: by `roundscope calibrate`")] = None
    model: Annotated[str, about("name of the target")]
    dtype: Annotated[str, about("type of the target's weights")]
    context: Annotated[Count, about("positions in the cache before the forward", "positions")]
    width: Annotated[Count, about("positions of the forward", "positions")]
    n: Annotated[Count, about("times it was measured")]
    verify_ns: Annotated[Count, about("median time from launching the forward to its tokens on the host", "ns")]
    fastest_ns: Annotated[Count, about("shortest of these times", "ns")]
    slowest_ns: Annotated[Count, about("longest of these times", "ns")]


class LossRecord(Struct, tag="loss", tag_field="type", kw_only=True, omit_defaults=True, gc=False):
    """Records that could not be written to this journal, noted as soon as writing worked again."""

    n_records: Annotated[Count, about("records lost since the last such line")]
    reason: Annotated[str, about("the operating system's reason")]


Record: TypeAlias = (
    JournalRecord
    | RunRecord
    | RunEnd
    | RankRecord
    | RankEnd
    | GenerationRecord
    | GenerationEnd
    | ComparisonRecord
    | RoundRecord
    | ForecastRecord
    | VerifyCostRecord
    | NcmRecord
    | NcmEnd
    | NcmComparison
    | LevelRecord
    | LossRecord
)
RECORD_TYPES: tuple[type[Struct], ...] = get_args(Record)
