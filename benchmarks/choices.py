"""What a controller chooses, on a simulated clock: real outputs and proposals, costs as measured here.

A timed run of some prompts cannot tell a choice that loses 5 % from a machine that was busy. Here every arm goes over
the same outputs of the default model, and a forward takes what its width and context took when they were measured: so
what differs is the choice alone. The best fixed length is taken in hindsight, of many. `auto` goes over all texts in
orders of its own, every drafter by a controller that is told each prompt's class, as a run has one for every arm; its
forwards a little longer or shorter each time. ROUNDSCOPE_BENCH_TOKENS=192: longer outputs, in which learning costs
less. ROUNDSCOPE_BENCH_OTHERS=12: so many prompts a class that are not the embedded ones, for which the controller's
constants were chosen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from statistics import mean, median
from typing import NamedTuple

from benchmarks.controller import COMPOSED, LONG, SMALL, TURNING, WIDTHS, Turning, measure_curve, show
from benchmarks.models import load_float32, take_others, take_prompts
from runtime.drafters import make
from runtime.drafters.composed import Composed
from runtime.drafters.known import Oracle, Wrong
from runtime.drafters.prompt_lookup import PromptLookup
from runtime.generate import decode, speculate
from runtime.generation import Generation
from runtime.protocols import Drafter
from runtime.speculative.controller import Controller
from runtime.speculative.costs import Curve
from runtime.targets import MlxTarget
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.testing import FakeClock

CONTEXT = 128
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
ORDERS = 5
NOISE = 0.03
GROWTH = 0.4
"""Steps that a further position costs by the end of an output, where verification grows dear."""


class Text(NamedTuple):
    """A prompt of a class, ordinary decoding's output, and what the model proposes at each of its positions."""

    class_: str
    prompt: Sequence[int]
    output: Sequence[int]
    proposals: Sequence[Sequence[int]]


class Case(NamedTuple):
    """Texts, the drafter for one of them, and what forwards cost. group: cases of one group share a controller."""

    name: str
    group: str
    make_drafter: Callable[[Scripted], Drafter]
    curve: Curve
    texts: Sequence[Text]


class Scripted:
    """A text in the ids that occur in it, as a scripted target answers with a row of its whole vocabulary."""

    def __init__(self, text: Text, draft_ns: Sequence[float]) -> None:
        ids = {token: i for i, token in enumerate(dict.fromkeys((*text.prompt, *text.output)))}
        self.prompt = [ids[token] for token in text.prompt]
        self.output = [ids[token] for token in text.output]
        self.vocab_size = len(ids) + 2
        self.clock = FakeClock(tick_ns=100)
        self._draft_ns = draft_ns
        self._proposals = [[ids.get(token, len(ids)) for token in row] for row in text.proposals]

    def start(self, case: Case, how: int | Controller, noise: Random | None) -> Generation:
        """Ordinary decoding (0), a length held fixed, or a controller's choice."""
        whole = [*self.prompt, *self.output]

        def cost(width: int, held: int) -> int:
            factor = 1.0 if noise is None else noise.lognormvariate(0, NOISE)
            return int(case.curve.at(width, held - width) * factor)

        target = ScriptedTarget(
            lambda history: whole[len(history)] if len(history) < len(whole) else 0,
            vocab_size=self.vocab_size,
            clock=self.clock,
            cost_ns=cost,
        )
        recorder, n = Recorder(clock=self.clock), len(self.output)
        if how == 0:
            return decode(target, self.prompt, max_tokens=n, recorder=recorder)
        drafter = case.make_drafter(self)
        if isinstance(drafter, Oracle):
            drafter.learn(self.prompt, self.output)
        is_controlled = isinstance(how, Controller)
        return speculate(
            target,
            drafter,
            self.prompt,
            draft_length="auto" if is_controlled else how,
            controller=how if is_controlled else None,
            max_tokens=n,
            recorder=recorder,
        )

    def make_model(self) -> ScriptedDrafter:
        """The model's proposals, at its cost."""
        drafter = ScriptedDrafter(
            lambda history, m: self._proposals[len(history) - len(self.prompt)][:m],
            lazy=True,
            clock=self.clock,
            cost_ns=lambda m, _: int(self._draft_ns[min(m, len(self._draft_ns)) - 1]) if m else 0,
        )
        drafter.name = "model"
        return drafter


def run() -> bool:
    """Print the ratios of every case; True if no bound was surely missed, and none over all classes of a drafter."""
    size = SMALL if os.environ.get("ROUNDSCOPE_BENCH_SMALL") else LONG
    tokens = int(os.environ.get("ROUNDSCOPE_BENCH_TOKENS", size.tokens))
    target = load_float32()
    others = int(os.environ.get("ROUNDSCOPE_BENCH_OTHERS", 0))
    prompts = {
        class_: take_others(target, class_, others) if others else take_prompts(target, class_, size.prompts)
        for class_ in size.classes
    }
    curve = measure_curve(target, prompts[size.classes[0]][0])
    model = make("blocks", target)
    texts = {
        class_: [_write(target, model, class_, prompt, tokens) for prompt in them] for class_, them in prompts.items()
    }
    longer = [_write(target, model, class_, them[0], size.turning) for class_, them in prompts.items()]
    draft_ns = measure_drafts(model, texts[size.classes[0]][0])
    steps = ", ".join(f"{width} {curve.at(width, CONTEXT) / curve.at(1, CONTEXT):.2f}" for width in WIDTHS[1:])
    print(f"  steps that a forward costs, by width: {steps}; and a proposal of the model", end=" ")
    print(f"{draft_ns[0] / curve.at(1, CONTEXT):.2f}", flush=True)
    cases, held = list_cases(texts, longer, curve), True
    pooled: dict[str, dict[str, list[float]]] = {}
    for case, arms in zip(cases, replay(cases, draft_ns), strict=True):
        held &= show(case.name, arms, is_strict=False)
        for arm, seconds in arms.items() if case.name != case.group else ():
            pooled.setdefault(case.group, {}).setdefault(arm, []).extend(seconds)
    for drafter, arms in pooled.items():
        held &= show(f"{drafter} on all", arms, is_strict=True)
    return held


