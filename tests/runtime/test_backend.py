"""Each override, each way of failing, and that MLX really calls the library that was put in front."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import lack, run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="on macOS MLX uses Accelerate, nothing is put in front")

HIDE_PACKAGE = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "scipy_openblas32" else find(name, *rest)
"""
HIDE_SYSTEM = """
import runtime.blas
runtime.blas.SYSTEM_NAMES = ("libnone.so.0",)
"""
REPORT = """
import json, sys
from dataclasses import asdict
from runtime.backend import prepare
backend = prepare()
assert prepare() is backend
import mlx.core as mx
a = mx.arange(6).reshape(2, 3).astype(mx.float32)
print(json.dumps({**asdict(backend), "product": (a @ a.T).tolist()}))
"""
PRODUCT = [[5.0, 14.0], [14.0, 50.0]]
EFFECT = "float32 matmul runs on MLX's reference BLAS: verifying n tokens costs about n ordinary steps"
INSTALL = "pip install scipy-openblas32 (or, on Debian and Ubuntu, apt-get install libopenblas0)"
SYSTEM = {"LD_LIBRARY_PATH": os.environ.get("ROUNDSCOPE_TEST_LIBRARIES", os.environ.get("LD_LIBRARY_PATH"))}
"""Where `.ci/run` has unpacked the system's libraries, so that they need not be installed."""
RENAME = "unset ROUNDSCOPE_BLAS, or let it name a library that exports cblas_sgemm"


def packaged_library() -> str:
    import scipy_openblas32

    return str(Path(scipy_openblas32.__file__).parent / "lib" / "libscipy_openblas.so")


def report(before: str = "", **env: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a child's backend is, and the events that it logged."""
    child = run_python(before + REPORT, env={"OPENBLAS_NUM_THREADS": None, "OMP_NUM_THREADS": None, **env})
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout), [json.loads(line) for line in child.stderr.splitlines()]


def find_system_library() -> str:
    """The file of the system's OpenBLAS."""
    found = run_python(
        """
import ctypes
from runtime.blas import file_of
from runtime.interpose import address_in
print(file_of(address_in(ctypes.CDLL("libopenblas.so.0"), "cblas_sgemm")))
""",
        env=SYSTEM,
    )
    return found.stdout.strip() or lack("the system's libopenblas.so.0", "apt-get install libopenblas0")


def stock(reason: str, cure: str) -> dict[str, Any]:
    return {
        "blas": "stock",
        "version": None,
        "threads": None,
        "source": "stock",
        "path": None,
        "warning": f"{reason}; {EFFECT}. Cure: {cure}",
        "product": PRODUCT,
    }


def warning(reason: str, cure: str) -> dict[str, Any]:
    return {"event": "blas.fallback", "level": "warning", "reason": reason, "effect": EFFECT, "cure": cure}


def without_time(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key != "timestamp"} for event in events]


def test_auto_takes_the_packages_openblas() -> None:
    backend, events = report(ROUNDSCOPE_BLAS_THREADS="1")
    assert backend.pop("version").startswith("OpenBLAS 0.3.")
    assert backend == {
        "blas": "openblas",
        "threads": 1,
        "source": "package",
        "path": packaged_library(),
        "warning": None,
        "product": PRODUCT,
    }
    assert events == []


def test_stock_is_a_choice_and_needs_no_warning() -> None:
    backend, events = report(ROUNDSCOPE_BLAS="stock")
    assert backend == {**stock("", ""), "warning": None}
    assert events == []


def test_a_path_is_loaded() -> None:
    backend, events = report(ROUNDSCOPE_BLAS=packaged_library(), ROUNDSCOPE_BLAS_THREADS="2")
    assert (backend["blas"], backend["source"], backend["path"]) == ("openblas", "file", packaged_library())
    assert (backend["threads"], backend["product"], events) == (2, PRODUCT, [])


def test_the_systems_openblas_is_next() -> None:
    find_system_library()
    backend, events = report(HIDE_PACKAGE, ROUNDSCOPE_BLAS_THREADS="1", **SYSTEM)
    assert (backend["blas"], backend["source"], backend["threads"]) == ("openblas", "system", 1)
    assert Path(backend["path"]).name.startswith("libopenblas")
    assert (backend["product"], events) == (PRODUCT, [])


def test_a_preloaded_library_is_used_and_named() -> None:
    """LD_PRELOAD decides before anything here can: what is recorded must be what MLX really calls."""
    library = find_system_library()
    backend, events = report(LD_PRELOAD=library, ROUNDSCOPE_BLAS_THREADS="1", **SYSTEM)
    assert (backend["source"], backend["threads"], backend["warning"]) == ("preloaded", 1, None)
    assert events == []
    backend, events = report(LD_PRELOAD=library, ROUNDSCOPE_BLAS="stock", **SYSTEM)
    assert backend["source"] == "preloaded"
    assert [event["event"] for event in events] == ["blas.preloaded"]
    assert backend["warning"] == f"{events[0]['reason']}. Cure: unset LD_PRELOAD"


