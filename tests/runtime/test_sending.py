"""`roundscope run --otlp`: spans reach a receiver from another process, and whatever becomes of either harms no run.

Cases: opentelemetry-python#4813 (SIGTERM loses what is queued), #3152 (silent drops), #4803 (partial success).
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import telemetry.otlp_follower
from dashboards.report.delivery import say_undelivered
from runtime.cli.sending import sending_spans
from runtime.generate import decode
from runtime.testing import ScriptedTarget
from telemetry.export_losses import ExportLosses
from telemetry.journal import Journal
from telemetry.ledger import read_losses
from telemetry.metrics import Metrics
from telemetry.recorder import Recorder
from telemetry.sidecar import Sidecar
from telemetry.store import connect
from tests.conftest import run_python
from tests.runtime.commands import call, query, refuse_to_load, stand_in, write_prompts
from tests.runtime.scripted import counting
from tests.telemetry.receivers import Receiver, receiving

TEXTS = ["dabcabcabcab", "eabcabcabcab"]
SUMMARY = re.compile(
    r"spans: (\d+) sent, (\d+) refused by the receiver, (\d+) not delivered(?: \((.*?)\))?(;.*)?$", re.M
)
N_GENERATIONS = 8
"""Of two arms: warm-up, two prompts, and one of them in the attributed pass."""


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of prompts; the model is one of letters."""
    monkeypatch.delenv("TRACEPARENT", raising=False)
    stand_in(monkeypatch)
    return write_prompts(tmp_path, TEXTS)


def _run(capsys: pytest.CaptureFixture[str], prompts: Path, *arguments: str) -> tuple[int, tuple[str | Any, ...]]:
    store = prompts.parent / "s"
    code, _, err = call(capsys, "run", "--prompts", prompts, "--store", store, "--max-tokens", "9", *arguments)
    [said] = SUMMARY.findall(err)
    return code, said


def _count(store: Path, sql: str) -> int:
    [(n,)] = query(store, sql)
    assert isinstance(n, int)
    return n


def test_a_receiver_gets_exactly_the_spans_of_the_run(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = prompts.parent / "s"
    with receiving() as receiver:
        code, said = _run(capsys, prompts, "--otlp", receiver.endpoint)
        _, out, _ = call(capsys, "export", "--otlp", receiver.endpoint, "--store", store)
    n = _count(store, "select count(*) from spans")
    assert (code, said) == (0, (str(n), "0", "0", "", ""))
    assert sorted(span.span_id.hex() for span in receiver.spans) == [
        span_id for (span_id,) in query(store, "select span_id from spans order by all")
    ]
    tokens = [a.value.int_value for s in receiver.spans for a in s.attributes if a.key == "gen_ai.usage.output_tokens"]
    assert sum(tokens) == _count(store, "select sum(committed)::bigint from rounds")
    assert out == (
        "spans: 0 sent, 0 refused by the receiver, 0 not delivered\n"
        f"generations: {N_GENERATIONS} were there already, 0 are of traces that are not sampled, 0 are not over yet\n"
    )


@pytest.mark.parametrize(
    ("settings", "column", "reason"),
    [
        ({"status": 500}, 2, "the receiver answers 500"),
        ({"status": 401}, 1, "the receiver answers 401"),
        ({"rejects": 10**6}, 1, "too many"),
        ({"holds": True}, 2, "the receiver cannot be reached, or does not answer in time"),
        (None, 2, "the receiver cannot be reached, or does not answer in time"),
    ],
    ids=["500", "401", "partial success", "slow", "down"],
)
def test_whatever_the_receiver_does_the_run_is_whole_and_the_loss_is_shown(
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, Any] | None,
    column: int,
    reason: str,
) -> None:
    store = prompts.parent / "s"
    with receiving(**(settings or {})) as receiver:
        endpoint = receiver.endpoint if settings is not None else "http://127.0.0.1:9"
        code, said = _run(capsys, prompts, "--otlp", endpoint)
    n = _count(store, "select count(*) from spans")
    assert (code, said[column], said[3]) == (0, str(n), reason)
    if settings == {"rejects": 10**6}:  # a partial success is not to be sent again
        assert said[4] == f"; {n} were refused for good by this receiver"
        note = f"spans of {N_GENERATIONS} generations were refused for good by {endpoint}/v1/traces: {n}\n"
        assert note in call(capsys, "report", "--store", store)[2]
    else:
        assert f"roundscope export --otlp {endpoint} --run " in said[4]
        command = f"roundscope export --otlp {endpoint}/v1/traces --run "
        assert command in call(capsys, "report", "--store", store)[2]
    assert _count(store, "select count(*) from generations where finish_reason = 'length'") == N_GENERATIONS
    assert query(store, "select outcome from runs") == [("complete",)]
    with receiving() as receiver:
        code, out, _ = call(capsys, "export", "--otlp", receiver.endpoint, "--store", store)
    assert (code, out.splitlines()[0]) == (0, f"spans: {n} sent, 0 refused by the receiver, 0 not delivered")


