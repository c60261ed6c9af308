"""The one door between device and host: reads and barriers are counted, each in its own thread."""

from __future__ import annotations

import ast
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from runtime.device import barrier, drain, read, syncs
from runtime.drafters.known import NoDrafter
from runtime.generate import decode, speculate
from runtime.testing import ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import RoundRecord
from tests.runtime.scripted import counting, rows

ROOT = Path(__file__).resolve().parents[2]


def test_reading_several_arrays_is_one_synchronisation() -> None:
    import mlx.core as mx

    before = syncs()
    assert read(mx.array([1, 2]) + 1, mx.array([3], dtype=mx.uint32)) == [[2, 3], [3]]
    assert syncs() == before + 1


def test_barriers_take_any_nesting_and_count_once() -> None:
    import mlx.core as mx

    before = syncs()
    barrier([(mx.array([1]), None, 3), {"a": mx.array([2])}], mx.array(4))
    drain()
    assert syncs() == before + 2


def test_threads_are_counted_apart() -> None:
    drain()
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(syncs()))
    thread.start()
    thread.join()
    assert counts == [0]


@pytest.mark.parametrize("fail_at", [None, 4])
@pytest.mark.parametrize("way", ["speculate", "ordinary"])
def test_a_generation_ends_with_the_device_idle(way: str, fail_at: int | None) -> None:
    """One synchronisation a chunk, one a round, one after the drafter's reset, and two at the end, even a bad one."""
    target = ScriptedTarget(counting(90), vocab_size=90, fail_at=fail_at)
    recorder = Recorder()
    prompt = [1] * 2500
    if way == "speculate":
        generation = speculate(target, NoDrafter(), prompt, draft_length=2, max_tokens=6, recorder=recorder)
    else:
        generation = decode(target, prompt, max_tokens=6, recorder=recorder)
    before = syncs()
    with pytest.raises(RuntimeError) if fail_at else nullcontext():
        generation.drain()
    in_rounds = sum(record.syncs for record in rows(recorder.records, RoundRecord))
    assert in_rounds == {("speculate", 4): 2, ("ordinary", 4): 1}.get((way, fail_at or 0), 6)
    assert syncs() - before == 2 + (way == "speculate") + in_rounds + 2


LOOP = [
    "generate",
    "generation",
    "generation_log",
    "rounds",
    "session",
    "ordinary",
    "stopping",
    "processing",
    "caches/kinds",
    "caches/undo",
    "caches/kept",
    "caches/quantising",
    "speculative/stepper",
    "speculative/rules",
    "speculative/trimming",
    "speculative/adaptive",
    "speculative/verification",
    "drafters/assistant",
    "drafters/known",
    "drafters/prompt_lookup",
    "experiment/comparison",
]


def find_reads(source: str) -> set[str]:
    """What in a module's text reads an array by itself: methods, functions of mlx, or numpy, which does so unseen."""
    tree = ast.parse(source)
    calls = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return calls & {"item", "tolist", "eval", "synchronize", "asarray"} | {name for name in imports if "numpy" in name}


@pytest.mark.parametrize("name", LOOP)
def test_the_loop_reads_arrays_nowhere_else(name: str) -> None:
    """No `.item()`, `.tolist()`, `mx.eval` or numpy outside runtime/device.py, so no read goes uncounted."""
    assert find_reads((ROOT / "runtime" / f"{name}.py").read_text()) == set()


def test_an_assistant_that_waited_for_its_tokens_would_be_found() -> None:
    source = (ROOT / "runtime" / "drafters" / "assistant.py").read_text()
    assert source.count("mx.async_eval(token)") == 1
    assert find_reads(source.replace("mx.async_eval(token)", "token.item()")) == {"item"}
    assert find_reads(f"import numpy as np\n{source}") == {"numpy"}
