"""When output ends: end-of-text ids, stop ids, and strings that may be completed by any token.

The tokens up to the one that completes a stop are committed; the text is cut before a stop string.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from runtime.protocols import Target, can_decode
from telemetry.errors import Unsupported, UsageError
from telemetry.fields import StopKind


@dataclass(frozen=True, slots=True)
class Stop:
    """What ended the output: the id or the string, and which kind of stop that is."""

    value: int | str
    kind: StopKind


class Stopper:
    """Watches the tokens that become output for the first stop.

    A string of L characters is spread over at most 4 L tokens (every token brings at least one byte of
    UTF-8), so a window of that many holds any match, and each token costs the same however long the output
    is.
    """

    def __init__(
        self,
        eos: Collection[int],
        ids: Collection[int] = (),
        strings: Sequence[str] = (),
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        self._by_id = {token: Stop(token, "stop_id") for token in ids} | {token: Stop(token, "eos") for token in eos}
        self._strings = tuple(strings)
        self._decode = decode
        # Four more tokens, because the window may begin inside a character or lose the space before its first
        # word.
        self._window: deque[int] = deque(maxlen=4 * max(map(len, strings), default=0) + 4)

    def find(self, tokens: Sequence[int]) -> tuple[int, Stop] | None:
        """The index in `tokens`, the next ones in line for the output, of the first that stops it; None: all
        may pass.

        Strings are followed across calls, so every token must be shown exactly once, in order.
        """
        if not self._strings:
            if self._by_id.keys().isdisjoint(tokens):
                return None
            return next((i, self._by_id[token]) for i, token in enumerate(tokens) if token in self._by_id)
        for i, token in enumerate(tokens):
            stop = self._by_id.get(token) or self._complete_string(token)
            if stop is not None:
                return i, stop
        return None

    def _complete_string(self, token: int) -> Stop | None:
        assert self._decode is not None
        self._window.append(token)
        text = self._decode(list(self._window))
        found = [(text.find(string), string) for string in self._strings if string in text]
        return Stop(min(found)[1], "stop_string") if found else None

    def text_before(self, text: str, stop: Stop | None) -> str:
        """`text` up to where its stop string begins."""
        if stop is None or stop.kind != "stop_string":
            return text
        return text.partition(str(stop.value))[0]


def make_stopper(target: Target, stop: Sequence[int | str], eos: Collection[int] | None) -> Stopper:
    """A stopper for `target`; `eos` None: the target's own. Raises UsageError or Unsupported for what cannot work."""
    if isinstance(stop, str):
        raise UsageError(f"stop is the string {stop!r}; pass a list: stop=[{stop!r}]")
    ids = [item for item in stop if not isinstance(item, str)]
    strings = [item for item in stop if isinstance(item, str)]
    ends = target.eos if eos is None else eos
    for token in (*ids, *(eos or ())):
        if not 0 <= token < target.vocab_size:
            raise UsageError(f"stop id {token} is not in the target's vocabulary of {target.vocab_size}")
    if "" in strings:
        raise UsageError("an empty stop string would stop at once; leave it out")
    if strings and not can_decode(target):
        raise Unsupported("stop strings need a target that can decode its tokens; use stop ids instead")
    return Stopper(ends, ids, strings, target.decode if can_decode(target) else None)
