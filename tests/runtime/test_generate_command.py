"""`roundscope generate`: the answer on stdout, its cost on stderr, its rounds in the store."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tests.conftest import run_python
from tests.runtime.commands import CHILD, call, query, read_lines, refuse_to_load, stand_in
from tests.telemetry.stores import header, write_lines

COST = r"(\d+) tokens in (\d+) rounds, (\d\.\d{4}) s per committed token; generation ([0-9a-f]{32})\n"


def generate(capsys: pytest.CaptureFixture[str], store: Path, *arguments: str) -> tuple[int, str, str]:
    """`roundscope generate` of nine tokens."""
    return call(capsys, "generate", "--store", store, "--max-tokens", "9", *arguments)


@pytest.mark.parametrize(
    ("options", "n_rounds", "seconds"),
    [
        ((), 9, "0.0020"),
        (("--drafter", "none", "--draft-length", "4"), 9, "0.0020"),
        # Eight tokens proposed and accepted in one forward of 2 ms, and the bonus.
        (("--drafter", "prompt-lookup", "--draft-length", "8"), 1, "0.0002"),
    ],
)
def test_the_answer_is_on_stdout_and_its_cost_on_stderr(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    n_rounds: int,
    seconds: str,
) -> None:
    stand_in(monkeypatch)
    code, out, err = generate(capsys, tmp_path / "s", *options, "dabcabcabc")
    assert (code, out) == (0, "abcabcabc\n")
    said = re.fullmatch(rf"(?:loading [^\n]*\n)?{COST}", err)
    assert said
    assert said.groups()[:3] == ("9", str(n_rounds), seconds)
    row = (said[4], None, n_rounds, 9, "length")
    columns = "generation_id, run_id, n_rounds, n_committed, finish_reason"
    assert query(tmp_path / "s", f"select {columns} from generations") == [row]
    assert query(tmp_path / "s", "select count(*), sum(committed) from rounds") == [(n_rounds, 9)]


def test_what_was_found_wanting_in_the_store_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It loads what was recorded before, too, and nobody who loads later finds that new."""
    stand_in(monkeypatch)
    with write_lines(tmp_path, [header()]).open("ab") as file:
        file.write(b"{")
    code, out, err = generate(capsys, tmp_path, "dabcab")
    assert (code, out) == (0, "cabcabcab\n")
    assert "note: new in the journals: 1 torn lines, 0 rejected ones" in err


def test_a_prompt_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO("dabcab"))
    assert generate(capsys, tmp_path / "s", "-")[:2] == (0, "cabcabcab\n")
    assert query(tmp_path / "s", "select prompt_tokens from generations") == [(6,)]


@pytest.mark.parametrize("option", [(), ("--record-text",)])
def test_text_is_kept_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    stand_in(monkeypatch)
    assert generate(capsys, tmp_path, "--drafter", "prompt-lookup", *option, "dabcabcabc")[0] == 0
    held = {key for line in read_lines(tmp_path) for key in line} & {"prompt_ids", "proposal", "tokens", "text"}
    assert held == ({"prompt_ids", "proposal", "tokens", "text"} if option else set())
    assert query(tmp_path, "select text from generations") == [("abcabcabc" if option else None,)]


def test_a_single_round_is_in_the_database_when_the_process_has_ended(tmp_path: Path) -> None:
    """knowledge-base-mcp-server#879: a short command must not exit before what it recorded is there."""
    child = run_python(CHILD.format(""), "generate", "--store", str(tmp_path), "--max-tokens", "1", "dab")
    assert (child.returncode, child.stdout) == (0, "c\n"), child.stderr
    assert query(tmp_path, "select index, committed, outcome from rounds") == [(0, 1, "step")]
    assert query(tmp_path, "select n_rounds, finish_reason from generations") == [(1, "length")]


