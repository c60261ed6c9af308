"""`roundscope check`: what holds of a run, and what is said where it does not."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from runtime.cli.check import find_fault
from tests.dashboards.test_command import record, record_ncm
from tests.queries.given import Given, spec, step
from tests.queries.simulate import Arm, Simulation, open_store
from tests.queries.simulate_ncm import NcmSimulation
from tests.runtime.commands import call

LOOKUP = "prompt-lookup m=4"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that pays on copy, loses on write, and has an oracle."""
    path = tmp_path_factory.mktemp("store")
    arms = (
        Arm(),
        Arm("oracle", 4, rate=1.0),
        Arm("prompt-lookup", 4, rates={"copy": 0.95, "write": 0.02}, widening=0.2),
    )
    record(path, Simulation(run_id="run-1", classes=("copy", "write"), arms=arms, noise=0.01))
    return path


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("pays:copy", None),
        (f"pays:copy:{LOOKUP}", None),
        ("pays:write", f"pays on write does not hold: {LOOKUP} loses"),
        ("pays:write:oracle m=4", None),
        ("not-loses:copy", None),
        ("not-loses:write", f"not-loses on write does not hold: {LOOKUP} loses"),
        ("equal", None),
        ("complete", None),
    ],
)  # fmt: skip
def test_a_requirement(store: Path, capsys: pytest.CaptureFixture[str], requirement: str, said: str | None) -> None:
    code, out, err = call(capsys, "check", "--require", requirement, "--store", store)
    expected = (0, f"run run-1: {requirement} holds\n") if said is None else (3, f"error: run run-1: {said}\n")
    assert (code, err) == expected
    assert out == ""


def test_every_fault_is_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--require", "pays:write", "--require", "pays:copy", "--require", "not-loses:write")
    code, _, err = call(capsys, "check", *options, "--store", store, "--run", "run")
    assert (code, err.count("does not hold")) == (3, 2)


@pytest.mark.parametrize("text", ["wins", "equal:copy", "", "pays-copy"])
def test_what_is_no_requirement_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    code, _, err = call(capsys, "check", "--require", text, "--store", tmp_path)
    assert (code, "is no requirement: write pays or not-loses" in err) == (2, True)


def give(con: duckdb.DuckDBPyConnection, n: int, **changes: object) -> None:
    with Given(con) as given:
        for i in range(n):
            given.add(None, f"p{i}", [step(10)] * 10)
            given.add(("prompt-lookup", 4), f"p{i}", [spec(11, 4, 4)] * 2, **changes)


def test_without_a_verdict_nothing_holds() -> None:
    with open_store() as con:
        give(con, 4)
        for kind in ("pays", "not-loses"):
            said = f"{kind} on all does not hold: {LOOKUP} has no verdict"
            assert find_fault(con, "run-1", kind, "all", None) == said
        assert find_fault(con, "run-1", "equal", "all", None) == "no output was compared with ordinary decoding's"


def test_other_outputs_and_an_incomplete_record_are_faults() -> None:
    with open_store() as con:
        give(con, 5, equal=False, near_tie=False)
        said = f"outputs differ from ordinary decoding's at no near tie: {LOOKUP} in 5 of 5"
        assert find_fault(con, "run-1", "equal", "all", None) == said
        assert find_fault(con, "run-1", "complete", "all", None) == (
            "the record is not complete: Outputs: 5 differ from ordinary decoding's, and at no near tie: a fault"
        )
        with Given(con) as given:
            given.add(None, "p9", [], finish_reason="aborted", n_rounds=None)
        con.execute("update runs set outcome = null")
        con.execute("update generations set equal = null, near_tie = null")
        assert find_fault(con, "run-1", "complete", "all", None) == (
            "the record is not complete: the run's outcome is not recorded; "
            "Generations left out of the figures: 1 aborted: the process died"
        )


RELAXED = "prompt-lookup m=4 (not exact, relaxed:threshold=0.2)"


def give_rules(con: duckdb.DuckDBPyConnection, *, exact: bool = True, **changes: object) -> None:
    """Five prompts by ordinary decoding, a relaxed arm that pays, and an exact one that loses."""
    with Given(con) as given:
        for i in range(5):
            given.add(None, f"p{i}", [step(10)] * 10, **changes)
            given.add(("prompt-lookup", 4), f"p{i}", [spec(11, 4, 4)] * 2, policy="relaxed")
            given.generations[-1]["arm"] = RELAXED
            if exact:
                given.add(("prompt-lookup", 4), f"p{i}", [spec(60, 4, 4)] * 2, **changes)


def test_a_relaxed_arm_is_no_arm_to_rely_on_unless_it_is_named() -> None:
    """It pays, and the exact arm does not; `equal` is about those that were compared."""
    with open_store() as con:
        give_rules(con, equal=True, policy="greedy")
        assert find_fault(con, "run-1", "pays", "all", None) == f"pays on all does not hold: {LOOKUP} loses"
        assert find_fault(con, "run-1", "pays", "all", RELAXED) is None
        assert find_fault(con, "run-1", "equal", "all", None) is None


def test_what_was_never_compared_is_explained() -> None:
    said = "no output was compared with ordinary decoding's"
    with open_store() as con:
        give_rules(con, exact=False)
        assert find_fault(con, "run-1", "equal", "all", None) == f"{said}: its arms are relaxed, and not exact"
        assert find_fault(con, "run-1", "pays", "copy", None) == (
            f"no arm that is exact and can be used was measured as copy; there are: all:{RELAXED}, copy:{RELAXED}"
        )
    with open_store() as con:
        give_rules(con, policy="stochastic", temperature=0.7)
        assert find_fault(con, "run-1", "equal", "all", None) == (
            f"{said}: the run sampled, so outputs are draws from one distribution; leave `equal` out"
        )
        assert find_fault(con, "run-1", "pays", "all", None) == f"pays on all does not hold: {LOOKUP} loses"
        assert find_fault(con, "run-1", "complete", "all", None) is None


@pytest.mark.parametrize("requirement", ["pays:prose", "not-loses:all:nope", f"pays:prose:{LOOKUP}"])
def test_a_class_or_an_arm_that_the_run_does_not_have_is_no_failed_check(
    store: Path, capsys: pytest.CaptureFixture[str], requirement: str
) -> None:
    code, _, err = call(capsys, "check", "--require", requirement, "--store", store)
    assert (code, err) == (
        2,
        f"error: --require {requirement}: the run has no such class or arm; it has the classes all, copy, write and "
        f"the arms oracle m=4, {LOOKUP}\n",
    )


def test_a_run_of_the_generator_is_judged_by_its_completeness_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_ncm(tmp_path, NcmSimulation())
    assert call(capsys, "check", "--require", "complete", "--store", tmp_path)[0] == 0
    code, _, err = call(capsys, "check", "--require", "equal", "--store", tmp_path)
    assert (code, "verdict is about runs of kind speculation, and run run-1 is of kind ncm" in err) == (2, True)
