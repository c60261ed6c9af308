"""A run shared among ranks that MLX's own launcher started, or that were started as it would: two on loopback."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

import queries
from telemetry.spans import spans_of
from telemetry.store import connect
from telemetry.stored import Stored
from tests.queries.recompute import Recomputed
from tests.runtime.commands import CHILD, call, read_lines, refuse_to_load, stand_in, write_prompts
from tests.runtime.rank_processes import finish, launch, start, write_hostfile

TEXTS = [letter + "abcabcabcab" for letter in "defghijklmno"]
ARM = "prompt-lookup m=8"
TRACE, SPAN = "a" * 32, "b" * 16


@dataclass(frozen=True)
class Shared:
    """A run of two ranks that is over: its store, and what was printed."""

    store: Path
    out: str
    err: str


def options(folder: Path, *more: str) -> list[str]:
    """A run of twelve prompts in two classes, nine tokens each."""
    prompts = write_prompts(folder, TEXTS, ["x", "y"])
    return ["run", "--prompts", str(prompts), "--store", str(folder / "s"), "--max-tokens", "9", *more]


def rows(con: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    """The rows of a query."""
    result = queries.run(con, name)
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


SLOWER = f"""
import os
rank = int(os.environ["MLX_RANK"])
target._spend._cost_ns = lambda width, context: 2_000_000 * (1 + rank) + 10_000 * context
# Rank 0 alone was called with a trace context.
os.environ.pop("TRACEPARENT", None)
if rank == 0: os.environ["TRACEPARENT"] = "00-{TRACE}-{SPAN}-01"
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Twelve prompts by `mlx.launch -n 2`, a step of rank 1 costing twice that of rank 0."""
    folder = tmp_path_factory.mktemp("shared")
    done = launch(2, options(folder, "--seed", "3"), SLOWER)
    # The launcher's own exit code is 0 whatever its ranks' are.
    assert "WARN" not in done.stderr, done.stderr
    return Shared(folder / "s", done.stdout, done.stderr)


@pytest.fixture
def con(shared: Shared) -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables of that run."""
    with connect(shared.store, prepare=queries.install_views) as connected:
        yield connected.con


def test_the_shards_together_are_the_workload_and_a_prompt_has_all_its_arms_on_one_rank(
    con: duckdb.DuckDBPyConnection,
) -> None:
    found = con.execute(
        "select prompt_id, class, list_sort(list(distinct rank)), list_sort(list(distinct arm)) "
        "from generations where not warm_up and timing = 'fused' group by all"
    ).fetchall()
    assert {prompt for prompt, *_ in found} == {f"p{i}" for i in range(12)}
    assert Counter((class_, *ranks) for _, class_, ranks, _ in found) == dict.fromkeys(
        [("x", 0), ("x", 1), ("y", 0), ("y", 1)], 3
    )
    assert {tuple(arms) for *_, arms in found} == {("ordinary", ARM)}
    assert con.execute("select n_prompts, seed, outcome from runs").fetchall() == [(12, 3, "complete")]


def test_every_rank_wrote_its_own_journal_into_the_one_store(shared: Shared) -> None:
    journals = sorted((shared.store / "journal").iterdir())
    kinds = []
    for path in journals:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        of_rank = {line["rank"] for line in lines if line["type"] in ("rank", "rank_end", "generation")}
        kinds.append((sorted(of_rank), [line["type"] for line in lines].count("run"), lines[1]["type"]))
    assert sorted(kinds) == [([0], 1, "rank"), ([1], 0, "rank")]
    assert len({line["run_id"] for line in read_lines(shared.store) if "run_id" in line}) == 1


def test_the_verdict_pools_the_ranks(con: duckdb.DuckDBPyConnection) -> None:
    [(run_id,)] = con.execute("select run_id from runs").fetchall()
    expected = list(Recomputed.read(con, run_id).verdict())
    found = rows(con, "verdict")
    assert [(row["class"], row["n_prompts"], row["verdict"]) for row in found] == [
        ("x", 6, "pays"),
        ("y", 6, "pays"),
        ("all", 12, "pays"),
    ]
    for name in ("speedup", "speedup_low", "speedup_high", "seconds_per_token", "ordinary_seconds_per_token"):
        assert [row[name] for row in found] == pytest.approx([row[name] for row in expected], rel=1e-9)
    assert len({round(row["speedup_high"] - row["speedup_low"], 9) for row in found}) > 1
    assert [row["n_compared"] for row in found] == [row["n_equal"] for row in found]