def _write(target: MlxTarget, model: Drafter, class_: str, prompt: Sequence[int], tokens: int) -> Text:
    output = decode(target, prompt, max_tokens=tokens, eos=()).drain().tokens
    model.reset(prompt)
    proposals = []
    for place in range(len(output)):
        proposals.append(model.propose([*prompt, *output[:place]], LENGTHS[-1]).tokens.tolist())
        model.commit(output[place : place + 1])
    return Text(class_, prompt, output, proposals)


def measure_drafts(model: Drafter, text: Text) -> list[float]:
    """Nanoseconds of a proposal of 1, 2, ... tokens, up to the most that there are, medians over some positions."""
    most = max(map(len, text.proposals))
    spent: list[list[int]] = [[] for _ in range(most)]
    model.reset(text.prompt)
    for place in range(len(text.output)):
        m = 1 + place % most
        start = time.perf_counter_ns()
        model.propose([*text.prompt, *text.output[:place]], m).tokens.tolist()
        spent[m - 1].append(time.perf_counter_ns() - start)
        model.commit(text.output[place : place + 1])
    return [median(them) for them in spent]


def list_cases(texts: Mapping[str, Sequence[Text]], longer: Sequence[Text], curve: Curve) -> list[Case]:
    """Every class with prompt lookup, with a model, and with both as one; and what misleads, on one of each class.

    longer: texts of which a drafter that turns is right for the first part.
    """
    some, first = [them[0] for them in texts.values()], next(iter(texts.values()))
    drafters = {"prompt-lookup": _look_up, "blocks": Scripted.make_model, COMPOSED: _compose}
    dear, dear_turning = "verification that grows dear, prompt-lookup", f"verification that grows dear, {TURNING}"
    return [
        *(
            Case(f"{name} on {class_}", name, make_drafter, curve, them)
            for name, make_drafter in drafters.items()
            for class_, them in texts.items()
        ),
        Case("wrong", "wrong", lambda text: Wrong(text.vocab_size), curve, some),
        Case(TURNING, TURNING, lambda text: Turning(text.vocab_size), curve, longer),
        Case(dear, dear, _look_up, grow(curve, first), first),
        Case(dear_turning, dear_turning, lambda text: Turning(text.vocab_size), grow(curve, longer), longer),
    ]


def _look_up(_: Scripted) -> Drafter:
    return PromptLookup()


def _compose(text: Scripted) -> Drafter:
    return Composed(PromptLookup(), text.make_model())


def grow(curve: Curve, texts: Iterable[Text]) -> Curve:
    """`curve`, but further positions grow dear from the end of the shortest prompt to that of the longest output."""
    lengths = [(len(text.prompt), len(text.prompt) + len(text.output)) for text in texts]
    ends = {min(start for start, _ in lengths): 0.0, max(end for _, end in lengths): GROWTH}
    return Curve(
        {
            (context, width): curve.at(width, context) + (width - 1) * slope * curve.at(1, context)
            for context, slope in ends.items()
            for width in WIDTHS
        }
    )


def replay(cases: Sequence[Case], draft_ns: Sequence[float]) -> list[dict[str, list[float]]]:
    """Of every case, seconds of `ordinary`, `m=...` and `auto` (the mean over ORDERS) for each of its texts."""
    spent = [
        {
            ("ordinary" if m == 0 else f"m={m}"): [_take(case, text, draft_ns, m) for text in case.texts]
            for m in (0, *LENGTHS)
        }
        for case in cases
    ]
    places = [(i, j) for i, case in enumerate(cases) for j in range(len(case.texts))]
    auto: dict[tuple[int, int], list[float]] = {place: [] for place in places}
    for seed in range(ORDERS):
        chance = Random(seed)
        controllers = {case.group: Controller(case.curve) for case in cases}
        for i, j in chance.sample(places, len(places)):
            case, text = cases[i], cases[i].texts[j]
            controller = controllers[case.group].for_class(text.class_)
            auto[i, j].append(_take(case, text, draft_ns, controller, chance))
    for (i, _), times in auto.items():
        spent[i].setdefault("auto", []).append(mean(times))
    return spent


def _take(
    case: Case, text: Text, draft_ns: Sequence[float], how: int | Controller, noise: Random | None = None
) -> float:
    scripted = Scripted(text, draft_ns)
    generation = scripted.start(case, how, noise)
    seconds = sum(one.t_round_ns for one in generation) / 1e9
    if list(generation.tokens) != scripted.output:
        raise AssertionError(f"{case.name}: this is not ordinary decoding's output")
    return seconds
