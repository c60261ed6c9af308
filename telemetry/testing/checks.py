"""Checks of spans: how many, with which attributes, ended, in one trace; and how they all fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from telemetry.testing.conditions import Attributes, find_alike, find_faults, say_condition
from telemetry.testing.failure import fail
from telemetry.testing.tree import Span

if TYPE_CHECKING:
    from telemetry.testing.spans import Spans

__tracebackhide__ = True


def check_count(spans: Spans, at_least: int | None, at_most: int | None) -> None:
    """There are as many."""
    n = len(spans)
    low, high = at_least or 0, n if at_most is None else at_most
    if low <= n <= high:
        return
    bound, limit = ("at least", low) if at_most is None else ("at most", high) if at_least is None else ("exactly", low)
    nearest, notes = _find_nearest(spans) if n < low else (None, {})
    if n and not notes:
        nearest = None  # those that were found say more than a list of names
    notes |= {span: f"{index} of {n}" for index, span in enumerate(spans, 1)}
    raise fail(spans.forest, f"{bound} {spans.wanted.describe(limit)}", str(n), nearest=nearest, notes=notes)


def require_some(spans: Spans, expected: str) -> None:
    """There is one at all: an assertion about every one of no spans would hold whatever happened."""
    __tracebackhide__ = True
    if not spans:
        nearest, notes = _find_nearest(spans)
        raise fail(spans.forest, expected, spans.wanted.describe(0), nearest=nearest, notes=notes)


def _find_nearest(spans: Spans) -> tuple[str, dict[Span, str]]:
    """The nearest miss in words, and what to write beside it."""
    mine, pool = set(spans), set(spans.pool)
    near = spans.wanted.find_nearest(span for span in spans.pool if span not in mine)
    if near is None or near[1]:
        # One that is all that was wanted, but not where it was looked for, is nearer than one that lacks something.
        elsewhere = spans.wanted.find_nearest(span for span in spans.forest.spans if span not in pool)
        if elsewhere is not None and (near is None or not elsewhere[1]):
            near = elsewhere
            parent = spans.forest.parent(near[0])
            near[1].append("it is at the top" if parent is None else f"it is under {parent.name!r} ({parent.span_id})")
    if near is not None:
        note = "; ".join(near[1])
        return _say_nearest(near[0], note, spans.wanted.attributes), {near[0]: note}
    names = sorted({span.name for span in spans.forest.spans})
    return f"none; there are: {', '.join(map(repr, names)) or 'no spans'}", {}


def _say_nearest(span: Span, note: str, attributes: Attributes) -> str:
    """The span, what it lacks, and attributes whose names may have been meant."""
    return f"{span.name!r} ({span.span_id}): {'; '.join([note, *find_alike(span, attributes)])}"


def check_attributes(spans: Spans, attributes: Attributes) -> None:
    """Every one has these attributes."""
    conditions = " and ".join(say_condition(name, value) for name, value in attributes.items())
    expected = f"every one of {spans.wanted.describe(len(spans))} to have {conditions}"
    require_some(spans, expected)
    raise_notes(
        spans,
        expected,
        {span: "; ".join(faults) for span in spans if (faults := find_faults(span, attributes))},
        "without",
        attributes,
    )


def raise_notes(
    spans: Spans, expected: str, notes: Mapping[Span, str], what: str, attributes: Attributes | None = None
) -> None:
    """Raise if there are notes; the first is the nearest miss. attributes: what was asked of each."""
    if notes:
        first, note = next(iter(notes.items()))
        raise fail(
            spans.forest,
            expected,
            f"{len(notes)} of {len(spans)} {what}",
            nearest=_say_nearest(first, note, attributes or {}),
            notes=notes,
        )


def check_ended(spans: Spans) -> None:
    """Every one has ended, and every parent in this process."""
    expected = f"{spans.wanted.describe(len(spans))} to have ended, with their parents"
    require_some(spans, expected)
    notes = {span: "has not ended" for span in spans if span.end_unix_ns is None}
    for span in spans:
        if span.has_local_parent and spans.forest.parent(span) is None:
            notes[span] = f"its parent {span.parent_id} is not there: it never ended, or was dropped"
    raise_notes(spans, expected, notes, "open, or without their parent")


def check_one_trace(spans: Spans) -> None:
    """One trace, one root, every span once."""
    expected = f"{spans.wanted.describe(len(spans))} in one trace, under one root"
    require_some(spans, expected)
    tops = list(dict.fromkeys(([span, *spans.forest.ancestors(span)])[-1] for span in spans))
    traces = {span.trace_id for span in spans}
    if len(tops) > 1:
        sizes = Counter(([span, *spans.forest.ancestors(span)])[-1] for span in spans)
        raise fail(
            spans.forest,
            expected,
            f"{len(traces)} {'trace' if len(traces) == 1 else 'traces'} with {len(tops)} roots",
            nearest=f"{min(sizes.values())} of the spans are apart from the others",
            notes={top: f"a root of {sizes[top]} of them" for top in tops},
        )
    times = Counter((span.trace_id, span.span_id) for span in spans)
    twice = {span: f"here {n} times" for span in spans if (n := times[span.trace_id, span.span_id]) > 1}
    if twice:
        raise fail(spans.forest, f"{expected}, each once", f"{len(twice)} spans with an id of another", notes=twice)
