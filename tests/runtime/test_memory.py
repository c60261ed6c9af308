"""Peak memory is a generation's own: it sees what a forward holds, and starts anew with the next generation."""

from __future__ import annotations

from typing import Any

from runtime.generate import decode
from runtime.testing import ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd
from tests.runtime.scripted import counting, rows

SIZE = 32 << 20


class HoldingTarget(ScriptedTarget):
    """A scripted target whose forwards hold `size` bytes for as long as they last."""

    def __init__(self, size: int) -> None:
        super().__init__(counting(30), vocab_size=30)
        self.size = size

    def forward(self, ids: Any, cache: Any) -> Any:
        import mlx.core as mx

        held = mx.ones(self.size, mx.uint8)
        mx.eval(held)
        return super().forward(ids, cache)


def measure_peak(size: int) -> int:
    recorder = Recorder()
    decode(HoldingTarget(size), [1, 2, 3], max_tokens=4, recorder=recorder).drain()
    [end] = rows(recorder.records, GenerationEnd)
    return int(end.peak_memory_bytes)


def test_a_large_array_is_in_the_peak_of_its_generation_and_in_no_other() -> None:
    small, large, after = measure_peak(8), measure_peak(SIZE), measure_peak(8)
    assert large >= SIZE
    # What else the process holds is in all three.
    assert small <= large - SIZE // 2
    assert after <= large - SIZE // 2
