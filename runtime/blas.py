"""Find a fast BLAS on Linux, check that it computes, and put its matrix products in front of MLX's own.

MLX's Linux wheel carries netlib BLAS, about 5 GFLOP/s whatever the batch: a forward over k tokens then costs k
forwards. OpenBLAS comes with the package `scipy-openblas32` (x86-64 and aarch64, kernels chosen at run time, needs
nothing but glibc); the system's own library is next. (`cmeel-openblas` was tried: it is built for its builder's
processor only, and stopped with an illegal instruction on the first other one.)
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.interpose import address_in, put_in_front, visible_address

PRODUCTS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
"""What MLX calls for float32, float64 and complex64 matmul."""
SYSTEM_NAMES = ("libopenblasp.so.0", "libopenblas.so.0")
"""Fedora's threaded flavour has the first name; elsewhere the second is threaded."""
_PREFIXES = ("", "scipy_")
_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112


class Unfit(Exception):
    """A library cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Library:
    """A BLAS in this process: its name, its file, its build string and thread count if it tells."""

    name: str
    path: str
    version: str | None
    threads: int | None


def candidates() -> Iterator[str]:
    """Paths and sonames of libraries worth a try, the best first."""
    spec = importlib.util.find_spec("scipy_openblas32")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from sorted(str(path) for path in Path(folder, "lib").glob("libscipy_openblas*.so"))
    yield from SYSTEM_NAMES


def use(path: str, threads: int | None) -> Library:
    """Load the library at `path`, set its threads (None: as it likes), and put its matrix products in front.

    Raises Unfit, with nothing put in front, if it does not load, has no `cblas_sgemm` with 32-bit integers, or
    multiplies wrongly.
    """
    try:
        handle = ctypes.CDLL(path)
    except OSError as error:
        raise Unfit(str(error)) from error
    prefix = next((p for p in _PREFIXES if address_in(handle, p + PRODUCTS[0]) is not None), None)
    if prefix is None:
        raise Unfit(f"{path}: exports no {PRODUCTS[0]}")
    if "USE64BITINT" in (_version(handle, prefix) or ""):
        raise Unfit(f"{path}: built for 64-bit integers, MLX passes 32-bit ones")
    _set_threads(handle, prefix, threads)
    _check_product(handle, prefix, path)
    found = {name: address_in(handle, prefix + name) for name in PRODUCTS}
    addresses = {name: address for name, address in found.items() if address is not None}
    try:
        put_in_front(addresses)
    except OSError as error:
        raise Unfit(f"{path}: cannot be put in front of MLX's BLAS: {error}") from error
    return _describe(handle, prefix, addresses[PRODUCTS[0]])


def already_in_front(threads: int | None) -> Library | None:
    """The BLAS that is visible to every library of this process already (LD_PRELOAD), if there is one."""
    address = visible_address(PRODUCTS[0])
    if address is None:
        return None
    handle = ctypes.CDLL(None)
    _set_threads(handle, "", threads)
    return _describe(handle, "", address)


def _describe(handle: ctypes.CDLL, prefix: str, address: int) -> Library:
    path = file_of(address)
    version = _version(handle, prefix)
    count = _function(handle, prefix + "openblas_get_num_threads")
    name = "openblas" if version else Path(path).name.split(".so")[0].removeprefix("lib")
    return Library(name, path, version, count() if count else None)


def _version(handle: ctypes.CDLL, prefix: str) -> str | None:
    config = _function(handle, prefix + "openblas_get_config")
    if config is None:
        return None
    config.restype = ctypes.c_char_p
    return bytes(config()).decode(errors="replace").strip()


def _set_threads(handle: ctypes.CDLL, prefix: str, threads: int | None) -> None:
    setter = _function(handle, prefix + "openblas_set_num_threads")
    if setter is not None and threads is not None:
        setter(threads)


def _function(handle: ctypes.CDLL, name: str) -> ctypes._NamedFuncPointer | None:
    return getattr(handle, name) if address_in(handle, name) is not None else None


def _check_product(handle: ctypes.CDLL, prefix: str, path: str) -> None:
    """Multiply small whole numbers, exact in float32: wrong kernels for a processor are a known fault of old builds."""
    m, n, k = 9, 17, 33
    a = [(3 * i + j) % 7 - 3 for i in range(m) for j in range(k)]
    b = [(i + 5 * j) % 11 - 5 for i in range(n) for j in range(k)]
    expected = [float(sum(a[i * k + x] * b[j * k + x] for x in range(k))) for i in range(m) for j in range(n)]
    vector_a, vector_b = (ctypes.c_float * len(a))(*a), (ctypes.c_float * len(b))(*b)
    product = (ctypes.c_float * (m * n))()
    multiply = getattr(handle, prefix + PRODUCTS[0])
    multiply.restype = None
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    multiply(_ROW_MAJOR, _NO_TRANS, _TRANS, m, n, k, one, vector_a, k, vector_b, k, zero, product, n)
    if list(product) != expected:
        raise Unfit(f"{path}: multiplies wrongly on this processor")


class _Symbol(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def file_of(address: int) -> str:
    """The file of the loaded library that holds `address` (dladdr(3)), or "" if none does."""
    found = _Symbol()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found)):
        return ""
    return bytes(found.file or b"").decode(errors="replace")
