"""Suffix lookup: what followed the longest ending of the history that has been seen before, however long it is.

Prompt lookup knows endings of a few tokens, this one knows all of them, and takes the deepest. Drafting from such a
structure: Oliaro et al., "SuffixDecoding", arXiv:2411.04975 (trees over many requests; here one automaton over this
prompt and output).
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.drafters.base import HostDrafter
from runtime.drafters.suffix_automaton import SuffixAutomaton
from runtime.protocols import Proposal
from telemetry.errors import UsageError


class Suffix(HostDrafter):
    """Proposes the continuation of the longest ending of the history that occurred before, of at least `min_n`
    tokens.

    It is read off where that ending was last the longest one, as a place nearer to now is the likelier guide; what
    never was yet is read off an earlier occurrence. (The latest of all would cost more than constant time a token.)
    As in prompt lookup, a continuation that reaches the end of the history runs on into the proposal itself.
    """

    name = "suffix"

    def __init__(self, min_n: int = 2) -> None:
        """UsageError unless min_n is at least 1."""
        if min_n < 1:
            raise UsageError(f"suffix needs min_n of 1 or more, not {min_n}")
        super().__init__()
        self._min_n = min_n
        self._text = SuffixAutomaton()

    def reset(self, prompt: Sequence[int]) -> None:
        """Take in `prompt`; linear in its length."""
        super().reset(prompt)
        self._text = SuffixAutomaton()
        self._append(prompt)

    def commit(self, tokens: Sequence[int]) -> None:
        """Add `tokens` to the history."""
        self._append(tokens)
        super().commit(tokens)

    def _append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            # Only now is it known that something follows the ending before this token.
            self._text.mark_match()
            self._text.append(token)

    def rewind(self, length: int) -> None:
        """Forget what came after position `length`, which becomes the history's last; nothing if that is so
        already.

        Takes the rest in anew: the loop comes here only after an exception in the middle of a round.
        """
        if length < self.length:
            self.reset(self._text.tokens[: length + 1])

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """Up to `m` tokens, all of them or none; constant time per token proposed."""
        depth, start = self._text.match()
        if m == 0 or depth < self._min_n:
            return Proposal(())
        tokens = self._text.tokens
        period = len(tokens) - start
        return Proposal(tuple(tokens[start + i % period] for i in range(m)))
