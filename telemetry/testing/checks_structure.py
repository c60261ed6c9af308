"""Checks of what follows what, and of what is under what."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import ndiff
from types import EllipsisType
from typing import TYPE_CHECKING

from telemetry.testing.checks import require_some
from telemetry.testing.conditions import matches_name
from telemetry.testing.failure import fail, say_ns
from telemetry.testing.tree import Span

if TYPE_CHECKING:
    from telemetry.testing.spans import Spans

__tracebackhide__ = True


def check_order(spans: Spans, names: Sequence[str]) -> None:
    """Spans of these names start one after the other."""
    expected = f"in this order: {', '.join(names)}"
    require_some(spans, expected)
    left = iter(spans)
    notes: dict[Span, str] = {}
    for index, name in enumerate(names):
        found = next((span for span in left if matches_name(span.name, name)), None)
        if found is not None:
            notes[found] = f"{index + 1}: {name}"
            continue
        last = list(notes)[-1] if notes else None
        late = [span for span in spans if matches_name(span.name, name) and span not in notes]
        nearest = f"there is no {name!r}{' besides' if name in names[:index] else ''}"
        if late and last is not None:
            early = say_ns(last.start_unix_ns - late[-1].start_unix_ns)
            nearest = f"the last {name!r} starts {early} before {last.name!r} does"
            notes[late[-1]] = "too early"
        reached = ", ".join(names[:index]) or "nothing"
        raise fail(spans.forest, expected, f"{reached}, then no {name!r}", nearest=nearest, notes=notes)


def check_children(spans: Spans, names: Sequence[str | EllipsisType]) -> None:
    """Every one has exactly these children."""
    steps = _read_steps(names)
    wanted = [f"{name}, ..." if repeated else name for name, repeated in steps]
    expected = f"under every one of {spans.wanted.describe(len(spans))}: {', '.join(wanted) or 'nothing'}"
    require_some(spans, expected)
    wrong = [span for span in spans if not _match_steps([child.name for child in spans.forest.children(span)], steps)]
    if not wrong:
        return
    nearest, difference = min(
        ((span, _compare(steps, [child.name for child in spans.forest.children(span)])) for span in wrong),
        key=lambda pair: len(pair[1]),
    )
    names_found = ", ".join(child.name for child in spans.forest.children(nearest)) or "nothing"
    raise fail(
        spans.forest,
        expected,
        f"{len(wrong)} of {len(spans)} with others, such as: {names_found}",
        nearest=f"{nearest.name!r} ({nearest.span_id}): {', '.join(difference) or 'in another order'}",
        notes=dict.fromkeys(wrong, "not these children"),
    )


def _read_steps(names: Sequence[str | EllipsisType]) -> list[tuple[str, bool]]:
    steps: list[tuple[str, bool]] = []
    for name in names:
        if not isinstance(name, EllipsisType):
            steps.append((name, False))
        elif steps:
            steps[-1] = (steps[-1][0], True)
        else:
            raise TypeError("`...` repeats the name before it, and there is none")
    return steps


def _match_steps(names: Sequence[str], steps: Sequence[tuple[str, bool]]) -> bool:
    """Follow all ways through the steps at once; a place is how many steps are begun."""
    places = {0}
    for name in names:
        onward = {at + 1 for at in places if at < len(steps) and matches_name(name, steps[at][0])}
        places = onward | {at for at in places if at and steps[at - 1][1] and matches_name(name, steps[at - 1][0])}
    return len(steps) in places


def _compare(steps: Sequence[tuple[str, bool]], found: Sequence[str]) -> list[str]:
    """What is missing or too many, by name."""
    wanted: list[str] = []
    for name, repeated in steps:
        times = sum(matches_name(each, name) for each in found) if repeated else 1
        wanted += [name] * max(times, 1)
    words = {"- ": "{} is missing", "+ ": "{} is too many"}
    matched = [next((name for name, _ in steps if matches_name(each, name)), each) for each in found]
    return [words[line[:2]].format(repr(line[2:])) for line in ndiff(wanted, matched) if line[:2] in words]
