"""A trace as a test sees it: spans of any origin, sorted by time, with the tree that their parents make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from telemetry.span_data import HAS_IS_REMOTE, IS_REMOTE, SpanData

Key: TypeAlias = tuple[str, str]
"""Trace id and span id."""


class Span(SpanData):
    """A span, ours or anybody's, as a test sees it: equal to nothing but itself, as a trace may hold a span twice."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def has_local_parent(self) -> bool:
        """Whether its parent is known to be of the same process."""
        return self.parent_id is not None and self.flags & (HAS_IS_REMOTE | IS_REMOTE) == HAS_IS_REMOTE


class Forest:
    """Spans in the order of their starts, and who is whose child.

    Of those that start together parents come first, then what ends first, then what was given first. A span whose
    parent is not there is a root, and so is one of a circle of parents.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        given = tuple(spans)
        self._parents: dict[Key, Span] = {}
        self._children: dict[Key, list[Span]] = {}
        for span in given:
            self._parents.setdefault((span.trace_id, span.span_id), span)
        self.spans = tuple(sorted(given, key=self._place))
        for span in self.spans:
            if (parent := self.parent(span)) is not None:
                self._children.setdefault((parent.trace_id, parent.span_id), []).append(span)

    def parent(self, span: Span) -> Span | None:
        """The span's parent, if it is here."""
        return None if span.parent_id is None else self._parents.get((span.trace_id, span.parent_id))

    def children(self, span: Span) -> tuple[Span, ...]:
        """The span's children in order; of a span that is here twice, only the first has any."""
        key = (span.trace_id, span.span_id)
        return tuple(self._children.get(key, ())) if self._parents.get(key) is span else ()

    def ancestors(self, span: Span) -> Iterator[Span]:
        """The span's parent, its parent and so on."""
        seen = {id(span)}
        above = self.parent(span)
        while above is not None and id(above) not in seen:
            seen.add(id(above))
            yield above
            above = self.parent(above)

    def walk(self) -> Iterator[tuple[int, Span]]:
        """Every span once with its depth, parents before their children."""
        seen: set[int] = set()
        roots = [span for span in self.spans if self.parent(span) is None]
        for root in (*roots, *self.spans):
            stack = [(0, root)]
            while stack:
                depth, span = stack.pop()
                if id(span) not in seen:
                    seen.add(id(span))
                    yield depth, span
                    stack += [(depth + 1, child) for child in reversed(self.children(span))]

    def _place(self, span: Span) -> tuple[int, int, float]:
        depth = sum(1 for _ in self.ancestors(span))
        return span.start_unix_ns, depth, math.inf if span.end_unix_ns is None else span.end_unix_ns
