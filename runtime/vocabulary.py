"""Whether a drafter's token ids mean what the target's do.

Ids are all that passes between the two, so with another vocabulary every proposal would be noise: that is refused
before the first forward. Logits may be wider than the tokenizer (models pad their vocabulary to a round number): ids
that no tokenizer knows mean nothing on either side, and such widths may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.protocols import Target
from telemetry.errors import Unsupported


def check_same(target: Target, drafter_target: Target) -> None:
    """Raise Unsupported, naming the first id that maps to different strings, unless both speak the same ids.

    Where a tokenizer is missing there are no strings to compare, and the widths of the logits must be equal. Costs
    some 80 ms for 50,000 tokens: once per pair of models, not per round.
    """
    ours, theirs = _read_tokens(target), _read_tokens(drafter_target)
    names = _name(target, "the target"), _name(drafter_target, "the draft model")
    if ours is None or theirs is None:
        _compare_sizes(target.vocab_size, drafter_target.vocab_size, names)
    elif ours != theirs:
        _raise_first_difference(ours, theirs, names)


def _read_tokens(target: Target) -> Mapping[str, int] | None:
    tokenizer: Any = getattr(target, "tokenizer", None)
    if tokenizer is None:
        return None
    tokens: Mapping[str, int] = tokenizer.get_vocab()
    return tokens


def _name(target: Target, role: str) -> str:
    name = getattr(target, "name", None)
    return role if name is None else f"{role} ({name})"


def _compare_sizes(ours: int, theirs: int, names: tuple[str, str]) -> None:
    if ours != theirs:
        owner = names[0] if ours > theirs else names[1]
        raise Unsupported(
            f"{names[0]} has {ours} token ids and {names[1]} {theirs}: id {min(ours, theirs)} exists only in {owner}. "
            "Take a draft model with the target's vocabulary, of the same family as a rule."
        )


def _raise_first_difference(ours: Mapping[str, int], theirs: Mapping[str, int], names: tuple[str, str]) -> None:
    first, second = ({index: token for token, index in tokens.items()} for tokens in (ours, theirs))
    differing = [index for index in first.keys() | second.keys() if first.get(index) != second.get(index)]
    if not differing:
        return
    index = min(differing)
    raise Unsupported(
        f"{names[0]} and {names[1]} have different vocabularies: id {index} is {_show(first, index)} in the one and "
        f"{_show(second, index)} in the other ({len(differing)} ids differ). "
        "Take a draft model with the target's vocabulary, of the same family as a rule."
    )


def _show(tokens: Mapping[int, str], index: int) -> str:
    return repr(tokens[index]) if index in tokens else "no token"
