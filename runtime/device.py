"""The one door between the device and the host.

Every read of an array, and every barrier, passes here and is counted per thread, so that a round can say how
often it synchronised and a test can prove that telemetry adds no synchronisation. (Counting by patching
`mx.array` misses `np.array`, so nothing else in the package reads arrays.)
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any


class _Count(threading.local):
    syncs = 0


_count = _Count()


def read(*arrays: Any) -> list[list[int]]:
    """Evaluate integer arrays together, in one synchronisation, and return each as a list of ints."""
    import mlx.core as mx

    _count.syncs += 1
    mx.eval(*arrays)
    return [array.tolist() for array in arrays]


def read_rows(*arrays: Any) -> list[list[list[int]]]:
    """`read` for 2-D arrays: each as a list of rows."""
    rows: Any = read(*arrays)
    return list(rows)


def read_floats(array: Any) -> list[float]:
    """Evaluate a 1-D array and return it as a list of floats."""
    import mlx.core as mx

    _count.syncs += 1
    mx.eval(array)
    return [float(value) for value in array.tolist()]


def barrier(*trees: Any) -> None:
    """Wait until the arrays in `trees` (any nesting) are computed: one synchronisation, nothing is copied."""
    import mlx.core as mx

    _count.syncs += 1
    mx.eval(*trees)


def drain() -> None:
    """Wait until the default stream of this thread is empty, so that no step in flight falls into what follows."""
    import mlx.core as mx

    _count.syncs += 1
    mx.synchronize()


def syncs() -> int:
    """How many synchronisations this thread has made so far."""
    return _count.syncs


def release_memory() -> None:
    """Let the allocator give freed buffers back to the system."""
    import mlx.core as mx

    mx.clear_cache()


def reset_peak_memory() -> None:
    """Start a new measurement of peak memory."""
    import mlx.core as mx

    mx.reset_peak_memory()


def peak_memory() -> int:
    """Most bytes that MLX held since `reset_peak_memory`."""
    import mlx.core as mx

    return int(mx.get_peak_memory())


def view_bytes(array: Any) -> memoryview:
    """The bytes of an array that is computed already, without a copy where the host can see its memory."""
    return memoryview(array).cast("B")


def find_address(array: Any) -> int:
    """Where the host sees the buffer of an array that is computed already: another buffer has another address."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memoryview(array)))
