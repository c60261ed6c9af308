"""Whether a training prompt shares text with the prompts that drafters are measured on.

Texts are compared as words in lower case, in runs of N_WORDS. A run that stands in two or more of the measured prompts
is wording of a task ("... this text and show the full text"), not content, and does not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

N_WORDS = 8
Run: TypeAlias = tuple[str, ...]
_WORD = re.compile(r"\w+")


class Overlap:
    """Finds what a text has in common with `measured`, the contents of the prompts that must stay unseen."""

    def __init__(self, measured: Iterable[str], n_words: int = N_WORDS) -> None:
        self._n_words = n_words
        counts: Counter[Run] = Counter()
        for text in measured:
            counts.update(set(list_runs(text, n_words)))
        self._content = {run for run, count in counts.items() if count == 1}

    def find(self, text: str) -> str | None:
        """The first run of words that `text` shares with one of the measured prompts, or None."""
        for run in list_runs(text, self._n_words):
            if run in self._content:
                return " ".join(run)
        return None


def list_runs(text: str, n_words: int) -> list[Run]:
    """Every run of `n_words` words of `text`; a shorter text is one run."""
    words = tuple(_WORD.findall(text.lower()))
    return [words[start : start + n_words] for start in range(max(1, len(words) - n_words + 1))]
