"""Which runs a store holds, and which of them is meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from telemetry.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

N_RECENT = 5


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
        return f"{self.run_id}  {started:%Y-%m-%d %H:%M} UTC  {self.model}, {self.workload}, {self.n_prompts} prompts"


def list_runs(con: DuckDBPyConnection, run_id: str | None = None) -> list[RunSummary]:
    """The runs of a store, the latest first; with `run_id` that one alone, or none."""
    cursor = con.execute(
        "select * from runs where coalesce(run_id = ?::varchar, true) order by run_id desc",
        [run_id],
    )
    columns = [name for name, *_ in cursor.description or ()]
    return [RunSummary(dict(zip(columns, row, strict=True))) for row in cursor.fetchall()]


def resolve_run(con: DuckDBPyConnection, run_id: str | None) -> str:
    """The id of the run that is meant: by its id, by a beginning of it that no other shares, or (None) the latest.

    Raises UsageError if the store holds no run and, listing the latest runs, if none or several fit.
    """
    known = [
        name
        for (name,) in con.execute(
            "select run_id from (select run_id from runs union select run_id from generations) "
            "where run_id is not null order by run_id desc"
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
    fitting = [run_id] if run_id in known else [name for name in known if name.startswith(run_id)]
    if len(fitting) == 1:
        return str(fitting[0])
    recent = "; ".join(run.line for run in list_runs(con)[:N_RECENT])
    problem = f"{len(fitting)} runs begin with" if fitting else "there is no run"
    raise UsageError(f"{problem} {run_id!r}; the latest are: {recent}")
