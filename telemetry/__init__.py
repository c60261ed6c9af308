"""Recording: what a generation did, as records, journals and tables. Imports none of the other packages."""

from __future__ import annotations


def roundscope_version() -> str:
    """The installed version, or `unknown` where the packages are used without being installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes as long to import as all the rest here

    try:
        return version("roundscope")
    except PackageNotFoundError:
        return "unknown"
