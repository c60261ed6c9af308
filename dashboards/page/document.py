"""Puts the page together: which sections there are for a run of either kind, and the file they are written into."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import queries
from dashboards.page import control, ncm, speculation
from dashboards.page.drawing import require_library
from dashboards.page.parts import NOTHING, Figure, Section, Table
from dashboards.page.strip import make_strip
from dashboards.page.templates import fill_in
from dashboards.report.completeness import say_completeness
from dashboards.report.control import say_controllers
from dashboards.report.delivery import say_undelivered
from dashboards.report.generations import Recorded, read_generation
from dashboards.report.heading import describe_run
from dashboards.report.ncm_sentences import say_alone, say_cache, say_exit, say_memory, say_work
from dashboards.report.ranks import say_ranks
from dashboards.report.recommendation import choose, say_draft_lengths
from dashboards.report.rounds import show_generation
from dashboards.report.rows import POOLED, Row, fetch
from dashboards.report.runs import NCM, find_kind, list_runs
from dashboards.report.sentences import say_arm, say_break_even, say_overlap, say_proposers, say_verify_cost
from telemetry.errors import RoundscopeError, UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_NO_ARMS = "No drafter was measured in this run, so there is nothing to compare ordinary decoding with."
_NO_FORECAST = "No draft length was forecast in this run: its drafters cannot be, or it is not that far yet."
_NO_VERIFY_COST = "What verification costs was not measured in this run; `roundscope calibrate` measures it."
_ENVIRONMENT = ("command", "roundscope_version", "python_version", "mlx_version", "mlx_lm_version", "workload_digest")
# Of the arm that the page speaks of first: the generation that put out most, which shows most rounds.
_TYPICAL = """
select generation_id from generations
where run_id = $run_id and drafter is not null and timing = 'fused' and not warm_up
order by arm is distinct from $arm, n_committed desc nulls last, generation_id
limit 1
"""


@dataclass(frozen=True)
class Report:
    """What a run found: the answer in a sentence, and the sections below it."""

    run_id: str
    sentence: str
    sections: list[Section]


def make_report(
    con: DuckDBPyConnection, run_id: str, generation: str | None = None, store: Path | None = None
) -> Report:
    """What there is to say and to draw about a run.

    generation: which one is shown round by round, by its id or the beginning of it; None: one that is typical. store:
    where it is recorded, which knows what became of its spans. Raises Unsupported where the drawing libraries are
    missing, UsageError if the generation is none of this run's.
    """
    require_library()
    make = _make_ncm if find_kind(con, run_id) == NCM else _make_speculation
    sentence, sections = make(con, run_id, generation)
    undelivered = (
        [] if store is None else [f"{said[0].upper()}{said[1:]}." for said in say_undelivered(con, run_id, store)]
    )
    return Report(run_id, sentence, [*_drop_empty(sections), *_make_record(con, run_id, undelivered)])


def render_page(con: DuckDBPyConnection, run_id: str, generation: str | None = None, store: Path | None = None) -> str:
    """The page about a run as one HTML file; arguments and errors are `make_report`'s."""
    return fill_in("page/page.html", report=make_report(con, run_id, generation, store))


