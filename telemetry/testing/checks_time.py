"""Checks of how long spans last, and of what may be open at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from telemetry.testing.checks import raise_notes, require_some
from telemetry.testing.failure import fail, say_ns
from telemetry.testing.tree import Span

if TYPE_CHECKING:
    from telemetry.testing.spans import Spans

__tracebackhide__ = True


def check_durations(spans: Spans, at_least_ns: int, at_most_ns: int) -> None:
    """Every one lasted as long."""
    expected = f"{spans.wanted.describe(len(spans))} to last {say_ns(at_least_ns)} to {say_ns(at_most_ns)} each"
    require_some(spans, expected)
    notes: dict[Span, tuple[int, str]] = {}
    for span in spans:
        ns = span.duration_ns
        if ns is None:
            notes[span] = (at_most_ns, "has not ended")
        elif ns < at_least_ns:
            notes[span] = (at_least_ns - ns, f"{say_ns(ns)}: {say_ns(at_least_ns - ns)} too short")
        elif ns > at_most_ns:
            notes[span] = (ns - at_most_ns, f"{say_ns(ns)}: {say_ns(ns - at_most_ns)} too long")
    by_distance = sorted(notes, key=lambda span: notes[span][0])
    raise_notes(spans, expected, {span: notes[span][1] for span in by_distance}, "outside")


def check_overlap(spans: Spans) -> None:
    """No two are open at the same time, but for one inside its ancestor."""
    expected = f"no two of {spans.wanted.describe(len(spans))} at the same time"
    require_some(spans, expected)
    overlaps = list(_find_overlaps(spans))
    if overlaps:
        ns, first, second = min(overlaps, key=lambda overlap: overlap[0])
        pair = f"{second.name!r} ({second.span_id})", f"{first.name!r} ({first.span_id})"
        raise fail(
            spans.forest,
            expected,
            f"{len(overlaps)} overlap{'s' * (len(overlaps) != 1)}",
            nearest=f"{pair[0]} starts {say_ns(ns)} before {pair[1]} ends",
            notes={span: "overlaps" for _, *both in overlaps for span in both},
        )


def _find_overlaps(spans: Spans) -> Iterator[tuple[int, Span, Span]]:
    """Pairs that overlap, the earlier first, and how long before its end the later one starts."""
    still_open: list[Span] = []
    latest = max(span.start_unix_ns for span in spans) + 1
    for span in spans:
        still_open = [each for each in still_open if each.end_unix_ns is None or each.end_unix_ns > span.start_unix_ns]
        above = set(spans.forest.ancestors(span))
        for other in still_open:
            if other not in above and span not in set(spans.forest.ancestors(other)):
                yield (latest if other.end_unix_ns is None else other.end_unix_ns) - span.start_unix_ns, other, span
        still_open.append(span)


def check_sums(spans: Spans) -> None:
    """Children's durations add up to no more than their parent's."""
    expected = f"the children of {spans.wanted.describe(len(spans))} to take no longer than these do"
    require_some(spans, expected)
    notes = {}
    for span in spans:
        children = [child.duration_ns for child in spans.forest.children(span)]
        if span.duration_ns is None or None in children:
            notes[span] = "has not ended, or a child has not"
        elif (total := sum(ns for ns in children if ns is not None)) > span.duration_ns:
            notes[span] = f"its children take {say_ns(total)}, {say_ns(total - span.duration_ns)} longer"
    raise_notes(spans, expected, notes, "with more")


def check_nesting(spans: Spans) -> None:
    """Children begin and end while their parent is open."""
    expected = f"the children of {spans.wanted.describe(len(spans))} inside these"
    require_some(spans, expected)
    notes = {}
    for span in spans:
        for child in spans.forest.children(span):
            if child.start_unix_ns < span.start_unix_ns:
                notes[child] = f"starts {say_ns(span.start_unix_ns - child.start_unix_ns)} before {span.name!r}"
            elif span.end_unix_ns is not None and (child.end_unix_ns is None or child.end_unix_ns > span.end_unix_ns):
                late = (
                    "is still open"
                    if child.end_unix_ns is None
                    else f"ends {say_ns(child.end_unix_ns - span.end_unix_ns)} later"
                )
                notes[child] = (
                    f"{late}, but {span.name!r} has ended"
                    if child.end_unix_ns is None
                    else f"{late} than {span.name!r}"
                )
    raise_notes(spans, expected, notes, "with a child outside")
