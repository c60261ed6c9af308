"""Scripted worlds on a fake clock: at which positions a drafter is right, and what drafting and verifying take.

`replay` is the reference: what a draft length held fixed takes, in plain Python without the loop or the controller.
Worlds of the same target may share it: their drafters are then the parts of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from runtime.drafters.composed import Composed
from runtime.generate import speculate
from runtime.generation import Generation
from runtime.rounds import Round
from runtime.speculative.controller import Controller
from runtime.speculative.costs import Curve
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.testing import FakeClock
from tests.runtime.scripted import draw

STEP = 10_000_000
VOCAB = 40
FIXED = (1, 2, 4, 8, 16)
PROMPT = (1, 2, 3)


@dataclass(frozen=True)
class World:
    """right: whether the drafter is right at an output position; has: whether it proposes there at all. verify: time by
    width and context; draft: by tokens. on_host: as drafters say.
    """

    right: Sequence[bool]
    has: Sequence[bool]
    verify: Callable[[int, int], float]
    draft: Callable[[int], float]
    on_host: bool

    def next_token(self, history: Sequence[int]) -> int:
        """The target's script."""
        return draw("target", len(history)) % VOCAB

    def propose(self, history: Sequence[int], m: int) -> list[int]:
        """The drafter's script."""
        place = len(history) - len(PROMPT)
        if not self.has[place % len(self.has)]:
            return []
        said = []
        for i in range(m):
            token = draw("target", len(history) + i) % VOCAB
            said.append(token if self.right[(place + i) % len(self.right)] else (token + 1) % VOCAB)
        return said

    def curve(self) -> Curve:
        """The cost of forwards as a calibration would have measured it."""
        contexts, widths = (len(PROMPT), 100, 300), (1, 2, 3, 5, 9, 17)
        return Curve({(c, w): self.verify(w, c) for c in contexts for w in widths})

    def start(self, n_tokens: int, controller: Controller, *others: World, **options: object) -> Generation:
        """The generation that the controller has a say in, by this world's drafter or one composed of all of them."""
        clock = FakeClock(tick_ns=100)
        target = ScriptedTarget(
            self.next_token,
            vocab_size=VOCAB,
            clock=clock,
            cost_ns=lambda width, held: int(self.verify(width, held - width)),
        )
        drafters = [world.make_drafter(clock) for world in (self, *others)]
        return speculate(
            target,
            Composed(*drafters) if others else drafters[0],
            list(PROMPT),
            draft_length="auto",
            controller=controller,
            max_tokens=n_tokens,
            recorder=Recorder(clock=clock),
            **options,  # type: ignore[arg-type]
        )

    def make_drafter(self, clock: FakeClock) -> ScriptedDrafter:
        """Called `host` or `model`."""
        drafter = ScriptedDrafter(
            self.propose,
            on_host=self.on_host,
            lazy=not self.on_host,
            clock=clock,
            cost_ns=lambda m, _: int(self.draft(m)),
        )
        drafter.name = "host" if self.on_host else "model"
        return drafter

    def replay(self, m: int, n_tokens: int, *others: World) -> float:
        """Time of the rounds with at most m tokens, of the first world that has any; 0: of ordinary steps."""
        place, spent = 0, 0.0
        while place < n_tokens:
            asked = min(m, n_tokens - place - 1)
            proposed = accepted = 0
            for world in (self, *others) if asked else ():
                spent += world.draft(asked)
                if world.has[place]:
                    proposed = asked
                    accepted = next((i for i in range(asked) if not world.right[place + i]), asked)
                    break
            spent += self.verify(proposed + 1, place + len(PROMPT) - 1)
            place += accepted + 1
        return spent


def make_world(
    rate: Callable[[int], float],
    *,
    seed: int,
    n_tokens: int,
    offers: float = 1.0,
    slope: float = 0.05,
    growth: float = 0.0,
    draft: Callable[[int], float] = lambda m: 2_000,
    on_host: bool = True,
) -> World:
    """A world where the drafter is right at position i with chance rate(i).

    slope: steps that a further position of a forward costs; growth: how many more it does at the end of the output.
    """
    chance = Random(seed)
    places = range(n_tokens + max(FIXED) + 1)
    right, has = [chance.random() < rate(i) for i in places], [chance.random() < offers for _ in places]

    def verify(width: int, context: int) -> float:
        return STEP * (1 + (width - 1) * (slope + growth * context / n_tokens))

    return World(right, has, verify, draft, on_host)


def measure(world: World, n_tokens: int, controller: Controller, *others: World) -> tuple[float, list[Round]]:
    """Time of the controlled rounds, and they themselves."""
    rounds = list(world.start(n_tokens, controller, *others))
    return sum(one.t_round_ns for one in rounds), rounds
