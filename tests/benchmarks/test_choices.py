"""The replays that hold a controller's choices against fixed lengths: their clock, held against plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks import choices
from benchmarks.choices import LENGTHS, Case, Scripted, Text
from benchmarks.models import _make_others
from runtime.distillation.prompts import make_prompts, read_text
from runtime.drafters.prompt_lookup import PromptLookup
from runtime.speculative.controller import Controller
from runtime.speculative.costs import Curve
from runtime.workloads import load_embedded

STEP = 10_000_000
CURVE = Curve({(context, width): STEP * (1 + 0.05 * (width - 1)) for context in (10, 300) for width in (1, 2, 9, 17)})
PROMPT = [900, 901, *range(100, 150), 77, 78]
TEXTS = [
    Text("copied", PROMPT, [*range(100, 130), 55, *range(131, 150)], [[1]] * 50),
    Text("new", PROMPT, list(range(500, 550)), [list(range(500 + i, 504 + i)) for i in range(50)]),
]
DRAFT_NS = [0.3 * STEP, 0.4 * STEP]


def take(text: Text, m: int, proposals: Sequence[Sequence[int]] | None = None) -> float:
    """Seconds of the rounds at m, without the loop: a look-up costs nothing, `proposals` what DRAFT_NS says."""
    drafter, history, spent = PromptLookup(), list(text.prompt), 0.0
    drafter.reset(text.prompt)
    while (done := len(history) - len(text.prompt)) < len(text.output):
        asked = min(m, len(text.output) - done - 1)
        proposed: Sequence[int] = ()
        if asked and proposals is None:
            proposed = drafter.propose(history, asked).tokens
        elif asked and proposals is not None:
            proposed = proposals[done][:asked]
            spent += DRAFT_NS[min(asked, len(DRAFT_NS)) - 1]
        accepted = 0
        while accepted < len(proposed) and proposed[accepted] == text.output[done + accepted]:
            accepted += 1
        spent += CURVE.at(len(proposed) + 1, len(history) - 1)
        committed = text.output[done : done + accepted + 1]
        drafter.commit(committed)
        history.extend(committed)
    return spent / 1e9


@pytest.fixture(scope="module")
def arms() -> list[dict[str, list[float]]]:
    cases = [
        Case("lookup", "lookup", lambda _: PromptLookup(), CURVE, TEXTS),
        Case("model", "model", Scripted.make_model, CURVE, TEXTS),
    ]
    return choices.replay(cases, DRAFT_NS)


def test_a_replay_takes_what_its_rounds_cost(arms: list[dict[str, list[float]]]) -> None:
    lookup, model = arms
    for m in (0, *LENGTHS):
        arm = "ordinary" if m == 0 else f"m={m}"
        assert lookup[arm] == pytest.approx([take(text, m) for text in TEXTS], rel=1e-3)
        assert model[arm] == pytest.approx([take(text, m, text.proposals) for text in TEXTS], rel=1e-3)


def test_a_controller_is_shown_all_of_them(arms: list[dict[str, list[float]]]) -> None:
    lookup, model = arms
    assert lookup["auto"][0] < 0.5 * lookup["ordinary"][0]
    assert lookup["auto"][1] == pytest.approx(lookup["ordinary"][1], rel=0.05)
    assert model["auto"][1] < model["ordinary"][1]


def test_what_grows_dear_does_so_over_the_outputs() -> None:
    dear = choices.grow(CURVE, TEXTS)
    first, last = len(PROMPT), len(PROMPT) + 50
    assert dear.at(9, first) == pytest.approx(CURVE.at(9, first))
    assert dear.at(9, last) == pytest.approx(CURVE.at(9, last) + 8 * choices.GROWTH * CURVE.at(1, last))


def test_every_prompt_is_of_its_class_to_the_controller_of_its_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Counter[tuple[Controller, str | None]]()

    def note(controller: Controller, class_: str | None) -> Controller:
        told[controller, class_] += 1
        return controller

    monkeypatch.setattr(Controller, "for_class", note)
    cases = [Case(name, name, lambda _: PromptLookup(), CURVE, TEXTS) for name in ("one", "other")]
    choices.replay([*cases, cases[0]], DRAFT_NS)
    assert {class_ for _, class_ in told} == {text.class_ for text in TEXTS}
    assert len({each for each, _ in told}) == 2 * choices.ORDERS


def test_other_prompts_are_neither_embedded_nor_trained_on() -> None:
    others = _make_others()
    known = {read_text(item) for item in load_embedded().items} | {read_text(each.item) for each in make_prompts()[0]}
    assert not known & {read_text(item) for item in others}
    assert {item.class_ for item in others} >= {item.class_ for item in load_embedded().items}
