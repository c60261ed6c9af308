"""`--draft-length auto`: an arm beside fixed lengths, an answer, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.commands import call, query, stand_in, write_prompts

TEXTS = [letter + "abcabcabcab" for letter in "defghi"]


def test_a_run_has_an_arm_of_its_own_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    prompts, store = write_prompts(tmp_path, TEXTS), tmp_path / "s"
    lengths = ("--draft-length", "auto", "--draft-length", "2", "--draft-length", "auto")
    code, out, err = call(capsys, "run", "--prompts", prompts, "--store", store, "--max-tokens", "24", *lengths)
    assert (code, err.count("prompt-lookup m=auto")) == (0, 1)
    assert "prompt-lookup m=auto chose a step" in " ".join(out.split())
    arms = query(store, "select distinct arm, controlled, draft_length from generations order by arm")
    assert arms == [("ordinary", False, 0), ("prompt-lookup m=2", False, 2), ("prompt-lookup m=auto", True, 16)]
    told = "select count(*), count(reason), count(expected_ns) from rounds join generations using (generation_id)"
    assert query(store, f"{told} where not controlled")[0][1:] == (0, 0)
    n, n_reasons, n_expected = query(store, f"{told} where controlled and timing = 'fused'")[0]
    assert n == n_reasons == n_expected  # with the measured curve it knows from the first round on
    assert query(store, "select bool_and(equal) from generations where controlled and not warm_up") == [(True,)]
    code, out, _ = call(capsys, "report", "controller", "--store", store, "--json")
    [pooled] = [row for row in json.loads(out) if row["class"] == "all"]
    assert pooled["best_fixed"] in ("ordinary", "prompt-lookup m=2")
    assert pooled["regret"] == pytest.approx(pooled["seconds_per_token"] / pooled["best_fixed_seconds_per_token"] - 1)


def test_an_answer_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(monkeypatch)
    options = ("--drafter", "prompt-lookup", "--draft-length", "auto", "--max-tokens", "9")
    code, out, _ = call(capsys, "generate", "--store", tmp_path / "s", *options, "dabcabcabc")
    assert (code, out) == (0, "abcabcabc\n")
    assert query(tmp_path / "s", "select arm, controlled from generations") == [("prompt-lookup m=auto", True)]


@pytest.mark.parametrize("length", ["0", "-3", "many", "1.5", ""])
@pytest.mark.parametrize("command", ["run", "generate"])
def test_what_is_no_length_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, length: str
) -> None:
    more = ("text",) if command == "generate" else ()
    code, _, err = call(capsys, command, "--store", tmp_path / "s", "--draft-length", length, *more)
    assert code == 2
    assert "neither a whole number from 1 up nor 'auto'" in err
