"""Which package may import which, and what the commands that only read a store get by without."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_python
from tests.dashboards.test_command import record
from tests.queries.simulate import Simulation

PACKAGES = ("telemetry", "queries", "dashboards", "runtime")
MAY_IMPORT = {
    "telemetry": set[str](),
    "queries": {"telemetry"},
    "dashboards": {"queries", "telemetry"},
    "runtime": {"telemetry"},
    "runtime/cli": {"telemetry", "queries", "dashboards"},
}
HEAVY = ("mlx", "mlx_lm", "transformers", "numpy")
ASK = """
import sys
from runtime.cli.main import main
try: main()
except SystemExit as end: assert not end.code, end.code
print(sorted(set({heavy}) & set(sys.modules)), file=sys.stderr)
"""


def find_imports(path: Path) -> Iterator[str]:
    """The top-level names of everything that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield (node.module or "").partition(".")[0]


def find_names(source: str) -> set[str]:
    """Every name, attribute and imported name in a module's source."""
    nodes = [*ast.walk(ast.parse(source))]
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return named | attributes | {node.name for node in nodes if isinstance(node, ast.alias)}


@pytest.mark.parametrize("place", MAY_IMPORT)
def test_dependencies_point_one_way(place: str) -> None:
    package = place.partition("/")[0]
    paths = [path for path in (ROOT / place).rglob("*.py") if place != "runtime" or "cli" not in path.parts]
    ours = {*PACKAGES, "benchmarks", "tests"} - {package} - MAY_IMPORT[place]
    assert paths
    assert {path.relative_to(ROOT).as_posix(): found for path in paths if (found := ours & {*find_imports(path)})} == {}


def test_nothing_of_the_generator_is_compiled() -> None:
    """Its stages are measured with MLX's compilation off (docs/ncm.md): nothing there asks for it."""
    paths = [*(ROOT / "runtime" / "ncm").rglob("*.py"), ROOT / "runtime" / "device.py"]
    assert len(paths) > 20
    assert [path.name for path in paths if "compile" in find_names(path.read_text(encoding="utf-8"))] == []
    asking = ("@mx.compile\ndef f(): ...", "f = mx.compile(f)", "from mlx.core import compile as c")
    assert all("compile" in find_names(source) for source in asking)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a run, as its journal left it."""
    folder = tmp_path_factory.mktemp("store")
    record(folder, Simulation(classes=("copy",)))
    return str(folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ("report",),
        ("report", "stages", "--json"),
        ("show", "latest"),
        ("sql", "from rounds select count(*), avg(committed), list(accepted)", "--csv"),
    ],
    ids=" ".join,
)
def test_commands_that_only_read_a_store_import_no_model_library(store: str, arguments: tuple[str, ...]) -> None:
    child = run_python(ASK.format(heavy=HEAVY), *arguments, "--store", store)
    assert (child.returncode, child.stderr) == (0, "[]\n")
    assert child.stdout
