"""Run benchmarks by name, or all, in the order of `BENCHMARKS`: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict

BENCHMARKS = {
    "recording": ("benchmarks.recording", "run"),
    "ordinary": ("benchmarks.loops", "run_ordinary"),
    "speculative": ("benchmarks.loops", "run_speculative"),
    "choices": ("benchmarks.choices", "run"),
    "controller": ("benchmarks.controller", "run"),
    "caches": ("benchmarks.caches", "run"),
    "stock": ("benchmarks.stock", "run"),
    "ncm": ("benchmarks.ncm", "run"),
    "queries": ("benchmarks.queries", "run"),
    "telemetry_cost": ("benchmarks.telemetry_cost", "run"),
    "loading": ("benchmarks.scale", "run_loading"),
}


def main(names: list[str]) -> int:
    """Run them, each with what it compares; exit code 3 if a limit or goal was missed."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    from runtime.backend import prepare

    print(", ".join(f"{key} {value}" for key, value in asdict(prepare()).items() if value is not None))
    missed = []
    for name in names or BENCHMARKS:
        module, function = BENCHMARKS[name]
        print(f"{name}", flush=True)
        if not getattr(importlib.import_module(module), function)():
            missed.append(name)
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
