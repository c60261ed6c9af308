"""Log events on stderr: readable lines on a terminal, one JSON object a line elsewhere.

Standard output belongs to data, so nothing here writes to it, and no event carries a prompt or an output. An
application that has configured structlog itself keeps its own configuration. Event names (`blas.fallback`,
`journal.write_failed`) are stable: match on them, not on the text; docs/logs.md lists them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

VARIABLE = "ROUNDSCOPE_LOG_LEVEL"
"""Environment variable with the least level that is shown; processes that are started from here inherit it."""

LEVELS = ("debug", "info", "warning", "error")
DEFAULT = "info"


def get_logger() -> FilteringBoundLogger:
    """A logger for events of the level asked for and above, bound to the stderr of this moment."""
    import structlog

    if structlog.is_configured():
        return cast("FilteringBoundLogger", structlog.get_logger("roundscope"))
    logger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=_processors(terminal=sys.stderr.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(_read_level()),
        context_class=dict,
    )
    return cast("FilteringBoundLogger", logger)


def bound(**facts: Any) -> contextlib.AbstractContextManager[Any]:
    """Add these facts (`run_id`) to every event of this context while the block runs. Not for generators."""
    import structlog

    return structlog.contextvars.bound_contextvars(**facts)


def _read_level() -> int:
    import logging

    level = os.environ.get(VARIABLE, "").strip().lower()
    return logging.getLevelNamesMapping()[(level if level in LEVELS else DEFAULT).upper()]


def _processors(*, terminal: bool) -> list[Processor]:
    import structlog

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _add_trace,
    ]
    if terminal:
        return [*shared, structlog.dev.ConsoleRenderer()]
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    return [*shared, stamp, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _add_trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Point an event about a generation to that generation's span, and any other to the caller's.

    A generation is in its caller's trace, but for one of a distributed run (`rank`), which has a trace of its own.
    """
    from telemetry import context
    from telemetry.span_data import derive_context

    generation_id = event.get("generation_id")
    if generation_id is None:
        event.pop("generation_id", None)
        span = context.find_present()
    else:
        span = derive_context(generation_id, None if "rank" in event else context.recall(generation_id))
    ids = {} if span is None else {"trace_id": span.trace_id, "span_id": span.span_id}
    return {**ids, **event}