CHILD = """
import os, signal, sys
from pathlib import Path
from runtime.generate import decode
from runtime.testing import ScriptedTarget
from telemetry.journal import Journal
from telemetry.otlp_follower import follow
from telemetry.recorder import Recorder
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told its background jobs to ignore it
store, endpoint = Path(sys.argv[1]), sys.argv[2]
journal = Journal(store)
follower = follow(store, journal.path, endpoint)
target = ScriptedTarget(lambda history: 1, vocab_size=5)
decode(target, [1], max_tokens=2, recorder=Recorder(journal)).drain()
for round in decode(target, [1], max_tokens=9, recorder=Recorder(journal)):
    if round.index == 2:
        {death}
"""


@pytest.mark.parametrize(
    ("death", "code"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGINT); signal.pause()", -signal.SIGINT),
    ],
    ids=["os._exit", "kill -9", "SIGTERM", "Ctrl-C"],
)
def test_however_the_process_dies_its_closed_rounds_are_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], death: str, code: int
) -> None:
    """What it has no time for on a busy machine, the follower may leave to an export, but not uncounted."""
    with receiving() as receiver:
        # It returns when the follower has ended too, which has the same standard error.
        child = run_python(CHILD.format(death=death), str(tmp_path), receiver.endpoint, env={"TRACEPARENT": None})
        assert child.returncode == code, child.stderr
        sent = {span.span_id for span in receiver.spans}
        n_left = sum(losses.n_spans for losses in read_losses(tmp_path))
        assert call(capsys, "export", "--otlp", receiver.endpoint, "--store", tmp_path)[0] == 0
    spans = {span.span_id: span for span in receiver.spans}
    assert n_left >= len(spans.keys() - sent)
    assert n_left or len(spans) == len(receiver.spans)
    whole, broken = (span for span in spans.values() if span.name.startswith("text_completion"))
    assert [span.name for span in spans.values() if span.trace_id == broken.trace_id].count("round") == 3
    ended = "cancelled" if code == -signal.SIGINT else "aborted"
    assert [_attribute(root, "error.type") for root in (whole, broken)] == [
        None,
        "aborted" if ended == "aborted" else None,
    ]
    assert query(tmp_path, "select finish_reason from generations order by started_monotonic_ns") == [
        ("length",),
        (ended,),
    ]


def _roots(receiver: Receiver) -> list[Any]:
    return [span for span in receiver.spans if span.name.startswith("text_completion")]


def _attribute(span: Any, key: str) -> str | None:
    return next((a.value.string_value for a in span.attributes if a.key == key), None)


def test_a_follower_that_is_killed_harms_nothing_is_named_and_its_loss_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Sidecar] = []
    follow = telemetry.otlp_follower.follow

    def follow_and_keep(*arguments: Any) -> Sidecar:
        started.append(follow(*arguments))
        return started[0]

    monkeypatch.setattr(telemetry.otlp_follower, "follow", follow_and_keep)
    target = ScriptedTarget(counting(20), vocab_size=20)
    with receiving() as receiver, Journal(tmp_path) as journal:
        with sending_spans(receiver.endpoint, tmp_path, journal.path, "r"):
            os.kill(started[0].process.pid, signal.SIGKILL)
            decode(target, [1], max_tokens=3, recorder=Recorder(journal, run_id="r")).drain()
            unsampled = f"00-{'a' * 32}-{'b' * 16}-00"
            decode(target, [1], max_tokens=3, recorder=Recorder(journal), traceparent=unsampled).drain()
        assert journal.n_lost == 0
        err = capsys.readouterr().err
        metrics = Metrics()
        ExportLosses(tmp_path).count(metrics)
        dropped = {
            each.labels: each.value for each in metrics.state().values.numbers["telemetry_dropped"] if each.value
        }
        with connect(tmp_path) as connected:
            [said] = say_undelivered(connected.con, "r", tmp_path)
        assert call(capsys, "export", "--otlp", receiver.endpoint, "--store", tmp_path)[0] == 0
    n = len(receiver.spans)
    assert len(_roots(receiver)) == 1
    assert f"spans: the exporter ended before its time, {n} not delivered; `roundscope export --otlp" in err
    assert dropped == {("otlp", "failed"): n}
    assert said.startswith("spans of 1 generation are not at ")


def test_what_is_no_address_is_refused_before_a_model_is_loaded(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_to_load(monkeypatch)
    code, _, err = call(capsys, "run", "--prompts", prompts, "--store", prompts.parent / "s", "--otlp", "nowhere")
    assert (code, err) == (
        2,
        "error: 'nowhere' is no OTLP endpoint; it must be as in http://127.0.0.1:4318\n",
    )