def test_the_query_ranks_is_what_the_journals_say(shared: Shared, con: duckdb.DuckDBPyConnection) -> None:
    lines = read_lines(shared.store)
    generations = [line for line in lines if line["type"] == "generation"]
    rounds = [line for line in lines if line["type"] == "round"]
    for row in rows(con, "ranks"):
        [record] = [line for line in lines if line["type"] == "rank" and line["rank"] == row["rank"]]
        mine = {line["generation_id"]: line for line in generations if line["rank"] == row["rank"]}
        of_mine = [line for line in rounds if line["generation_id"] in mine]
        counting = {
            key for key, line in mine.items() if not line.get("warm_up") and line.get("timing", "fused") == "fused"
        }
        counted = [line for line in of_mine if line["generation_id"] in counting]
        ordinary = [line for line in counted if "drafter" not in mine[line["generation_id"]]]
        times = sorted(line["t_round_ns"] for line in counted)
        middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
        assert (row["host"], row["finish"], row["is_whole"]) == (socket.gethostname(), "complete", True)
        assert (row["n_prompts"], row["n_prompts_done"], row["n_generations"]) == (6, 6, len(mine))
        assert (row["n_rounds"], row["n_committed"]) == (len(of_mine), sum(line["committed"] for line in of_mine))
        for name, some in (("seconds_per_token", counted), ("ordinary_seconds_per_token", ordinary)):
            time_ns, tokens = (sum(line[key] for line in some) for key in ("t_round_ns", "committed"))
            assert row[name] == pytest.approx(time_ns / 1e9 / tokens, rel=1e-12)
        assert row["median_round_seconds"] == pytest.approx(middle / 1e9, rel=1e-12)
        assert row["longest_round_seconds"] == pytest.approx(times[-1] / 1e9, rel=1e-12)
        assert row["offset_seconds"] == pytest.approx(record["offset_ns"] / 1e9, rel=1e-12)
        assert row["skew_in_median_rounds"] == pytest.approx(abs(record["offset_ns"]) / middle, rel=1e-12)
    slower, faster = (rows(con, "ranks")[rank]["ordinary_seconds_per_token"] for rank in (1, 0))
    assert slower > 1.5 * faster


def test_two_ranks_of_one_machine_have_one_clock(con: duckdb.DuckDBPyConnection) -> None:
    """Which the bracket holds, however slow the machine was: unless its clock was set in that very moment."""
    [(own, sure), (offset, uncertainty)] = con.execute(
        "select offset_ns, uncertainty_ns from ranks order by rank"
    ).fetchall()
    assert (own, sure) == (0, 0)
    assert 0 < uncertainty
    assert abs(offset) <= uncertainty


def test_rank_0_alone_prints_and_it_prints_one_report(shared: Shared) -> None:
    assert shared.out.startswith(ARM)
    assert shared.out.count(f"{ARM} pays") == 1
    assert shared.out.count("\nSwitch on ") == 1
    assert f"Distributed: 2 of 2 ranks complete, on 1 host ({socket.gethostname()})." in shared.out
    assert "incomplete" not in shared.out
    # Its plan and progress are of its own prompts.
    assert shared.err.count("loading ") == 1
    assert "6 prompts of 12, the share of rank 0, in 2 classes" in shared.err
    assert "18/18" in shared.err
    assert "Traceback" not in shared.err


def test_every_generation_is_a_trace_of_its_own_and_linked_to_what_rank_0_was_called_with(
    con: duckdb.DuckDBPyConnection,
) -> None:
    roots = [next(iter(spans_of(recorded))) for recorded in Stored(con).read()]
    assert len({root.trace_id for root in roots}) == len(roots) == 36
    assert {(root.parent_id, root.links[0].trace_id, root.links[0].span_id) for root in roots} == {(None, TRACE, SPAN)}
    assert Counter(root.attributes["roundscope.generation.rank"] for root in roots) == {0: 18, 1: 18}


def test_parquet_has_the_ranks(shared: Shared, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "export", "--parquet", tmp_path / "out", "--store", shared.store)[0] == 0
    [file] = (tmp_path / "out").glob("run=*/ranks.parquet")
    found = duckdb.sql(f"select rank, size, finish_reason from '{file}' order by rank").fetchall()
    assert found == [(0, 2, "complete"), (1, 2, "complete")]


KILLED = """
import os, signal
forward, calls = target.forward, 0
def forward_and_die(*arguments):
    global calls
    calls += 1
    if os.environ["MLX_RANK"] == "1" and calls == 70: os.kill(os.getpid(), signal.SIGKILL)
    return forward(*arguments)
target.forward = forward_and_die
"""


