"""Draft lengths that a controller chooses, against ordinary decoding and against the best length that is held fixed.

Every class of the embedded workload with prompt lookup, some with prompt lookup and a trained model as one drafter,
long contexts, and some prompts with drafters that mislead: one is always wrong, one is right for 30 rounds and wrong
from there on. Arms take turns on each prompt, in an order that changes; the sum of T_round counts. Every drafter has a
controller that is told each prompt's class, as a run has one for every arm, and every output is held against ordinary
decoding's. It says beforehand how long it takes at most, 30 to 40 minutes at 70 ms a step; ROUNDSCOPE_BENCH_SMALL=1:
few prompts of three classes, in a few minutes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from benchmarks.models import load_float32, take_prompts
from benchmarks.ratios import paired_ratio
from runtime.drafters import make
from runtime.drafters.known import Oracle, Wrong
from runtime.drafters.prompt_lookup import PromptLookup
from runtime.experiment.calibration import measure_verify_costs
from runtime.generate import decode, speculate
from runtime.generation import Generation
from runtime.protocols import Drafter, Proposal
from runtime.speculative.controller import Controller
from runtime.speculative.costs import Curve
from runtime.targets import MlxTarget
from runtime.workloads import load_embedded

ORDINARY_BOUND, FIXED_BOUND = 0.98, 0.95
GOOD_ROUNDS = 30
CONTEXTS, WIDTHS = (32, 256), (1, 2, 3, 5, 9, 17)
LONG_CONTEXT = 700


@dataclass(frozen=True)
class Size:
    """How much is run. tokens: of an output; turning: of one where the drafter turns after GOOD_ROUNDS."""

    classes: tuple[str, ...]
    prompts: int
    composed: tuple[str, ...]
    misled: int
    tokens: int
    turning: int
    lengths: tuple[int, ...]


ALL = tuple(dict.fromkeys(item.class_ for item in load_embedded().items if item.class_))
SOME = ("copy-edit", "answer", "free-writing")
LONG = Size(ALL, prompts=6, composed=SOME, misled=6, tokens=64, turning=160, lengths=(2, 4, 8, 16))
SMALL = Size(SOME, prompts=2, composed=SOME[1:], misled=2, tokens=48, turning=120, lengths=(4, 8))
COMPOSED, TURNING = "prompt-lookup+blocks", f"right for {GOOD_ROUNDS} rounds, then wrong"


class Turning(Oracle):
    """Right for GOOD_ROUNDS proposals, wrong from there on."""

    name = "turning"

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self._wrong = Wrong(vocab_size)
        self._n = 0

    def learn(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """As in Oracle."""
        super().learn(prompt, output)
        self._wrong.learn(prompt, output)

    def reset(self, prompt: Sequence[int]) -> None:
        """As in Oracle."""
        super().reset(prompt)
        self._wrong.reset(prompt)
        self._n = 0

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """As the oracle first, then as the one that is wrong; only a part of each is right, so that rounds are many."""
        self._n += 1
        if self._n > GOOD_ROUNDS:
            return self._wrong.propose(history, m)
        right, wrong = super().propose(history, m).tokens, self._wrong.propose(history, m).tokens
        return Proposal((*right[:2], *wrong[2:]))


class Output(NamedTuple):
    """What an arm made of a prompt: the sum of T_round [s], and the committed ids."""

    seconds: float
    tokens: Sequence[int]


class Case(NamedTuple):
    """Prompts with their classes, and the drafter for one of them. group: cases of one group share a controller."""

    name: str
    group: str
    make_drafter: Callable[[], Drafter]
    prompts: Sequence[tuple[str | None, Sequence[int]]]


@dataclass
class Times:
    """Sums of T_round by arm, a number for each prompt, and how many outputs were ordinary decoding's."""

    by_arm: dict[str, list[float]] = field(default_factory=dict)
    n_equal: int = 0

    def add(self, done: Mapping[str, Output]) -> None:
        """Take the next prompt's."""
        for arm, output in done.items():
            self.by_arm.setdefault(arm, []).append(output.seconds)
            self.n_equal += output.tokens == done["ordinary"].tokens

    def show(self, name: str, *, is_strict: bool) -> bool:
        """As `show`; False as well if an output is not ordinary decoding's."""
        n = sum(map(len, self.by_arm.values()))
        held = show(name, self.by_arm, is_strict=is_strict, note=f"; {self.n_equal} of {n} outputs equal")
        return held and self.n_equal == n


