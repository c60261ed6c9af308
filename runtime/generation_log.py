"""What a generation leaves behind: its start, every round, its end, by one anchor of the two clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.device import peak_memory, reset_peak_memory
from runtime.protocols import CompositeDrafter, SamplingDrafter, can_decode
from runtime.rounds import OpenRound, Round
from runtime.sampling import Sampling
from runtime.session import Session
from telemetry.context import Caller, remember
from telemetry.fields import Drawing, FinishReason, ProposalSource, Timing
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd, GenerationRecord
from telemetry.span_data import derive_context

if TYPE_CHECKING:
    from runtime.generation import Stepper


class GenerationLog:
    """Writes the records of one generation to a recorder."""

    def __init__(self, recorder: Recorder, *, timing: Timing, cached_tokens: int, caller: Caller | None = None) -> None:
        self._caller = caller
        self.generation_id = recorder.new_id()
        remember(self.generation_id, caller)
        self.end_of_prefill: int | None = None
        self._recorder = recorder
        self._now = recorder.clock.monotonic_ns
        self._timing = timing
        self._cached_tokens = cached_tokens
        self._anchor: int | None = None
        self._n_rounds = 0
        self._rounds_ns = 0
        self._consumer_ns = 0
        self._first_token: int | None = None
        self._last_end = self._handed_out = 0

    @property
    def traceparent(self) -> str:
        """The root span's W3C context."""
        if self._recorder.rank is None or self._caller is None:
            return derive_context(self.generation_id, self._caller).traceparent
        # A rank's generation is a trace of its own, linked to the run's context.
        return replace(derive_context(self.generation_id, None), sampled=self._caller.sampled).traceparent

    def begin(self, session: Session, stepper: Stepper) -> None:
        """Take the anchor and record that the generation starts."""
        reset_peak_memory()
        labels, sampling = self._recorder.labels, session.sampling
        wall_ns = self._recorder.clock.wall_ns()
        anchor = self.take_anchor()
        self._recorder.write(
            GenerationRecord(
                generation_id=self.generation_id,
                run_id=self._recorder.run_id,
                arm=labels.arm or stepper.arm,
                drafter=None if stepper.drafter is None else stepper.drafter.name,
                draft_length=stepper.draft_length,
                controlled=stepper.controlled,
                pipelined=stepper.pipelined,
                timing=self._timing,
                model=getattr(session.target, "name", type(session.target).__name__),
                prompt_id=labels.prompt_id,
                class_=labels.class_,
                repeat=labels.repeat,
                sequence=labels.sequence,
                warm_up=labels.warm_up,
                prompt_tokens=session.prompt_length,
                cached_tokens=self._cached_tokens,
                max_tokens=session.max_tokens,
                n_processors=len(session.processors),
                kv_bits=None if session.quantising is None else session.quantising.bits,
                policy=_name_policy(stepper, sampling),
                relaxation=stepper.relaxation,
                temperature=None if sampling is None else sampling.temperature,
                top_k=None if sampling is None else sampling.top_k,
                top_p=None if sampling is None else sampling.top_p,
                min_p=None if sampling is None else sampling.min_p,
                seed=None if sampling is None else sampling.seed,
                repetition_penalty=None if session.penalty is None else session.penalty.penalty,
                repetition_context=None if session.penalty is None else session.penalty.context,
                q_source=_name_source(stepper),
                coupling=stepper.coupling,
                started_wall_ns=wall_ns,
                started_monotonic_ns=anchor,
                trace_id=None if self._caller is None else self._caller.trace_id,
                parent_span_id=None if self._caller is None else self._caller.span_id,
                sampled=None if self._caller is None else self._caller.sampled,
                rank=self._recorder.rank,
                prompt_ids=session.history[:] if self._recorder.record_text else None,
            )
        )

    def take_anchor(self) -> int:
        """Every moment is counted from here."""
        self._anchor = self._now()
        return self._anchor

    def end_prefill(self) -> None:
        """Prefill is done: decoding is timed from here."""
        self.end_of_prefill = self._last_end = self._now()

    def open_round(self) -> OpenRound:
        """Start the next round's stopwatch."""
        open_round = OpenRound(self._n_rounds, self._now)
        if self._n_rounds:
            self._consumer_ns += open_round.start_ns - self._handed_out
        return open_round

    def close_round(self, open_round: OpenRound) -> Round:
        """Record a round that is over, and return what its caller gets."""
        closed = open_round.close()
        self.record_round(open_round, closed)
        if self._first_token is None and closed.committed:
            self._first_token = self._last_end
        self._handed_out = self._now()
        return closed

    def record_round(self, open_round: OpenRound, closed: Round) -> None:
        """Write the record of a closed round, and keep the sums for the generation's end."""
        assert self._anchor is not None
        recorder = self._recorder
        recorder.write(open_round.record(closed, self.generation_id, self._anchor, with_text=recorder.record_text))
        self._n_rounds += 1
        self._rounds_ns += closed.t_round_ns
        self._last_end = open_round.end_ns

    def end(self, session: Session, reason: FinishReason, error: BaseException | None) -> Callable[[], None] | None:
        """Record the end; the result shows it to who is shown late. One that never started leaves no records."""
        if self._anchor is None:
            return None
        prefilled = self.end_of_prefill
        now = self._now()
        decode_ns = 0 if prefilled is None else self._last_end - prefilled
        return self._recorder.write_end(
            GenerationEnd(
                generation_id=self.generation_id,
                finish_reason=reason,
                stop_kind=None if session.stop is None else session.stop.kind,
                n_rounds=self._n_rounds,
                n_committed=len(session.output),
                prefill_ns=(now if prefilled is None else prefilled) - self._anchor,
                decode_ns=decode_ns,
                unaccounted_ns=decode_ns - self._rounds_ns,
                consumer_ns=self._consumer_ns,
                ttft_ns=None if self._first_token is None else self._first_token - self._anchor,
                total_ns=now - self._anchor,
                peak_memory_bytes=peak_memory(),
                cache_bytes=session.cache.nbytes,
                snapshot_bytes=session.snapshot_bytes,
                error_type=None if error is None else type(error).__name__,
                text=session.text() if self._recorder.record_text and can_decode(session.target) else None,
            )
        )


def _name_policy(stepper: Stepper, sampling: Sampling | None) -> Drawing:
    if stepper.relaxation is not None:
        return "relaxed"
    return "greedy" if sampling is None else "stochastic"


def _name_source(stepper: Stepper) -> ProposalSource | None:
    if stepper.coupling != "residual":
        return None
    drafter = stepper.drafter
    parts = drafter.parts if isinstance(drafter, CompositeDrafter) else (drafter,)
    return "drafter" if any(isinstance(part, SamplingDrafter) for part in parts) else "point"
