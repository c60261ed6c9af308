"""The prompts that come with the package: eight classes of six, in embedded.jsonl.

All of them were written for this project. They are things that people ask for every day, in words and lengths (40 to
220 tokens) that a model of 135 million parameters can follow; what it says is on the subject, not always true.
`quick` keeps three classes: one whose output is found in the prompt for the most part, one whose output is in part,
one whose output is not, so that a short run shows where drafting from the prompt pays and where it cannot.
"""

from __future__ import annotations

from importlib.resources import files

from runtime.workloads.items import Workload
from runtime.workloads.prompt_file import parse_jsonl

QUICK_CLASSES = ("copy-edit", "answer", "free-writing")


def load_embedded(quick: bool = False) -> Workload:
    """All 48 embedded prompts, or the 18 of the `quick` selection."""
    name = "embedded.jsonl"
    items = parse_jsonl(files(__package__).joinpath(name).read_bytes(), name)
    if quick:
        return Workload("embedded-quick", tuple(item for item in items if item.class_ in QUICK_CLASSES))
    return Workload("embedded", items)
