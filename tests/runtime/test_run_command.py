"""`roundscope run` from its arguments to its exit code: what is printed where, and what the store holds afterwards."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.main import SUMMARIES
from tests.conftest import run_python
from tests.runtime.commands import (
    CHILD,
    DIFFERING,
    call,
    query,
    read_lines,
    refuse_to_load,
    run,
    stand_in,
    write_prompts,
)

TEXTS = [letter + "abcabcabcab" for letter in "defghijk"]
ARM = "prompt-lookup m=8"
PLAN = ("loading ", "target ", "workload ", "arms ", "amount ", "time ")
INTERRUPT = """
import os, signal
forward, calls = target.forward, 0
def interrupting_forward(*arguments):
    global calls
    calls += 1
    if calls == 60: os.kill(os.getpid(), signal.SIGINT)
    return forward(*arguments)
target.forward = interrupting_forward
"""


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Eight prompts of one class, whose answers repeat them."""
    return write_prompts(tmp_path, TEXTS)


def starts(text: str) -> set[str]:
    """Which lines of the plan are in a text."""
    return {word for word in PLAN if any(line.startswith(word) for line in text.splitlines())}


def test_the_verdict_is_on_stdout_and_everything_else_on_stderr(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stand_in(monkeypatch)
    code, out, err = run(capsys, prompts)
    assert code == 0
    [(run_id,)] = query(prompts.parent / "s", "select run_id from runs")
    assert out.startswith(ARM)
    assert "\n  roundscope generate --drafter prompt-lookup --draft-length 8 'your prompt'\n" in out
    assert "\nSwitch on prompt-lookup m=8: " in out
    assert out.endswith(
        f"\nrun {run_id}; next: roundscope report stages --run {run_id} --store {prompts.parent / 's'}\n"
    )
    assert starts(out) == set()
    assert starts(err) == set(PLAN)
    # Warm-up by two arms, eight prompts by both, and two of them attributed.
    assert "20/20" in err
    assert "Switch on" not in err


def test_a_dry_run_says_its_plan_on_stdout_and_leaves_no_store(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    code, out, err = run(capsys, prompts, "--dry-run", "--repeats", "3")
    assert (code, starts(out), starts(err)) == (0, set(PLAN[1:]), {"loading "})
    assert "arms      ordinary, prompt-lookup m=8\n" in out
    assert "2 arms x 8 prompts x 3 repeats, up to 24 tokens each; " in out
    assert not (prompts.parent / "s").exists()


def test_a_dry_run_holds_the_prompts_against_the_targets_positions(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    longest = max(len(text) for text in TEXTS)
    stand_in(monkeypatch, max_positions=longest)
    code, out, err = run(capsys, prompts, "--dry-run")
    assert (code, out) == (4, "")
    assert f"has {longest} tokens and the target has positions for {longest} (" in err
    stand_in(monkeypatch, max_positions=longest + 23)
    code, _, err = run(capsys, prompts, "--dry-run")
    n = sum(len(text) == longest for text in TEXTS)
    assert code == 0
    assert f"positions for {longest + 23} tokens, prompt and output together: {n} of {len(TEXTS)} prompts leave" in err
    stand_in(monkeypatch, max_positions=longest + 24)
    assert "prompt and output together" not in run(capsys, prompts, "--dry-run")[2]


@pytest.mark.parametrize(("n", "said"), [(4, "mine (4)"), (5, None)])
def test_classes_too_small_for_a_verdict_are_named_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], n: int, said: str | None
) -> None:
    stand_in(monkeypatch)
    prompts = write_prompts(tmp_path, TEXTS[:n], ["mine"])
    _, _, err = run(capsys, prompts, "--dry-run")
    notes = [line for line in err.splitlines() if line.startswith("note: ")]
    assert notes == ([f"note: a verdict takes 5 prompts of a class; these have fewer: {said}"] if said else [])


def test_a_dry_run_tells_of_a_store_that_cannot_be_written(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_to_load(monkeypatch)
    (prompts.parent / "s").write_text("a file")
    code, out, err = run(capsys, prompts, "--dry-run")
    assert (code, out, f"'--store': Directory '{prompts.parent / 's'}' is a file." in err) == (2, "", True)


def test_json_is_one_document_whose_command_can_be_pasted(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    code, out, _ = run(capsys, prompts, "--json", "--model", "a model's folder")
    document = json.loads(out)
    assert (code, set(document)) == (0, {"run_id", "verdict", "recommendation"})
    assert query(prompts.parent / "s", "select run_id from runs") == [(document["run_id"],)]
    assert [
        (row["run_id"], row["arm"], row["class"], row["n_prompts"], row["verdict"]) for row in document["verdict"]
    ] == [(document["run_id"], ARM, scope, 8, "pays") for scope in ("x", "all")]
    recommendation = document["recommendation"]
    assert (recommendation["arm"], recommendation["drafter"], recommendation["draft_length"]) == (
        ARM,
        "prompt-lookup",
        8,
    )
    program, command, *options = shlex.split(recommendation["command"])
    assert program == "roundscope"
    assert command in SUMMARIES
    given = dict(zip(options[:-1:2], options[1:-1:2], strict=True))
    assert given == {"--drafter": "prompt-lookup", "--draft-length": "8", "--model": "a model's folder"}


def test_the_recommended_command_runs(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stand_in(monkeypatch)
    _, out, _ = run(capsys, prompts, "--json")
    _, *words, _ = shlex.split(json.loads(out)["recommendation"]["command"])
    code, out, _ = call(capsys, *words, "abcabc", "--max-tokens", "6", "--store", tmp_path / "other")
    assert (code, out) == (0, "abcabc\n")


def test_what_was_asked_for_is_in_the_runs_row(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    asked = ("--seed", "5", "--repeats", "2", "--record-text", "--drafter", "prompt-lookup", "--draft-length", "2")
    assert run(capsys, prompts, *asked, "--draft-length", "4")[0] == 0
    columns = "outcome, timing, seed, repeats, record_text, max_tokens, workload, n_prompts, arms, model, dtype"
    expected = ("complete", "fused", 5, 2, True, 24, "mine.jsonl", 8)
    arms = ["ordinary", "prompt-lookup m=2", "prompt-lookup m=4"]
    store = prompts.parent / "s"
    assert query(store, f"select {columns} from runs") == [(*expected, arms, "scripted", "float32")]
    assert query(store, "select outcome from runs where ended_wall_ns >= started_wall_ns") == [("complete",)]


def say_xyz(history: Sequence[int]) -> int:
    """The next of x, y and z."""
    return (history[-1] - 22) % 3 + 23


@pytest.mark.parametrize("option", [(), ("--record-text",)])
def test_prompts_and_outputs_are_kept_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    target = stand_in(monkeypatch, say_xyz)
    prompts = write_prompts(tmp_path, [letter + "sesamexyzxyzxyz" for letter in "abcdef"])
    assert run(capsys, prompts, *option)[0] == 0
    lines = read_lines(tmp_path / "s")
    held = {key for line in lines for key in line} & {"prompt_ids", "proposal", "tokens", "text"}
    kept = b"".join(path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file())
    if not option:
        assert held == set()
        assert b"sesame" not in kept
        assert b"xyzxyz" not in kept
        return
    assert held == {"prompt_ids", "proposal", "tokens", "text"}
    said = {target.decode(line["prompt_ids"]) for line in lines if line["type"] == "generation"}
    assert said == {letter + "sesamexyzxyzxyz" for letter in "abcdef"}
    texts = {line["text"] for line in lines if line["type"] == "generation_end"}
    assert texts == {("xyz" * 8), ("xyz" * 8)[:16]}


def test_an_interrupt_keeps_what_was_measured_and_says_so(prompts: Path) -> None:
    store = prompts.parent / "s"
    arguments = ("run", "--prompts", str(prompts), "--store", str(store), "--max-tokens", "24")
    child = run_python(CHILD.format(INTERRUPT), *arguments)
    assert child.returncode == 130, child.stderr
    assert re.search("^.*interrupted", child.stderr, re.MULTILINE)
    assert "Traceback" not in child.stderr
    assert query(store, "select outcome from runs") == [("interrupted",)]
    reasons = query(store, "select finish_reason, count(*) from generations group by 1 order by 1")
    assert [reason for reason, _ in reasons] == ["cancelled", "length"]
    assert reasons[0][1] == 1
    counts = "select sum(n_rounds) from generations union all select count(*) from rounds"
    [(said,), (kept,)] = query(store, counts)
    assert said == kept > 0


def test_attributed_timing_gives_shares_and_no_verdict(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    code, out, _ = run(capsys, prompts, "--timing", "attributed", "--json")
    document = json.loads(out)
    assert (code, [row["verdict"] for row in document["verdict"]]) == (0, [None, None])
    assert (document["recommendation"]["arm"], document["recommendation"]["command"]) == (None, None)
    store = prompts.parent / "s"
    assert query(store, "select timing from runs") == [("attributed",)]
    code, out, _ = call(capsys, "report", "stages", "--json", "--store", store)
    shares = {row["stage"]: row["share"] for row in json.loads(out) if row["class"] == "all"}
    expected = {"draft": 0.0, "verify": 1.0, "synchronize": 0.0, "trim": 0.0, "rewind": 0.0, "other": 0.0}
    assert (code, shares) == (0, expected)


def test_attributed_timing_recommends_nothing_and_leads_to_the_shares(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    code, out, _ = run(capsys, prompts, "--timing", "attributed")
    assert code == 0
    assert re.search("Switch on|Leave it off|roundscope generate|pays|loses", out) is None
    *_, last = out.splitlines()
    program, *words = shlex.split(last.partition("next: ")[2])
    assert program == "roundscope"
    code, out, _ = call(capsys, *words, "--csv")
    assert (code, out.count("verify,barrier")) == (0, 2)


def accept_everything(drafted: Sequence[int], predicted: Sequence[int]) -> int:
    """What verification must not do."""
    return len(drafted)


def test_an_arm_with_another_output_is_named_not_recommended_and_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr("runtime.speculative.rules.count_accepted", accept_everything)
    prompts = write_prompts(tmp_path, DIFFERING)
    code, out, err = run(capsys, prompts, "--json")
    document = json.loads(out)
    assert code == 3
    assert document["recommendation"]["arm"] is None
    assert ARM in document["recommendation"]["sentence"]
    assert (
        err.splitlines()[-1]
        == "error: outputs differ from ordinary decoding's, and at no near tie: prompt-lookup m=8 in 10"
    )
    # It would pay, and all its outputs but those of the warm-up were compared: 8, and 2 of the attributed pass.
    assert [(row["verdict"], row["n_divergent"], row["n_compared"]) for row in document["verdict"]] == [
        ("pays", 10, 10)
    ] * 2
    assert query(tmp_path / "s", "select outcome from runs") == [("complete",)]
    code, out, _ = run(capsys, prompts)
    assert (code, "Switch on" in out, f"Leave it off: {ARM} " in out) == (3, False, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--drafter", "nobody"), "'?nobody'?.*prompt-lookup"),
        (("--drafter", "prompt-lookup:size=3"), "has no option 'size'"),
        (("--max-tokens", "0"), "--max-tokens"),
        (("--draft-length", "0"), "--draft-length"),
        (("--drafter", "none", "--draft-length", "4"), "leave --draft-length out"),
        (("--quick",), "--quick"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_model_is_loaded(
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    refuse_to_load(monkeypatch)
    code, out, err = run(capsys, prompts, *arguments)
    assert (code, out) == (2, "")
    assert re.search(message, err)
    assert not (prompts.parent / "s").exists()


def test_a_store_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_to_load(monkeypatch)
    (prompts.parent / "s").mkdir()
    (prompts.parent / "s" / "journal").write_text("a file")
    code, out, err = run(capsys, prompts)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error: [^\n]*--store DIR[^\n]*\n", err)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems know no name that is not UTF-8")
@pytest.mark.parametrize("more", [(), ("--json",), ("--dry-run",)])
def test_a_file_whose_name_is_not_utf_8_has_its_run_recorded(tmp_path: Path, more: tuple[str, ...]) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    store = tmp_path / "s"
    child = run_python(
        CHILD.format(""), "run", "--prompts", str(path), "--store", str(store), "--max-tokens", "9", *more
    )
    assert (child.returncode, "Traceback" in child.stderr, "could not be written" in child.stderr) == (0, False, False)
    if more == ("--dry-run",):
        return
    [(workload, command)] = query(store, "select workload, command from runs where outcome = 'complete'")
    assert workload.startswith("caf")
    assert command.startswith("roundscope run --prompts ")
    rows: Any = query(store, "select count(*), count(distinct class), bool_and(run_id is not null) from generations")
    assert rows == [(20, 1, True)]


SCRAPE = """
import re, sys, urllib.request
from telemetry import serving
follow, address = serving.follow, None
def follow_and_note(*arguments):
    global address
    sidecar = follow(*arguments)
    address = sidecar.ready["address"]
    return sidecar
serving.follow = follow_and_note
forward, calls = target.forward, 0
def forward_and_scrape(*arguments):
    global calls
    calls += 1
    if address and calls % 50 == 0:
        text = urllib.request.urlopen(address, timeout=60).read().decode()
        values = re.findall(r"^roundscope_rounds_total.* (.+)$", text, re.M)
        print("scraped", sum(map(float, values)), file=sys.stderr)
    return forward(*arguments)
target.forward = forward_and_scrape
"""


def test_a_run_serves_its_metrics_while_it_goes_on(prompts: Path) -> None:
    store = prompts.parent / "s"
    arguments = ("run", "--prompts", str(prompts), "--store", str(store), "--max-tokens", "24", "--metrics-port", "0")
    child = run_python(CHILD.format(SCRAPE), *arguments)
    assert child.returncode == 0, child.stderr
    scraped = [float(line.split()[1]) for line in child.stderr.splitlines() if line.startswith("scraped")]
    rounds = [line["type"] for line in read_lines(store)].count("round")
    assert len(scraped) > 2
    assert scraped == sorted(scraped)
    assert 0 < scraped[0] < scraped[-1] <= rounds
    [event] = [json.loads(line) for line in child.stderr.splitlines() if '"metrics.serving"' in line]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", event["address"])
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(event["address"], timeout=60)


def test_a_metrics_port_that_is_taken_is_refused_before_a_model_is_loaded(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_to_load(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, out, err = run(capsys, prompts, "--metrics-port", str(taken.getsockname()[1]))
    assert (code, out) == (1, "")
    assert err.endswith("Address already in use. Choose another port or host.\n")
    assert not (prompts.parent / "s").exists()


@pytest.mark.parametrize("command", [("run", "--quick"), ("ncm", "run")])
def test_a_plan_is_no_json(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    code, out, err = call(capsys, *command, "--dry-run", "--json")
    assert (code, out, "--json and --dry-run exclude each other" in err) == (2, "", True)
