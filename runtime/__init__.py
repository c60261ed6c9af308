"""Run a target with or without a drafter, and know round by round what happened.

    from runtime import decode, load_target, speculate

    target = load_target()
    with speculate(target, "prompt-lookup", "Once upon a time", draft_length=4, max_tokens=64) as generation:
        for round in generation:
            print(round.accepted, round.tokens)

Importing this package imports no MLX: what is named here is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.generate import decode, speculate
    from runtime.targets import load_target
    from telemetry.recorder import Recorder

__all__ = ["Recorder", "decode", "load_target", "speculate"]

_HOMES = {
    "Recorder": "telemetry.recorder",
    "decode": "runtime.generate",
    "load_target": "runtime.targets",
    "speculate": "runtime.generate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
