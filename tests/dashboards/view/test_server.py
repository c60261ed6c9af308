"""The live page's server over HTTP: what it serves, to whom, and everything that it refuses."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

import queries
from dashboards.page import render_page
from dashboards.timeline import find_start, write_timeline
from dashboards.view import LOOPBACK, Viewer, content
from dashboards.view.server import MOST_BYTES
from telemetry.errors import RoundscopeError
from telemetry.store import connect
from telemetry.stored import Stored
from tests.dashboards.page.reading import Page
from tests.dashboards.test_command import record
from tests.dashboards.view.asked import ask, get, request
from tests.dashboards.view.conftest import Serve
from tests.queries.simulate import Simulation

RUNS = ("20240103-c", "20240102-b", "20240101-a")
PAGES = {
    "/": "text/html; charset=utf-8",
    "/style.css": "text/css; charset=utf-8",
    "/view.js": "text/javascript; charset=utf-8",
    "/changes": "application/json",
    "/runs": "text/html; charset=utf-8",
    "/report": "text/html; charset=utf-8",
    "/query?name=verdict": "application/json",
    "/timeline": "application/json",
}


def test_runs_are_listed_with_kind_model_start_and_state(viewer: Viewer) -> None:
    page = Page(get(viewer, "/").text)
    assert page.rows("Choose a run") == [
        {"run": run, "kind": kind, "model": "scripted", "started": "2023-11-14 22:13 UTC", "state": "complete"}
        for run, kind in zip(RUNS, ("speculation", "ncm", "speculation"), strict=True)
    ]
    assert [link for link in page.links if link.startswith("?")] == [f"?run={run}" for run in RUNS]


@pytest.mark.parametrize("run", RUNS)
def test_it_shows_what_the_html_report_of_the_run_shows(viewer: Viewer, store: Path, run: str) -> None:
    with connect(store, prepare=queries.install_views) as connected:
        report = Page(render_page(connected.con, run))
    live = Page(get(viewer, f"/?run={run}").text)
    assert report.headings == [each for each in live.headings if each[1] not in ("Runs", "Timeline", "Ask")]
    assert live.figures == report.figures
    assert report.tables.items() <= live.tables.items()
    assert [text for text in report.paragraphs if text not in live.paragraphs] == []
    assert Page(get(viewer, f"/report?run={run}").text).figures == report.figures


def test_a_generation_can_be_chosen(viewer: Viewer, store: Path) -> None:
    with connect(store) as connected:
        [(generation,)] = connected.con.execute(
            "select min(generation_id) from generations where run_id = ? and drafter is not null", [RUNS[0]]
        ).fetchall()
    page = get(viewer, f"/?run={RUNS[0]}&generation={generation}").text
    assert f'<option value="{generation}" selected>' in page
    assert any(text.startswith(f"generation {generation}: ") for text in Page(page).paragraphs)


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_says_what_it_is_and_lets_nothing_from_outside_in(viewer: Viewer, path: str) -> None:
    got = get(viewer, path)
    assert (got.status, got.headers["Content-Type"]) == (200, PAGES[path])
    assert got.headers["Content-Length"] == str(len(got.body))
    policy = dict(part.strip().split(" ", 1) for part in got.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {source for name in policy for source in policy[name].split()} == {"'none'", "'self'", "data:"}
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert got.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert got.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in got.headers
    assert "Python" not in got.headers["Server"]
    head = request(viewer, "HEAD", path)
    same = {name: value for name, value in got.headers.items() if name != "Date"}
    assert (head.status, head.body) == (200, b"")
    assert {name: value for name, value in head.headers.items() if name != "Date"} == same


def test_the_page_has_no_script_or_style_in_it_and_names_nothing_outside(viewer: Viewer) -> None:
    html = get(viewer, "/").text
    page = Page(html)
    assert [name for name in page.attributes if name.startswith("on") or name == "style"] == []
    assert re.findall(r"<script(?! src=\"/view.js\" defer></script>)|<style", html) == []
    outside = "\n".join(get(viewer, path).text for path in ("/", "/style.css", "/view.js"))
    assert re.findall(r"https?:|@import|url\(|innerHTML|eval\(", outside) == []


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "", None, "[::"]
)
def test_a_name_that_is_not_loopbacks_is_refused(viewer: Viewer, host: str | None) -> None:
    """DNS rebinding: a page of evil.example whose name has come to mean 127.0.0.1."""
    got = get(viewer, "/", Host=host and host.format(port=viewer.server_port))
    assert got.status in (400, 403)
    assert "run" not in got.error


def test_two_hosts_are_refused(viewer: Viewer) -> None:
    with socket.create_connection((LOOPBACK, viewer.server_port), timeout=60) as raw:
        host = f"Host: {LOOPBACK}:{viewer.server_port}\r\n"
        raw.sendall(f"GET / HTTP/1.1\r\n{host}Host: evil.example\r\nConnection: close\r\n\r\n".encode())
        assert raw.makefile("rb").readline() == b"HTTP/1.1 403 Forbidden\r\n"


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:9999", "127.0.0.1:8000"])
def test_loopback_by_another_name_or_through_a_forwarded_port_is_served(viewer: Viewer, host: str) -> None:
    assert get(viewer, "/changes", Host=host.format(port=viewer.server_port)).status == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "http://localhost:{port}"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_origin_is_refused(viewer: Viewer, method: str, origin: str) -> None:
    body = b'{"sql": "select 1"}' if method == "POST" else None
    path = "/ask" if body else "/report"
    got = request(viewer, method, path, body, Origin=origin.format(port=viewer.server_port))
    assert (got.status, got.error) == (403, "a page of another site asked; only this server's own may")


def test_a_question_without_an_origin_is_refused(viewer: Viewer) -> None:
    got = request(viewer, "POST", "/ask", b'{"sql": "select 1"}', Origin=None)
    assert (got.status, got.error) == (403, "a question has to name its Origin, as every browser does")


def test_another_site_may_lead_here_but_not_load_anything(viewer: Viewer) -> None:
    assert get(viewer, "/", Sec_Fetch_Site="cross-site").status == 200
    for site in ("cross-site", "same-site"):
        assert get(viewer, "/timeline", Sec_Fetch_Site=site).status == 403
    assert get(viewer, "/changes", Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]
)
def test_what_a_form_can_send_is_no_question(viewer: Viewer, kind: str | None) -> None:
    got = request(viewer, "POST", "/ask", b'{"sql": "select 1"}', Content_Type=kind)
    assert (got.status, got.error) == (415, "a question is application/json")


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (b"", {"Content_Length": str(MOST_BYTES + 1)}, 413, "a question has 100,000 bytes at most"),
        (b"", {"Content_Length": "9" * 30}, 413, "a question has 100,000 bytes at most"),
        (b"{}", {"Content_Length": "-2"}, 400, "the Content-Length is no number"),
        (b"{}", {"Content_Length": "two"}, 400, "the Content-Length is no number"),
        (b"{}", {"Content_Length": None}, 411, "a question has to say how long it is (Content-Length)"),
        (b"2\r\n{}\r\n0\r\n\r\n", {"Transfer_Encoding": "chunked"}, 411, "a question has to say how long it is"),
        (b"{}", {}, 400, "that is no question: Object missing required field `sql`"),
        (b"[1]", {}, 400, "that is no question: Expected `object`, got `array`"),
        (b'{"sql": 1}', {}, 400, "that is no question: Expected `str`, got `int` - at `$.sql`"),
        (b'{"sql', {}, 400, "that is no question: Input data was truncated"),
        (b"\xff\xfe", {}, 400, "that is no question: "),
    ],
)
def test_bodies_that_are_no_question_are_refused(
    viewer: Viewer, body: bytes, headers: dict[str, str | None], status: int, reason: str
) -> None:
    got = request(viewer, "POST", "/ask", body, **headers)
    assert (got.status, got.error[: len(reason)]) == (status, reason)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nothing", 404, None),
        ("GET", "/../../etc/passwd", 404, None),
        ("GET", "/view.py", 404, None),
        ("HEAD", "/nothing", 404, None),
        ("GET", "/ask", 405, "POST"),
        ("POST", "/report", 405, "GET, HEAD"),
        ("PUT", "/ask", 405, "POST"),
        ("DELETE", "/", 405, "GET, HEAD"),
        ("OPTIONS", "/ask", 405, "POST"),
        ("TRACE", "/", 501, None),
        ("GET", "http://evil.example/", 200, None),
        ("GET", "/report?run=%ff", 400, None),
        ("GET", "/report?" + "&".join(f"a{i}=1" for i in range(20)), 400, None),
        ("GET", "/report?run=nope", 404, None),
        ("GET", "/report?generation=nope", 404, None),
        ("GET", "/query?name=nope", 404, None),
        ("GET", "/query", 404, None),
        ("GET", "/timeline?run=nope", 404, None),
        ("GET", "/timeline?generation=nope", 404, None),
        ("GET", "/" + "a" * 70_000, 414, None),
    ],
)
def test_what_is_not_there_or_not_allowed(
    viewer: Viewer, method: str, path: str, status: int, allow: str | None
) -> None:
    got = request(viewer, method, path)
    assert (got.status, got.headers["Allow"]) == (status, allow)
    if method == "HEAD":
        assert got.body == b""
    elif status != 200:
        assert "Traceback" not in got.error
        assert got.headers["Content-Security-Policy"]


def test_a_connection_goes_on_after_a_refusal_and_ends_after_a_body_that_was_not_read(viewer: Viewer) -> None:
    host = f"Host: {LOOPBACK}:{viewer.server_port}\r\n"
    with socket.create_connection((LOOPBACK, viewer.server_port), timeout=60) as raw:
        raw.sendall(f"HEAD /nothing HTTP/1.1\r\n{host}\r\nHEAD /changes HTTP/1.1\r\n{host}\r\n".encode())
        body = f"GET /style.css HTTP/1.1\r\n{host}\r\n"
        raw.sendall(f"POST /nothing HTTP/1.1\r\n{host}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        lines = [line for line in raw.makefile("rb") if line.startswith(b"HTTP/1.1")]
    assert lines == [b"HTTP/1.1 404 Not Found\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 405 Method Not Allowed\r\n"]


def test_a_run_that_is_not_there_is_a_page_that_says_so(viewer: Viewer) -> None:
    got = get(viewer, "/?run=nope")
    page = Page(got.text)
    assert got.status == 404
    assert any(text.startswith("there is no run 'nope'; the latest are: 20240103-c") for text in page.paragraphs)
    assert len(page.rows("Choose a run")) == 3


def test_a_name_is_no_markup(viewer: Viewer) -> None:
    got = get(viewer, "/?run=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    assert got.status == 404
    assert "<script>alert" not in got.text
    assert "alert(1)" in got.text


def test_an_empty_store_says_what_to_do_and_a_lost_one_is_said(serve: Serve, tmp_path: Path) -> None:
    viewer = serve(tmp_path)
    page = get(viewer, "/")
    assert page.status == 200
    assert "record one: roundscope run --quick" in page.text
    assert ask(viewer, "select count(*) as n from runs")["rows"] == [["0"]]
    tmp_path.rmdir()
    lost = get(viewer, "/")
    assert (lost.status, lost.error.startswith(f"no store at {tmp_path}")) == (404, True)


@pytest.mark.parametrize("by", ["run", "generation"])
def test_the_timeline_is_exports(viewer: Viewer, store: Path, tmp_path: Path, by: str) -> None:
    with connect(store, prepare=queries.install_views) as connected:
        [(generation,)] = connected.con.execute(
            "select max(generation_id) from generations where run_id = ?", [RUNS[0]]
        ).fetchall()
        n = write_timeline(
            tmp_path / "expected.json", Stored(connected.con, RUNS[0]).read(), find_start(connected.con, RUNS[0])
        )
    chosen = f"&generation={generation}" if by == "generation" else ""
    got = get(viewer, f"/timeline?run={RUNS[0]}{chosen}")
    name = generation if chosen else RUNS[0]
    assert got.headers["Content-Disposition"] == f'attachment; filename="timeline-{name}.json"'
    expected = json.loads((tmp_path / "expected.json").read_bytes())
    found = json.loads(got.body)
    if by == "run":
        assert found == expected
        return
    assert n > 1
    assert [event["name"] for event in found["traceEvents"]].count("prefill") == 1
    assert len(found["traceEvents"]) < len(expected["traceEvents"])


def test_queries_are_those_of_the_folder(viewer: Viewer) -> None:
    html = get(viewer, "/").text
    assert {name for name in queries.names() if f'<option value="{name}"' in html} == set(queries.names())
    for name in queries.names():
        query = queries.find(name)
        assert json.loads(get(viewer, f"/query?name={name}").body) == {
            "name": name,
            "question": query.question,
            "sql": query.sql,
        }


@pytest.mark.parametrize(("run", "name"), [(RUNS[2], "verdict"), (RUNS[1], "ncm_cache")])
def test_a_query_is_asked_about_the_run_that_is_shown(viewer: Viewer, store: Path, run: str, name: str) -> None:
    answer = ask(viewer, queries.find(name).sql, run)
    with connect(store, prepare=queries.install_views) as connected:
        result = queries.run(connected.con, name, run_id=run)
    assert (answer["error"], answer["columns"]) == (None, list(result.columns))
    assert len(answer["rows"]) == len(result.rows) > 1
    assert {row[0] for row in answer["rows"]} == {run}


def test_changes_are_seen_without_reading(viewer: Viewer) -> None:
    first = json.loads(get(viewer, f"/changes?run={RUNS[0]}").body)
    assert first == json.loads(get(viewer, f"/changes?run={RUNS[0]}").body)
    assert first["runs"] == get(viewer, "/runs").headers["ETag"]
    report = get(viewer, f"/report?run={RUNS[0]}").headers["ETag"]
    assert json.loads(get(viewer, f"/changes?run={RUNS[0]}").body)["report"] == report


def test_a_report_is_made_anew_only_after_a_while(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, Simulation(run_id="20240101-a", classes=("copy",), n_prompts=1))
    viewer = serve(tmp_path)
    monkeypatch.setattr(content, "RESTRAINT", 1_000_000)
    shown = get(viewer, "/report").headers["ETag"]
    [journal] = (tmp_path / "journal").iterdir()
    os.utime(journal, (0, 0))

    def ask_for(version: str) -> str:
        return str(json.loads(get(viewer, f"/changes?run=20240101-a&report={version}").body)["report"])

    assert (ask_for(shown), ask_for("") != shown) == (shown, True)
    monkeypatch.setattr(content, "RESTRAINT", 0)
    newer = get(viewer, "/report").headers["ETag"]
    assert newer != shown
    assert ask_for(shown) == newer


def test_a_port_that_is_taken_is_named(viewer: Viewer, store: Path) -> None:
    with pytest.raises(RoundscopeError, match=rf"cannot listen at 127.0.0.1:{viewer.server_port}: .*--port"):
        Viewer(store, viewer.server_port)
