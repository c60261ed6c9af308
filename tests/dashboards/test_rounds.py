"""A generation as lines: rounds with tokens or shapes, levels, and which one is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from telemetry.records import Record
from tests.runtime.commands import call
from tests.telemetry.coarse import whole_ncm
from tests.telemetry.stores import generation, generation_end, header, rounds, run, write_lines

A, B = "a" * 32, "ab" + "0" * 30


def one_round(index: int, **changes: Any) -> list[Record]:
    """The round of a generation at this place: 1.1 ms of drafting, 2.3 ms of verifying."""
    fields = {"index": index, "draft_ns": 1_100_000, "verify_ns": 300_000, "synchronize_ns": 2_000_000}
    return list(rounds(A, 1, **fields | {"t_round_ns": 3_500_000} | changes))


ROUNDS = [
    *one_round(0, proposed=4, accepted=2, committed=3),
    *one_round(1, proposed=2, accepted=2, committed=3, outcome="bonus"),
    *one_round(2, proposed=0, accepted=0, committed=1, outcome="step", draft_ns=0, draft_basis=None),
    *one_round(3, proposed=3, accepted=1, committed=1, cut=2, outcome="stop", stop_kind="eos"),
]


def give(store: Path, *records: Record) -> Path:
    """A store with a run of these records."""
    write_lines(store, [header(), run(), *records])
    return store


def show(capsys: pytest.CaptureFixture[str], store: Path, wanted: str) -> list[str]:
    """The lines of `roundscope show`."""
    code, out, err = call(capsys, "show", wanted, "--store", store)
    assert (code, err) == (0, "")
    return out.splitlines()


def test_shapes_stand_for_tokens_that_were_not_recorded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    end = generation_end(A, finish_reason="stop", total_ns=14_000_000, n_rounds=4, n_committed=8)
    store = give(tmp_path, generation(A), *ROUNDS, end)
    assert show(capsys, store, A) == [
        f"generation {A}: prompt-lookup-8 of scripted, run run-1, fused, prompt copy-1 of class copy, 4 rounds, "
        "8 tokens, stop, 14.0 ms",
        "draft was timed by host; verify is the forward and reading its tokens, timed by host_launch + host_wait",
        "tokens were not recorded: = accepted, x rejected, . never judged, + the target's own",
        "0  = = x x -> = = +   accepted 2/4   draft 1.10 ms  verify 2.30 ms",
        "1  = = -> = = +       accepted 2/2   draft 1.10 ms  verify 2.30 ms",
        "2  -> +               nothing proposed   verify 2.30 ms",
        "3  = . . -> =         accepted 1/3   stop (eos)   draft 1.10 ms  verify 2.30 ms",
    ]


def test_tokens_that_were_recorded_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = one_round(12, proposed=4, accepted=2, committed=3, proposal=[11, 12, 9, 14], tokens=[11, 12, 13])
    store = give(tmp_path, generation(A), *told)
    assert show(capsys, store, A[:5])[2:] == [
        "12  11 12 9 14 -> 11 12 13   accepted 2/4   draft 1.10 ms  verify 2.30 ms"
    ]


def test_what_a_controller_chose_and_who_proposed_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    step = {"proposed": 0, "accepted": 0, "committed": 1, "outcome": "step", "draft_ns": 0, "draft_basis": None}
    chosen = [
        *one_round(0, requested=4, proposed=4, accepted=2, committed=3, proposer="ncm", reason="prior"),
        *one_round(1, requested=0, reason="budget", expected_ns=2_000_000, expected_step_ns=2_500_000, **step),
        *one_round(2, requested=4, reason="best", expected_ns=2_000_000, proposer="ncm", **step),
        *one_round(3, requested=0, reason="last", expected_ns=2_000_000, **step),
    ]
    begun = generation(A, controlled=True, policy="stochastic", temperature=0.5, q_source="drafter")
    lines = show(capsys, give(tmp_path, begun, *chosen), A)
    assert ", fused, temperature 0.5, q: the drafter's own, prompt copy-1 of" in lines[0]
    composed = [
        *one_round(0, proposed=4, accepted=2, committed=3, proposer="prompt-lookup", q_source="point"),
        *one_round(1, proposed=4, accepted=2, committed=3, proposer="ncm", q_source="drafter"),
    ]
    assert (
        ", q: a point mass or the drafter's own, " in show(capsys, give(tmp_path / "composed", begun, *composed), A)[0]
    )
    assert lines[3:] == [
        "0  = = x x -> = = +   accepted 2/4 from ncm   draft 1.10 ms  verify 2.30 ms   prior: m=4",
        "1  -> +               nothing proposed   verify 2.30 ms   budget: m=0, expected 2.00 ms a token, 2.50 ms by a "
        "step",
        "2  -> +               ncm had nothing   verify 2.30 ms   best: m=4, expected 2.00 ms a token",
        "3  -> +               nothing proposed   verify 2.30 ms   last: m=0, expected 2.00 ms a token",
    ]


def test_levels_have_a_line_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = give(tmp_path, *whole_ncm(B))
    assert show(capsys, store, "latest") == [
        f"generation {B}: cache of tiny, outside a run, attributed, 2 samples, 2 levels, complete, 2.50 us",
        "0  2 samples   prefix 8 processed, 0 reused   level 2   pairs 20   forward 0.50 us  level 0.90 us",
        "1  2 samples   prefix 0 processed, 8 reused   level 6   pairs 20   forward 0.50 us  level 0.90 us",
    ]


def test_a_generation_that_was_aborted_shows_its_closed_rounds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = show(capsys, give(tmp_path, generation(A), *ROUNDS[:1]), A)
    assert lines[0].endswith("1 round, 3 tokens, aborted")
    assert len(lines) == 4


def test_the_latest_is_that_which_began_last(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = give(tmp_path, generation(A, started_wall_ns=2), generation(B, started_wall_ns=1))
    assert show(capsys, store, "latest")[0].startswith(f"generation {A}: ")


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("a", f"several generations begin with 'a': {A} (prompt-lookup-8); {B} (prompt-lookup-8)"),
        ("f", "there is no generation 'f'; latest shows the last one"),
        (
            "run-1",
            "there is no generation 'run-1', that is a run (roundscope sql 'from generations' lists ids); latest shows "
            "the last one",
        ),
    ],
)
def test_what_is_not_one_generation_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, wanted: str, reason: str
) -> None:
    store = give(tmp_path, generation(A, started_wall_ns=2), generation(B, started_wall_ns=1))
    assert call(capsys, "show", wanted, "--store", store) == (2, "", f"error: {reason}\n")


def test_a_store_without_generations(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = give(tmp_path)
    reason = "error: no generation is recorded in this store yet\n"
    assert call(capsys, "show", "latest", "--store", store) == (2, "", reason)
