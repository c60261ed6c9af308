"""What a coarse-to-fine generation leaves behind: its start, every level, its end, by one anchor of the two clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from runtime.device import peak_memory, reset_peak_memory, syncs
from runtime.ncm.tally import Tally
from telemetry.context import Caller, remember
from telemetry.recorder import Recorder
from telemetry.records import LEVEL_STAGES, Basis, Exit, LevelRecord, NcmEnd, NcmFinish, NcmRecord, Timing

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig

Codes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Setting:
    """How a generation is done, as its record says it."""

    config: NcmConfig
    cache: bool
    exit: Exit
    timing: Timing
    seed: int
    temperature: float
    batch: int
    reused_prefix: bool

    @property
    def arm(self) -> str:
        """What is done, in a word or two."""
        return ("cache" if self.cache else "no-cache") + ("" if self.exit == "none" else " exit")


class Stopwatch:
    """Times stages: each ends with `mark`, so that they follow one another without gaps. `stages`: how long and by what
    each was timed.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.stages: dict[str, tuple[int, Basis]] = {}
        self._now = now
        self.start_ns = self._previous = now()

    def mark(self, stage: str, basis: Basis) -> None:
        """The time since the last mark was spent on `stage`."""
        now = self._now()
        self.stages[stage] = (now - self._previous, basis)
        self._previous = now


class OpenLevel(Stopwatch):
    """A level in progress."""

    def __init__(self, level: int, length: int, batch: int, now: Callable[[], int]) -> None:
        self.level, self.length, self.batch = level, length, batch
        self.tally = Tally()
        self.kv_bytes = self.n_exited = 0
        self.codes: list[list[int]] | None = None
        self._first_sync = syncs()
        super().__init__(now)

    @property
    def t_level_ns(self) -> int:
        """From the start to the last mark."""
        return self._previous - self.start_ns

    def record(self, generation_id: str, anchor_ns: int) -> LevelRecord:
        """The level as a record; `anchor_ns` is the generation's monotonic anchor."""
        tally = self.tally
        layers = max(1, tally.n_layers)
        stages: dict[str, Any] = {}
        for stage in LEVEL_STAGES:
            stages[f"{stage}_ns"], stages[f"{stage}_basis"] = self.stages.get(stage, (0, None))
        return LevelRecord(
            generation_id=generation_id,
            level=self.level,
            start_ns=self.start_ns - anchor_ns,
            t_level_ns=self.t_level_ns,
            length=self.length,
            batch=self.batch,
            forwards=tally.forwards,
            prefix_processed=tally.prefix // layers,
            level_processed=tally.level // layers,
            prefix_reused=tally.reused // layers,
            pairs_allowed=tally.allowed,
            pairs_computed=tally.computed,
            kv_bytes=self.kv_bytes,
            syncs=syncs() - self._first_sync,
            n_exited=self.n_exited,
            codes_digest=None if self.codes is None else digest_codes(self.codes),
            **stages,
        )


@dataclass
class NcmLog:
    """Writes the records of one generation to a recorder."""

    recorder: Recorder
    setting: Setting
    caller: Caller | None = None
    generation_id: str = field(init=False)
    n_levels: int = 0
    _anchor: int = 0
    _levels_ns: int = 0
    _last_end: int = 0
    _kv_bytes: int = 0
    _ending: Stopwatch | None = None

    def __post_init__(self) -> None:
        self.generation_id = self.recorder.new_id()
        remember(self.generation_id, self.caller)

    def begin(self) -> None:
        """Take the anchor and record that the generation starts."""
        reset_peak_memory()
        setting, labels, config = self.setting, self.recorder.labels, self.setting.config
        wall_ns = self.recorder.clock.wall_ns()
        self._anchor = self._last_end = self.recorder.clock.monotonic_ns()
        self.recorder.write(
            NcmRecord(
                generation_id=self.generation_id,
                run_id=self.recorder.run_id,
                arm=labels.arm or setting.arm,
                cache=setting.cache,
                exit=setting.exit,
                reused_prefix=setting.reused_prefix,
                timing=setting.timing,
                config=config.name,
                config_digest=config.digest,
                policy=config.policy,
                prefix_attention=config.prefix_attention,
                level_attention=config.level_attention,
                dtype=config.dtype,
                n_layers=config.n_layers,
                n_heads=config.n_heads,
                head_dim=config.head_dim,
                prefix_length=config.prefix_length,
                lengths=list(config.lengths),
                batch=setting.batch,
                trace_id=None if self.caller is None else self.caller.trace_id,
                parent_span_id=None if self.caller is None else self.caller.span_id,
                sampled=None if self.caller is None else self.caller.sampled,
                batch_id=labels.prompt_id,
                seed=setting.seed,
                temperature=setting.temperature,
                repeat=labels.repeat,
                sequence=labels.sequence,
                warm_up=labels.warm_up,
                started_wall_ns=wall_ns,
                started_monotonic_ns=self._anchor,
            )
        )

    def open_level(self, level: int, batch: int) -> OpenLevel:
        """Start the stopwatch of a level over `batch` samples."""
        return OpenLevel(level, self.setting.config.lengths[level], batch, self.recorder.clock.monotonic_ns)

    def close_level(self, opened: OpenLevel) -> None:
        """Record a level that is over."""
        self.recorder.write(opened.record(self.generation_id, self._anchor))
        self.n_levels += 1
        self._levels_ns += opened.t_level_ns
        self._last_end = opened.start_ns + opened.t_level_ns
        self._kv_bytes = max(self._kv_bytes, opened.kv_bytes)

    def open_end(self) -> Stopwatch:
        """Start the stopwatch of what comes after the levels."""
        self._ending = Stopwatch(self.recorder.clock.monotonic_ns)
        return self._ending

    def end(
        self, reason: NcmFinish, codes: Sequence[Codes], n_solved: int | None, error: BaseException | None = None
    ) -> None:
        """Record the end; `codes` are those of all samples, by level, as far as they came to the host."""
        now = self.recorder.clock.monotonic_ns()
        stages = {} if self._ending is None else self._ending.stages
        decode, check = (stages.get(stage, (None, None)) for stage in ("decode", "check"))
        self.recorder.write(
            NcmEnd(
                generation_id=self.generation_id,
                finish_reason=reason,
                n_levels=self.n_levels,
                n_solved=n_solved,
                total_ns=now - self._anchor,
                levels_ns=self._levels_ns,
                finish_ns=now - self._last_end,
                decode_ns=decode[0],
                check_ns=check[0],
                decode_basis=decode[1],
                check_basis=check[1],
                peak_memory_bytes=peak_memory(),
                kv_bytes=self._kv_bytes,
                codes_digest=digest_codes([level for sample in codes for level in sample]),
                error_type=None if error is None else type(error).__name__,
            )
        )


def digest_codes(codes: Codes) -> str:
    """sha256 over rows of codes and where they end."""
    return sha256(repr([[*row] for row in codes]).encode()).hexdigest()