def run() -> bool:
    """Print the ratios of every class and drafter; True if no bound was surely missed, and none over all classes."""
    size = SMALL if os.environ.get("ROUNDSCOPE_BENCH_SMALL") else LONG
    target = load_float32()
    prompts = {class_: take_prompts(target, class_, size.prompts) for class_ in size.classes}
    curve = measure_curve(target, prompts[size.classes[0]][0])
    composed, vocab, lookup = make(COMPOSED, target), target.vocab_size, "prompt-lookup"
    labelled = {class_: [(class_, prompt) for prompt in them] for class_, them in prompts.items()}
    misled = [them[0] for them in labelled.values()][: size.misled]
    lengthened = [(None, _lengthen(prompts[SOME[0]])), (None, _lengthen(prompts[SOME[-1]]))]
    cases = [
        *(Case(f"{lookup} on {class_}", lookup, PromptLookup, them) for class_, them in labelled.items()),
        *(Case(f"{COMPOSED} on {class_}", COMPOSED, lambda: composed, labelled[class_]) for class_ in size.composed),
        Case(f"{lookup} on long contexts", lookup, PromptLookup, lengthened),
        Case("wrong", "wrong", lambda: Wrong(vocab), misled),
        Case(TURNING, TURNING, lambda: Turning(vocab), misled),
    ]
    n_arms = 2 + len(size.lengths)
    n_tokens = n_arms * sum(len(case.prompts) * _count_tokens(case, size) for case in cases)
    # What misleads is told the ordinary output beforehand.
    n_tokens += sum(len(case.prompts) * _count_tokens(case, size) for case in cases[-2:])
    print(f"  at most about {n_tokens * curve.at(1, CONTEXTS[-1]) / 60e9:.0f} minutes", flush=True)
    controllers = {case.group: Controller(curve) for case in cases}
    order, pooled, held = random.Random(0), Times(), True
    _finish(decode(target, prompts[size.classes[0]][0], max_tokens=16, eos=()))
    for case in cases:
        times, n = Times(), _count_tokens(case, size)
        for class_, prompt in case.prompts:
            controller = controllers[case.group].for_class(class_)
            done = _run_arms(target, case.make_drafter(), prompt, controller, size.lengths, n, order)
            times.add(done)
            pooled.add(done)
        held &= times.show(case.name, is_strict=False)
    return pooled.show("all", is_strict=True) and held


def _run_arms(
    target: MlxTarget,
    drafter: Drafter,
    prompt: Sequence[int],
    controller: Controller,
    lengths: Sequence[int],
    n_tokens: int,
    order: random.Random,
) -> dict[str, Output]:
    if isinstance(drafter, Oracle):
        drafter.learn(prompt, decode(target, prompt, max_tokens=n_tokens, eos=()).drain().tokens)
    options = {"max_tokens": n_tokens, "eos": ()}
    arms: dict[str, Callable[[], Generation]] = {
        "ordinary": lambda: decode(target, prompt, **options),  # type: ignore[arg-type]
        "auto": lambda: speculate(
            target,
            drafter,
            prompt,
            draft_length="auto",
            controller=controller,
            **options,  # type: ignore[arg-type]
        ),
    }
    for m in lengths:
        arms[f"m={m}"] = lambda m=m: speculate(target, drafter, prompt, draft_length=m, **options)  # type: ignore[misc]
    return {arm: _finish(arms[arm]()) for arm in order.sample(list(arms), len(arms))}


def _count_tokens(case: Case, size: Size) -> int:
    return size.turning if case.name == TURNING else size.tokens


def _lengthen(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The last of the prompts, after so much of them that a context is long."""
    before = list(chain(*prompts))
    return [*(before * (1 + LONG_CONTEXT // len(before)))[:LONG_CONTEXT], *prompts[-1]]


def _finish(generation: Generation) -> Output:
    return Output(sum(one.t_round_ns for one in generation) / 1e9, generation.tokens)


def show(name: str, arms: Mapping[str, Sequence[float]], *, is_strict: bool, note: str = "") -> bool:
    """Print what `auto` is worth beside the other arms; False if it missed a bound, surely or (is_strict) by its value.

    arms: seconds for one text after the other, the same for all.
    """
    best = min((arm for arm in arms if arm != "auto"), key=lambda arm: sum(arms[arm]))
    over_ordinary = paired_ratio(arms["ordinary"], arms["auto"])
    over_best = paired_ratio(arms[best], arms["auto"])
    print(f"  {name}: speed over ordinary {over_ordinary}; over the best fixed, {best}, {over_best}{note}", flush=True)
    pairs = ((over_ordinary, ORDINARY_BOUND), (over_best, FIXED_BOUND))
    return all((ratio.value if is_strict else ratio.high) >= bound for ratio, bound in pairs)


def measure_curve(target: MlxTarget, ids: Sequence[int]) -> Curve:
    """What forwards of the target cost on this machine, now."""
    return Curve.of(measure_verify_costs(target, ids, CONTEXTS, widths=WIDTHS))