def test_a_rank_that_is_killed_leaves_its_rounds_and_the_report_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    hostfile = write_hostfile(tmp_path, 2)
    arguments = options(tmp_path)
    lead, killed = finish([start(rank, hostfile, CHILD.format(KILLED), *arguments) for rank in (0, 1)])
    assert killed[:2] == (-signal.SIGKILL, "")
    code, out, err = lead
    host = socket.gethostname()
    assert code == 1, err
    assert "The run is incomplete: of its 2 ranks these are not whole: 1 (aborted)." in out
    said = re.search(rf"Rank 1 on {host}: its process died \(aborted\), (\d) of its 6 prompts done\.", out)
    assert said
    assert err.splitlines()[-1].startswith(f"error: the run is incomplete: rank 1 on {host}: its process died")
    with connect(tmp_path / "s", prepare=queries.install_views) as connected:
        con = connected.con
        states = con.execute("select rank, finish_reason from ranks order by rank").fetchall()
        assert states == [(0, "complete"), (1, "aborted")]
        assert con.execute("select outcome from runs").fetchall() == [("incomplete",)]
        ends = Counter(con.execute("select finish_reason from generations where rank = 1").fetchall())
        assert ends[("aborted",)] == 1
        assert set(ends) == {("aborted",), ("length",)}
        [(n_rounds,)] = con.execute(
            "select count(*) from rounds where generation_id in "
            "(select generation_id from generations where finish_reason = 'aborted')"
        ).fetchall()
        assert n_rounds == [
            line["generation_id"] for line in read_lines(tmp_path / "s") if line["type"] == "round"
        ].count(con.execute("select generation_id from generations where finish_reason = 'aborted'").fetchall()[0][0])
        whole = rows(con, "completeness")[-1]
        assert (whole["arm"], whole["n_ranks"], whole["missing_ranks"], whole["n_aborted"]) == (
            "all",
            2,
            "1 (aborted)",
            1,
        )
        done = rows(con, "ranks")[1]
        assert 0 < done["n_prompts_done"] == int(said[1]) < 6
        assert [row["n_prompts"] for row in rows(con, "verdict") if row["class"] == "all"] == [6 + int(said[1])]
    code, _, err = call(capsys, "check", "--require", "complete", "--store", tmp_path / "s")
    assert (code, "outcome is incomplete" in err, "1 (aborted)" in err) == (3, True, True)


MISSING = """
import os, runtime.targets
from telemetry.errors import UsageError
def find_nothing(*_, **__): raise UsageError("no model at ./nowhere")
if os.environ["MLX_RANK"] == "1": runtime.targets.load_target = find_nothing
"""


def test_a_rank_without_a_model_says_so_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    hostfile = write_hostfile(tmp_path, 2)
    arguments = options(tmp_path)
    lead, failed = finish([start(rank, hostfile, CHILD.format(MISSING), *arguments) for rank in (0, 1)])
    host = socket.gethostname()
    assert failed == (2, "", f"error: rank 1 on {host}: no model at ./nowhere\n")
    assert lead[0] == 1
    assert "not whole: 1 (error)" in lead[1]
    assert lead[2].splitlines()[-1] == (
        f"error: the run is incomplete: rank 1 on {host}: it ended by an error, 0 of its 6 prompts done"
    )
    with connect(tmp_path / "s") as connected:
        assert connected.con.execute("select error_type from ranks order by rank").fetchall() == [
            (None,),
            ("UsageError",),
        ]


TERMINATED = """
import os, signal, runtime.targets
load = runtime.targets.load_target
def load_and_be_told_to_end(*arguments, **options):
    if os.environ["MLX_RANK"] == "1": os.kill(os.getpid(), signal.SIGTERM)
    return load(*arguments, **options)
runtime.targets.load_target = load_and_be_told_to_end
"""


def test_a_rank_that_the_launcher_ends_while_it_loads_was_interrupted(tmp_path: Path) -> None:
    hostfile = write_hostfile(tmp_path, 2)
    arguments = options(tmp_path)
    lead, ended = finish([start(rank, hostfile, CHILD.format(TERMINATED), *arguments) for rank in (0, 1)])
    assert ended == (130, "", "\ninterrupted\n")
    assert (lead[0], "not whole: 1 (interrupted)" in lead[1]) == (1, True)


def test_ranks_that_were_asked_for_different_things_are_all_refused(tmp_path: Path) -> None:
    hostfile = write_hostfile(tmp_path, 2)
    arguments = options(tmp_path)
    ended = finish(
        [start(rank, hostfile, CHILD.format(""), *arguments, "--max-tokens", str(9 + rank)) for rank in (0, 1)]
    )
    for rank, (code, out, err) in enumerate(ended):
        assert (code, out) == (2, "")
        assert f"error: rank {rank} on {socket.gethostname()}: rank 1 was started with other prompts or options" in err
    assert not (tmp_path / "s").exists()


def test_a_plain_run_meets_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr("runtime.distributed.join", lambda *_: pytest.fail("a plain run joined a group"))
    monkeypatch.setenv("MLX_RANK", "1")  # left over: without a hostfile it says nothing
    code, out, _ = call(capsys, *options(tmp_path))
    assert (code, out.startswith(ARM), "Distributed" in out) == (0, True, False)
    assert {line.get("rank") for line in read_lines(tmp_path / "s")} == {None}


def test_a_dry_run_meets_nobody_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    monkeypatch.setenv("MLX_HOSTFILE", str(write_hostfile(tmp_path, 2)))
    said = []
    for rank in ("0", "1"):
        monkeypatch.setenv("MLX_RANK", rank)
        code, out, _ = call(capsys, *options(tmp_path), "--dry-run")
        said.append((code, "12 prompts" in out, out == ""))
    assert said == [(0, True, False), (0, False, True)]


def test_a_metrics_port_is_refused_to_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_to_load(monkeypatch)
    monkeypatch.setenv("MLX_HOSTFILE", str(write_hostfile(tmp_path, 2)))
    monkeypatch.setenv("MLX_RANK", "0")
    code, out, err = call(capsys, *options(tmp_path), "--metrics-port", "0")
    assert (code, out, "roundscope serve-metrics" in err) == (2, "", True)
