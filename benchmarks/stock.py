"""Against mlx-lm as pip installs it on Linux: the same float32 model, its own BLAS and its own ordinary loop.

BLAS is chosen when a process starts, so there are two: one with the wheel's BLAS, one with ours. They take turns. The
better of two times counts: whatever else the machine does can only add, and spinning threads make it add a lot.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from statistics import mean
from typing import Any

from benchmarks.models import load_float32, take_prompts
from benchmarks.ratios import Ratio, paired_ratio

TOKENS = 64
PROMPTS = 6
REPEATS = 2
DRAFT_LENGTH = 8
GOALS = {"ordinary": 2.0, "copying": 8.0, "own": 4.0}


def run() -> bool:
    """Print how many times faster our ordinary and our copying are; True if all goals are reached."""
    if sys.platform != "linux":
        print("  only Linux has two BLAS to compare; nothing to do here")
        return True
    theirs, ours = _Worker("stock"), _Worker("auto")
    times: dict[str, list[float]] = {"mlx-lm": [], "ordinary": [], "copying": []}
    try:
        workers = {"mlx-lm": theirs, "ordinary": ours, "copying": ours}
        for loop, worker in workers.items():
            worker.ask(loop=loop, index=0)
        for index in range(PROMPTS):
            done = [
                {loop: worker.ask(loop=loop, index=index) for loop, worker in workers.items()} for _ in range(REPEATS)
            ]
            for loop in workers:
                times[loop].append(min(seconds[loop] for seconds in done))
    finally:
        theirs.end()
        ours.end()
    print(f"  mlx-lm as installed: {TOKENS / mean(times['mlx-lm']):.1f} tokens/s; ours on {ours.backend}")
    return all(
        [
            _show("our ordinary decoding", paired_ratio(times["mlx-lm"], times["ordinary"]), GOALS["ordinary"]),
            _show(
                f"copying, prompt-lookup m={DRAFT_LENGTH}",
                paired_ratio(times["mlx-lm"], times["copying"]),
                GOALS["copying"],
            ),
            _show("copying over our ordinary", paired_ratio(times["ordinary"], times["copying"]), GOALS["own"]),
        ]
    )


def _show(name: str, ratio: Ratio, goal: float) -> bool:
    print(f"  {name}: {ratio} times faster; goal {goal}")
    return ratio.value >= goal


class _Worker:
    def __init__(self, blas: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.stock"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ROUNDSCOPE_BLAS": blas},
        )
        # One after the other: how many threads BLAS gets depends on what else is busy when a process starts.
        self.backend = self._read()

    def ask(self, **question: Any) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def _work() -> None:
    import time

    target = load_float32()  # before MLX is imported here, since it chooses the BLAS

    import mlx.core as mx
    from mlx_lm.generate import generate_step

    from runtime.backend import prepare
    from runtime.generate import decode, speculate

    prompts = take_prompts(target, "copy-edit", PROMPTS)
    backend = prepare()
    print(json.dumps({"blas": backend.blas, "threads": backend.threads}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        prompt = prompts[question["index"]]
        # Decoding alone is compared: the first round's end is where prefill has surely ended for every loop.
        start = None
        if question["loop"] == "mlx-lm":
            for _ in generate_step(mx.array(prompt), target.model, max_tokens=TOKENS):
                start = start or time.perf_counter()
            done = TOKENS - 1
        else:
            if question["loop"] == "ordinary":
                generation = decode(target, prompt, max_tokens=TOKENS, eos=())
            else:
                generation = speculate(
                    target, "prompt-lookup", prompt, draft_length=DRAFT_LENGTH, max_tokens=TOKENS, eos=()
                )
            first = next(generation)
            start = time.perf_counter()
            generation.drain()
            done = TOKENS - first.committed
        assert start is not None
        print(json.dumps({"seconds": (time.perf_counter() - start) * TOKENS / done}), flush=True)


if __name__ == "__main__":
    _work()