def write_page(path: Path, html: str) -> None:
    """Write the page whole or not at all; RoundscopeError if it cannot be."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        unfinished.write_text(html, encoding="utf-8", errors="replace")
        os.replace(unfinished, path)
    except OSError as error:
        raise RoundscopeError(f"cannot write {path}: {error.strerror}; name another file") from error


def _make_speculation(con: DuckDBPyConnection, run_id: str, generation: str | None) -> tuple[str, list[Section]]:
    verdicts = _ask(con, "verdict", run_id)
    advice = choose(verdicts)
    costs, lengths = _ask(con, "verify_cost", run_id), _ask(con, "draft_length", run_id)
    overlaps = _ask(con, "overlap", run_id)
    controllers = _ask(con, "controller", run_id)
    sections = [
        _section("verdict", "Does it pay?", [*_say_arms(con, run_id, verdicts)], [speculation.make_speedups(verdicts)]),
        _section(
            "survival",
            "How far the drafter gets",
            [*say_proposers(_ask(con, "drafters", run_id))],
            speculation.make_survivals(_ask(con, "survival", run_id)),
        ),
        _section(
            "verification",
            "What verification costs",
            [say_verify_cost(costs) if costs else _NO_VERIFY_COST],
            [speculation.make_verify_costs(costs)] if costs else [],
        ),
        _section(
            "draft-length",
            "At what draft length it would pay",
            [*say_draft_lengths(lengths)] if lengths else [_NO_FORECAST],
            speculation.make_draft_lengths(lengths),
        ),
        _section(
            "acceptance",
            "What is accepted at a temperature",
            [say_overlap(row) for row in overlaps if row["class"] == POOLED],
            [speculation.make_overlaps(overlaps)] if overlaps else [],
        ),
        _section(
            "controller",
            "What the controller chose",
            [*say_controllers(controllers, lengths)],
            control.make_choices(controllers, _ask(con, "decisions", run_id)),
        ),
        _section("stages", "Where the time goes", [], [speculation.make_stages(_ask(con, "stages", run_id))]),
    ]
    arm = advice.arm or next((row["arm"] for row in verdicts), None)
    if (recorded := _choose_generation(con, run_id, generation, arm)) is not None:
        sections.append(_section("rounds", "Round by round", [next(show_generation(recorded))], make_strip(recorded)))
    return advice.sentence if verdicts else _NO_ARMS, sections


def _make_ncm(con: DuckDBPyConnection, run_id: str, generation: str | None) -> tuple[str, list[Section]]:
    if generation is not None:
        raise UsageError(f"run {run_id} has levels and no rounds; `roundscope show {generation}` prints a generation")
    rows, arms = _ask(con, "ncm_cache", run_id), _ask(con, "ncm_exit", run_id)
    pooled = [row for row in rows if row["level"] == POOLED]
    measured = [row for row in pooled if row["n_pairs"]]
    details = [say(row) for row in measured for say in (say_work, say_memory)]
    sections = [
        _section("cache", "The prefix cache by level", details, ncm.make_levels(rows)),
        _section("arms", "Arm by arm", [say_alone(row) for row in arms if row["against"] is None], []),
        _section("exit", "The verified exit", [say_exit(row) for row in arms if row["against"] is not None], []),
    ]
    sentence = " ".join(say_cache(row) for row in pooled) or "No cached generation was measured in this run."
    return sentence, sections


def _section(id: str, heading: str, sentences: list[str], figures: Iterator[Figure] | list[Figure]) -> Section:
    return Section(id, heading, sentences, figures=[figure for figure in figures if figure.table.rows])


def _drop_empty(sections: Sequence[Section]) -> Iterator[Section]:
    return (section for section in sections if section.sentences or section.figures)


def _ask(con: DuckDBPyConnection, name: str, run_id: str) -> list[Row]:
    """The rows of a query, if there is one of this name; what is no number (a trend of one point, say) is unknown."""
    rows = fetch(con, name, run_id) if name in queries.names() else []
    return [{key: None if value != value else value for key, value in row.items()} for row in rows]


def _say_arms(con: DuckDBPyConnection, run_id: str, verdicts: Sequence[Row]) -> Iterator[str]:
    break_even = {row["arm"]: row for row in fetch(con, "break_even", run_id) if row["class"] == POOLED}
    for arm, group in groupby(verdicts, key=lambda row: row["arm"]):
        said = say_break_even(break_even[arm])
        yield " ".join(filter(None, (say_arm(list(group)), said)))


def _choose_generation(con: DuckDBPyConnection, run_id: str, wanted: str | None, arm: str | None) -> Recorded | None:
    if wanted is None:
        found = con.execute(_TYPICAL, {"run_id": run_id, "arm": arm}).fetchone()
        return None if found is None else read_generation(con, found[0])
    recorded = read_generation(con, wanted, run_id)
    if recorded.row["run_id"] != run_id:
        raise UsageError(f"generation {recorded.row['generation_id']} is of run {recorded.row['run_id']}, not {run_id}")
    return recorded


def _make_record(con: DuckDBPyConnection, run_id: str, undelivered: list[str]) -> Iterator[Section]:
    rows = fetch(con, "completeness", run_id)
    said = [*say_completeness(rows), *say_ranks(fetch(con, "ranks", run_id))]
    # Most of what is counted is what went wrong, and most of that did not.
    columns = [name for name in list(rows[0])[1:] if any(row[name] for row in rows)]
    table = Table(
        "What was recorded, by arm and class; what is 0 everywhere is left out",
        tuple(name.removeprefix("n_").replace("_", " ") for name in columns),
        [tuple(NOTHING if row[name] is None else str(row[name]) for name in columns) for row in rows],
    )
    yield Section(
        "completeness",
        "Is the record whole?",
        [line for line, is_warning in said if not is_warning],
        [line for line, is_warning in said if is_warning] + undelivered,
        tables=[table],
    )
    for run in list_runs(con, run_id):
        facts = [*describe_run(run), *((name.replace("_", " "), _show(run.fields[name])) for name in _ENVIRONMENT)]
        ended = run.fields["ended_wall_ns"]
        facts.append(
            ("ended", NOTHING if ended is None else f"{datetime.fromtimestamp(ended / 1e9, UTC):%F %H:%M} UTC")
        )
        yield Section("environment", "Where it ran", tables=[Table("The run", ("what", "value"), list(facts))])


def _show(value: object) -> str:
    return NOTHING if value is None else str(value)
