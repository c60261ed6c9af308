"""What the tests of the store share: records, journals made of them, and the content of all tables."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from telemetry.journal import FOLDER
from telemetry.records import (
    SCHEMA_VERSION,
    ComparisonRecord,
    GenerationEnd,
    GenerationRecord,
    JournalRecord,
    Record,
    RoundRecord,
    RunEnd,
    RunRecord,
)
from telemetry.schema import layouts
from telemetry.store import DATABASE

TABLES = [layout.name for layout in layouts()]
encode = msgspec.json.Encoder().encode


def header(**changes: Any) -> JournalRecord:
    """A journal's first line, as this machine writes it."""
    fields = {"schema_version": SCHEMA_VERSION, "host": socket.gethostname(), "pid": 7, "created_wall_ns": 5}
    return JournalRecord(**{**fields, "roundscope_version": "0.1", **changes})


def run(run_id: str = "run-1", **changes: Any) -> RunRecord:
    """The beginning of a run."""
    fields = {
        "kind": "speculation",
        "run_id": run_id,
        "started_wall_ns": 1_700_000_000_000_000_000,
        "command": "roundscope run",
        "model": "scripted",
        "dtype": "float32",
        "parameter_bytes": 8,
        "workload": "quick",
        "workload_digest": "00",
        "n_prompts": 1,
        "arms": ["ordinary", "prompt-lookup-8"],
        "timing": "fused",
        "seed": -3,
        "max_tokens": 16,
        "repeats": 1,
        "record_text": False,
        "roundscope_version": "0.1",
        "python_version": "3.11.7",
        "mlx_version": "0.32",
        "os": "Linux",
        "machine": "x86_64",
        "host": "here",
        "cpu": "a cpu",
        "cores": 2,
        "device": "cpu",
        "blas": "openblas",
        "precision": {"MLX_ENABLE_TF32": "0"},
    }
    return RunRecord(**{**fields, **changes})


def run_end(run_id: str = "run-1", **changes: Any) -> RunEnd:
    """The end of a run."""
    return RunEnd(**{"run_id": run_id, "outcome": "complete", "ended_wall_ns": 9, **changes})


def generation(generation_id: str, **changes: Any) -> GenerationRecord:
    """The beginning of a generation."""
    fields = {
        "generation_id": generation_id,
        "run_id": "run-1",
        "arm": "prompt-lookup-8",
        "drafter": "prompt-lookup",
        "draft_length": 8,
        "pipelined": False,
        "timing": "fused",
        "model": "scripted",
        "prompt_id": "copy-1",
        "class_": "copy",
        "repeat": 0,
        "sequence": 0,
        "warm_up": False,
        "prompt_tokens": 5,
        "cached_tokens": 0,
        "max_tokens": 16,
        "n_processors": 0,
        "started_wall_ns": 1_700_000_000_123_456_789,
        "started_monotonic_ns": 12,
    }
    return GenerationRecord(**{**fields, **changes})


def rounds(generation_id: str, n: int, **changes: Any) -> Iterator[RoundRecord]:
    """The first `n` rounds of a generation."""
    for index in range(n):
        fields = {
            "generation_id": generation_id,
            "index": index,
            "start_ns": 100 * index,
            "t_round_ns": 90,
            "requested": 8,
            "proposed": 4,
            "accepted": index % 4,
            "committed": index % 4 + 1,
            "cut": 0,
            "outcome": "correction",
            "width": 5,
            "processed": 0,
            "syncs": 1,
            "cache_length": 4 + index,
            "drafter_length": 4 + index,
            "trim_way": "trim",
            "replayed": 0,
            "rewind_way": "none",
            "draft_ns": 20,
            "draft_basis": "host",
            "verify_ns": 30,
            "verify_basis": "host_launch",
            "synchronize_ns": 40,
            "synchronize_basis": "host_wait",
            "trim_ns": 0,
            "trim_basis": "host",
            "rewind_ns": 0,
        }
        yield RoundRecord(**{**fields, **changes})


def generation_end(generation_id: str, **changes: Any) -> GenerationEnd:
    """The end of a generation."""
    fields = {
        "generation_id": generation_id,
        "finish_reason": "length",
        "n_rounds": 3,
        "n_committed": 6,
        "prefill_ns": 50,
        "decode_ns": 300,
        "unaccounted_ns": 30,
        "consumer_ns": 0,
        "ttft_ns": 140,
        "total_ns": 350,
        "peak_memory_bytes": 1000,
        "cache_bytes": 100,
        "snapshot_bytes": 0,
    }
    return GenerationEnd(**{**fields, **changes})


def comparison(generation_id: str, **changes: Any) -> ComparisonRecord:
    """The comparison of a generation's output with ordinary decoding's."""
    return ComparisonRecord(**{"generation_id": generation_id, "pair_id": "ordinary-1", "equal": True, **changes})


def whole_generation(generation_id: str, n_rounds: int = 3) -> list[Record]:
    """A generation with its rounds, end and comparison."""
    return [
        generation(generation_id),
        *rounds(generation_id, n_rounds),
        generation_end(generation_id, n_rounds=n_rounds),
        comparison(generation_id),
    ]


def whole_run() -> list[Record]:
    """A journal's records: a run with two generations."""
    return [header(), run(), *whole_generation("g1"), *whole_generation("g2"), run_end()]


def write_lines(store: Path, lines: Iterable[Record | bytes], name: str = "a") -> Path:
    """A journal of these records, or lines as they stand, whose writer has gone."""
    path = store / FOLDER / f"{name}.ndjson"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join((line if isinstance(line, bytes) else encode(line)) + b"\n" for line in lines))
    return path


def dump(con: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[Any, ...]]]:
    """The content of all tables, in the order of all columns."""
    return {name: con.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall() for name in TABLES}


def dump_file(store: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The content of all tables of the store's database file as it is."""
    with duckdb.connect(str(store / DATABASE), read_only=True) as con:
        return dump(con)


def column(con: duckdb.DuckDBPyConnection, sql: str) -> list[Any]:
    """The first column of what a query gives."""
    return [row[0] for row in con.execute(sql).fetchall()]
