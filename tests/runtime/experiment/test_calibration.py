"""What verification costs by width and context: measured where the target has positions, and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.experiment.calibration import measure_verify_costs
from runtime.testing import ScriptedTarget
from telemetry.errors import Unsupported
from telemetry.records import VerifyCostRecord
from telemetry.testing import FakeClock
from tests.models import tiny_llama
from tests.runtime.recurrent import tiny_mamba


def make_target(clock: FakeClock, **options: Any) -> ScriptedTarget:
    """A target whose forward takes a millisecond, one more a position, and one more for 100 held."""
    return ScriptedTarget(
        lambda history: 0,
        vocab_size=4,
        clock=clock,
        cost_ns=lambda width, held: 1_000_000 * (1 + width) + 10_000 * held,
        **options,
    )


def test_a_record_for_every_width_and_context() -> None:
    clock = FakeClock()
    target = make_target(clock)
    found = list(
        measure_verify_costs(target, [1, 2, 3], [200, 100, 100], widths=(1, 4), run_id="r", now=clock.monotonic_ns)
    )
    [calibration_id] = {record.calibration_id for record in found}
    assert found == [
        VerifyCostRecord(
            calibration_id=calibration_id,
            run_id="r",
            model="scripted",
            dtype="unknown",
            context=context,
            width=width,
            n=3,
            verify_ns=ns,
            fastest_ns=ns,
            slowest_ns=ns,
        )
        for context, width in ((100, 1), (100, 4), (200, 1), (200, 4))
        for ns in [1_000_000 * (1 + width) + 10_000 * (context + width)]
    ]
    # Contexts are filled once; each width has a turn for warming up, and turns change their order.
    assert target.widths == [100, *[4, 1, 1, 4] * 2, 100, *[4, 1, 1, 4] * 2]


def test_the_median_counts_and_the_ends_are_kept() -> None:
    clock, costs = FakeClock(), iter([100, 9, 7, 30, 8])
    target = ScriptedTarget(lambda history: 0, vocab_size=4, clock=clock, cost_ns=lambda width, held: next(costs))
    [record] = measure_verify_costs(target, [1], [0], widths=(1,), repeats=4, now=clock.monotonic_ns)
    assert (record.n, record.verify_ns, record.fastest_ns, record.slowest_ns) == (4, 8, 7, 30)


def test_what_the_target_has_no_positions_for_is_left_out() -> None:
    clock = FakeClock()
    target = make_target(clock, max_positions=12)
    found = measure_verify_costs(target, [1], [8, 11, 12], widths=(1, 2, 5), now=clock.monotonic_ns)
    assert [(record.context, record.width) for record in found] == [(8, 1), (8, 2), (11, 1)]


@pytest.mark.parametrize("make", [tiny_llama, tiny_mamba])
def test_every_forward_is_taken_back(make: Any) -> None:
    """A real model's cache holds the context again after each, whether it trims or restores."""
    target, held = make(1), []
    forward = target.forward

    def watch(ids: Any, cache: Any) -> Any:
        held.append([getattr(layer, "offset", None) for layer in cache])
        return forward(ids, cache)

    target.forward = watch
    found = list(measure_verify_costs(target, [1, 2, 3], [5, 7], widths=(1, 3), repeats=1))
    assert [(record.context, record.width) for record in found] == [(5, 1), (5, 3), (7, 1), (7, 3)]
    assert all(0 < record.fastest_ns <= record.verify_ns <= record.slowest_ns for record in found)
    offsets = [layers[0] for layers in held]
    assert offsets == ([0, *[5] * 4, 5, *[7] * 4] if make is tiny_llama else [None] * 10)


def test_a_cache_that_cannot_be_taken_back_is_refused() -> None:
    with pytest.raises(Unsupported, match="ScriptedLayer"):
        list(measure_verify_costs(make_target(FakeClock(), cache="untrimmable"), [1], [4]))
