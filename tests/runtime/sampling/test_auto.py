"""With proposer and draft length chosen round by round the output is distributed as p all the same: chi-square, fixed
seeds, on a simulated clock, so that times and with them the choices repeat.

Whatever a controller looks at has to be over. The mutant has the drafter draft, looks at the token, and lets a step be
made instead where it does not like it: a token that was drafted and never judged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from runtime.drafters.composed import Composed
from runtime.generate import speculate
from runtime.protocols import Drafter
from runtime.rounds import Round
from runtime.speculative.controller import Choice, Controller
from runtime.speculative.costs import Curve
from runtime.testing import ScriptedDrafter, ScriptedSampler, ScriptedTarget
from telemetry.fields import Timing
from telemetry.recorder import Recorder
from telemetry.testing import FakeClock
from tests.runtime.sampling.laws import LIMIT, deviate

PROMPT = (0, 1)
COUNT = 1000
STEP = 1_000_000
SLOPE = 0.3
"""Steps that a further position costs: proposals pay now and then."""

P = [[0.5, 0.25, 0.25], [0.4, 0.2, 0.4], [0.6, 0.3, 0.1]]
"""Of the next token, by the last."""

Q = [0.25, 0.5, 0.25]


def forward_ns(width: int, context: int) -> int:
    return round(STEP * (1 + SLOPE * (width - 1)))


class Model(ScriptedSampler):
    """Draws from Q, and tells whoever asks what it is about to say."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(lambda history: Q, clock=clock, cost_ns=lambda m, _: STEP // 50 * m)
        self.name = "model"
        self._history: Sequence[int] = ()

    def reset(self, prompt: Sequence[int]) -> None:
        super().reset(prompt)
        self._history = [*prompt]

    def commit(self, tokens: Sequence[int]) -> None:
        super().commit(tokens)
        self._history = [*self._history, *tokens]

    def peek(self) -> int:
        [token] = self.propose(self._history, 1).tokens
        return int(token)


def repeat(history: Sequence[int], m: int) -> list[int]:
    """The last token over again, but not after every history."""
    return [history[-1]] * m if len(history) % 3 else []


class Restless(Controller):
    """Looks at nothing but how far it is, so that every part and length comes up."""

    def decide(self, context: int, limit: int, *, free: Collection[int] = (), without: Collection[int] = ()) -> Choice:
        choice = super().decide(context, limit, free=free, without=without)
        left = [part for part in range(len(self.parts)) if part not in without]
        m = min(context // 2 % 4, limit) if left else 0
        return choice._replace(m=m, part=left[context % len(left)] if m else None)


class Peeking(Controller):
    """The mutant: a step where the drafter would say 1."""

    model: Model

    def decide(self, context: int, limit: int, *, free: Collection[int] = (), without: Collection[int] = ()) -> Choice:
        choice = super().decide(context, limit, free=free, without=without)
        m = 0 if limit < 1 or self.model.peek() == 1 else 1
        return choice._replace(m=m, part=len(self.parts) - 1 if m else None)


def sample(kind: str, controller: Controller, seed: int, timing: Timing = "fused") -> tuple[list[int], list[Round]]:
    clock = FakeClock(tick_ns=10)
    model = Model(clock)
    host = ScriptedDrafter(repeat, on_host=True, clock=clock, cost_ns=100)
    drafter: Drafter = {"model": model, "host": host, "composed": Composed(host, model)}[kind]
    if isinstance(controller, Peeking):
        controller.model = model
    target = ScriptedTarget(
        logits=lambda history: [math.log(p) for p in P[history[-1]]],
        vocab_size=len(Q),
        clock=clock,
        cost_ns=lambda width, held: forward_ns(width, held - width),
    )
    generation = speculate(
        target,
        drafter,
        list(PROMPT),
        draft_length="auto",
        controller=controller,
        max_tokens=COUNT,
        timing=timing,
        temperature=1.0,
        seed=seed,
        recorder=Recorder(clock=clock),
    )
    rounds = list(generation)
    return generation.tokens, rounds


def measure(output: Sequence[int]) -> float:
    """How far an output is from P, context by context."""
    contexts = [PROMPT[-1], *output[:-1]]
    return deviate(output, [P[context] for context in contexts], contexts)


CURVE = Curve({(0, width): float(forward_ns(width, 0)) for width in (1, 17)})


@pytest.mark.parametrize("timing", ["fused", "attributed"])
@pytest.mark.parametrize("kind", ["model", "host", "composed"])
def test_what_the_controller_chooses_leaves_p_as_it_is(kind: str, timing: Timing) -> None:
    tokens, rounds = sample(kind, Controller(CURVE), 1, timing)
    assert measure(tokens) < LIMIT
    assert {0, 1, 2} <= {one.proposed for one in rounds}


def test_whichever_part_and_length_is_chosen_p_is_what_is_drawn_from() -> None:
    tokens, rounds = sample("composed", Restless(CURVE), 3)
    assert measure(tokens) < LIMIT
    said: Any = {(one.proposer, one.proposed) for one in rounds if one.proposed}
    assert said >= {("scripted", 1), ("scripted", 3), ("model", 1), ("model", 3)}


@pytest.mark.parametrize("kind", ["model", "composed"])
def test_a_controller_that_looks_at_what_was_drafted_is_caught(kind: str) -> None:
    """Where steps are not pipelined, so that every one is made because of what was seen."""
    tokens, _ = sample(kind, Peeking(CURVE), 1, "attributed")
    assert measure(tokens) > LIMIT
