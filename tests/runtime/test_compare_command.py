"""`roundscope compare` on stores as runs leave them: what is shown, and when it exits with 3."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import queries
from runtime.cli.compare import Rule, read_rule
from telemetry.errors import UsageError
from tests.dashboards.test_command import record
from tests.queries.simulate import Arm, Row, Simulation
from tests.runtime.commands import call

ARM = "prompt-lookup m=4"


@dataclass(frozen=True)
class Elsewhere(Simulation):
    """A run on another machine."""

    def run_row(self) -> Row:
        return super().run_row() | {"cpu": "another cpu", "blas_threads": 1}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one noise: run-b is slower at speculation than run-a, run-c as fast, run-d on another machine."""
    path = tmp_path_factory.mktemp("store")
    fast, slow = (Arm(), Arm("prompt-lookup", 4, rate=0.7)), (Arm(), Arm("prompt-lookup", 4, rate=0.7, widening=0.2))
    for run_id, arms, kind in (
        ("a", fast, Simulation),
        ("b", slow, Simulation),
        ("c", fast, Simulation),
        ("d", fast, Elsewhere),
    ):
        record(path, kind(run_id=f"run-{run_id}", arms=arms, noise=0.01, seed=1, attributed=False))
    record(path, Simulation(run_id="run-e", classes=("other",), n_prompts=3, arms=fast))
    return path


def compare(capsys: pytest.CaptureFixture[str], store: Path, a: str, b: str, *more: str) -> tuple[int, str, str]:
    return call(capsys, "compare", a, b, "--store", store, *more)


def test_what_changed_is_shown_beside_the_environment(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = compare(capsys, store, "run-a", "run-b")
    assert (code, err) == (0, "")
    changes = [line.split()[-3] for line in out.splitlines() if line.strip().startswith(("ordinary", "prompt-lookup"))]
    assert changes == ["indistinguishable"] * 4 + ["slower"] * 4
    assert out.endswith("a: run-a\nb: run-b\nenvironment: the same, as far as it is recorded\n")
    _, out, _ = compare(capsys, store, "run-a", "run-d")
    assert out.endswith("environment: processor: a cpu, then another cpu; blas threads: 2, then 1\n")


def test_rows_are_data(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = compare(capsys, store, "run-b", "run-a", "--json")
    rows = json.loads(out)
    assert (code, list(rows[0])) == (0, [column.name for column in queries.find("compare").columns])
    assert {(row["run_a"], row["run_b"]) for row in rows} == {("run-b", "run-a")}
    assert {row["change"] for row in rows if row["arm"] == ARM} == {"faster"}


@pytest.mark.parametrize(
    ("b", "rule", "said"),
    [
        ("b", "seconds_per_token:+5%", f"seconds_per_token:+5%: {ARM} on all changed by +"),
        ("b", f"seconds_per_token:+5%:copy:{ARM}", f"{ARM} on copy changed by +"),
        ("b", "speedup:-5%", f"speedup:-5%: {ARM} on all changed by -"),
        ("b", "seconds_per_token:+90%", None),
        ("b", "seconds_per_token:+0%:all:ordinary", None),
        ("b", "accepted_per_round:-1%", None),
        ("c", "seconds_per_token:+0%", None),
        ("d", "seconds_per_token:+500%", "ordinary on all cannot be judged between two machines (processor: a cpu,"),
        ("d", "speedup:-1%", None),
        ("a", "peak_bytes:+0%", None),
        ("b", "speedup:-5%:all:ordinary", "both runs have no such arm and class in common"),
    ],
)
def test_a_rule_fails_where_a_change_is_beyond_it_and_no_chance(
    store: Path, capsys: pytest.CaptureFixture[str], b: str, rule: str, said: str | None
) -> None:
    code, out, err = compare(capsys, store, "run-a", f"run-{b}", "--fail-if", rule)
    assert out
    if said is None:
        assert (code, err) == (0, "")
    else:
        assert code == 3
        assert said in err


def test_every_fault_is_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = ("--fail-if", "seconds_per_token:+5%", "--fail-if", "speedup:-5%:list")
    code, _, err = compare(capsys, store, "run-a", "run-b", *rules)
    assert (code, err.count(" changed by ")) == (3, 2)


def test_runs_without_a_common_prompt_fail(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = compare(capsys, store, "run-a", "run-e")
    assert (code, err) == (3, "error: runs run-a and run-e have no prompt in common that both completed\n")


def test_under_five_prompts_nothing_is_judged(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = compare(capsys, store, "run-e", "run-e", "--fail-if", "speedup:-5%")
    assert (code, "cannot be judged on 3 prompts, it takes 5" in err) == (3, True)


def test_rules() -> None:
    assert read_rule("speedup:-2.5%") == Rule("speedup:-2.5%", "speedup", -0.025, "all", None)
    given = "seconds_per_token:+5%:copy:suffix:min_n=3 m=4"
    assert read_rule(given) == Rule(given, "seconds_per_token", 0.05, "copy", "suffix:min_n=3 m=4")


@pytest.mark.parametrize("text", ["seconds_per_token", "seconds_per_token:5%", "speed:+5%", "speedup:-5", ""])
def test_what_is_no_rule_is_refused(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no rule: write METRIC"):
        read_rule(text)
    code, out, err = call(capsys, "compare", "a", "b", "--fail-if", text, "--store", tmp_path)
    assert (code, out, "is no rule" in err) == (2, "", True)


def test_an_unknown_run_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = compare(capsys, store, "run-a", "run-z")
    assert (code, err.startswith("error: there is no run 'run-z'")) == (2, True)


@pytest.mark.parametrize("about", ["nowhere", "all:suffix m=4", f"cpy:{ARM}"])
def test_a_rule_about_what_neither_run_had_is_no_failed_one(
    store: Path, capsys: pytest.CaptureFixture[str], about: str
) -> None:
    code, out, err = compare(capsys, store, "run-a", "run-b", "--fail-if", f"speedup:-5%:{about}")
    assert (code, out) == (2, "")
    assert err == (
        f"error: --fail-if 'speedup:-5%:{about}': neither run has such a class or arm; they have the classes all, "
        f"copy, list, write and the arms ordinary, {ARM}\n"
    )
