"""`assert_equal_to_ordinary`: speculation gave the output of ordinary decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, overload

from telemetry.testing.facts import Facts, is_generation, read_generation
from telemetry.testing.failure import TraceAssertionError, fail
from telemetry.testing.spans import Spans

__tracebackhide__ = True

_CONTEXT = 3
"""Ids shown before a divergence."""


class HasTokens(Protocol):
    """A generation, or anything else that has committed ids."""

    @property
    def tokens(self) -> Sequence[int]:
        """The committed ids."""


Output: TypeAlias = HasTokens | Sequence[int]


@overload
def assert_equal_to_ordinary(output: Output, ordinary: Output) -> None: ...
@overload
def assert_equal_to_ordinary(output: Spans, *, near_ties: bool = True) -> None: ...
def assert_equal_to_ordinary(output: Output | Spans, ordinary: Output | None = None, *, near_ties: bool = True) -> None:
    """`output` is what ordinary decoding gives: the same committed ids.

    output, ordinary: generations, or lists of ids. With spans of a run alone, by what the run found when it compared
    every speculative generation with ordinary decoding: each must have been compared, and be equal, or, with
    `near_ties`, differ only from where the target's two best logits are all but equal.
    """
    if isinstance(output, Spans):
        _check_comparisons(output, near_ties)
    elif ordinary is None:
        raise TypeError("ordinary decoding's output is missing; only spans of a run can do without")
    else:
        _compare(read_tokens(output), read_tokens(ordinary))


def read_tokens(output: Output) -> list[int]:
    """The committed ids of an output."""
    return list(output if isinstance(output, Sequence) else output.tokens)


def _compare(output: list[int], ordinary: list[int]) -> None:
    if output == ordinary:
        return
    shared = min(len(output), len(ordinary))
    at = next((i for i in range(shared) if output[i] != ordinary[i]), shared)
    raise TraceAssertionError(
        f"expected ordinary decoding's output of {len(ordinary)} tokens\n"
        f"found {len(output)} tokens, which differ from position {at} on: {_show(output, at)}\n"
        f"ordinary decoding: {_show(ordinary, at)}"
    )


def _show(tokens: list[int], at: int) -> str:
    before = " ".join(map(str, tokens[max(at - _CONTEXT, 0) : at]))
    here = f"[{tokens[at]}]" if at < len(tokens) else "[the end]"
    return f"{'... ' * (at > _CONTEXT)}{before}{' ' * bool(before)}{here}"


def _check_comparisons(spans: Spans, near_ties: bool) -> None:
    generations = [read_generation(span) for span in spans if is_generation(span)]
    speculative = [each for each in generations if each["drafter"] is not None and not each["warm_up"]]
    notes = {each.span: fault for each in speculative if (fault := _find_fault(each, near_ties))}
    if speculative and not notes:
        return
    found = f"{len(notes)} of {len(speculative)} without" if speculative else "no speculative generation"
    raise fail(
        spans.forest,
        "every speculative generation with ordinary decoding's output",
        found,
        nearest=next(iter(notes.values()), None),
        notes=notes,
    )


def _find_fault(generation: Facts, near_ties: bool) -> str | None:
    if generation["equal"] or (near_ties and generation["near_tie"]):
        return None
    if generation["policy"] == "relaxed":
        return f"is not exact, by the relaxed rule {generation['relaxation']}: equality does not apply to it"
    if generation["equal"] is None and generation["policy"] == "stochastic":
        return "was sampled: it has the distribution of ordinary decoding's output, and need not have its tokens"
    if generation["equal"] is None:
        return "was not compared with ordinary decoding"
    where = f"differs from position {generation['diverged_at']} on, committed by round {generation['diverged_round']}"
    gap = f"the two best logits are {generation['top2_gap']:.3g} apart, tolerance {generation['tolerance']:.3g}"
    return f"{where}; {gap}"
