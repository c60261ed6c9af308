"""What the live page shows of a store: made when it is asked for, and again only when the run's journals have changed.

One thread at a time reads the store: connections of one process share DuckDB's database, which is open for reading or
for writing, never both. After a report was made, the page is told of nothing new in one for ten times the processor
time that this took, so that following a run takes at most about a tenth of one processor from it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING

import queries
from dashboards.page.document import make_report
from dashboards.page.templates import fill_in
from dashboards.report.runs import GOING_ON, NCM, SPECULATION, RunState, find_kind, list_states, resolve_run
from dashboards.timeline import find_start, write_timeline
from dashboards.view.watching import Watch
from telemetry.errors import RoundscopeError, UsageError
from telemetry.store import connect
from telemetry.stored import Stored

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from telemetry.store import Connected

POLL_S = 2.0
"""How often a page asks whether anything is new."""
RESTRAINT = 10
LONGEST_S = 60.0
MOST_RUNS = 200
MOST_GENERATIONS = 1000
_JOURNALS = """
select distinct journal
from (
    select run_id, journal from runs
    union all
    select run_id, journal from generations
    union all
    select run_id, journal from ncm_generations
)
where run_id = ?
"""
_GENERATIONS = """
select
    generation_id,
    concat_ws(
        ', ',
        generation_id[:8],
        arm,
        prompt_id,
        timing,
        if(warm_up, 'warm-up', null),
        coalesce(finish_reason, 'going on')
    ) as label,
    count(*) over () as n_generations
from (
    select run_id, generation_id, arm, prompt_id, timing, warm_up, finish_reason, started_wall_ns, sequence
    from generations
    union all by name
    select run_id, generation_id, arm, timing, warm_up, finish_reason, started_wall_ns, sequence
    from ncm_generations
)
where run_id = ?
order by started_wall_ns desc, sequence desc
limit ?
"""


@dataclass(frozen=True)
class Fragment:
    """A part of the page as HTML, and the word that changes when it does."""

    version: str
    html: str


@dataclass(frozen=True)
class Changes:
    """Versions of the list of runs and of a run's report, and how many seconds to wait before asking again."""

    runs: str
    report: str
    wait_s: float


@dataclass(frozen=True)
class Choice:
    """A generation to choose: its id, and what tells it from others."""

    generation_id: str
    label: str


@dataclass
class _Kept:
    """A fragment that was made, for whoever asks for the same."""

    version: str = ""
    html: str = ""


