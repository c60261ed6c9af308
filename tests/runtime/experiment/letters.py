"""A target of letters, prompts for it, and requests: what tests of a run need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.experiment.plan import Request
from runtime.testing import ScriptedTarget
from runtime.workloads import WorkItem, Workload

VOCABULARY = 26


class LetterTarget(ScriptedTarget):
    """A scripted target with what `make_plan` and `roundscope run` ask of a loaded model."""

    dtype = "float32"
    parameter_bytes = 0
    has_chat_template = False


def say_cycle(history: Sequence[int]) -> int:
    """The letter after the last one; after c comes a again, so that outputs repeat themselves."""
    return (history[-1] + 1) % 3


def make_target(**options: Any) -> Any:
    """A target that says abcabc..."""
    return LetterTarget(say_cycle, vocab_size=VOCABULARY, **options)


def make_workload(n: int = 3, classes: Sequence[str] = ("x",)) -> Workload:
    """`n` different prompts of some twelve letters, their classes in turn."""
    items = tuple(
        WorkItem(f"p{i}", classes[i % len(classes)], chr(ord("d") + i % 20) * (i // 20 + 1) + "abcabcabcab")
        for i in range(n)
    )
    return Workload("letters", items)


def make_request(**changes: Any) -> Request:
    """A request for prompt lookup at m = 4, with changes."""
    defaults: dict[str, Any] = {
        "drafters": ("prompt-lookup",),
        "draft_lengths": (4,),
        "draft_model": None,
        "max_tokens": 9,
        "repeats": 1,
        "timing": "fused",
        "seed": 0,
        "record_text": False,
    }
    return Request(**defaults | changes)