@pytest.mark.parametrize("text", ["", "-", " \n"])
def test_an_empty_prompt_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, out, err = generate(capsys, tmp_path / "s", text)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: the prompt is empty")
    assert not list((tmp_path / "s").rglob("*.ndjson"))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--drafter", "assistant"), 2, "--draft-model"),
        (("--drafter", "nobody"), 2, "prompt-lookup"),
        (("--drafter", "none", "--draft-length", "0"), 2, "'--draft-length': 0"),
        (("--draft-length", "4"), 2, "--draft-length needs --drafter"),
        (("--drafter", "oracle"), 2, "oracle .*only `roundscope run`"),
        (("--drafter", "wrong"), 2, "wrong .*only `roundscope run`"),
        (("--max-tokens", "0"), 2, "'--max-tokens': 0"),
        (("--drafter", "prompt-lookup"), 4, "ScriptedLayer"),
    ],
)
def test_a_refusal_leaves_no_journal_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    stand_in(monkeypatch, cache="untrimmable")
    found, out, err = generate(capsys, tmp_path / "s", *options, "abc")
    assert (found, out) == (code, "")
    assert re.search(message, err.splitlines()[-1])
    assert not list((tmp_path / "s").rglob("*.ndjson"))


def test_an_unknown_drafter_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_to_load(monkeypatch)
    assert generate(capsys, tmp_path / "s", "--drafter", "nobody", "abc")[:2] == (2, "")


def test_a_temperature_draws_and_a_seed_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    hot = ("--temperature", "1", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.001", "--seed", "3")
    ways = [(), ("--drafter", "none"), ("--drafter", "prompt-lookup", "--draft-length", "3")]
    said = [generate(capsys, tmp_path / "s", *hot, *way, "dabcabcabc")[:2] for way in ways]
    assert said[0] == said[1] != (0, "abcabcabc\n")
    assert said[2][0] == 0
    columns = "policy, temperature, top_k, top_p, min_p, seed, q_source"
    assert query(tmp_path / "s", f"select {columns} from generations order by started_wall_ns") == [
        ("stochastic", 1.0, 20, 0.9, 0.001, 3, source) for source in (None, "point", "point")
    ]


def test_coupled_by_equality_it_says_what_it_says_without_a_drafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    hot, coupled = ("--temperature", "1", "--seed", "3"), ("--drafter", "prompt-lookup", "--coupling", "equality")
    said = [generate(capsys, tmp_path / "s", *hot, *way, "dabcabcabc")[:2] for way in ((), coupled)]
    assert said[0] == said[1]
    rows = query(tmp_path / "s", "select coupling from generations order by started_wall_ns")
    assert rows == [(None,), ("equality",)]


def test_a_relaxed_policy_is_told_to_be_not_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    options = ("--drafter", "prompt-lookup", "--policy", "relaxed:threshold=0", "dabzabzab")
    code, said, err = generate(capsys, tmp_path / "s", *options)
    assert (code, err.rstrip().endswith("; not exact: relaxed:threshold=0")) == (0, True)
    assert said != generate(capsys, tmp_path / "s", "dabzabzab")[1]
    penalised = generate(capsys, tmp_path / "s", "--repetition-penalty", "3", "dabzabzab")
    assert "not exact" not in penalised[2]
    columns = "policy, relaxation, repetition_penalty"
    assert query(tmp_path / "s", f"select {columns} from generations order by started_wall_ns") == [
        ("relaxed", "threshold=0", None),
        ("greedy", None, None),
        ("greedy", None, 3.0),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--coupling", "equality"), "--coupling needs --drafter"),
        (("--drafter", "suffix", "--coupling", "equality"), "coupling='equality' would have no effect at temperature"),
        (("--policy", "relaxed:typical"), "--policy needs --drafter: without one there is nothing to accept"),
        (("--drafter", "suffix", "--policy", "greedy"), "policy 'greedy' is none"),
        (("--repetition-penalty", "-1"), "repetition_penalty is -1.0"),
        (("--temperature", "-1"), "temperature is -1.0; it must be 0"),
        (("--top-p", "0.5"), "top_p would have no effect: temperature 0 always takes the likeliest token"),
        (("--temperature", "1", "--top-k", "-2"), "top_k is -2; it must be a whole number"),
        (("--temperature", "1", "--seed", "-2"), "seed is -2; it must be a whole number"),
    ],
)
def test_sampling_that_makes_no_sense_is_refused_before_the_model_is_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    refuse_to_load(monkeypatch)
    code, out, err = generate(capsys, tmp_path / "s", *options, "abc")
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "s").exists()
