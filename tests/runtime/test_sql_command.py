"""`roundscope sql` as a shell sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, child_environment
from tests.telemetry.stores import generation, header, rounds, whole_run, write_lines

MAIN = "from runtime.cli.main import main\nmain()\n"


def sql(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    child = subprocess.run(
        [sys.executable, "-c", MAIN, "sql", *arguments],
        cwd=ROOT,
        env=child_environment(),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    return child.returncode, child.stdout, child.stderr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a run; nothing has loaded it yet."""
    folder = tmp_path_factory.mktemp("store")
    write_lines(folder, whole_run())
    return str(folder)


def test_rows_as_a_table_json_and_csv(store: str) -> None:
    question = "from generations select generation_id, n_rounds, near_tie, n_rounds / 4 as part order by 1"
    code, out, err = sql(question, "--store", store)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines() if line.strip(" ─")] == [
        ["generation_id", "n_rounds", "near_tie", "part"],
        ["g1", "3", "-", "0.75"],
        ["g2", "3", "-", "0.75"],
    ]
    code, out, err = sql(question, "--store", store, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == [
        {"generation_id": name, "n_rounds": 3, "near_tie": None, "part": 0.75} for name in ("g1", "g2")
    ]
    expected = "generation_id,n_rounds,near_tie,part\ng1,3,,0.75\ng2,3,,0.75\n"
    assert sql(question, "--store", store, "--csv") == (0, expected, "")


def test_a_bigint_stays_a_number_and_a_moment_is_iso_in_utc(store: str) -> None:
    question = "select started_wall_ns, make_timestamptz(started_wall_ns // 1000) as at from runs"
    code, out, _ = sql(question, "--store", store, "--json")
    assert code == 0
    assert json.loads(out) == [{"started_wall_ns": 1_700_000_000_000_000_000, "at": "2023-11-14T22:13:20+00:00"}]


def test_what_was_just_recorded_is_there(tmp_path: Path) -> None:
    count = ("select count(*) as n from rounds", "--store", str(tmp_path), "--csv")
    write_lines(tmp_path, [header(), *rounds("g", 2)])
    assert sql(*count) == (0, "n\n2\n", "")
    write_lines(tmp_path, [header(), generation("h"), *rounds("h", 3)], "b")
    assert sql(*count) == (0, "n\n5\n", "")


def test_two_forms_at_once_are_refused(store: str) -> None:
    code, out, err = sql("select 1", "--store", store, "--json", "--csv")
    assert (code, out, "--json and --csv exclude each other" in err) == (2, "", True)


def test_a_variable_alone_is_no_question(store: str) -> None:
    code, out, err = sql("set variable wanted = 1", "--store", store)
    assert (code, out, "put a question after it" in err) == (2, "", True)


def test_a_question_from_standard_input_with_several_statements(store: str) -> None:
    text = (
        "-- which run?\nset variable wanted = 'run-1';\nfrom runs select run_id where run_id = getvariable('wanted');\n"
    )
    assert sql("-", "--store", store, "--csv", stdin=text) == (0, "run_id\nrun-1\n", "")


@pytest.mark.parametrize(
    ("question", "first_line"),
    [
        ("describe rounds", "column_name,column_type,null,key,default,extra"),
        ("show tables", "name"),
        ("pivot (select outcome, committed from rounds) on outcome using sum(committed)", "correction"),
        ("from comparisons limit 0", None),
        ("explain select 1", "explain_key,explain_value"),
    ],
)
def test_what_counts_as_a_question(store: str, question: str, first_line: str | None) -> None:
    """The views of the queries are there too."""
    code, out, err = sql(question, "--store", store, "--csv")
    assert (code, err) == (0, "")
    assert first_line in (None, out.splitlines()[0])


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("selec 1", (2, 'error: DuckDB says: Parser Error: syntax error at or near "selec" LINE 1: selec 1\n')),
        ("select x", (2, 'error: DuckDB says: Binder Error: Referenced column "x" was not found')),
        ("select * from read_text('/etc/hostname')", (2, "error: DuckDB says: Permission Error: Cannot access file")),
        ("select * from 'https://example.org/a.csv'", (2, "error: DuckDB says: Permission Error: Cannot access file")),
        ("select 1 as a; copy rounds to 'x.csv'", (2, "error: COPY is no question, and the store can only be read\n")),
        ("delete from rounds", (2, "error: DELETE is no question, and the store can only be read\n")),
        ("set threads = 1", (2, "error: DuckDB says: Invalid Input Error: Cannot change configuration option")),
        (
            "with d as (delete from runs returning *) from d",
            (2, "error: DuckDB says: Invalid Input Error: Cannot exec"),
        ),
        ("  -- nothing", (2, "error: there is no SQL statement to run\n")),
    ],
)
def test_what_cannot_be_is_one_clear_line(store: str, question: str, expected: tuple[int, str]) -> None:
    code, out, err = sql(question, "--store", store)
    assert (code, out) == (expected[0], "")
    assert err.startswith(expected[1])
    assert err.count("\n") == 1


def test_without_a_store_the_cure_is_named(tmp_path: Path) -> None:
    code, out, err = sql("select 1", "--store", str(tmp_path / "nowhere"))
    assert (code, out) == (2, "")
    assert err == (
        f"error: no store at {tmp_path / 'nowhere'}: run `roundscope run` first, or name another with --store DIR\n"
    )


def test_notes_go_to_stderr(tmp_path: Path) -> None:
    code, out, err = sql("select 1 as a", "--store", str(tmp_path), "--csv")
    assert (code, out) == (0, "a\n1\n")
    assert err.splitlines()[-1] == f"note: nothing is recorded in {tmp_path} yet; `roundscope run` does"
