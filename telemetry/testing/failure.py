"""What a failing assertion says: what was expected, what was found, the nearest miss, and the tree with the culprits.

Of many like spans in a row only the first and the last are drawn, and those that the message is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise

from telemetry.errors import CheckFailed
from telemetry.testing.tree import Forest, Span

__tracebackhide__ = True

HEAD, TAIL = 4, 1
"""How many of a span's children are drawn at the beginning and at the end, whatever they are."""

CULPRITS = 4
"""How many spans are pointed at."""

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))


class TraceAssertionError(CheckFailed, AssertionError):
    """A trace, or what was measured, is not as a test wants it. The message is meant to be read."""


def fail(
    forest: Forest,
    expected: str,
    found: str,
    *,
    nearest: str | None = None,
    notes: Mapping[Span, str] | None = None,
) -> TraceAssertionError:
    """The error to raise. notes: what to write beside spans in the tree."""
    lines = [f"expected {expected}", f"found {found}"]
    if nearest is not None:
        lines.append(f"nearest miss: {nearest}")
    pointed_at = dict(islice((notes or {}).items(), CULPRITS))
    return TraceAssertionError("\n".join([*lines, *draw(forest, pointed_at)]))


def draw(forest: Forest, notes: Mapping[Span, str]) -> Iterator[str]:
    """The tree, a line a span: name, duration, start after the trace's; and what `notes` says of it."""
    if not forest.spans:
        yield "the trace is empty"
        return
    yield "the trace:" if len({span.trace_id for span in forest.spans}) == 1 else "the traces:"
    shown = set(notes) | {above for span in notes for above in forest.ancestors(span)}
    by_trace: dict[str, list[tuple[int, Span]]] = {}
    for depth, span in forest.walk():
        by_trace.setdefault(span.trace_id, []).append((depth, span))
    for trace_id, placed in by_trace.items():
        yield f"  {trace_id}"
        origin = min(span.start_unix_ns for _, span in placed)
        for depth, entry, n_below in _thin(placed, shown):
            line = entry if isinstance(entry, str) else _describe(entry, origin, n_below, notes.get(entry))
            yield "    " + "  " * depth + line


def _thin(placed: Sequence[tuple[int, Span]], shown: set[Span]) -> Iterator[tuple[int, Span | str, int]]:
    """Leave out the middle of many siblings, and what is below them where other spans are to be shown; say how many."""
    if not placed:
        return
    depth = placed[0][0]
    starts = [index for index, (found, _) in enumerate(placed) if found == depth]
    keep = {*range(HEAD), *range(len(starts) - TAIL, len(starts))}
    left_out = 0
    for index, (start, end) in enumerate(pairwise([*starts, len(placed)])):
        span = placed[start][1]
        if index not in keep and span not in shown:
            left_out += 1
            continue
        if left_out:
            yield depth, f"... {left_out} more", 0
        left_out = 0
        folded = bool(shown) and span not in shown
        yield depth, span, end - start - 1 if folded else 0
        if not folded:
            yield from _thin(placed[start + 1 : end], shown)


def _describe(span: Span, origin: int, n_below: int, note: str | None) -> str:
    duration = "open" if span.duration_ns is None else say_ns(span.duration_ns)
    failed = " error" if span.status == "error" else ""
    below = f" (+{n_below} below)" if n_below else ""
    beside = "" if note is None else f"   <-- {note}"
    return f"{span.name}  {duration} at {say_ns(span.start_unix_ns - origin)}{failed}{below}{beside}"


def say_ns(ns: int) -> str:
    """A duration with its unit, exact: `314 ns`, `1.5 ms`."""
    for factor, unit in _UNITS:
        if abs(ns) >= factor:
            whole, rest = divmod(abs(ns), factor)
            digits = f"{rest:0{len(str(factor)) - 1}d}".rstrip("0")
            return f"{'-' * (ns < 0)}{whole}{'.' * bool(digits)}{digits} {unit}"
    return f"{ns} ns"
