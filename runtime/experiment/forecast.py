"""What would a drafter have offered at every position of an output, and how much of it would have been right?

One pass over ordinary decoding's output answers that for every draft length at once, without running any: a proposal
that is a function of the history, and whose beginning does not depend on how much is asked for, commits at every place
as many tokens as it shares with the output there. `queries/draft_length.sql` replays rounds over these counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from runtime.device import read
from runtime.protocols import Drafter, Proposal
from telemetry.records import ForecastRecord

LONGEST = 16
"""Draft lengths that are forecast: 1 to this, or to the longest that was run."""


def can_forecast(drafter: Drafter) -> bool:
    """Whether its proposals are functions of the history whose beginnings do not depend on the draft length."""
    return drafter.prefix_consistent and getattr(drafter, "pure_in_history", False)


def forecast(
    drafter: Drafter, spec: str, prompt: Sequence[int], output: Sequence[int], generation_id: str, longest: int
) -> ForecastRecord:
    """Counts at every position of `output`, which `generation_id` said to `prompt`; the drafter is reset.

    A drafter that has a model predicts all positions in one forward (`predict`): it is right for as many tokens as its
    predictions equal the output in a row, since its chain of proposals is the output as long as it is right.
    """
    predict = getattr(drafter, "predict", None)
    count = _count_by_proposing if predict is None else _count_by_predicting
    offered, right = count(drafter, prompt, output, longest)
    return ForecastRecord(
        generation_id=generation_id, spec=spec, longest=longest, prompt_tokens=len(prompt), offered=offered, right=right
    )


def _count_by_proposing(
    drafter: Drafter, prompt: Sequence[int], output: Sequence[int], longest: int
) -> tuple[list[int], list[int]]:
    history, offered, right = list(prompt), [], []
    drafter.reset(prompt)
    for position, token in enumerate(output):
        proposed = _read(drafter.propose(history, longest))
        offered.append(len(proposed))
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(proposed, output[position:], strict=False))
        right.append(len(list(shared)))
        history.append(token)
        drafter.commit([token])
        if drafter.length > len(history) - 1:
            drafter.rewind(len(history) - 1)
    return offered, right


def _count_by_predicting(
    drafter: Any, prompt: Sequence[int], output: Sequence[int], longest: int
) -> tuple[list[int], list[int]]:
    predicted = drafter.predict(prompt, output)
    offered = [drafter.limit(len(prompt) + position, longest) for position in range(len(output))]
    right, run = [], 0
    for token, said in zip(reversed(output), reversed(predicted), strict=True):
        run = run + 1 if token == said else 0
        right.append(run)
    return offered, [min(pair) for pair in zip(reversed(right), offered, strict=True)]


def _read(proposal: Proposal) -> Sequence[int]:
    if isinstance(proposal.tokens, (list, tuple)) or not len(proposal):
        return list(proposal.tokens) if isinstance(proposal.tokens, (list, tuple)) else []
    [tokens] = read(proposal.tokens)
    return tokens
