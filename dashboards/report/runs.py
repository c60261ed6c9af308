"""Which runs a store holds, and which of them is meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from queries.catalogue import Query, names
from telemetry.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

N_RECENT = 5
SPECULATION, NCM = "speculation", "ncm"
"""The kinds of run."""
GOING_ON = "going on"
_ALL_RUNS = """
select run_id from runs
union
select run_id from generations
union
select run_id from ncm_generations
"""


_STATES = """
select a.run_id, r.kind, r.model, r.started_wall_ns, r.outcome, j.writer, count(*) over () as n_runs
from ({all_runs}) as a
left join runs as r on a.run_id = r.run_id
left join journals as j on r.journal = j.journal
where a.run_id is not null
order by a.run_id desc
limit ?
"""
_WITHOUT_END = {"running": GOING_ON, "ended": "broken off", "unknown": "not known: another machine writes it"}


@dataclass(frozen=True)
class RunSummary:
    """A run as it stands in `runs`: every column by name."""

    fields: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        """The column of this name."""
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def line(self) -> str:
        """One line that tells this run from others."""
        started = datetime.fromtimestamp(self.started_wall_ns / 1e9, UTC)
        return (
            f"{self.run_id}  {started:%Y-%m-%d %H:%M} UTC  {self.model}, {self.workload}, {self.n_prompts} {self.items}"
        )

    @property
    def items(self) -> str:
        """What the workload consists of."""
        return "prompts" if self.kind == SPECULATION else "samples"


def list_runs(con: DuckDBPyConnection, run_id: str | None = None) -> list[RunSummary]:
    """The runs of a store, the latest first; with `run_id` that one alone, or none."""
    cursor = con.execute(
        "select * from runs where coalesce(run_id = ?::varchar, true) order by run_id desc",
        [run_id],
    )
    columns = [name for name, *_ in cursor.description or ()]
    return [RunSummary(dict(zip(columns, row, strict=True))) for row in cursor.fetchall()]


@dataclass(frozen=True)
class RunState:
    """How a run stands: its outcome, `going on`, or why it has none. kind and model are None where its line is lost."""

    run_id: str
    kind: str | None
    model: str | None
    started: datetime | None
    state: str


def list_states(con: DuckDBPyConnection, most: int) -> tuple[list[RunState], int]:
    """The latest runs of a store, `most` of them at most, the latest first; and how many there are."""
    rows = con.execute(_STATES.format(all_runs=_ALL_RUNS), [most]).fetchall()
    states = [
        RunState(
            run_id,
            kind,
            model,
            None if started_ns is None else datetime.fromtimestamp(started_ns / 1e9, UTC),
            outcome or _WITHOUT_END.get(writer, "not known: its line is lost"),
        )
        for run_id, kind, model, started_ns, outcome, writer, _ in rows
    ]
    return states, rows[0][-1] if rows else 0


def resolve_run(con: DuckDBPyConnection, run_id: str | None) -> str:
    """The id of the run that is meant: by its id, by a beginning of it that no other shares, or (None) the latest.

    Raises UsageError if the store holds no run and, listing the latest runs, if none or several fit.
    """
    known = [
        name
        for (name,) in con.execute(
            f"select run_id from ({_ALL_RUNS}) where run_id is not null order by run_id desc"
        ).fetchall()
    ]
    if not known:
        [(n_generations,)] = con.execute("select count(*) from generations").fetchall()
        single = (
            f" (of {n_generations:,} single generations, ask: roundscope sql 'from generations')"
            if n_generations
            else ""
        )
        raise UsageError(f"no run is recorded in this store yet{single}; record one: roundscope run --quick")
    if run_id is None:
        return str(known[0])
    if not run_id:
        raise UsageError("the run's id is empty: give the beginning of one, or leave it out for the latest run")
    fitting = [run_id] if run_id in known else [name for name in known if name.startswith(run_id)]
    if len(fitting) == 1:
        return str(fitting[0])
    recent = "; ".join(run.line for run in list_runs(con)[:N_RECENT])
    problem = f"{len(fitting)} runs begin with" if fitting else "there is no run"
    raise UsageError(f"{problem} {run_id!r}; the latest are: {recent}")


def find_kind(con: DuckDBPyConnection, run_id: str) -> str:
    """Of which kind a run is; where its own line is lost, by what it recorded."""
    told = con.execute("select kind from runs where run_id = ?", [run_id]).fetchone()
    if told is not None:
        return str(told[0])
    recorded = con.execute("select 1 from ncm_generations where run_id = ? limit 1", [run_id]).fetchone()
    return SPECULATION if recorded is None else NCM


def require_kind(con: DuckDBPyConnection, run_id: str, query: Query) -> None:
    """UsageError, naming the queries that suit it, if `query` is about runs of another kind than this one."""
    kind = find_kind(con, run_id)
    if kind in query.runs:
        return
    (latest,) = con.execute(
        "select max(run_id) from runs where list_contains(?, kind)", [list(query.runs)]
    ).fetchone() or (None,)
    other = f"; the latest run it suits: --run {latest}" if latest else ""
    raise UsageError(
        f"{query.name} is about runs of kind {' or '.join(query.runs)}, and run {run_id} is of kind {kind}: ask it "
        f"{', '.join(names(kind))}{other}"
    )
