"""How fast the target is here, roughly: for the time estimate that is printed before a run."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.experiment.plan import PlannedPrompt
from runtime.generate import decode
from runtime.protocols import Target
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd

STEPS = 8


@dataclass(frozen=True)
class Pace:
    """Seconds per prompt token in prefill and per step of ordinary decoding."""

    seconds_per_prompt_token: float
    seconds_per_step: float


def measure_pace(target: Target, prompt: PlannedPrompt) -> Pace:
    """Decode a few tokens twice and take the second time, when kernels and caches are warm. Nothing is recorded."""
    for _ in range(2):
        recorder = Recorder()
        decode(target, prompt.ids, max_tokens=STEPS, eos=(), recorder=recorder).drain()
    end = recorder.records[-1]
    assert isinstance(end, GenerationEnd)
    return Pace(end.prefill_ns / 1e9 / len(prompt.ids), end.decode_ns / 1e9 / end.n_committed)
