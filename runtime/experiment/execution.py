"""Does what a plan says: warm-up, interleaved arms, the attributed pass; compares every output; records everything.

Fair: the arms of a block run one after the other on the same prompt, in the plan's seeded order; drafters start
fresh; generations are drained without consumer work and end with the device idle. At a temperature outputs are draws
and are not compared, nor are those of a relaxed policy. An interruption ends the open generation after its round and
keeps what was measured.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

from runtime.experiment.calibration import WIDTHS, measure_verify_costs
from runtime.experiment.comparison import Output, compare
from runtime.experiment.forecast import LONGEST, can_forecast, forecast
from runtime.experiment.lengths import AUTO
from runtime.experiment.plan import ORDINARY, Arm, Block, Plan, PlannedPrompt
from runtime.experiment.signals import catch_signals
from runtime.generate import decode, speculate
from runtime.generation import Generation
from runtime.penalty import make_penalty
from runtime.speculative.controller import Controller
from runtime.speculative.costs import Curve
from runtime.targets import MlxTarget
from runtime.workloads.prompt_file import DEFAULT_CLASS
from telemetry.fields import Timing
from telemetry.logs import get_logger
from telemetry.recorder import Recorder
from telemetry.records import ComparisonRecord

WARM_UP_TOKENS = 16

CONTROL_WIDTHS = (1, 2, 3, 5, 9, 17)
CONTROL_REPEATS = 2
"""What is measured for controllers before the warm-up: under two seconds with the default target."""


class Execution:
    """One execution of a plan.

    progress: called after every generation. `interrupted` tells whether it was stopped early; `divergent` counts, by
    arm, outputs that differ from ordinary's beyond a near tie.
    """

    def __init__(
        self, plan: Plan, target: MlxTarget, recorder: Recorder, progress: Callable[[], None] = lambda: None
    ) -> None:
        self.interrupted = False
        self.divergent: Counter[str] = Counter()
        self._plan = plan
        self._target = target
        self._recorder = recorder
        self._progress = progress
        self._sequence = 0
        self._open: Generation | None = None
        self._ordinary: dict[tuple[str, int], Output] = {}
        penalty = make_penalty(plan.request.repetition_penalty, plan.request.repetition_context)
        self._processors = () if penalty is None else (penalty.make_processor(),)
        self._controllers: dict[str, Controller] = {}

    def run(self) -> None:
        """Do everything, or as much as an interrupt (Ctrl-C, SIGTERM) lets it."""
        with catch_signals(self):
            self._warm_up()
            for block in self._plan.blocks:
                self._run_block(block, self._plan.request.timing)
            for block in self._plan.attributed:
                self._run_block(block, "attributed")
            gc.unfreeze()
            if self._plan.request.forecasts:
                self._forecast()

    def interrupt(self) -> None:
        """End the open generation after its round, and the execution with it."""
        self.interrupted = True
        if self._open is not None:
            self._open.cancel()

    def _warm_up(self) -> None:
        first = self._plan.prompts[0]
        if self._plan.learns:
            self._teach()
        self._calibrate()
        for arm in self._plan.arms:
            self._generate(arm, first, 0, self._plan.request.timing, warm_up=True, max_tokens=WARM_UP_TOKENS)
        # What is alive now stays alive; the collector need not walk it between timed rounds.
        gc.collect()
        gc.freeze()

    def _calibrate(self) -> None:
        """Measure what forwards cost, once, for the controllers to begin with."""
        arms = [arm.name for arm in self._plan.arms if arm.is_auto]
        if not arms:
            return
        first, limit = self._plan.prompts[0].ids, self._target.max_positions
        lengths = [len(prompt.ids) for prompt in self._plan.prompts]
        contexts = {min(lengths), max(lengths) + self._plan.request.max_tokens // 2}
        measured = measure_verify_costs(
            self._target,
            first,
            [context for context in contexts if limit is None or context < limit],
            widths=CONTROL_WIDTHS,
            repeats=CONTROL_REPEATS,
            now=self._recorder.clock.monotonic_ns,
            go_on=lambda: not self.interrupted,
        )
        records = list(measured)
        curve = Curve.of(records) if records else None
        self._controllers = {name: Controller(curve) for name in arms}

    def _teach(self) -> None:
        ordinary = self._plan.arms[0]
        learners = {id(arm.drafter): arm.drafter for arm in self._plan.arms if arm.learns}
        for prompt in self._plan.prompts:
            done = self._generate(ordinary, prompt, 0, "fused", warm_up=True)
            if done is None:
                return
            for drafter in learners.values():
                drafter.learn(prompt.ids, done.tokens)  # type: ignore[union-attr]

    def _run_block(self, block: Block, timing: Timing) -> None:
        done: dict[str, Output] = {}
        for arm in block.arms:
            output = self._generate(arm, block.prompt, block.repeat, timing)
            if output is not None:
                done[arm.name] = output
        key = (block.prompt.item.id, block.repeat)
        if ORDINARY in done:
            self._ordinary[key] = done.pop(ORDINARY)
        ordinary = self._ordinary.get(key)
        if ordinary is None or self._plan.request.temperature:
            return
        exact = {arm.name for arm in block.arms if arm.is_exact}
        for name, output in done.items():
            if name not in exact:
                continue
            record = compare(self._target, block.prompt.ids, ordinary, output, self._processors)
            if not (record.equal or record.near_tie):
                self.divergent[name] += 1
            if not record.equal:
                _tell(record, name)
            self._recorder.write(record)

    def _forecast(self) -> None:
        """Record what other draft lengths would have done, and what verification costs by width."""
        drafters = {arm.spec: arm.drafter for arm in self._plan.arms if arm.drafter is not None and arm.draft_length}
        if not drafters or self.interrupted:
            return
        request, prompts = self._plan.request, {prompt.item.id: prompt for prompt in self._plan.prompts}
        longest = max(LONGEST, *(arm.draft_length for arm in self._plan.arms))
        for (prompt_id, repeat), ordinary in self._ordinary.items():
            for spec, drafter in drafters.items():
                if self.interrupted:
                    return
                if repeat == 0 and can_forecast(drafter):
                    ids = prompts[prompt_id].ids
                    self._recorder.write(forecast(drafter, spec, ids, ordinary.tokens, ordinary.generation_id, longest))
        context = int(median(len(prompt.ids) for prompt in prompts.values())) + request.max_tokens // 2
        costs = measure_verify_costs(
            self._target,
            self._plan.prompts[0].ids,
            [context],
            widths=sorted({*WIDTHS, longest + 1}),
            run_id=self._recorder.run_id,
            now=self._recorder.clock.monotonic_ns,
            go_on=lambda: not self.interrupted,
        )
        for record in costs:
            self._recorder.write(record)

    def _generate(
        self,
        arm: Arm,
        prompt: PlannedPrompt,
        repeat: int,
        timing: Timing,
        *,
        warm_up: bool = False,
        max_tokens: int | None = None,
    ) -> Output | None:
        if self.interrupted:
            return None
        recorder = self._recorder.label(
            arm=arm.name,
            prompt_id=prompt.item.id,
            class_=prompt.item.class_,
            repeat=repeat,
            sequence=self._sequence,
            warm_up=warm_up,
        )
        self._sequence += 1
        limit = min(self._plan.request.max_tokens, max_tokens or self._plan.request.max_tokens)
        generation = self._start(arm, prompt, repeat, timing, limit, recorder, is_warm_up=warm_up)
        committed = self._drain(generation)
        self._progress()
        return None if generation.finish_reason == "cancelled" else Output.of(generation, committed)

    def _start(
        self,
        arm: Arm,
        prompt: PlannedPrompt,
        repeat: int,
        timing: Timing,
        limit: int,
        recorder: Recorder,
        *,
        is_warm_up: bool,
    ) -> Generation:
        shared: dict[str, Any] = {"max_tokens": limit, "recorder": recorder}
        shared |= self._plan.request.sample(prompt.item.id, repeat)
        if arm.drafter is None:
            return decode(self._target, prompt.ids, **shared)
        shared |= {"coupling": arm.coupling, "policy": arm.policy, "timing": timing}
        if arm.is_auto:
            # Attributed rounds are dearer: what they cost must not become what fused ones are taken to cost. A warm-up
            # leaves its prompt's class nothing: that prompt would be known before it is timed.
            if timing == self._plan.request.timing:
                class_ = None if is_warm_up or prompt.item.class_ == DEFAULT_CLASS else prompt.item.class_
                shared["controller"] = self._controllers[arm.name].for_class(class_)
            shared["draft_length"] = AUTO
        else:
            shared["draft_length"] = arm.draft_length
        return speculate(self._target, arm.drafter, prompt.ids, **shared)

    def _drain(self, generation: Generation) -> list[int]:
        self._open = generation
        committed = [closed.committed for closed in generation]
        self._open = None
        return committed


def _tell(record: ComparisonRecord, arm: str) -> None:
    facts = {
        "generation_id": record.generation_id,
        "arm": arm,
        "diverged_at": record.diverged_at,
        "top2_gap": record.top2_gap,
        "tolerance": record.tolerance,
    }
    if record.near_tie:
        get_logger().warning("output.near_tie", **facts, effect="allowed: rounding may close such a gap")
    else:
        get_logger().warning("output.divergent", **facts, effect="the output is not ordinary decoding's")
