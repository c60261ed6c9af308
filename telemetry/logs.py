"""Log events on stderr: readable lines on a terminal, one JSON object a line elsewhere.

Standard output belongs to data, so nothing here writes to it. An application that has configured structlog itself keeps
its own configuration. Event names (`blas.fallback`, `journal.write_failed`) are stable: match on them, not on the text.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor


def get_logger() -> FilteringBoundLogger:
    """A logger for events of level INFO and above, bound to the stderr of this moment."""
    import logging

    import structlog

    if structlog.is_configured():
        return cast("FilteringBoundLogger", structlog.get_logger("roundscope"))
    logger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=_processors(terminal=sys.stderr.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        context_class=dict,
    )
    return cast("FilteringBoundLogger", logger)


def _processors(*, terminal: bool) -> list[Processor]:
    import structlog

    shared: list[Processor] = [structlog.contextvars.merge_contextvars, structlog.processors.add_log_level]
    if terminal:
        return [*shared, structlog.dev.ConsoleRenderer()]
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    return [*shared, stamp, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
