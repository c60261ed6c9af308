"""What a run was: the lines above a report."""

from __future__ import annotations

from datetime import UTC, datetime

from dashboards.report.runs import SPECULATION, RunSummary


def describe_run(run: RunSummary) -> list[tuple[str, str]]:
    """Name and text of each line: the run, its model, machine, BLAS and workload, and how it was timed."""
    started = datetime.fromtimestamp(run.started_wall_ns / 1e9, UTC)
    blas = " ".join(filter(None, (run.blas, run.blas_version)))
    threads = "threads unknown" if run.blas_threads is None else f"{run.blas_threads} threads"
    precision = "".join(f", {name}={value}" for name, value in run.precision.items())
    loads = f"load {_say_load(run.load1)} before, {_say_load(run.load1_end)} after"
    limit = f", {run.max_tokens} tokens at most" if run.kind == SPECULATION else f", arms {', '.join(run.arms)}"
    return [
        ("run", f"{run.run_id}, {started:%Y-%m-%d %H:%M} UTC, {run.outcome or 'not ended'}"),
        ("model", f"{run.model}, {run.dtype}, {run.parameter_bytes / 1e6:,.0f} MB of weights"),
        ("machine", f"{run.cpu}, {run.cores} cores, {run.os} {run.machine}, {loads}"),
        ("MLX", f"{run.mlx_version} on {run.device}, BLAS {blas}, {threads}{precision}"),
        ("workload", f"{run.workload}, {run.n_prompts} {run.items}{limit}, repeats {run.repeats}"),
        ("timing", f"{run.timing}, seed {run.seed}"),
    ]


def _say_load(load: float | None) -> str:
    return "unknown" if load is None else f"{load:.2f}"
