"""What one round does: verification, budget edges, the caches behind it, and how often the device is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from runtime.drafters.prompt_lookup import PromptLookup
from runtime.generate import decode, speculate
from runtime.generation import Generation
from runtime.rounds import Round
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.fields import Timing
from telemetry.journal import Journal
from telemetry.recorder import Recorder
from telemetry.records import RoundRecord
from tests.runtime.scripted import (
    KeepingDrafter,
    always,
    counting,
    drain_checked,
    expect,
    guessing,
    hashed,
    recite,
    rows,
)

A, B, C, D, X = range(5)


def _one_round(
    target: ScriptedTarget, drafter: ScriptedDrafter, prompt: Sequence[int], m: int
) -> tuple[Generation, Round]:
    generation = speculate(target, drafter, prompt, draft_length=m, max_tokens=20)
    return generation, next(generation)


@pytest.mark.parametrize("lazy", [False, True])
def test_nothing_after_the_first_mismatch_is_accepted(lazy: bool) -> None:
    """A B X D is drafted, the target says A B C; that D equals what it says on the wrong history proves nothing."""
    seen: list[tuple[int, ...]] = []

    def script(history: Sequence[int]) -> int:
        seen.append(tuple(history[1:]))
        return {(): A, (A,): B, (A, B): C, (A, B, X): D, (A, B, X, D): A}.get(tuple(history[1:]), C)

    target = ScriptedTarget(script, vocab_size=5)
    generation, entry = _one_round(target, ScriptedDrafter(always([A, B, X, D]), lazy=lazy), [C], 4)
    assert (A, B, X) in seen
    assert script([C, A, B, X]) == D
    assert (entry.proposed, entry.accepted, entry.cut, entry.outcome) == (4, 2, 0, "correction")
    assert entry.tokens == (A, B, C)
    assert generation.cache.tokens == [C, A, B]
    generation.close()


def test_matches_at_positions_0_and_2_but_not_1_count_one() -> None:
    """vllm#2658: the accepted length is that of the common prefix, not the number of equal positions."""
    target = ScriptedTarget(recite([A, B, C]), vocab_size=5)
    generation, entry = _one_round(target, ScriptedDrafter(always([A, X, C])), [D], 3)
    assert (entry.proposed, entry.accepted, entry.committed, entry.outcome) == (3, 1, 2, "correction")
    assert entry.tokens == (A, B)
    generation.close()


@pytest.mark.parametrize("m", range(9))
def test_an_oracle_is_always_right_and_a_wrong_drafter_never(m: int) -> None:
    """Accepted is proposed in every round, or 0 in every round and never NULL; both give ordinary's output."""
    script = hashed(3, 23, 2)
    expected = expect(script, [1, 2], max_tokens=30)
    for percent, outcomes in ((100, {"bonus", "step"}), (0, {"correction", "step"})):
        drafter = ScriptedDrafter(guessing(script, 23, percent=percent))
        recorder = Recorder()
        generation = speculate(
            ScriptedTarget(script, vocab_size=23), drafter, [1, 2], draft_length=m, max_tokens=30, recorder=recorder
        )
        rounds = drain_checked(generation, [1, 2], draft_length=m, max_tokens=30)
        assert generation.tokens == expected.tokens
        wanted = [entry.proposed if percent else 0 for entry in rounds]
        assert [entry.accepted for entry in rounds] == wanted
        assert [record.accepted for record in rows(recorder.records, RoundRecord)] == wanted
        assert {entry.outcome for entry in rounds} <= outcomes


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("percent", [0, 100])
def test_a_limit_below_the_draft_length_is_met_exactly(limit: int, percent: int) -> None:
    """transformers PR#47195: limits 1, 2, 3 with m = 8 give exactly that many tokens."""
    script = hashed(5, 11, 2)
    target = ScriptedTarget(script, vocab_size=11)
    drafter = ScriptedDrafter(guessing(script, 11, percent=percent))
    generation = speculate(target, drafter, [1], draft_length=8, max_tokens=limit)
    rounds = drain_checked(generation, [1], draft_length=8, max_tokens=limit)
    assert generation.tokens == expect(script, [1], max_tokens=limit).tokens
    assert generation.finish_reason == "length"
    assert rounds[0].requested == limit - 1
    assert rounds[0].width == limit


