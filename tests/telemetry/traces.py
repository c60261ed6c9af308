"""Records of every kind of generation that spans have to tell apart, for tests of spans on their ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from telemetry.records import Record
from tests.telemetry.coarse import levels, ncm, ncm_comparison, ncm_end, whole_ncm
from tests.telemetry.stores import (
    comparison,
    generation,
    generation_end,
    header,
    rounds,
    run,
    run_end,
    whole_generation,
    write_lines,
)

IDS = [f"{n:032x}" for n in range(1, 14)]
CALLER = {"trace_id": "c" * 32, "parent_span_id": "d" * 16, "sampled": True}
DRAWN: dict[str, Any] = {
    "policy": "stochastic",
    "temperature": 0.75,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 3,
    "repetition_penalty": 1.5,
    "repetition_context": 20,
    "q_source": "drafter",
    "coupling": "residual",
}
MEASURED: dict[str, Any] = {
    "overlap": 2.5,
    "overlap_positions": 3,
    "expected_ns": 30,
    "expected_step_ns": 40,
    "q_source": "drafter",
}


def every_kind() -> list[Record]:
    """One generation of each kind, all over, and all of them sampled."""
    plain, ordinary, failed, cancelled, child, ranked, aborted, coarse, coarse_child, dead, uncached, cached = IDS[:12]
    diverged = comparison(ranked, pair_id=ordinary, equal=False, diverged_at=3, top2_gap=0.25, near_tie=False)
    return [
        run(),
        generation(ordinary, drafter=None, draft_length=0, pipelined=True),
        *rounds(ordinary, 1, proposed=0, accepted=0, committed=1, outcome="step", draft_basis=None, draft_ns=0),
        generation_end(ordinary, n_rounds=1, n_committed=1),
        *whole_generation(plain),
        generation(failed, kv_bits=4),
        *rounds(
            failed, 2, outcome="error", accepted=0, committed=0, cut=4, t_round_ns=99, rewind_ns=5, rewind_basis="host"
        ),
        generation_end(failed, finish_reason="error", error_type="DrafterError", ttft_ns=None),
        generation(cancelled, run_id=None, class_=None, prompt_id=None),
        generation_end(cancelled, finish_reason="cancelled", error_type="KeyboardInterrupt", ttft_ns=None),
        generation(child, run_id=None, **CALLER),
        generation_end(child, ttft_ns=123_456_789),
        generation(ranked, rank=1, **CALLER),
        generation_end(ranked),
        diverged,
        generation(aborted, arm="lookup+ncm m=auto", controlled=True, **DRAWN),
        *rounds(aborted, 1, reason="prior", proposer="lookup"),
        *rounds(aborted, 1, index=1, start_ns=100, reason="probe", requested=4, proposer="ncm", **MEASURED),
        *whole_ncm(coarse),
        ncm(coarse_child, run_id="run-1", **CALLER),
        ncm(dead),
        *levels(dead, 1),
        run_end(),
        run("run-2", kind="ncm", arms=["no-cache", "cache"]),
        ncm(cached, run_id="run-2", **CALLER),
        *levels(cached, 2),
        ncm_end(cached),
        ncm(uncached, run_id="run-2", arm="no-cache", cache=False, **CALLER),
        ncm_end(uncached, n_levels=0),
        ncm_comparison(cached, pair_id=uncached, equal=False, diverged_level=1, tolerance=0.5, near_tie=True),
        run_end("run-2"),
    ]


def write_store(store: Path, records: list[Record] | None = None, name: str = "a") -> None:
    """A store whose journal holds these records (default: `every_kind`), and whose writer has gone."""
    write_lines(store, [header(), *(every_kind() if records is None else records)], name)


def read_spans(file: Path) -> list[Any]:
    """The spans of an OTLP-JSON file, a document a line."""
    return [
        span
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
