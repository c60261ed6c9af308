"""Workloads: the prompts that a run measures, each with an id and the class its verdict is given for.

`load_embedded` has the prompts that come with the package, `load_prompts` reads a user's own file, and
`encode` turns one prompt into the target's token ids.
"""

from __future__ import annotations

from runtime.workloads.embedded import load_embedded
from runtime.workloads.items import Message, WorkItem, Workload, encode
from runtime.workloads.prompt_file import load_prompts

__all__ = ["Message", "WorkItem", "Workload", "encode", "load_embedded", "load_prompts"]
