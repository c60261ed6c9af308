"""A suffix automaton: every ending of a growing text that has been seen before, at constant amortised cost a token.

After Blumer, Blumer, Haussler, Ehrenfeucht, Chen and Seiferas, "The smallest automaton recognizing the subwords of
a text" (1985): states stand for substrings with the same continuations, and the suffix link of the whole text's
state is its longest ending that also occurs earlier.
"""

from __future__ import annotations


class SuffixAutomaton:
    """All substrings of a growing text; state 0 is the empty one."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        self._last = 0

    def append(self, token: int) -> None:
        """Add a token at the end of the text."""
        self.tokens.append(token)
        state = self._add_state({}, self._length[self._last] + 1, len(self.tokens))
        origin = self._last
        while origin >= 0 and token not in self._next[origin]:
            self._next[origin][token] = state
            origin = self._link[origin]
        self._link[state] = 0 if origin < 0 else self._find_link(origin, token)
        self._last = state

    def _find_link(self, origin: int, token: int) -> int:
        target = self._next[origin][token]
        if self._length[target] == self._length[origin] + 1:
            return target
        clone = self._add_state(dict(self._next[target]), self._length[origin] + 1, self._end[target])
        self._link[clone] = self._link[target]
        self._link[target] = clone
        while origin >= 0 and self._next[origin].get(token) == target:
            self._next[origin][token] = clone
            origin = self._link[origin]
        return clone

    def _add_state(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1

    def match(self) -> tuple[int, int]:
        """Length of the text's longest ending that also occurs earlier, and where such an occurrence ends (exclusive).

        Of several, the one where it was marked last; before its first mark, one of those known to it by then.
        """
        state = max(self._link[self._last], 0)
        return self._length[state], self._end[state]

    def mark_match(self) -> None:
        """From now on the ending that `match` gives is found here, at the end of the text."""
        state = self._link[self._last]
        if state > 0:
            self._end[state] = len(self.tokens)
