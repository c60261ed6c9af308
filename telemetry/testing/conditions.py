"""What a test asks of a span: its name, by a shell pattern, and its attributes, by value or by predicate.

A condition that fails says what the span has instead, so that the span that fails fewest is the nearest miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from telemetry.testing.tree import Span

Attributes: TypeAlias = Mapping[str, Any]
"""By attribute: the value it must have, a predicate of the value (a callable), or None: it must not be there."""

ALIKE = 0.6
"""How much alike (difflib's ratio) two names are that may have been taken for one another."""

ALIKE_ATTRIBUTES = 0.85
"""The same of two attributes, whose names begin alike."""


@dataclass(frozen=True)
class Wanted:
    """A name pattern and attributes, and in words among which spans they are looked for."""

    name: str = "*"
    attributes: Attributes = field(default_factory=dict)
    place: str = ""

    def accepts(self, span: Span) -> bool:
        """Whether the span is of the kind."""
        return matches_name(span.name, self.name) and not self.find_faults(span)

    def find_faults(self, span: Span) -> list[str]:
        """What is wrong with the span's attributes, each in words."""
        return find_faults(span, self.attributes)

    def describe(self, n: int) -> str:
        """The kind in words, as `n` of them: `3 spans named 'round' with roundscope.round.accepted = 2`."""
        noun = "span" if n == 1 else "spans"
        named = "" if self.name == "*" else f" named {self.name!r}"
        having = " and ".join(say_condition(name, wanted) for name, wanted in self.attributes.items())
        return f"{n} {noun}{named}{' with ' if having else ''}{having}{self.place}"

    def find_nearest(self, spans: Iterable[Span]) -> tuple[Span, list[str]] | None:
        """The one of these spans that comes nearest, with what it lacks; None: none has a name that is alike."""
        alike = [span for span in spans if self._likeness(span) >= ALIKE]
        if not alike:
            return None
        nearest = min(alike, key=lambda span: (-self._likeness(span), len(self.find_faults(span))))
        faults = self.find_faults(nearest)
        if not matches_name(nearest.name, self.name):
            faults.insert(0, f"it is named {nearest.name!r}")
        return nearest, faults

    def _likeness(self, span: Span) -> float:
        return 1 if matches_name(span.name, self.name) else SequenceMatcher(None, span.name, self.name).ratio()


def matches_name(name: str, pattern: str) -> bool:
    """Whether a span's name is `pattern`, or is matched by it (`*`, `?` and `[...]` as in a shell)."""
    return name == pattern or fnmatchcase(name, pattern)


def find_faults(span: Span, attributes: Attributes) -> list[str]:
    """What is wrong with a span's attributes, each in words."""
    return [fault for name, wanted in attributes.items() if (fault := _find_fault(span, name, wanted))]


def find_alike(span: Span, attributes: Attributes) -> list[str]:
    """Of attributes that a span should have and has not: those it has whose names may have been meant, in words."""
    missing = [name for name, wanted in attributes.items() if wanted is not None and name not in span.attributes]
    close = [get_close_matches(name, span.attributes, 1, ALIKE_ATTRIBUTES) for name in missing]
    return [f"it has {name}" for [name] in filter(None, close)]


def _find_fault(span: Span, name: str, wanted: Any) -> str | None:
    if name not in span.attributes:
        return None if wanted is None else f"{name} is not set, wanted {_say_wanted(wanted)}"
    value = span.attributes[name]
    if callable(wanted):
        return None if wanted(value) else f"{name} is {value!r}, wanted {_say_wanted(wanted)}"
    # To Python, True is 1; to who reads a trace, they are two things.
    same = value == plain(wanted) and isinstance(value, bool) == isinstance(wanted, bool)
    return None if same else f"{name} is {value!r}, wanted {_say_wanted(wanted)}"


def say_condition(name: str, wanted: Any) -> str:
    """A condition in words."""
    return f"{name} {_say_wanted(wanted)}" if wanted is None else f"{name} = {_say_wanted(wanted)}"


def _say_wanted(wanted: Any) -> str:
    if wanted is None:
        return "not set"
    return f"what {_name_predicate(wanted)} accepts" if callable(wanted) else repr(plain(wanted))


def _name_predicate(predicate: Callable[[Any], object]) -> str:
    name = getattr(predicate, "__qualname__", repr(predicate)).rpartition("<locals>.")[2]
    code = getattr(predicate, "__code__", None)
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def plain(value: Any) -> Any:
    """`value` with every sequence in it as a tuple, as a span's attributes have them."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(plain(each) for each in value)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return value
