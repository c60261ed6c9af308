"""The repetition penalty: the one logits processor that is an option, so that it is recorded and part of p everywhere.

It is mlx-lm's (Keskar et al., arXiv:1909.05858): the logit of each token among the last `context` ones of the history
is divided by the penalty where it is positive, and multiplied where it is negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from telemetry.errors import UsageError

if TYPE_CHECKING:
    from runtime.processing import LogitsProcessor

DEFAULT_CONTEXT = 20
"""mlx-lm's."""


@dataclass(frozen=True, slots=True)
class Penalty:
    """penalty: above 1 discourages what was said, below 1 encourages it. context: tokens back that count, 1 or more.

    UsageError for what is no penalty.
    """

    penalty: float
    context: int = DEFAULT_CONTEXT

    def __post_init__(self) -> None:
        if not (self.penalty > 0 and math.isfinite(self.penalty)):
            raise UsageError(f"repetition_penalty is {self.penalty}; it must be a number above 0, and 1 is none")
        if not isinstance(self.context, int) or self.context < 1:
            raise UsageError(f"repetition_context is {self.context}; it must be a whole number, 1 or more")

    def make_processor(self) -> LogitsProcessor:
        """The penalty as logits processors are called."""
        from mlx_lm.sample_utils import make_repetition_penalty

        processor: LogitsProcessor = make_repetition_penalty(self.penalty, self.context)
        return processor


def make_penalty(penalty: float = 1.0, context: int = DEFAULT_CONTEXT) -> Penalty | None:
    """The options as a `Penalty`; None for a penalty of 1.

    Raises UsageError for what `Penalty` refuses, and for a context that would be ignored.
    """
    wanted = Penalty(penalty, context)
    if penalty != 1:
        return wanted
    if context != DEFAULT_CONTEXT:
        raise UsageError(
            "repetition_context would have no effect: there is no repetition_penalty; give one, or leave it out"
        )
    return None
