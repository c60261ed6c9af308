"""What verification costs by the width of its forward and the length of the context: the curve that decides.

A round verifies m proposed tokens in a forward over m + 1 positions. Where that costs hardly more than one position,
little acceptance pays; where it costs m + 1 steps, nothing ever does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from runtime.caches import Undo, require_undo
from runtime.device import barrier, drain, read
from runtime.protocols import Target
from runtime.session import PREFILL_CHUNK
from telemetry.recorder import new_generation_id
from telemetry.records import VerifyCostRecord

WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17)
REPEATS = 3
Clock = Callable[[], int]


def measure_verify_costs(
    target: Target,
    ids: Sequence[int],
    contexts: Sequence[int],
    *,
    widths: Sequence[int] = WIDTHS,
    repeats: int = REPEATS,
    run_id: str | None = None,
    now: Clock = time.perf_counter_ns,
    go_on: Callable[[], bool] = lambda: True,
) -> Iterator[VerifyCostRecord]:
    """A record for every width and context that the target has positions for, contexts from short to long.

    ids: tokens to fill the context with, in turns. Widths take turns, so that a change of the machine's speed falls on
    all of them; the first turn is warm-up. Each forward is taken back out of the cache. go_on: asked before every
    context and turn; once it says no, there are records of what was measured by then.

    Raises Unsupported where rejected positions cannot be taken out of the target's cache.
    """
    calibration = new_generation_id()
    cache = target.make_cache()
    require_undo(cache, "the target")
    undo, held = Undo(cache), 0
    for context in sorted(set(contexts)):
        fitting = [width for width in widths if target.max_positions is None or context + width <= target.max_positions]
        if not fitting or not go_on():
            continue
        _fill(target, cache, ids, held, context)
        held = context
        times: dict[int, list[int]] = {width: [] for width in fitting}
        for turn in range(repeats + 1):
            if not go_on():
                break
            for width in fitting if turn % 2 else reversed(fitting):
                taken = _time_forward(target, cache, undo, context, ids, width, now)
                if turn:
                    times[width].append(taken)
        for width, measured in times.items():
            if not measured:
                continue
            yield VerifyCostRecord(
                calibration_id=calibration,
                run_id=run_id,
                model=getattr(target, "name", type(target).__name__),
                dtype=getattr(target, "dtype", "unknown"),
                context=context,
                width=width,
                n=len(measured),
                verify_ns=int(median(measured)),
                fastest_ns=min(measured),
                slowest_ns=max(measured),
            )


def _fill(target: Target, cache: list[object], ids: Sequence[int], start: int, end: int) -> None:
    import mlx.core as mx

    for begin in range(start, end, PREFILL_CHUNK):
        part = _take(ids, begin, min(begin + PREFILL_CHUNK, end))
        target.forward(mx.array([part]), cache)
        barrier([layer.state for layer in cache])  # type: ignore[attr-defined]


def _take(ids: Sequence[int], start: int, end: int) -> list[int]:
    return [ids[position % len(ids)] for position in range(start, end)]


def _time_forward(
    target: Target, cache: list[object], undo: Undo, context: int, ids: Sequence[int], width: int, now: Clock
) -> int:
    """Time of a forward over `width` positions up to its tokens on the host, as a round has it."""
    import mlx.core as mx

    undo.begin(context)
    drain()
    start = now()
    logits = target.forward(mx.array([_take(ids, 0, width)]), cache)
    read(mx.argmax(logits[0], axis=-1))
    taken = now() - start
    undo.back(width)
    undo.end()
    return taken