def test_no_library_anywhere_means_stock_and_one_warning() -> None:
    backend, events = report(HIDE_PACKAGE + HIDE_SYSTEM)
    reason = "libnone.so.0: cannot open shared object file: No such file or directory"
    assert backend == stock(reason, INSTALL)
    assert without_time(events) == [warning(reason, INSTALL)]


@pytest.mark.parametrize("content", [None, b"", b"not a library"], ids=["absent", "empty", "text"])
def test_a_path_that_cannot_be_loaded_means_stock_and_one_warning(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "libblas.so"
    if content is not None:
        path.write_bytes(content)
    backend, events = report(ROUNDSCOPE_BLAS=str(path))
    assert [event["event"] for event in events] == ["blas.fallback"]
    assert str(path) in events[0]["reason"]
    assert backend == stock(events[0]["reason"], RENAME)


def test_a_library_without_products_is_refused_by_name() -> None:
    import _ctypes

    path = _ctypes.__file__
    backend, events = report(ROUNDSCOPE_BLAS=path)
    assert backend == stock(f"{path}: exports no cblas_sgemm", RENAME)
    assert without_time(events) == [warning(f"{path}: exports no cblas_sgemm", RENAME)]


def test_mlx_imported_first_is_too_late() -> None:
    backend, events = report("import mlx.core\n")
    cure = "call runtime.backend.prepare() before the first import of mlx"
    assert backend == stock("MLX was imported first", cure)
    assert without_time(events) == [warning("MLX was imported first", cure)]


def test_a_library_that_multiplies_wrongly_is_refused() -> None:
    """Kernels that are wrong for a processor are real; the check must see one wrong element."""
    wrong = """
import ctypes
import runtime.blas as blas
class Wrong:
    def __init__(self, handle): self.handle = handle
    def __getattr__(self, name):
        function = getattr(self.handle, name)
        if not name.endswith("cblas_sgemm"): return function
        def multiply(*arguments):
            function(*arguments)
            arguments[-2][-1] += 1
        return multiply
check = blas._check_product
blas._check_product = lambda handle, *rest: check(Wrong(handle), *rest)
"""
    path = packaged_library()
    backend, events = report(wrong, ROUNDSCOPE_BLAS=path)
    reason = f"{path}: multiplies wrongly on this processor"
    assert backend == stock(reason, RENAME)
    assert without_time(events) == [warning(reason, RENAME)]


def test_where_nothing_can_be_put_in_front_stock_stays() -> None:
    """A sandbox may forbid memory files."""
    forbid = """
import os
def memfd_create(*_): raise PermissionError(1, "Operation not permitted")
os.memfd_create = memfd_create
"""
    path = packaged_library()
    backend, events = report(forbid, ROUNDSCOPE_BLAS=path)
    reason = f"{path}: cannot be put in front of MLX's BLAS: [Errno 1] Operation not permitted"
    assert backend == stock(reason, RENAME)
    assert without_time(events) == [warning(reason, RENAME)]


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²", "1025", "9" * 30])
def test_a_thread_count_that_makes_no_sense_is_refused(value: str) -> None:
    child = run_python(
        "from runtime.backend import prepare\nfrom telemetry.errors import UsageError\n"
        "try: prepare()\nexcept UsageError as error: print(error)",
        env={"ROUNDSCOPE_BLAS_THREADS": value},
    )
    assert child.stdout == f"ROUNDSCOPE_BLAS_THREADS must be a whole number from 1 to 1024, not {value!r}\n"


def test_variables_of_the_library_itself_hold() -> None:
    backend, _ = report(OPENBLAS_NUM_THREADS="1")
    assert backend["threads"] == 1


def test_threads_are_at_most_the_processors_of_this_process() -> None:
    backend, _ = report("import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n")
    assert backend["threads"] == 1


def test_mlx_calls_what_was_put_in_front() -> None:
    """The product of a function of our own comes back out of MLX: nothing else shows that the order of loading held."""
    child = run_python(
        """
import ctypes
from runtime.interpose import put_in_front
I, F, P = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
calls = []
@ctypes.CFUNCTYPE(None, I, I, I, I, I, I, F, P, I, P, I, F, P, I)
def sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    calls.append((m, n, k))
    for i in range(m):
        for j in range(n):
            F.from_address(c + 4 * (i * ldc + j)).value = 42
put_in_front({"cblas_sgemm": ctypes.cast(sgemm, P).value})
import mlx.core as mx
a = mx.arange(6).reshape(2, 3).astype(mx.float32)
print((a @ a.T).tolist(), calls)
"""
    )
    assert (child.stdout, child.stderr) == ("[[42.0, 42.0], [42.0, 42.0]] [(2, 2, 3)]\n", "")


def test_names_that_are_taken_already_cannot_be_put_in_front() -> None:
    child = run_python(
        """
from runtime.interpose import put_in_front
try: put_in_front({"printf": 4096})
except OSError as error: print(error)
"""
    )
    assert child.stdout == "the dynamic linker resolves printf elsewhere (first look-up)\n"