def test_proposals_may_be_empty_short_or_full() -> None:
    """An empty proposal is an ordinary step; one shorter than asked for is fine."""
    lengths = iter([0, 2, 5, 0, 1])
    drafter = ScriptedDrafter(lambda history, m: [(history[-1] + 1 + i) % 50 for i in range(next(lengths))])
    target = ScriptedTarget(counting(50), vocab_size=50)
    generation = speculate(target, drafter, [0], draft_length=5, max_tokens=13)
    rounds = drain_checked(generation, [0], draft_length=5, max_tokens=13)
    assert [(entry.proposed, entry.committed, entry.outcome) for entry in rounds] == [
        (0, 1, "step"),
        (2, 3, "bonus"),
        (5, 6, "bonus"),
        (0, 1, "step"),
        (1, 2, "bonus"),
    ]
    assert generation.tokens == list(range(1, 14))


def test_no_drafts_cost_one_position_a_round() -> None:
    """mlx-lm#250: with m = 0 every forward is one position wide, and nothing is trimmed or rewound."""
    script = hashed(1, 9, 1)
    target = ScriptedTarget(script, vocab_size=9)
    generation = speculate(target, ScriptedDrafter(always([1])), [4, 5, 6], draft_length=0, max_tokens=6)
    rounds = drain_checked(generation, [4, 5, 6], max_tokens=6)
    assert target.widths == [2, 1, 1, 1, 1, 1, 1]
    assert [(entry.width, entry.trim_way, entry.rewind_way) for entry in rounds] == [(1, "none", "none")] * 6


def test_the_way_back_is_a_trim_and_only_where_something_was_rejected() -> None:
    """omlx PR#3416: rejected positions are trimmed, never replayed: every position is computed once."""
    script = hashed(6, 50, 2)
    target = ScriptedTarget(script, vocab_size=50)
    drafter = ScriptedDrafter(guessing(script, 50, percent=80))
    generation = speculate(target, drafter, [0], draft_length=3, max_tokens=20)
    rounds = drain_checked(generation, [0], draft_length=3, max_tokens=20)
    assert [entry.trim_way for entry in rounds] == [
        "trim" if entry.proposed > entry.accepted else "none" for entry in rounds
    ]
    assert {entry.trim_way for entry in rounds} == {"trim", "none"}
    assert target.widths == [entry.width for entry in rounds]


def test_ties_go_to_the_lowest_id() -> None:
    logits = [0.0, 2.0, 2.0, 1.0, 2.0]
    target = ScriptedTarget(logits=lambda history: logits, vocab_size=5)
    assert decode(target, [0], max_tokens=3).drain().tokens == [1, 1, 1]
    drafter = ScriptedDrafter(always([1, 1, 2]))
    assert speculate(target, drafter, [0], draft_length=3, max_tokens=6).drain().tokens == [1] * 6


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("shape", ["full", "short", "empty", "periodic"])
def test_a_fused_round_synchronises_once(lazy: bool, shape: str) -> None:
    script = hashed(2, 17, 2)
    drafter = ScriptedDrafter(guessing(script, 17, percent=70, shape=shape), lazy=lazy)
    generation = speculate(ScriptedTarget(script, vocab_size=17), drafter, [3, 4], draft_length=4, max_tokens=25)
    assert {entry.syncs for entry in generation} == {1}


def test_ordinary_rounds_synchronise_once() -> None:
    for pipelined in (True, False):
        target = ScriptedTarget(hashed(2, 17, 2), vocab_size=17)
        assert [entry.syncs for entry in decode(target, [3], max_tokens=9, pipelined=pipelined)] == [1] * 9


@pytest.mark.parametrize(("lazy", "syncs"), [(False, 2), (True, 3)])
def test_an_attributed_round_waits_after_every_stage_with_device_work(lazy: bool, syncs: int) -> None:
    script = hashed(2, 17, 2)
    drafter = ScriptedDrafter(guessing(script, 17, percent=70), lazy=lazy)
    target = ScriptedTarget(script, vocab_size=17)
    generation = speculate(target, drafter, [3], draft_length=4, max_tokens=15, timing="attributed")
    bases = {name: basis for name, (_, basis) in next(generation).stages.items()}
    assert bases == {
        "draft": "barrier" if lazy else "host",
        "verify": "barrier",
        "synchronize": "host_wait",
        "trim": "host",
        "rewind": "host",
    }
    assert {entry.syncs for entry in generation if entry.proposed} == {syncs}


