"""Recording: what a generation did, as records, journals and tables. Imports none of the other packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def roundscope_version() -> str:
    """The installed version, or `unknown` where the packages are used without being installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes as long to import as all the rest here

    try:
        return version("roundscope")
    except PackageNotFoundError:
        return "unknown"


def instrument(tracer_provider: TracerProvider | None = None) -> Callable[[], None]:
    """Replay every generation that is asked for from now on to `tracer_provider` (default: the global one).

    The spans are started and ended after the generation, with the times that were measured. Returns a function that
    ends it. What the provider raises is logged as `instrument.failed` and reaches no generation; `telemetry.replay` has
    the limits.
    """
    from telemetry.observing import observe
    from telemetry.replay import Replay

    return observe(Replay(tracer_provider).see, late=True)
