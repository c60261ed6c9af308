"""Recording: what a generation did, as records, journals and tables. Imports none of the other packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def roundscope_version() -> str:
    """The installed version, or `unknown` where the packages are used without being installed."""
    try:
        return version("roundscope")
    except PackageNotFoundError:
        return "unknown"
