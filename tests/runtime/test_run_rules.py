"""`roundscope run` with rules of acceptance and of choosing other than the plain greedy one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.runtime.commands import DIFFERING, query, refuse_to_load, run, stand_in, write_prompts


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight prompts of one class, whose answers are not what prompt lookup says; and a target to answer them."""
    stand_in(monkeypatch)
    return write_prompts(tmp_path, DIFFERING)


def test_a_run_at_a_temperature_says_that_its_outputs_are_samples(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--temperature", "0.1", "--top-p", "0.9")
    code, out, _ = run(capsys, prompts, *options)
    assert code == 0
    assert "equality is not asked of samples" in " ".join(out.split())
    assert "--temperature 0.1 --top-p 0.9" in out
    assert query(prompts.parent / "s", "select distinct policy, temperature, top_p, equal from generations") == [
        ("stochastic", 0.1, 0.9, None)
    ]
    code, _, err = run(capsys, prompts, "--top-p", "0.9")
    assert (code, "top_p would have no effect" in err) == (2, True)


def test_couplings_are_arms_beside_each_other(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    couplings = ("--coupling", "residual", "--coupling", "equality")
    code, out, _ = run(capsys, prompts, "--temperature", "0.1", "--repetition-penalty", "1.1", *couplings)
    said = " ".join(out.split())
    assert code == 0
    for arm, coupling in (("", "residual (q: a point mass)"), (" equality", "equality")):
        about = f"Acceptance: prompt-lookup m=8{arm}, coupled by {coupling}, accepted"
        measured = r" [\d.]+% of \d+ judged tokens; 1 - TV\(p, q\), .* was [\d.]+% there"
        assert re.search(re.escape(about) + measured, said)
    advice = re.search(r"Switch on prompt-lookup m=8( equality)?: .* --temperature 0.1 --repetition-penalty 1.1", said)
    assert advice
    assert (advice[1] is None) == (" --coupling equality 'your prompt'" not in said)
    columns = "arm, coupling, q_source, policy, repetition_penalty, repetition_context, n_processors"
    drawn = f"select distinct {columns} from generations where drafter is not null order by arm"
    assert query(prompts.parent / "s", drawn) == [
        ("prompt-lookup m=8", "residual", "point", "stochastic", 1.1, 20, 1),
        ("prompt-lookup m=8 equality", "equality", None, "stochastic", 1.1, 20, 1),
    ]
    by_timing = (
        "select timing, count(overlap) > 0 from rounds join generations using (generation_id) group by all order by all"
    )
    assert query(prompts.parent / "s", by_timing) == [("attributed", True), ("fused", False)]


def test_a_relaxed_arm_is_not_exact_wherever_it_is_named(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is compared with nothing, although every output differs, and never recommended; the exact arm is both."""
    options = ("--policy", "relaxed:threshold=0", "--policy", "exact")
    code, out, _ = run(capsys, prompts, *options)
    said = " ".join(out.split())
    name = "prompt-lookup m=8 (not exact, relaxed:threshold=0)"
    assert code == 0
    assert f"{name} " in said
    assert "Not exact: its output is not the target's, and was not compared with it; " in said
    assert "Not exact: 11 generations by a relaxed policy" in said
    assert "Switch on prompt-lookup m=8: " in said
    rows = "select arm, policy, relaxation, count(equal) > 0 from generations where drafter is not null group by all"
    assert query(prompts.parent / "s", f"{rows} order by arm") == [
        ("prompt-lookup m=8", "greedy", None, True),
        (name, "relaxed", "threshold=0", False),
    ]
    code, out, _ = run(capsys, prompts, "--policy", "relaxed:threshold=0", "--json")
    document = json.loads(out)
    assert code == 0
    assert {(row["arm"], row["is_exact"], row["n_compared"]) for row in document["verdict"]} == {(name, False, 0)}
    assert document["recommendation"]["arm"] is None
    assert document["recommendation"]["sentence"].startswith("Nothing to switch on: no arm that is exact")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--coupling", "equality"), "--coupling equality would have no effect: it takes a --temperature"),
        (("--policy", "relaxed"), "policy 'relaxed' is none: write exact, relaxed:threshold=T"),
        (("--repetition-penalty", "0"), "repetition_penalty is 0.0; it must be a number above 0"),
        (("--repetition-context", "4"), "repetition_context would have no effect"),
    ],
)
def test_rules_that_make_no_sense_are_refused_before_the_model_is_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    refuse_to_load(monkeypatch)
    code, out, err = run(capsys, write_prompts(tmp_path, ["abc"]), *options)
    assert (code, out, message in err) == (2, "", True)


def test_a_near_tie_is_looked_for_after_the_penalty(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Greedy decoding with a penalty is compared too, and has no forecast: rows one by one have another price."""
    code, out, _ = run(capsys, prompts, "--repetition-penalty", "1.2")
    assert code == 0
    assert "are ordinary decoding's, token for token" in " ".join(out.split())
    assert query(prompts.parent / "s", "select count(*) from forecasts") == [(0,)]
