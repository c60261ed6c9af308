"""Pages can be made only where the drawing libraries are installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.conftest import lack


@pytest.fixture(autouse=True, scope="session")
def _libraries() -> None:
    """Altair and vl-convert."""
    missing = [name for name in ("altair", "vl_convert") if find_spec(name) is None]
    if missing:
        lack(" and ".join(missing), "pip install --editable '.[test]'")