@pytest.mark.parametrize("timing", ["fused", "attributed"])
def test_recording_adds_no_synchronisation(tmp_path: Path, timing: Timing) -> None:
    """Into memory, with text, or into a journal: the device is waited for as often."""
    script = hashed(8, 17, 2)

    def count(recorder: Recorder | None) -> list[int]:
        drafter = ScriptedDrafter(guessing(script, 17, percent=70), lazy=True)
        target = ScriptedTarget(script, vocab_size=17)
        return [
            entry.syncs
            for entry in speculate(
                target, drafter, [3], draft_length=4, max_tokens=30, timing=timing, recorder=recorder
            )
        ]

    with Journal(tmp_path) as journal:
        counts = [
            count(recorder)
            for recorder in (None, Recorder(), Recorder(record_text=True), Recorder(journal, record_text=True))
        ]
    assert counts == [counts[0]] * 4


def test_a_drafter_used_again_is_as_good_as_new() -> None:
    """llama.cpp PR#10455: it starts over with every generation, so repeats give the same rounds."""
    script = hashed(4, 13, 1)
    for drafter in (KeepingDrafter(guessing(script, 13, percent=60)), PromptLookup(max_n=2, min_n=1)):
        runs = [
            [
                (entry.tokens, entry.proposed, entry.accepted, entry.drafter_length)
                for entry in speculate(
                    ScriptedTarget(script, vocab_size=13), drafter, prompt, draft_length=3, max_tokens=20
                )
            ]
            for prompt in ([1, 2, 3], [9, 9], [1, 2, 3])
        ]
        assert runs[0] == runs[2]


@pytest.mark.parametrize("n_layers", [1, 5])
def test_caches_are_counted_by_their_list(n_layers: int) -> None:
    """mlx-lm: a target that shares K/V between layers has fewer caches than layers, and nothing assumes otherwise."""
    script = hashed(4, 13, 3)
    target = ScriptedTarget(script, vocab_size=13)
    target.n_layers = n_layers
    drafter = ScriptedDrafter(guessing(script, 13, percent=60))
    generation = speculate(target, drafter, [1, 2], draft_length=3, max_tokens=20)
    drain_checked(generation, [1, 2], draft_length=3, max_tokens=20)
    assert len(generation.cache.layers) == n_layers
    assert generation.tokens == expect(script, [1, 2], max_tokens=20).tokens


def test_interleaved_generations_do_not_mix() -> None:
    """Two generations of one target, a round each in turn, are what they are alone."""
    script = hashed(4, 13, 3)
    target = ScriptedTarget(script, vocab_size=13)
    prompts = ([1, 2, 3], [7])
    generations = [
        speculate(target, ScriptedDrafter(guessing(script, 13, percent=60)), prompt, draft_length=3, max_tokens=20)
        for prompt in prompts
    ]
    while any(generation.finish_reason is None for generation in generations):
        for generation in generations:
            next(generation, None)
    assert [generation.tokens for generation in generations] == [
        expect(script, prompt, max_tokens=20).tokens for prompt in prompts
    ]


def test_a_drafter_taken_over_by_another_generation_is_noticed() -> None:
    """The first owner fails with a clear error, and the new owner's drafter is left as it is."""
    script = counting(40)
    drafter = ScriptedDrafter(guessing(script, 40, percent=100))
    first, second = (
        speculate(ScriptedTarget(script, vocab_size=40), drafter, [0] * n, draft_length=2, max_tokens=20)
        for n in (1, 6)
    )
    next(first)
    next(second)
    with pytest.raises(Exception, match="'scripted' was reset by another generation"):
        next(first)
    assert (first.finish_reason, first.tokens) == ("error", [1, 2, 3])
    assert drafter.length == second.cache.length
    rounds = [next(second), *second]
    assert {entry.drafter_length - entry.cache_length for entry in rounds if entry.drafter_length is not None} == {0}
    assert second.tokens == list(range(1, 21))
