"""What a coarse-to-fine generation leaves behind: its start, every level, its end, by one anchor of the two clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from runtime.device import peak_memory, reset_peak_memory, syncs
from runtime.ncm.tally import Tally
from telemetry.context import Caller, remember
from telemetry.fields import LEVEL_STAGES, Basis, Exit, NcmFinish, Timing
from telemetry.ncm_records import LevelRecord, NcmEnd, NcmRecord
from telemetry.recorder import Recorder

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig

Codes = Sequence[Sequence[int]]
_NOT_ENTERED: tuple[int, Basis | None] = (0, None)
HELD_NS = 1_000_000_000
"""How long the record of a level may wait for others: what a killed process can lose of a generation in progress."""
_encode = msgspec.json.Encoder().encode


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
    """Times stages: each ends with `mark`, so that they follow one another without gaps."""

    __slots__ = ("_marks", "_now", "start_ns")

    def __init__(self, now: Callable[[], int]) -> None:
        self._marks: list[tuple[str, Basis, int]] = []
        self._now = now
        self.start_ns = now()

    def mark(self, stage: str, basis: Basis) -> None:
        """The time since the last mark was spent on `stage`."""
        self._marks.append((stage, basis, self._now()))

    @property
    def end_ns(self) -> int:
        """The last mark's moment; before the first, the start."""
        return self._marks[-1][2] if self._marks else self.start_ns

    @property
    def stages(self) -> dict[str, tuple[int, Basis]]:
        """How long each stage took, in nanoseconds, and by what it was timed."""
        starts = [self.start_ns, *(moment for _, _, moment in self._marks)]
        return {stage: (end - start, basis) for (stage, basis, end), start in zip(self._marks, starts, strict=False)}


class OpenLevel(Stopwatch):
    """A level in progress."""

    __slots__ = ("batch", "codes", "first_sync", "kv_bytes", "length", "level", "n_exited", "n_syncs", "tally")

    def __init__(self, level: int, length: int, batch: int, now: Callable[[], int]) -> None:
        self.level, self.length, self.batch = level, length, batch
        self.tally = Tally()
        self.kv_bytes = self.n_exited = self.n_syncs = 0
        self.codes: list[list[int]] | None = None
        self.first_sync = syncs()
        super().__init__(now)

    @property
    def t_level_ns(self) -> int:
        """From the start to the last mark."""
        return self.end_ns - self.start_ns

    def record(self, generation_id: str, anchor_ns: int) -> LevelRecord:
        """The level as a record; `anchor_ns` is the generation's monotonic anchor."""
        tally, stages = self.tally, self.stages
        layers = max(1, tally.n_layers)
        forward, sample, reconstruct, decode, check = (stages.get(stage, _NOT_ENTERED) for stage in LEVEL_STAGES)
        # By position, in the order of the fields: a record is made in the middle of what it measures.
        return LevelRecord(
            generation_id,
            self.level,
            self.start_ns - anchor_ns,
            self.t_level_ns,
            self.length,
            self.batch,
            tally.forwards,
            tally.prefix // layers,
            tally.level // layers,
            tally.reused // layers,
            tally.allowed,
            tally.computed,
            self.kv_bytes,
            self.n_syncs,
            self.n_exited,
            forward[0],
            sample[0],
            reconstruct[0],
            decode[0],
            check[0],
            forward[1],
            sample[1],
            reconstruct[1],
            decode[1],
            check[1],
            None if self.codes is None else digest_codes(self.codes),
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
    _open: OpenLevel | None = None
    _closed: list[OpenLevel] = field(default_factory=list)
    _written: int = 0

    def __post_init__(self) -> None:
        self.generation_id = self.recorder.new_id()
        remember(self.generation_id, self.caller)

    def begin(self) -> None:
        """Take the anchor and record that the generation starts."""
        reset_peak_memory()
        setting, labels, config = self.setting, self.recorder.labels, self.setting.config
        wall_ns = self.recorder.clock.wall_ns()
        self._anchor = self._last_end = self._written = self.recorder.clock.monotonic_ns()
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
        """Start the stopwatch of a level over `batch` samples; the level before it is over.

        One call a level, and its record is written with those of others, at most `HELD_NS` later or at the end:
        forwards leave the processor's caches cold, so that a call between them costs what ten cost in a row.
        """
        opened = OpenLevel(level, self.setting.config.lengths[level], batch, self.recorder.clock.monotonic_ns)
        self._close_level(opened.first_sync)
        self._open = opened
        return opened

    def _close_level(self, sync: int) -> None:
        """The open level, if any, is over; `sync` synchronisations were made until then."""
        opened = self._open
        if opened is None:
            return
        opened.n_syncs = sync - opened.first_sync
        self._closed.append(opened)
        self._open = None
        self.n_levels += 1
        if opened.end_ns - self._written > HELD_NS:
            self._write_levels()

    def _write_levels(self) -> None:
        for opened in self._closed:
            self.recorder.write(opened.record(self.generation_id, self._anchor))
            self._levels_ns += opened.t_level_ns
            self._kv_bytes = max(self._kv_bytes, opened.kv_bytes)
            self._last_end = self._written = opened.end_ns
        self._closed.clear()

    def open_end(self) -> Stopwatch:
        """Start the stopwatch of what comes after the levels, which are over."""
        self._close_level(syncs())
        self._ending = Stopwatch(self.recorder.clock.monotonic_ns)
        return self._ending

    def end(
        self, reason: NcmFinish, codes: Sequence[Codes], n_solved: int | None, error: BaseException | None = None
    ) -> None:
        """Record the end; `codes` are those of all samples, by level, as far as they came to the host."""
        now = self.recorder.clock.monotonic_ns()
        self._write_levels()
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
    # Row by row: after a generation's many frees, glibc's malloc tidies up (0.1 ms) at the first request of over 1 kB.
    digest = sha256()
    for row in codes:
        digest.update(_encode(row))
    return digest.hexdigest()