@dataclass
class Content:
    """A store as the page shows it. Every method may raise RoundscopeError, whose words are for the reader."""

    store: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _journals: dict[str, set[str]] = field(default_factory=dict)
    _reports: dict[tuple[str, str | None], _Kept] = field(default_factory=dict)
    _due_s: float = 0.0

    def __post_init__(self) -> None:
        self._watch = Watch(self.store)

    def changes(self, run_id: str | None, shown: str | None = None) -> Changes:
        """What a page compares with what it shows. run_id: its run; None: none yet. shown: its report's version."""
        with self._lock:
            self._watch.look()
            report = self._version_of(run_id)
            if shown and time.monotonic() < self._due_s:
                report = shown
            return Changes(self._watch.version(), report, POLL_S)

    def runs(self, run_id: str | None) -> Fragment:
        """The list of runs; run_id: which one is shown."""
        with self._reading() as connected:
            states, n_runs = list_states(connected.con, MOST_RUNS)
            html = fill_in(
                "view/runs.html", runs=states, n_runs=n_runs, shown=run_id, notes=connected.notes, going_on=GOING_ON
            )
            return Fragment(self._watch.version(), html)

    def report(self, run_id: str | None, generation: str | None) -> Fragment:
        """What a run found, as `report --html` has it. run_id: None: the latest. generation: shown round by round."""
        with self._reading() as connected:
            chosen = resolve_run(connected.con, run_id)
            self._journals[chosen] = {
                str(name) for (name,) in connected.con.execute(_JOURNALS, [chosen]).fetchall() if name
            }
            kept = self._reports.setdefault((chosen, generation), _Kept())
            version = self._version_of(chosen)
            if kept.version != version:
                kept.html = self._make_report(connected.con, chosen, generation)
                kept.version = version
            return Fragment(version, kept.html)

    def find_run(self, run_id: str | None) -> tuple[str, str]:
        """Id and kind of a run, by a beginning of its id; None: the latest."""
        with self._reading() as connected:
            chosen = resolve_run(connected.con, run_id)
            return chosen, find_kind(connected.con, chosen)

    @contextmanager
    def timeline(self, run_id: str | None, generation_id: str | None) -> Iterator[IO[bytes]]:
        """The Chrome trace of a run, or of one generation by its whole id, as a file that is gone afterwards."""
        with TemporaryDirectory(prefix="roundscope-") as folder:
            path = Path(folder) / "timeline.json"
            with self._reading() as connected:
                self._write_timeline(connected.con, path, run_id, generation_id)
            with path.open("rb") as file:
                yield file

    @contextmanager
    def _reading(self) -> Iterator[Connected]:
        with self._lock:
            # Before reading: what comes in later makes another version.
            self._watch.look()
            with connect(self.store, prepare=queries.install_views) as connected:
                yield connected

    def _version_of(self, run_id: str | None) -> str:
        """Of a run that was never read, and of none: anything may concern it."""
        return self._watch.version(None if run_id is None else self._journals.get(run_id))

    def _make_report(self, con: DuckDBPyConnection, run_id: str, generation: str | None) -> str:
        begun_s = time.process_time()
        kind = find_kind(con, run_id)
        states, _ = list_states(con, MOST_RUNS)
        state = next((state for state in states if state.run_id == run_id), RunState(run_id, kind, None, None, ""))
        rows = con.execute(_GENERATIONS, [run_id, MOST_GENERATIONS]).fetchall()
        html = fill_in(
            "view/run.html",
            report=make_report(con, run_id, generation if kind == SPECULATION else None, self.store),
            kind=kind,
            is_going_on=state.state == GOING_ON,
            choices=[Choice(generation_id, label) for generation_id, label, _ in rows],
            n_generations=rows[0][-1] if rows else 0,
            generation=generation,
            by_rounds=kind == SPECULATION,
        )
        self._due_s = time.monotonic() + min(RESTRAINT * (time.process_time() - begun_s), LONGEST_S)
        return html

    def _write_timeline(
        self, con: DuckDBPyConnection, path: Path, run_id: str | None, generation_id: str | None
    ) -> None:
        if generation_id is None:
            run_id = resolve_run(con, run_id)
        stored = Stored(con, run_id, generation_id)
        n = write_timeline(path, stored.read(), find_start(con, run_id))
        if n == 0:
            said = f"generation {generation_id}" if generation_id else f"run {run_id}"
            raise UsageError(
                f"{said} is not over yet: a timeline holds what is over"
                if stored.n_open
                else f"there is no generation on the timeline of {said}"
            )


def render_page(content: Content, run_id: str | None, generation: str | None) -> tuple[bool, str]:
    """The whole page, and whether the run that was asked for could be shown; if not, the page says why."""
    error = ""
    report: Fragment | None = None
    kind = SPECULATION
    chosen = run_id
    try:
        chosen, kind = content.find_run(run_id)
        report = content.report(chosen, generation)
    except RoundscopeError as problem:
        error = str(problem)
    runs = content.runs(chosen)
    version_shown = report.version if report else content.changes(chosen).report
    groups = {name: queries.names(name) for name in (SPECULATION, NCM)}
    first = "verdict" if kind == SPECULATION else "ncm_cache"
    page = fill_in(
        "view/view.html",
        run_id=chosen if report else None,
        asked=run_id or "",
        version_shown=version_shown,
        runs=runs,
        report=report,
        error=error,
        groups=groups,
        kind=kind,
        first=queries.find(first),
        store=str(content.store),
    )
    return run_id is None or report is not None, page
