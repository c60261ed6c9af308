"""SQL from the page: it can read the tables and nothing else, and its time, rows and memory have ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from dashboards.view.asking import MOST_CHARACTERS, Answer, Asker, Question, open_restricted
from queries import ask
from telemetry.errors import RoundscopeError, UsageError
from telemetry.store import DATABASE

SECRET = "nobody-may-read-this"
ATTACKS = (
    "select * from read_csv('{file}')",
    "select * from read_csv_auto('{file}')",
    "select * from read_text('{file}')",
    "select * from read_blob('{file}')",
    "select * from read_json('{file}')",
    "select * from read_ndjson_objects('{file}')",
    "select * from read_parquet('{file}')",
    "select * from parquet_metadata('{file}')",
    "select * from parquet_kv_metadata('{file}')",
    "select * from sniff_csv('{file}')",
    "select * from glob('{folder}/*')",
    "select * from '{file}'",
    "from '{folder}/*.csv'",
    "select * from read_duckdb('{file}')",
    "select * from query('select * from read_text(''{file}'')')",
    "select * from query_table('{file}')",
    "select * from read_csv('https://example.org/a.csv')",
    "select * from 'https://example.org/a.parquet'",
    "select * from 's3://bucket/a.parquet'",
    "select getenv('ROUNDSCOPE_SECRET')",
    "from secret_variable",
    "from duckdb_secrets()",
    "select * from which_secret('s3://bucket', 's3')",
    "copy runs to '{folder}/out.csv'",
    "copy (select 1) to '{folder}/out.parquet'",
    "copy runs from '{file}'",
    "explain analyze copy runs to '{folder}/out.csv'",
    "export database '{folder}/out'",
    "import database '{folder}/out'",
    "attach '{folder}/out.db'",
    "attach ':memory:' as other",
    "detach roundscope",
    "use memory",
    "install httpfs",
    "load httpfs",
    "load '{file}'",
    "force install httpfs from 'http://example.org'",
    "create table t as select 1",
    "create temp table t as select 1",
    "create macro f() as 1",
    "create secret (type s3)",
    "create view v as select 1",
    "drop table runs",
    "delete from runs",
    "update runs set model = 'x'",
    "insert into runs select * from runs",
    "alter table runs add column x int",
    "truncate runs",
    "vacuum",
    "checkpoint",
    "call pragma_version()",
    "call enable_logging(storage = 'file', storage_path = '{folder}/log')",
    "pragma enable_profiling",
    "pragma profiling_output = '{folder}/out.json'",
    "pragma database_list",
    "pragma temp_directory = '{folder}'",
    "set enable_external_access = true",
    "set lock_configuration = false",
    "set global memory_limit = '99GB'",
    "set home_directory = '{folder}'",
    "set log_query_path = '{folder}/log'",
    "set profiling_output = '{folder}/log'",
    "set secret_directory = '{folder}'",
    "set temp_directory = '{folder}'",
    "set threads = 8",
    "reset lock_configuration",
    "set variable x = (select content from read_text('{file}')); select getvariable('x')",
    "prepare p as select 1; execute p",
    "begin; select 1",
    "with d as (delete from runs returning *) from d",
    "select 1; drop table runs; select 2",
    "selec 1",
    "",
    " -- nothing\n",
)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file that nobody may read, and that nobody may write to."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "secret.csv").write_text(f"a\n{SECRET}\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def restricted(store: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """What a question is asked on."""
    with open_restricted(Question(str(store), "", None, 30.0, 5)) as connected:
        yield connected.con


@pytest.fixture
def asker(store: Path) -> Iterator[Asker]:
    """Asks in processes of their own."""
    made = Asker(store, limit_s=2.0, most_rows=5)
    yield made
    made.close()


@pytest.mark.parametrize("sql", ATTACKS)
def test_nothing_but_the_tables_can_be_reached(
    restricted: duckdb.DuckDBPyConnection, secrets: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.setenv("ROUNDSCOPE_SECRET", SECRET)
    secret_variable = [{"a": SECRET}]  # DuckDB looks for names in the frames that call it
    assert secret_variable
    with pytest.raises(UsageError) as refused:
        ask(restricted, sql.format(file=secrets / "secret.csv", folder=secrets))
    assert SECRET not in str(refused.value)
    assert [path.name for path in secrets.iterdir()] == ["secret.csv"]


def test_the_attacks_would_work_on_a_connection_that_is_not_restricted(secrets: Path) -> None:
    """So that the test above fails for the right reason."""
    file = secrets / "secret.csv"
    with duckdb.connect() as con:
        for sql in ATTACKS[:3]:
            assert SECRET in str(con.execute(sql.format(file=file)).fetchall())


def test_settings_that_are_read_name_no_secret(
    restricted: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDSCOPE_SECRET", SECRET)
    for name in ("duckdb_settings", "duckdb_variables", "duckdb_functions", "duckdb_databases"):
        assert SECRET not in str(ask(restricted, f"from {name}()"))


def test_an_answer_is_text_with_what_is_a_number(asker: Asker) -> None:
    sql = "select n, n / 3 as part, 'a' as word, null as nothing, [n, null] as list from range(2) as r (n)"
    answer = asker.ask(sql, None)
    assert answer.seconds > 0
    answer.seconds = 0.0
    assert answer == Answer(
        ["n", "part", "word", "nothing", "list"],
        [True, True, False, False, False],
        [["0", "0", "a", "-", "[0, null]"], ["1", "0.333333", "a", "-", "[1, null]"]],
    )


def test_the_run_is_a_variable(asker: Asker) -> None:
    assert asker.ask("select getvariable('run_id') as run", "o'run").rows == [["o'run"]]
    assert asker.ask("select getvariable('run_id') as run", None).rows == [["-"]]
    assert asker.ask("set variable run_id = 'other'; select getvariable('run_id') as run", "a").rows == [["other"]]


def test_rows_and_values_have_a_limit_that_is_said(asker: Asker) -> None:
    answer = asker.ask("select n, repeat('x', 100000) as long from range(1000000000000) as r (n)", None)
    assert [row[0] for row in answer.rows] == ["0", "1", "2", "3", "4"]
    assert {row[1] for row in answer.rows} == {"x" * MOST_CHARACTERS + "…"}
    assert answer.notes == ["the first 5 rows are shown; there are more"]
    assert asker.ask("from range(5)", None).notes == []


def test_no_rows_are_an_answer(asker: Asker) -> None:
    answer = asker.ask("select run_id, n_prompts from runs where false", None)
    assert (answer.columns, answer.numbers, answer.rows, answer.error) == (
        ["run_id", "n_prompts"],
        [False, False],
        [],
        None,
    )


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from range(1000000000000) as a (n) where n % 7 = 3",
        "with recursive r as (select 1 as n union all select n + 1 from r) select max(n) from r",
        "select sum(a.n * b.n) from range(10000000) as a (n), range(10000000) as b (n)",
    ],
    ids=["count", "recursive", "product"],
)
def test_a_query_that_takes_too_long_is_ended_and_says_so(asker: Asker, sql: str) -> None:
    answer = asker.ask(sql, None)
    assert answer.error == (
        "the query took longer than 2 s and was ended: ask for less, or type it after `roundscope sql`"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "select list(n) from range(1000000000) as r (n)",
        "select count(*) from (select distinct n from range(1000000000) as r (n))",
        "select repeat('x', 4000000000)",
        "select " + "(" * 50_000 + "1" + ")" * 50_000,
    ],
    ids=["list", "distinct", "string", "deep"],
)
def test_a_query_that_takes_too_much_is_an_error_and_leaves_nothing(store: Path, sql: str) -> None:
    asker = Asker(store, limit_s=1.0)
    before = sorted(store.rglob("*"))
    answer = asker.ask(sql, None)
    assert answer.error
    assert sorted(store.rglob("*")) == before
    assert asker.ask("select 1", None).rows == [["1"]]


def test_only_so_many_at_once(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asker, "_places", threading.BoundedSemaphore(1))
    with asker._places:
        assert asker.ask("select 1", None).error == "2 queries are running already: wait for one of them"
    assert asker.ask("select 1", None).rows == [["1"]]


def test_nothing_is_asked_after_the_end(asker: Asker) -> None:
    asker.close()
    with pytest.raises(RoundscopeError, match="is ending"):
        asker.ask("select 1", None)


def test_the_database_is_as_it_was(store: Path, asker: Asker) -> None:
    asker.ask("select 1", None)
    before = (store / DATABASE).read_bytes()
    for sql in ("select * from runs", "create table t as select 1", "delete from runs"):
        asker.ask(sql, None)
    assert (store / DATABASE).read_bytes() == before
    assert os.stat(store / DATABASE).st_size == len(before)
