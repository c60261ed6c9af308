"""The exporter beside a run: the run's end is noticed between two generations, and every loss is counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dashboards.report.delivery import say_undelivered
from telemetry import otlp_follower
from telemetry.export_losses import ExportLosses
from telemetry.following import Follower
from telemetry.journal import FOLDER
from telemetry.ledger import Ledger
from telemetry.metrics import Metrics
from telemetry.otlp import Sender, Sent
from telemetry.otlp_follower import Exporter, send_until
from telemetry.span_data import SpanData
from telemetry.spans import build_spans
from telemetry.store import connect
from tests.runtime.commands import call
from tests.telemetry import stores
from tests.telemetry.receivers import receiving

N = 5
IDS = [f"{n:032x}" for n in range(1, N + 1)]
N_SPANS = len(list(build_spans(stores.whole_generation(IDS[0]))))
"""Of each generation."""

WHERE = "http://127.0.0.1:4318/v1/traces"


class Answering:
    """A receiver that answers so; `over` is set when it has answered `last` requests."""

    def __init__(self, *answers: Sent, last: int = 10**6) -> None:
        self.over = threading.Event()
        self.ids: list[str] = []
        self._answers = list(answers)
        self._last = last

    def send(self, spans: list[SpanData]) -> Sent:
        """Answer one request."""
        self.ids.append(spans[0].trace_id)
        if len(self.ids) == self._last:
            self.over.set()
        return self._answers.pop(0) if self._answers else Sent(sent=len(spans))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a journal of generations whose writer has gone."""
    stores.write_lines(tmp_path, [stores.header(), *(each for id in IDS for each in stores.whole_generation(id))])
    return tmp_path


@contextmanager
def _exporting(store: Path, taker: otlp_follower.Taker, where: str = WHERE) -> Iterator[Exporter]:
    with Ledger(store, where) as ledger:
        yield Exporter(Follower(store / FOLDER), taker, ledger)


def _count_dropped(store: Path) -> dict[str, float]:
    metrics = Metrics()
    ExportLosses(store).count(metrics)
    numbers = metrics.state().values.numbers["telemetry_dropped"]
    return {each.labels[1]: each.value for each in numbers if each.labels[0] == "otlp"}


