"""`roundscope export`: to a receiver and to files; resumable, and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from telemetry.ledger import Ledger
from telemetry.spans import build_spans
from telemetry.testing import Spans, assert_sinks_agree
from tests.runtime.commands import call
from tests.runtime.ncm.experiment.tiny import make_config
from tests.telemetry.receivers import Receiver, receiving
from tests.telemetry.stores import generation, generation_end, rounds, run, whole_generation
from tests.telemetry.traces import IDS, every_kind, read_spans, write_store

N_SPANS = len(list(build_spans(every_kind())))
NOTHING = {
    "sent": 0,
    "refused": 0,
    "failed": 0,
    "reasons": {},
    "generations_already_there": 0,
    "generations_not_sampled": 0,
    "generations_still_open": 0,
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    monkeypatch.delenv("TRACEPARENT", raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a generation of each kind."""
    write_store(tmp_path / "store")
    return tmp_path / "store"


def _export(capsys: pytest.CaptureFixture[str], store: Path, *arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    code, out, err = call(capsys, "export", *arguments, "--store", store, "--json")
    return code, json.loads(out) if out else {}, err


def _ids(receiver: Receiver) -> list[str]:
    return [span.span_id.hex() for span in receiver.spans]


def test_everything_is_sent_once(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    with receiving() as receiver:
        assert _export(capsys, store, "--otlp", receiver.endpoint) == (0, {**NOTHING, "sent": N_SPANS}, "")
        again = _export(capsys, store, "--otlp", receiver.endpoint)
        assert again == (0, {**NOTHING, "generations_already_there": 12}, "")
    assert sorted(_ids(receiver)) == sorted(span.span_id for span in build_spans(every_kind()))


def test_what_came_later_is_sent_later(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    with receiving() as receiver:
        _export(capsys, store, "--otlp", receiver.endpoint)
        write_store(store, [generation(IDS[12], run_id=None), generation_end(IDS[12])], "b")
        assert _export(capsys, store, "--otlp", receiver.endpoint)[1] == {
            **NOTHING,
            "sent": 2,
            "generations_already_there": 12,
        }


def test_one_run_only(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    write_store(store, [*whole_generation(IDS[12]), run("run-3")], "b")
    other = [generation("f" * 32, run_id="run-3"), generation_end("f" * 32, finish_reason="cancelled")]
    write_store(store, other, "c")
    with receiving() as receiver:
        assert _export(capsys, store, "--otlp", receiver.endpoint, "--run", "run-3")[1]["sent"] == 2
    assert {span.trace_id.hex() for span in receiver.spans} == {"f" * 32}


@pytest.mark.parametrize(
    ("settings", "column", "reason"),
    [
        ({"status": 500}, "failed", "the receiver answers 500"),
        ({"status": 503}, "failed", "the receiver answers 503"),
        ({"status": 401}, "refused", "the receiver answers 401"),
        ({"holds": True}, "failed", "the receiver cannot be reached, or does not answer in time"),
    ],
    ids=["500", "503", "401", "slow"],
)
def test_what_is_not_taken_is_counted_and_sent_again(
    capsys: pytest.CaptureFixture[str], store: Path, settings: dict[str, Any], column: str, reason: str
) -> None:
    with receiving(**settings) as receiver:
        code, counts, err = _export(capsys, store, "--otlp", receiver.endpoint)
        assert (code, counts[column], counts["sent"]) == (1, N_SPANS, 0)
        assert list(counts["reasons"]) == [reason]
        assert f"{N_SPANS} spans were not taken; the same command tries them again" in err
        receiver.status, receiver.holds = 200, False
        receiver.requests.clear()
        assert _export(capsys, store, "--otlp", receiver.endpoint)[:2] == (0, {**NOTHING, "sent": N_SPANS})


def test_a_receiver_that_is_down(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    with receiving() as receiver:
        pass
    code, counts, _ = _export(capsys, store, "--otlp", receiver.endpoint)
    assert (code, counts["failed"]) == (1, N_SPANS)


def test_it_goes_on_where_it_was_broken_off(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    with receiving(statuses=[200, 200, 500]) as receiver:
        _, first, _ = _export(capsys, store, "--otlp", receiver.endpoint)
        _, second, _ = _export(capsys, store, "--otlp", receiver.endpoint)
    assert (first["sent"] + second["sent"], first["sent"] + first["failed"]) == (N_SPANS, N_SPANS)
    assert second["generations_already_there"] == 2
    assert len(_ids(receiver)) == len(set(_ids(receiver))) == N_SPANS


def test_a_partial_success_is_counted(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    with receiving(rejects=1) as receiver:
        code, counts, err = _export(capsys, store, "--otlp", receiver.endpoint)
        assert (code, counts["sent"], counts["refused"]) == (1, N_SPANS - 12, 12)
        assert "error: 12 spans were refused for good by this receiver; another one may take them" in err
        assert "tries them again" not in err
        assert counts["reasons"] == {"too many": 12}
        assert _export(capsys, store, "--otlp", receiver.endpoint)[1] == {**NOTHING, "generations_already_there": 12}


def test_unsampled_traces_and_open_generations_stay_here(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    unsampled = [generation(IDS[0], trace_id="a" * 32, sampled=False, run_id=None), generation_end(IDS[0])]
    write_store(tmp_path, unsampled)
    with receiving() as receiver:
        assert _export(capsys, tmp_path, "--otlp", receiver.endpoint)[1] == {**NOTHING, "generations_not_sampled": 1}


def test_for_people(capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path) -> None:
    code, out, err = call(capsys, "export", "--otlp-json", tmp_path / "f.json", "--store", store)
    assert (code, err) == (0, "")
    assert out == (
        f"spans: {N_SPANS} sent, 0 refused by the receiver, 0 not delivered\n"
        "generations: 0 were there already, 0 are of traces that are not sampled, 0 are not over yet\n"
    )


@pytest.mark.parametrize("destinations", [[], ["--otlp", "http://127.0.0.1:1", "--parquet", "d"]], ids=["none", "two"])
def test_one_destination_is_needed(capsys: pytest.CaptureFixture[str], store: Path, destinations: list[str]) -> None:
    code, _, err = call(capsys, "export", *destinations, "--store", store)
    assert (code, err) == (
        2,
        "error: name one destination: --otlp, --otlp-json FILE, --parquet DIR or --timeline FILE\n",
    )


def test_two_exports_to_one_file_at_once_are_refused(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    file = tmp_path / "spans.otlp.json"
    with Ledger(store, str(file), alone=True):
        code, _, err = call(capsys, "export", "--otlp-json", file, "--store", store)
    assert (code, err) == (1, f"error: another export to {file} is going on; wait until it has ended\n")


def test_an_export_may_go_on_beside_another_to_the_same_receiver(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    with receiving() as receiver, Ledger(store, f"{receiver.endpoint}/v1/traces") as other:
        other.note(IDS[0], sent=1, refused=0)
        _, counts, _ = _export(capsys, store, "--otlp", receiver.endpoint)
        assert (counts["generations_already_there"], counts["sent"]) == (1, len(receiver.spans))
        assert [id for id in IDS if other.has(id)] == IDS[:12]


def test_a_file_is_appended_to_and_a_new_one_is_whole(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    file = tmp_path / "spans.otlp.json"
    _export(capsys, store, "--otlp-json", file)
    write_store(store, [generation(IDS[12], run_id=None), generation_end(IDS[12])], "b")
    assert _export(capsys, store, "--otlp-json", file)[1]["sent"] == 2
    assert len(read_spans(file)) == N_SPANS + 2
    file.unlink()
    assert _export(capsys, store, "--otlp-json", file)[1]["sent"] == N_SPANS + 2


def test_a_run_of_the_generator_is_exported_with_its_comparisons(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config, store, file = tmp_path / "tiny.json", tmp_path / "store", tmp_path / "spans.otlp.json"
    config.write_bytes(msgspec.json.encode(make_config()))
    assert call(capsys, "ncm", "run", "--config", config, "--n-puzzles", "2", "--no-exit", "--store", store)[0] == 0
    assert _export(capsys, store, "--otlp-json", file)[0] == 0
    spans = Spans.from_otlp_json(file)
    assert_sinks_agree(store=store, spans=spans)
    linked = [
        ({"trace_id": link.trace_id, "span_id": link.span_id}, span.attributes["roundscope.comparison.equal"])
        for span in spans.find("ncm.generate")
        for link in span.links
    ]
    pairs = "SELECT pair_id AS trace_id, span_id_of(pair_id, '') AS span_id FROM ncm_generations WHERE pair_id NOTNULL"
    _, out, _ = call(capsys, "sql", pairs, "--store", store, "--json")
    assert sorted(linked, key=str) == sorted(((row, True) for row in json.loads(out)), key=str)
    assert len(linked) == 4


def test_tables_as_parquet(capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    assert _export(capsys, store, "--parquet", folder)[1]["sent"] == N_SPANS
    assert sorted(path.name for path in folder.iterdir()) == ["run=none", "run=run-1", "run=run-2"]
    counts = {
        table: duckdb.sql(f"SELECT count(*) FROM '{folder}/*/{table}.parquet'").fetchall()
        for table in ("runs", "generations", "rounds", "ncm_generations", "levels", "spans")
    }
    assert counts == {
        "runs": [(2,)],
        "generations": [(7,)],
        "rounds": [(8,)],
        "ncm_generations": [(5,)],
        "levels": [(5,)],
        "spans": [(N_SPANS,)],
    }
    before = (folder / "run=run-1" / "spans.parquet").stat().st_mtime_ns
    write_store(store, [generation(IDS[12], run_id=None), *rounds(IDS[12], 1), generation_end(IDS[12])], "b")
    assert _export(capsys, store, "--parquet", folder)[1] == {**NOTHING, "sent": 7, "generations_already_there": 12}
    assert (folder / "run=run-1" / "spans.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize("option", ["--timeline", "--otlp-json", "--parquet"])
def test_a_run_that_is_not_there_is_named_and_the_destination_kept(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path, option: str
) -> None:
    destination = tmp_path / "before"
    if option != "--parquet":
        destination.write_text("what was there")
    code, _, err = _export(capsys, store, option, destination, "--run", "zz")
    assert (code, "there is no run 'zz'" in err) == (2, True)
    assert option == "--parquet" or destination.read_text() == "what was there"
    assert option != "--parquet" or not destination.exists()
    code, _, err = _export(capsys, store, option, destination, "--run", "run-")
    assert (code, "2 runs begin with 'run-'" in err) == (2, True)


def test_tables_are_written_to_no_file(capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_text("mine")
    code, out, err = call(capsys, "export", "--parquet", path, "--store", store)
    assert (code, out, path.read_text()) == (2, "", "mine")
    assert err == f"error: --parquet {path} is a file, and tables are written to a folder: name another\n"
