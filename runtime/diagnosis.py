"""What `roundscope doctor` finds out: the environment, the default model, and what verification costs here."""

from __future__ import annotations

from statistics import median
from time import perf_counter_ns

from msgspec import Struct

from runtime.backend import prepare
from runtime.device import barrier
from runtime.environment import describe
from telemetry.errors import RoundscopeError
from telemetry.records import Environment

HEIGHTS = (1, 8, 64)
WIDTH = 1024
REPEATS = 25
CHEAP_BELOW, DEAR_FROM = 2.0, 4.0
"""Ordinary steps that a forward over 8 tokens costs: below the first, a proposal of 8 pays from 2 accepted tokens up;
from the second, more than half of it has to be accepted just to break even."""


class Diagnosis(Struct, kw_only=True):
    """Plain facts and one sentence. `matmul_us`: median time in microseconds of a float32 product
    (height x 1024) @ (1024 x 1024) by height. `steps_for_8`: what height 8 costs in units of height 1."""

    environment: Environment
    blas_source: str
    blas_path: str | None
    blas_warning: str | None
    model_path: str | None
    model_problem: str | None
    matmul_us: dict[int, float]
    steps_for_8: float
    verification: str
    sentence: str


def diagnose() -> Diagnosis:
    """Look at this machine; takes up to a few seconds. Raises nothing about what is missing: it is in the result."""
    backend = prepare()
    environment = describe()
    model_path, model_problem = _find_model()
    times = measure_matmul()
    steps = round(times[8] / times[1], 2)
    verification = judge(steps)
    return Diagnosis(
        environment=environment,
        blas_source=backend.source,
        blas_path=backend.path,
        blas_warning=backend.warning,
        model_path=model_path,
        model_problem=model_problem,
        matmul_us=times,
        steps_for_8=steps,
        verification=verification,
        sentence=explain(verification, steps),
    )


def measure_matmul() -> dict[int, float]:
    """Median time in microseconds of a float32 product (height x 1024) @ (1024 x 1024), by height."""
    import mlx.core as mx

    weights = mx.random.normal((WIDTH, WIDTH))
    inputs = {height: mx.random.normal((height, WIDTH)) for height in HEIGHTS}
    barrier(weights, inputs)
    times: dict[int, list[int]] = {height: [] for height in HEIGHTS}
    for _ in range(REPEATS):
        for height, rows in inputs.items():
            start = perf_counter_ns()
            barrier(rows @ weights)
            times[height].append(perf_counter_ns() - start)
    return {height: median(samples) / 1000 for height, samples in times.items()}


def judge(steps: float) -> str:
    """`cheap`, `moderate` or `dear`: what verifying 8 tokens is, given its cost in ordinary steps."""
    if steps < CHEAP_BELOW:
        return "cheap"
    return "moderate" if steps < DEAR_FROM else "dear"


def explain(verification: str, steps: float) -> str:
    """One sentence for a person about what `judge` found."""
    cost = f"as far as matmul goes, verifying 8 tokens costs about {steps:.1f} ordinary steps"
    consequence = {
        "cheap": "so proposals that are often right will pay",
        "moderate": "so proposals must be right most of the time to pay",
        "dear": "so speculation can hardly pay in float32",
    }
    return f"Verification is {verification} here: {cost}, {consequence[verification]}."


def _find_model() -> tuple[str | None, str | None]:
    from runtime.gguf import find_default_model

    try:
        return str(find_default_model()), None
    except RoundscopeError as error:
        return None, str(error)
