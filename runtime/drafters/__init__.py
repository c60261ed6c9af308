"""Drafters: whatever proposes tokens for the target to verify. `runtime.protocols.Drafter` says what one must offer.

How the loop uses one: `reset(prompt)`, after which `length` is len(prompt) - 1; then in every round `propose(history,
m)`, `commit(committed)` and, where `length` is beyond it, `rewind(len(history) - 1)` with the history that now includes
the committed tokens. After an exception in `propose` the loop rewinds to the same place, however far the drafting got.
With m = 0 a drafter proposes nothing and does no device work.

Optional, looked up with `getattr`: `check(target)` is called before the first forward and raises where the drafter
cannot work for that target; `proposer` names who made the last proposal, where there are several, and then `parts` and
`propose_by(index, history, m)` let a controller ask one of them alone;
`learn(prompt, output)` marks a drafter that has to be told ordinary decoding's output.
"""

from __future__ import annotations

from runtime.drafters.registry import ASSISTANT_NEEDS_MODEL, Spec, make, names, parse

__all__ = ["ASSISTANT_NEEDS_MODEL", "Spec", "make", "names", "parse"]
