"""Make verification cheap on Linux CPUs: decide once per process which BLAS MLX will use.

`prepare()` is called wherever this package is about to import MLX, because a library can only be put in front
of MLX's own before MLX is loaded. What it found is recorded with every run. Two environment variables steer it:

- `ROUNDSCOPE_BLAS`: `auto` (default: the package's OpenBLAS, else the system's), `stock`, or a library's path.
- `ROUNDSCOPE_BLAS_THREADS`: how many threads it uses. Unset, `OPENBLAS_NUM_THREADS` and `OMP_NUM_THREADS` hold
  if set, else one thread for each physical core that is free at that moment (`runtime.cores`).

Whatever goes wrong, MLX still works on its stock BLAS: one warning says so, with the cure.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from typing import Literal

from runtime.blas import Library, Unfit, already_in_front, candidates, use
from runtime.cores import free_cores
from telemetry.errors import UsageError
from telemetry.logs import get_logger

Source = Literal["stock", "package", "system", "file", "preloaded", "accelerate"]
MOST_THREADS = 1024
_EFFECT = "float32 matmul runs on MLX's reference BLAS: verifying n tokens costs about n ordinary steps"
_INSTALL = "pip install scipy-openblas32 (or, on Debian and Ubuntu, apt-get install libopenblas0)"
_RENAME = "unset ROUNDSCOPE_BLAS, or let it name a library that exports cblas_sgemm"


@dataclass(frozen=True, slots=True)
class Backend:
    """The BLAS behind MLX's matmul in this process.

    `blas`: openblas, stock, accelerate, or the library's file name. `version`: its build string, if it tells.
    `threads`: how many it uses, if it tells. `warning`: why it is not what was asked for or is possible, and
    the cure.
    """

    blas: str
    version: str | None
    threads: int | None
    source: Source
    path: str | None = None
    warning: str | None = None


_lock = threading.Lock()
_prepared: Backend | None = None


def prepare() -> Backend:
    """Put a fast BLAS in front of MLX's, once per process; later calls return what the first one found.

    Raises UsageError if `ROUNDSCOPE_BLAS_THREADS` is not a whole number from 1 to `MOST_THREADS`.
    """
    global _prepared
    with _lock:
        if _prepared is None:
            _prepared = _choose() if sys.platform == "linux" else _native()
        return _prepared


def _native() -> Backend:
    return Backend("accelerate", None, None, "accelerate")


def _choose() -> Backend:
    asked = os.environ.get("ROUNDSCOPE_BLAS") or "auto"
    threads = _threads_asked()
    preloaded = already_in_front(threads)
    if preloaded is not None:
        return _from(preloaded, "preloaded", warning=_warn_preloaded(asked, preloaded))
    if asked == "stock":
        return Backend("stock", None, None, "stock")
    if "mlx.core" in sys.modules:
        return _fall_back("MLX was imported first", "call runtime.backend.prepare() before the first import of mlx")
    if threads is None and not _threads_set_elsewhere():
        threads = free_cores()
    return _use_first(asked, threads)


def _use_first(asked: str, threads: int | None) -> Backend:
    reasons = []
    for path in candidates() if asked == "auto" else [asked]:
        try:
            library = use(path, threads)
        except Unfit as unfit:
            reasons.append(str(unfit))
        else:
            return _from(library, _source(asked, path), warning=_warn_threads(library))
    reason = "; ".join(reasons)
    return _fall_back(reason, _INSTALL if asked == "auto" else _RENAME)


def _source(asked: str, path: str) -> Source:
    if asked != "auto":
        return "file"
    return "package" if os.path.isabs(path) else "system"


def _from(library: Library, source: Source, warning: str | None) -> Backend:
    return Backend(library.name, library.version, library.threads, source, library.path, warning)


def _threads_asked() -> int | None:
    text = os.environ.get("ROUNDSCOPE_BLAS_THREADS")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_THREADS):
        raise UsageError(f"ROUNDSCOPE_BLAS_THREADS must be a whole number from 1 to {MOST_THREADS}, not {text!r}")
    return int(text)


def _threads_set_elsewhere() -> bool:
    return any(os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))


def _fall_back(reason: str, cure: str) -> Backend:
    get_logger().warning("blas.fallback", reason=reason, effect=_EFFECT, cure=cure)
    return Backend("stock", None, None, "stock", warning=f"{reason}; {_EFFECT}. Cure: {cure}")


def _warn_preloaded(asked: str, library: Library) -> str | None:
    if asked == "auto":
        return _warn_threads(library)
    reason = f"{library.path} is loaded in front of everything already, so ROUNDSCOPE_BLAS={asked} has no effect"
    cure = "unset LD_PRELOAD"
    get_logger().warning("blas.preloaded", reason=reason, cure=cure)
    return f"{reason}. Cure: {cure}"


def _warn_threads(library: Library) -> str | None:
    if library.threads is not None or not os.environ.get("ROUNDSCOPE_BLAS_THREADS"):
        return None
    reason = f"{library.path} has no openblas_set_num_threads, so ROUNDSCOPE_BLAS_THREADS has no effect"
    cure = "use the library's own variable for its threads"
    get_logger().warning("blas.threads_ignored", reason=reason, cure=cure)
    return f"{reason}. Cure: {cure}"
