"""Compositions on a simulated clock: the part that pays is asked, and one that loses is not.

Held against ordinary steps, and against every fixed length of each part alone and of the composition, in which a later
part is asked wherever the earlier ones have nothing. One controller has all outputs of a composition, as in a run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from runtime.speculative.controller import Controller
from tests.runtime.control.test_speed import COSTLY, VERY_COSTLY
from tests.runtime.control.worlds import FIXED, World, make_world, measure

N = 300
SEEDS = range(8)
HARDLY = 0.07
"""Part of the rounds in which a part may propose that loses."""

Part = tuple[Callable[[int], float], dict[str, Any]]
COMPOSITIONS: dict[str, tuple[Part, Part, str | None]] = {
    "lookup good, model dear": ((lambda i: 0.8, {"offers": 0.6}), (lambda i: 0.6, VERY_COSTLY), "model"),
    "lookup good, model wrong": ((lambda i: 0.8, {"offers": 0.6}), (lambda i: 0.0, COSTLY), "model"),
    "lookup wrong, model good": ((lambda i: 0.0, {}), (lambda i: 0.85, COSTLY), "host"),
    "lookup never offers, model good": ((lambda i: 0.0, {"offers": 0.0}), (lambda i: 0.85, COSTLY), "host"),
    "both good": ((lambda i: 0.9, {"offers": 0.4}), (lambda i: 0.8, COSTLY), None),
    "both wrong": ((lambda i: 0.0, {}), (lambda i: 0.0, COSTLY), "host"),
    "first lookup, then model": (
        (lambda i: 0.9 if i < 150 else 0.0, {}),
        (lambda i: 0.9 if i >= 150 else 0.0, COSTLY),
        None,
    ),
    "first model, then lookup": (
        (lambda i: 0.9 if i >= 150 else 0.0, {}),
        (lambda i: 0.9 if i < 150 else 0.0, COSTLY),
        None,
    ),
}
"""The parts, and the one that loses everywhere."""


def make_parts(name: str, seed: int) -> list[World]:
    return [
        make_world(rate, seed=10 * seed + place, n_tokens=N, **options)
        for place, (rate, options) in enumerate(COMPOSITIONS[name][:2])
    ]


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_it_never_loses_and_comes_near_the_best_that_is_fixed(name: str) -> None:
    spent, fixed, proposed, n_rounds = 0.0, defaultdict[tuple[str, int], float](float), Counter[str | None](), 0
    controller = Controller(make_parts(name, 0)[0].curve())
    for seed in SEEDS:
        first, second = make_parts(name, seed)
        took, rounds = measure(first, N, controller, second)
        spent, n_rounds = spent + took, n_rounds + len(rounds)
        proposed.update(one.proposer for one in rounds if one.proposed)
        for m in (0, *FIXED):
            fixed["host", m] += first.replay(m, N)
            fixed["model", m] += second.replay(m, N)
            fixed["both", m] += first.replay(m, N, second)
        assert first.replay(0, N) / took >= 0.98
    assert min(fixed.values()) / spent >= 0.95
    loser = COMPOSITIONS[name][2]
    assert proposed[loser] <= HARDLY * n_rounds
    assert set(proposed) >= {"host", "model"} or loser is not None


@pytest.mark.parametrize("offers", [0.4, 1.0])
def test_the_order_of_the_parts_does_not_matter(offers: float) -> None:
    curve = make_world(lambda i: 0.0, seed=0, n_tokens=N).curve()
    there, back = Controller(curve), Controller(curve)
    for seed in SEEDS:
        host = make_world(lambda i: 0.8, seed=2 * seed, n_tokens=N, offers=offers)
        model = make_world(lambda i: 0.95, seed=2 * seed + 1, n_tokens=N, on_host=False)
        one, other = measure(host, N, there, model)[1], measure(model, N, back, host)[1]
        assert [each.proposer for each in one] == [each.proposer for each in other]
        assert [each.tokens for each in one] == [each.tokens for each in other]
