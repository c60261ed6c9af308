"""Spans that a test has before it, and what it may assert of them.

    spans = Spans.from_live(exporter.get_finished_spans())
    spans.assert_one_trace().assert_all_ended()
    spans.find("request").assert_children("authorise", "query", ...)
    spans.find("query", {"rows": lambda n: n > 0}).assert_at_least(1).assert_durations_within(0, 5_000_000)

Every assertion gives the spans back, so that they can be chained. All but the counting ones fail where there is no span
at all: a misspelt name must not pass. What they raise is a `TraceAssertionError`, an AssertionError whose message has
the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, overload

from telemetry.testing import checks, checks_structure, checks_time
from telemetry.testing.conditions import Attributes, Wanted
from telemetry.testing.tree import Forest, Span

if TYPE_CHECKING:
    from telemetry.records import Record

__tracebackhide__ = True


class Spans(Sequence[Span]):
    """Some spans of a trace, or of several, in the order of their starts, with the tree around them.

    Made of records, live spans, a store or an OTLP-JSON file by the `from_` functions; narrowed by `find` and
    `children`.
    """

    def __init__(
        self,
        spans: Iterable[Span],
        *,
        forest: Forest | None = None,
        wanted: Wanted | None = None,
        pool: Sequence[Span] | None = None,
    ) -> None:
        self.forest = Forest(spans) if forest is None else forest
        self.wanted = Wanted() if wanted is None else wanted
        self._spans = self.forest.spans if forest is None else tuple(spans)
        self.pool = self._spans if pool is None else pool
        """Those among which these were looked for."""

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> Spans:
        """The spans of what a recorder took down."""
        from telemetry.testing.sources import convert_records

        return cls(convert_records(records))

    @classmethod
    def from_live(cls, spans: Iterable[Any]) -> Spans:
        """OpenTelemetry's own: what an exporter got (ReadableSpan), or spans that are still open; anybody's."""
        from telemetry.testing.sources import convert_live

        return cls(convert_live(spans))

    @classmethod
    def from_store(cls, store: Path | str, *, run_id: str | None = None) -> Spans:
        """The spans of a run in a store, or of everything in it. UsageError: there is no store."""
        from telemetry.testing.sources import read_store

        return cls(read_store(Path(store), run_id))

    @classmethod
    def from_otlp_json(cls, path: Path | str) -> Spans:
        """Spans of an OTLP-JSON file, anybody's: one document, or one a line. UsageError: it is none."""
        from telemetry.testing.sources import read_otlp_json

        return cls(read_otlp_json(Path(path)))

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> Spans: ...
    def __getitem__(self, index: int | slice) -> Span | Spans:
        """A span by its place in time, or some of them."""
        return self._spans[index] if isinstance(index, int) else self._narrow(self._spans[index], self.wanted)

    def __len__(self) -> int:
        return len(self._spans)

    def __repr__(self) -> str:
        return f"<{self.wanted.describe(len(self))}>"

    def find(self, name: str = "*", attributes: Attributes | None = None) -> Spans:
        """Those of this name (a shell pattern) that have all these attributes.

        attributes: by name, a value, a predicate (a callable that takes the value), or None for one that is not set.
        """
        wanted = Wanted(name, attributes or {}, self._place())
        return self._narrow(filter(wanted.accepts, self._spans), wanted)

    def children(self, name: str = "*", attributes: Attributes | None = None) -> Spans:
        """Children of any of these, of this name and with these attributes, in the order of their starts."""
        found = {child for span in self._spans for child in self.forest.children(span)}
        return self._among(found, f" under {self.wanted.describe(len(self))}").find(name, attributes)

    def descendants(self, name: str = "*", attributes: Attributes | None = None) -> Spans:
        """The same with their children, and so on."""
        mine = set(self._spans)
        found = {span for span in self.forest.spans if mine.intersection(self.forest.ancestors(span))}
        return self._among(found, f" anywhere under {self.wanted.describe(len(self))}").find(name, attributes)

    def roots(self) -> Spans:
        """Those of which no parent is here."""
        return self._among({span for span in self._spans if self.forest.parent(span) is None}, " without a parent")

    def assert_exactly(self, n: int) -> Spans:
        """There are `n`."""
        checks.check_count(self, n, n)
        return self

    def assert_at_least(self, n: int) -> Spans:
        """There are `n` or more."""
        checks.check_count(self, n, None)
        return self

    def assert_at_most(self, n: int) -> Spans:
        """There are `n` or fewer."""
        checks.check_count(self, None, n)
        return self

    def assert_attributes(self, attributes: Attributes) -> Spans:
        """Every one has these attributes: by value, by predicate, or None for not set."""
        checks.check_attributes(self, attributes)
        return self

    def assert_in_order(self, *names: str) -> Spans:
        """Spans of these names start one after the other, in this order; others may start in between."""
        checks_structure.check_order(self, names)
        return self

    def assert_children(self, *names: str | EllipsisType) -> Spans:
        """Every one has exactly these children, in the order of their starts; `...` repeats the name before it."""
        checks_structure.check_children(self, names)
        return self

    def assert_durations_within(self, at_least_ns: int, at_most_ns: int) -> Spans:
        """Every one has ended, and lasted as long."""
        checks_time.check_durations(self, at_least_ns, at_most_ns)
        return self

    def assert_no_overlap(self) -> Spans:
        """No two of them are open at the same time, but for one inside its ancestor."""
        checks_time.check_overlap(self)
        return self

    def assert_children_fit(self) -> Spans:
        """The durations of each one's children add up to no more than its own."""
        checks_time.check_sums(self)
        return self

    def assert_nested(self) -> Spans:
        """Each one's children begin and end while it is open."""
        checks_time.check_nesting(self)
        return self

    def assert_all_ended(self) -> Spans:
        """Every one has ended, and so has every parent of theirs in this process: a parent that is missing has not."""
        checks.check_ended(self)
        return self

    def assert_one_trace(self) -> Spans:
        """They all belong to one trace, under one root."""
        checks.check_one_trace(self)
        return self

    def _place(self) -> str:
        if self.wanted.name == "*" and not self.wanted.attributes:
            return self.wanted.place
        return f" among {self.wanted.describe(len(self))}"

    def _narrow(self, spans: Iterable[Span], wanted: Wanted) -> Spans:
        return Spans(spans, forest=self.forest, wanted=wanted, pool=self._spans)

    def _among(self, found: set[Span], place: str) -> Spans:
        return Spans(filter(found.__contains__, self.forest.spans), forest=self.forest, wanted=Wanted(place=place))
