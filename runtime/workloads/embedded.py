"""The prompts that come with the package: eight classes of six, in embedded.jsonl.

All of them were written for this project. They are things that people ask for every day, in wordings
(mostly chosen among several) to which SmolLM2-135M answers on the subject, if not always truly.

The copy-edit passages and their wording were chosen among others because the model copies them almost word
for word; it does not make the edit. Figures of that class are near the best that drafting from the prompt can
do.

`quick` keeps three classes: one whose output stands in the prompt for the most part, one in part, and one
hardly at all, so that a short run shows where drafting from the prompt pays and where it cannot.
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
