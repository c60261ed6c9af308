"""Does what a plan says: warm-up, interleaved arms, the attributed pass; holds cached codes against uncached ones.

Fair: the arms of a block run one after the other on the same batch with the same seed, in the plan's seeded order, and
each generation ends with the device idle. An interruption ends the run after the open generation and keeps what was
measured.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.device import drain
from runtime.experiment.signals import catch_signals
from runtime.ncm.experiment.comparison import Comparer
from runtime.ncm.experiment.plan import Arm, Batch, Block, Plan
from telemetry.fields import Exit, Timing
from telemetry.logs import get_logger
from telemetry.ncm_records import NcmComparison
from telemetry.recorder import Recorder

if TYPE_CHECKING:
    from runtime.ncm.generation import NcmOutput
    from runtime.ncm.model import NcmModel


class Execution:
    """One execution of a plan.

    progress: called after every generation. `interrupted` tells whether it was stopped early; `divergent` counts, by
    arm, cached generations whose codes are not the uncached one's, and at no near tie; `shown` is the latest output
    that solves something, else the first, with its batch.
    """

    def __init__(
        self, plan: Plan, model: NcmModel, recorder: Recorder, progress: Callable[[], None] = lambda: None
    ) -> None:
        self.interrupted = False
        self.divergent: Counter[str] = Counter()
        self.shown: tuple[Batch, NcmOutput] | None = None
        self.samples = plan.samples
        self._plan = plan
        self._model = model
        self._recorder = recorder
        self._progress = progress
        self._comparer = Comparer(model, plan.request.seed, plan.request.temperature)
        self._sequence = 0

    def run(self) -> None:
        """Do everything, or as much as an interrupt (Ctrl-C, SIGTERM) lets it."""
        with catch_signals(self):
            self._warm_up()
            for block in self._plan.blocks:
                self._run_block(block, self._plan.request.timing)
            for block in self._plan.attributed:
                self._run_block(block, "attributed")
        gc.unfreeze()

    def interrupt(self) -> None:
        """End the execution after the open generation."""
        self.interrupted = True

    def _warm_up(self) -> None:
        for arm in self._plan.arms:
            self._generate(arm, self._plan.batches[0], 0, self._plan.request.timing, warm_up=True)
        # What is alive now stays alive; the collector need not walk it between timed generations.
        gc.collect()
        gc.freeze()

    def _run_block(self, block: Block, timing: Timing) -> None:
        done: dict[tuple[bool, Exit], NcmOutput] = {}
        for arm in block.arms:
            output = self._generate(arm, block.batch, block.repeat, timing)
            if output is not None:
                done[arm.cache, arm.exit] = output
        for cached in (arm for arm in block.arms if arm.cache):
            ours, theirs = done.get((False, cached.exit)), done.get((True, cached.exit))
            if ours is not None and theirs is not None:
                self._compare(cached, block.batch, ours, theirs)

    def _compare(self, arm: Arm, batch: Batch, uncached: NcmOutput, cached: NcmOutput) -> None:
        record = self._comparer.compare(batch.conditioning, batch.sample_ids, uncached, cached)
        if not (record.equal or record.near_tie):
            self.divergent[arm.name] += 1
        if not record.equal:
            _tell(record, arm.name)
        self._recorder.write(record)

    def _generate(
        self, arm: Arm, batch: Batch, repeat: int, timing: Timing, *, warm_up: bool = False
    ) -> NcmOutput | None:
        if self.interrupted:
            return None
        from runtime.ncm.generation import generate

        request = self._plan.request
        recorder = self._recorder.label(
            arm=arm.name, prompt_id=batch.id, repeat=repeat, sequence=self._sequence, warm_up=warm_up
        )
        self._sequence += 1
        output = generate(
            self._model,
            batch.conditioning,
            cache=arm.cache,
            seed=request.seed,
            temperature=request.temperature,
            exit=arm.exit,
            check=self._plan.samples.make_check(batch.conditioning),
            timing=timing,
            sample_ids=batch.sample_ids,
            recorder=recorder,
        )
        drain()
        if self.shown is None or any(output.solved or ()):
            self.shown = batch, output
        self._progress()
        return output


def _tell(record: NcmComparison, arm: str) -> None:
    facts = {
        "generation_id": record.generation_id,
        "arm": arm,
        "diverged_level": record.diverged_level,
        "tolerance": record.tolerance,
    }
    if record.near_tie:
        get_logger().warning("output.near_tie", **facts, effect="allowed: rounding may close such a gap")
    else:
        get_logger().warning("output.divergent", **facts, effect="the codes are not the uncached generation's")


def measure_pace(model: NcmModel, plan: Plan) -> float:
    """Seconds of an uncached generation of the first batch without exit, when kernels are warm. Nothing is recorded."""
    from runtime.ncm.generation import generate

    for _ in range(2):
        start = time.perf_counter()
        generate(model, plan.batches[0].conditioning, cache=False)
        drain()
    return time.perf_counter() - start
