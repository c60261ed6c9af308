"""One generation with its rounds or levels, as its rows stand in the store: found by its id, or the latest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dashboards.report.rows import Row
from telemetry.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LATEST = "latest"
_N_NAMED = 5
_FIND = f"""
select generation_id, arm, place
from (
    select generation_id, run_id, arm, started_wall_ns, sequence, 'generations' as place from generations
    union all
    select generation_id, run_id, arm, started_wall_ns, sequence, 'ncm_generations' as place from ncm_generations
)
where
    starts_with(generation_id, $wanted)
    or ($wanted = '{LATEST}' and ($run_id::varchar is null or run_id = $run_id))
order by generation_id = $wanted desc, started_wall_ns desc, sequence desc, generation_id
limit {_N_NAMED + 1}
"""
_STEPS = {"generations": ("rounds", '"index"'), "ncm_generations": ("levels", "level")}


@dataclass(frozen=True)
class Recorded:
    """The row of a generation by column name, and the rows of its rounds, or of its levels, in their order."""

    row: Row
    steps: list[Row]
    has_rounds: bool


def read_generation(con: DuckDBPyConnection, wanted: str, run_id: str | None = None) -> Recorded:
    """The generation with this id, with the only id that begins so, or the `latest` (of a run, if one is named).

    Raises UsageError if there is none, or several.
    """
    found = con.execute(_FIND, {"wanted": wanted, "run_id": run_id}).fetchall()
    if not found:
        recorded = "no generation is recorded in this store yet"
        raise UsageError(recorded if wanted == LATEST else f"{_say_none(con, wanted)}; {LATEST} shows the last one")
    generation_id, _, place = found[0]
    if wanted not in (LATEST, generation_id) and len(found) > 1:
        named = "; ".join(f"{name} ({arm})" for name, arm, _ in found[:_N_NAMED])
        more = ", and more" if len(found) > _N_NAMED else ""
        raise UsageError(f"several generations begin with {wanted!r}: {named}{more}")
    [row] = _fetch(con, f"select * from {place} where generation_id = ?", generation_id)
    steps, order = _STEPS[place]
    rows = _fetch(con, f"select * from {steps} where generation_id = ? order by {order}", generation_id)
    return Recorded(row, rows, place == "generations")


def _say_none(con: DuckDBPyConnection, wanted: str) -> str:
    of_run = con.execute("select 1 from runs where starts_with(run_id, ?)", [wanted]).fetchone()
    said = f"there is no generation {wanted!r}"
    return f"{said}, that is a run (roundscope sql 'from generations' lists ids)" if of_run else said


def _fetch(con: DuckDBPyConnection, sql: str, parameter: str) -> list[Row]:
    cursor = con.execute(sql, [parameter])
    columns = [name for name, *_ in cursor.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
