"""The metrics endpoint: up to date at every scrape, and never going back, whatever becomes of processes and files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pytest

from telemetry import archiving
from telemetry.archiving import archive_before
from telemetry.errors import RoundscopeError, UsageError
from telemetry.journal import FOLDER, Journal
from telemetry.ledger import Ledger
from telemetry.serving import LOCK, LOOPBACK, STATE, check_port, find_uncounted, listen, lock, open_counting
from telemetry.span_data import derive_trace_id
from tests.conftest import ROOT, child_environment, run_python
from tests.telemetry import stores
from tests.telemetry.test_journal import DYING

DAY = date(2023, 11, 16)
SERVE = "import sys; from runtime.cli.main import main; main(['serve-metrics', '--port', '0', '--store', sys.argv[1]])"


def scrape(address: str, accept: str = "text/plain") -> str:
    """What the endpoint answers."""
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
        content: bytes = answer.read()
    return content.decode()


def parse(text: str) -> dict[str, float]:
    """Every sample of the text format."""
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def total(samples: dict[str, float], name: str) -> float:
    """The sum over all series of a metric."""
    return sum(value for sample, value in samples.items() if sample.partition("{")[0] == f"roundscope_{name}")


def count(store: Path) -> dict[str, float]:
    """What a new endpoint that has just begun would show."""
    counting = open_counting(store)
    server, address = listen(counting, LOOPBACK, 0)
    try:
        return parse(scrape(address))
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(store: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`roundscope serve-metrics` as a process, with its address; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(store)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=child_environment(),
    )
    with process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert '"event": "metrics.serving"' in said, said + process.stderr.read()
            yield process, said.partition('"address": "')[2].partition('"')[0]
        finally:
            process.kill()


def never_back(before: dict[str, float], after: dict[str, float]) -> None:
    """Every counter is still there, and no smaller."""
    gauges = ("roundscope_open_", "roundscope_journals", "roundscope_kv_", "roundscope_peak_")
    assert {
        n: (v, after.get(n, -1)) for n, v in before.items() if not n.startswith(gauges) and after.get(n, -1) < v
    } == {}


def test_every_scrape_is_up_to_date_and_counts_writers_of_all_kinds(tmp_path: Path) -> None:
    with Journal(tmp_path) as first, Journal(tmp_path) as second, serving(tmp_path) as (_, address):
        assert address.startswith("http://127.0.0.1:")
        for record in [stores.run(), *stores.whole_generation("g1")]:
            first.write(record)
        second.write(stores.generation("g2"))
        samples = parse(scrape(address))
        assert (total(samples, "rounds_total"), total(samples, "open_generations")) == (3, 1)
        assert samples['roundscope_journals{writer="running"}'] == 2
        for record in stores.rounds("g2", 4):
            second.write(record)
        second.close()  # without an end: it died
        after = parse(scrape(address))
        never_back(samples, after)
        assert (total(after, "rounds_total"), total(after, "open_generations")) == (7, 0)
        assert [value for name, value in after.items() if 'finish_reason="aborted"' in name] == [1]
        assert after['roundscope_journals{writer="ended"}'] == 1
        openmetrics = scrape(address, "application/openmetrics-text; version=1.0.0")
        assert openmetrics.endswith("# EOF\n")
        trace_id = derive_trace_id("g2")
        assert f'# {{trace_id="{trace_id}"}}' in openmetrics


def test_a_process_that_is_killed_has_counted_every_round_it_closed(tmp_path: Path) -> None:
    with serving(tmp_path / "not" / "there") as (_, address):
        child = run_python(DYING.format(death="os.kill(os.getpid(), signal.SIGKILL)"), str(tmp_path / "not" / "there"))
        assert child.returncode == -signal.SIGKILL
        samples = parse(scrape(address))
    assert [total(samples, name) for name in ("rounds_total", "generations_total", "open_generations")] == [5, 1, 0]
    assert [name for name in samples if "generations_total{" in name and 'finish_reason="aborted"' not in name] == []


def test_counters_go_on_after_kill_9_and_archiving(tmp_path: Path) -> None:
    """Archived while the endpoint runs, and while it does not."""
    for name in "abc":
        stores.write_lines(tmp_path, [stores.header(), *stores.whole_generation(name)], name)
    with serving(tmp_path) as (process, address):
        first = parse(scrape(address))
        (tmp_path / FOLDER / "a.ndjson").unlink()
        never_back(first, second := parse(scrape(address)))
        process.send_signal(signal.SIGKILL)
        process.wait()
    (tmp_path / FOLDER / "b.ndjson").unlink()
    stores.write_lines(tmp_path, [stores.header(), *stores.whole_generation("d")], "d")
    with serving(tmp_path) as (_, address):
        third = parse(scrape(address))
    never_back(second, third)
    assert [total(each, "rounds_total") for each in (first, second, third)] == [9, 9, 12]
    assert total(third, "round_seconds_sum") == 12 * 90 / 1e9


def test_archiving_takes_nothing_from_the_counters(tmp_path: Path) -> None:
    """Whether an endpoint runs, and had read the journal or not, or none does but one did before."""
    for name in "abc":
        stores.write_lines(tmp_path, [stores.header(), *stores.whole_generation(name)], name)
    first = count(tmp_path)
    stores.write_lines(tmp_path, [stores.header(), *stores.whole_generation("d")], "d")
    assert archive_before(tmp_path, DAY).journals == 4
    never_back(first, second := count(tmp_path))
    stores.write_lines(tmp_path, [stores.header(), *stores.whole_generation("e")], "e")
    with serving(tmp_path) as (_, address):
        never_back(second, third := parse(scrape(address)))
        stores.write_lines(tmp_path, [stores.header(), *stores.whole_generation("f")], "f")
        assert archive_before(tmp_path, DAY).journals == 2
        never_back(third, fourth := parse(scrape(address)))
    fifth = count(tmp_path)
    never_back(fourth, fifth)
    totals = [total(each, "rounds_total") for each in (first, second, third, fourth, fifth)]
    assert totals == [9, 12, 15, 18, 18]
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_what_the_endpoint_cannot_count_yet_is_not_archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "find_uncounted", lambda *arguments: find_uncounted(*arguments, patience_s=0))
    a, b = ([stores.header(), stores.generation(name, run_id=None), *stores.rounds(name, 3)] for name in "ab")
    stores.write_lines(tmp_path, a, "a")
    count(tmp_path)
    stores.write_lines(tmp_path, b, "b")
    with lock(tmp_path):  # an endpoint that hangs
        done = archive_before(tmp_path, DAY)
    assert (done.journals, done.left) == (1, {archiving.UNCOUNTED: 1})
    assert archive_before(tmp_path, DAY).journals == 1
    assert total(count(tmp_path), "rounds_total") == 6


def test_a_generation_may_go_on_while_the_endpoint_is_away(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.write(stores.generation("g1"))
        first, *rest = stores.rounds("g1", 3)
        journal.write(first)
        assert total(count(tmp_path), "rounds_total") == 1
        for record in [*rest, stores.generation_end("g1")]:
            journal.write(record)
        found = count(tmp_path)
        assert [total(found, name) for name in ("rounds_total", "generations_total", "telemetry_dropped_total")] == [
            3,
            1,
            0,
        ]


def test_what_is_shown_was_kept_before(tmp_path: Path) -> None:
    stores.write_lines(tmp_path, stores.whole_run())
    shown = count(tmp_path)
    (tmp_path / FOLDER / "a.ndjson").unlink()
    assert count(tmp_path) == shown


@pytest.mark.parametrize("content", [b"", b"{", b'{"metrics": 1}', b"\xff"])
def test_a_damaged_state_is_said_and_everything_counted_anew(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    stores.write_lines(tmp_path, stores.whole_run())
    shown = count(tmp_path)
    (tmp_path / STATE).write_bytes(content)
    assert count(tmp_path) == shown
    assert capsys.readouterr().err.count("metrics.state_unreadable") == 1


def test_where_nothing_can_be_kept_it_is_said_once_and_metrics_are_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores.write_lines(tmp_path, stores.whole_run())
    (tmp_path / STATE).with_suffix(".partial").mkdir()
    (tmp_path / LOCK).mkdir()
    with lock(tmp_path):
        counting = open_counting(tmp_path)
        counting.catch_up()
        stores.write_lines(tmp_path, stores.whole_generation("g3"), "b")
        counting.catch_up()
        assert [each.value for each in counting.metrics.state().values.numbers["proposals"]] == [9]
    assert capsys.readouterr().err.count("metrics.state_not_kept") == 1


def test_spans_that_did_not_arrive_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    with Ledger(tmp_path, "http://127.0.0.1:4318/v1/traces") as ledger:
        ledger.note("g1", sent=3, refused=2)
        ledger.note_failed(5)
        name = 'roundscope_telemetry_dropped_total{{reason="{}",sink="otlp"}}'
        assert [count(tmp_path)[name.format(reason)] for reason in ("refused", "failed")] == [2, 5]
        ledger.note("g2", sent=0, refused=1)
        assert [count(tmp_path)[name.format(reason)] for reason in ("refused", "failed")] == [3, 5]


def test_a_store_has_one_endpoint(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(RoundscopeError, match="are being served already"), lock(tmp_path):
        pass
    with lock(tmp_path):
        pass
    with pytest.raises(UsageError, match="no store at"), lock(tmp_path / "none"):
        pass


def test_a_port_that_is_taken_is_an_error_with_the_cure(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"cannot serve metrics at 127.0.0.1:{port}: Address already in use. Choose another port or host."
        for attempt in (
            lambda: listen(open_counting(tmp_path), LOOPBACK, port),
            lambda: check_port(LOOPBACK, port),
        ):
            with pytest.raises(RoundscopeError) as caught:
                attempt()
            assert str(caught.value) == expected
    check_port(LOOPBACK, port)
    with pytest.raises(RoundscopeError, match="cannot serve metrics at no such host:1"):
        check_port("no such host", 1)


def test_the_endpoint_of_a_run_follows_its_journal_only_and_ends_with_it(tmp_path: Path) -> None:
    from telemetry.serving import follow

    stores.write_lines(tmp_path, stores.whole_run())
    with Journal(tmp_path) as journal:
        sidecar = follow(tmp_path, journal.path, LOOPBACK, 0)
        try:
            for record in stores.whole_generation("g9", 5):
                journal.write(record)
            samples = parse(scrape(sidecar.ready["address"]))
        finally:
            sidecar.end()
    assert total(samples, "rounds_total") == 5
    assert sidecar.process.returncode == 0
    assert sorted(os.listdir(tmp_path)) == [FOLDER]
    with pytest.raises(OSError, match="refused"):
        scrape(sidecar.ready["address"])