def test_a_slow_receiver_does_not_hide_the_runs_end(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends while the second request is answered; there is no time for what is left."""
    monkeypatch.setattr(otlp_follower, "END_S", 0.0)
    taker = Answering(last=2)
    with _exporting(store, taker) as exporter:
        send_until(lambda _: taker.over.is_set(), exporter)
    assert taker.ids == IDS[:2]
    assert (exporter.counts.sent, exporter.counts.failed) == (2 * N_SPANS, 3 * N_SPANS)
    assert _count_dropped(store) == {"failed": 3 * N_SPANS}
    with Ledger(store, WHERE) as ledger:
        assert [ledger.has(id) for id in IDS] == [True, True, False, False, False]


def test_between_two_generations_it_does_not_wait(store: Path) -> None:
    taker, waits = Answering(last=N), list[float]()

    def is_over(wait_s: float) -> bool:
        waits.append(wait_s)
        return taker.over.is_set()

    with _exporting(store, taker) as exporter:
        send_until(is_over, exporter)
    assert taker.ids == IDS
    assert waits == [otlp_follower.POLL_S, *[0.0] * (N - 1), otlp_follower.POLL_S]


def test_what_the_run_left_is_sent_at_its_end(store: Path) -> None:
    taker = Answering()
    with _exporting(store, taker) as exporter:
        send_until(lambda _: True, exporter)
    assert (taker.ids, exporter.counts.sent, exporter.counts.failed) == (IDS, N * N_SPANS, 0)


def test_refused_spans_are_counted_and_can_be_exported_later(store: Path) -> None:
    with (
        receiving(status=401) as receiver,
        closing(Sender(receiver.endpoint, timeout_s=5.0)) as sender,
        _exporting(store, sender, sender.endpoint) as exporter,
    ):
        send_until(lambda _: True, exporter)
        where = sender.endpoint
    assert (exporter.counts.refused, dict(exporter.counts.reasons)) == (
        N * N_SPANS,
        {"the receiver answers 401": N * N_SPANS},
    )
    assert _count_dropped(store) == {"refused": N * N_SPANS}
    with Ledger(store, where) as ledger:
        assert [ledger.has(id) for id in IDS] == [False] * N


def test_a_receiver_in_trouble_is_left_alone_for_as_long_as_it_says(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(otlp_follower.time, "monotonic", lambda: now[0])
    trouble = Sent(failed=N_SPANS, reason="the receiver answers 503", again=True)
    taker = Answering(trouble, Sent(failed=N_SPANS, reason="the receiver answers 429", again=True, after_s=60.0))
    with _exporting(store, taker) as exporter:
        for elapsed, n_requests in (
            (0.0, 1),
            (otlp_follower.RETRY_S / 2, 1),
            (otlp_follower.RETRY_S / 2, 2),
            (59.0, 2),
            (1.0, 3),
        ):
            now[0] += elapsed
            exporter.step()
            assert len(taker.ids) == n_requests
    assert dict(exporter.counts.reasons) == {"the receiver answers 503": 0, "the receiver answers 429": 0}
    assert (exporter.counts.sent, exporter.counts.failed) == (N_SPANS, 0)


def test_more_than_the_queue_holds_is_left_to_an_export_and_counted(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """opentelemetry-python#3152: a full queue that drops without a word. Rows are whole, and an export sends all."""
    monkeypatch.setattr(otlp_follower, "QUEUE", 2)
    with receiving() as receiver:
        where = f"{receiver.endpoint}/v1/traces"
        trouble = Sent(failed=N_SPANS, reason="the receiver answers 503", again=True)
        taker = Answering(trouble, trouble)
        with _exporting(store, taker, where) as exporter:
            exporter.step()
            assert (taker.ids, exporter.counts.failed) == ([IDS[3]], 3 * N_SPANS)
            assert _count_dropped(store) == {"failed": 3 * N_SPANS}
            exporter.finish()
        assert (taker.ids, exporter.counts.failed) == ([IDS[3]] * 2, N * N_SPANS)
        assert _count_dropped(store) == {"failed": N * N_SPANS}
        with connect(store) as connected:
            assert connected.con.execute("select count(*) from rounds").fetchall() == [(3 * N,)]
            [said] = say_undelivered(connected.con, "run-1", store)
        assert said.startswith(f"spans of {N} generations are not at {where}; `roundscope export --otlp {where} ")
        assert call(capsys, "export", "--otlp", receiver.endpoint, "--store", store)[0] == 0
        assert len({span.span_id for span in receiver.spans}) == len(receiver.spans) == N * N_SPANS
    with connect(store) as connected:
        assert list(say_undelivered(connected.con, "run-1", store)) == []


def test_what_another_export_has_sent_meanwhile_is_not_sent_again(store: Path) -> None:
    taker = Answering()
    with Ledger(store, WHERE) as other, _exporting(store, taker) as exporter:
        exporter.step()
        for id in IDS[1:3]:
            other.note(id, sent=N_SPANS, refused=0)
        exporter.finish()
    assert taker.ids == [IDS[0], *IDS[3:]]


def test_two_followers_send_to_one_receiver(tmp_path: Path) -> None:
    taker = Answering()
    for name, id in zip("ab", IDS, strict=False):
        stores.write_lines(tmp_path, [stores.header(), *stores.whole_generation(id)], name)
    with Ledger(tmp_path, WHERE) as first, Ledger(tmp_path, WHERE) as second:
        for ledger, name in ((first, "a.ndjson"), (second, "b.ndjson")):
            Exporter(Follower(tmp_path / FOLDER, journals=[name]), taker, ledger).finish()
        assert [ledger.has(id) for ledger in (first, second) for id in IDS[:2]] == [True] * 4
    assert taker.ids == IDS[:2]


def test_it_takes_the_last_place_in_the_queue_only_when_its_parent_need_not_wait(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [journal] = (store / FOLDER).iterdir()
    done: list[str] = []
    monkeypatch.setattr(otlp_follower, "begin_following", lambda: done.append("steps back"))
    monkeypatch.setattr(otlp_follower, "tell", lambda **facts: done.append(next(iter(facts))))
    monkeypatch.setattr(otlp_follower, "is_over", lambda wait_s: True)
    with receiving() as receiver:
        otlp_follower.main([str(store), journal.name, receiver.endpoint])
    assert done == ["steps back", "endpoint", "sent"]
    otlp_follower.main([str(store), journal.name, "nowhere"])
    assert done[3:] == ["error"]
