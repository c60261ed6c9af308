"""The caller's trace context (W3C Trace Context), of which a generation becomes a part.

Taken when a generation is asked for: from an argument, from the active OpenTelemetry span, or from the environment
variable TRACEPARENT, in that order. It is only read: nothing here, and no generator, makes a span the current one. Log
events of a generation belong to its trace whatever is active by then, so the latest generations' callers are kept.
"""

from __future__ import annotations

import os
import re
import sys
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache

from telemetry.errors import UsageError
from telemetry.logs import get_logger

VARIABLE = "TRACEPARENT"
N_REMEMBERED = 1000
_callers: OrderedDict[str, Caller | None] = OrderedDict()
_SAMPLED = 1
_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
)
_LATER = re.compile(_TRACEPARENT.pattern + r"(-.*)?")


@dataclass(frozen=True)
class Caller:
    """The span that a generation is a child of: 32 and 16 hexadecimal digits, and whether its trace is kept."""

    trace_id: str
    span_id: str
    sampled: bool

    @property
    def traceparent(self) -> str:
        """The context in W3C's form, for handing on."""
        return f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.sampled else 0:02x}"


def find_caller(traceparent: str | None = None) -> Caller | None:
    """The caller's context, or None if there is none.

    Raises UsageError if `traceparent` is given and is none. A TRACEPARENT in the environment that is none is ignored,
    with a warning, as the standard wants.
    """
    if traceparent is not None:
        caller = parse_traceparent(traceparent)
        if caller is None:
            raise UsageError(
                f"traceparent is {traceparent!r}; it must be 00-TRACE-SPAN-01, with 32 and 16 hexadecimal "
                "digits that are not all zero"
            )
        return caller
    return find_active() or _read_environment(os.environ.get(VARIABLE, ""))


def remember(generation_id: str, caller: Caller | None) -> None:
    """Keep who asked for a generation; of more than `N_REMEMBERED`, the earliest are forgotten."""
    _callers[generation_id] = caller
    if len(_callers) > N_REMEMBERED:
        _callers.popitem(last=False)


def recall(generation_id: str) -> Caller | None:
    """Who asked for a generation; for one that is not remembered, who would be asking now."""
    try:
        return _callers[generation_id]
    except KeyError:
        return find_present()


def find_present() -> Caller | None:
    """The active span, or what the environment says, without a word about one that is none."""
    return find_active() or parse_traceparent(os.environ.get(VARIABLE, ""))


def parse_traceparent(text: str) -> Caller | None:
    """The context that a W3C `traceparent` carries; None if it is invalid. Later versions are read as far as known."""
    found = _LATER.fullmatch(text) if text[:2] not in ("00", "ff") else _TRACEPARENT.fullmatch(text)
    if found is None or found["version"] == "ff" or not int(found["trace"], 16) or not int(found["span"], 16):
        return None
    return Caller(found["trace"], found["span"], bool(int(found["flags"], 16) & _SAMPLED))


def find_active() -> Caller | None:
    """The active OpenTelemetry span, or None if there is none."""
    # Where nobody has loaded OpenTelemetry there is no active span, and no reason to load it.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return Caller(f"{context.trace_id:032x}", f"{context.span_id:016x}", bool(context.trace_flags & _SAMPLED))


@cache
def _read_environment(text: str) -> Caller | None:
    caller = parse_traceparent(text) if text else None
    if text and caller is None:
        get_logger().warning(
            "context.traceparent_ignored", variable=VARIABLE, value=text, effect="generations have no parent"
        )
    return caller
