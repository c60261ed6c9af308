"""Which drafters can be trained, and by what: `roundscope train-drafter NAME` calls one of these.

A trainer is called as `train(target, data, out, command, changes, resume=...)`: the target that wrote the data, the
folder of the data, the checkpoint to write, the command line that goes into it, the recipe's fields to change (texts by
name), and whether to go on from the state beside the checkpoint. It returns the held-out figures, plain values, which
are in the checkpoint too.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from runtime.backend import prepare
from runtime.targets import MlxTarget
from telemetry.errors import UsageError

TRAINERS = {
    "ar": "runtime.drafters.learned.training:train_ar",
    "blocks": "runtime.drafters.learned.training:train_blocks",
    "ncm": "runtime.ncm.text.training:train_ncm",
}
"""Names of trainable drafters, and where the trainer is: imported when it is called."""

Trainer = Callable[..., dict[str, Any]]


def find_trainer(name: str) -> Trainer:
    """The trainer of the drafter `name`; UsageError, listing what there is, if it cannot be trained."""
    if name not in TRAINERS:
        raise UsageError(f"there is no drafter {name!r} to train: take one of {', '.join(TRAINERS)}")
    prepare()  # before the trainer's module brings in MLX, or matrix products are several times as slow
    module, _, function = TRAINERS[name].partition(":")
    found: Trainer = getattr(import_module(module), function)
    return found


def train(
    name: str, target: MlxTarget, data: Path, out: Path, command: str, changes: dict[str, str], *, resume: bool = False
) -> dict[str, Any]:
    """Train the drafter `name` as its trainer does; raises what that raises."""
    return find_trainer(name)(target, data, out, command, changes, resume=resume)
