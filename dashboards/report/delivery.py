"""Which spans of a run did not arrive where they were sent: what the record has and a receiver or file has not."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dashboards.report.sentences import say_count
from telemetry.ledger import read_losses

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_SAMPLED = """
select generation_id from generations where run_id = $1 and sampled is distinct from false
union all
select generation_id from ncm_generations where run_id = $1 and sampled is distinct from false
"""


def say_undelivered(con: DuckDBPyConnection, run_id: str, store: Path) -> Iterator[str]:
    """Sentences for every destination that has not got all spans of the run, after something went wrong there."""
    for losses in read_losses(store):
        place = losses.destination
        ids = {generation_id for (generation_id,) in con.execute(_SAMPLED, [run_id]).fetchall()}
        if missing := len(ids - losses.exported):
            option = "--otlp" if "://" in place else "--otlp-json"
            command = ["roundscope", "export", option, place, "--run", run_id, "--store", str(store)]
            yield f"spans of {say_count(missing, 'generation')} are not at {place}; `{shlex.join(command)}` sends them"
        refused = [losses.refused[generation_id] for generation_id in ids & losses.refused.keys()]
        if refused:
            generations = say_count(len(refused), "generation")
            yield f"spans of {generations} were refused for good by {place}: {sum(refused):,}"
