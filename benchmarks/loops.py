"""Our loops against mlx-lm's: same model, dtype and BLAS, recording to disk on, whole calls (prefill and decoding)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence

from benchmarks.models import load_float32, shorten, take_prompts
from benchmarks.ratios import paired_ratio
from runtime.drafters import make
from runtime.generate import decode, speculate
from runtime.targets import MlxTarget
from telemetry.journal import Journal
from telemetry.recorder import Recorder

TOKENS = 40
SHORT_TOKENS = 16
REPEATS = 2
LIMIT = 1.03
DRAFT_LENGTH = 4
ASSISTANT_LAYERS = 25


def run_ordinary() -> bool:
    """Ordinary decoding over mlx-lm's `generate_step`: ratio of times; True if its upper bound keeps to the limit."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    target = load_float32()
    with tempfile.TemporaryDirectory() as store, Journal(store) as journal:

        def ours(prompt: list[int]) -> list[int]:
            return decode(target, prompt, max_tokens=TOKENS, eos=(), recorder=Recorder(journal)).drain().tokens

        def theirs(prompt: list[int]) -> list[int]:
            return [int(token) for token, _ in generate_step(mx.array(prompt), target.model, max_tokens=TOKENS)]

        return _compare("generate_step", ours, theirs, _prompts(target))


def run_speculative() -> bool:
    """Speculation with an assistant over mlx-lm's `speculative_generate_step`, the same two models."""
    import mlx.core as mx
    from mlx_lm.generate import speculative_generate_step

    target = load_float32()
    assistant = shorten(target, ASSISTANT_LAYERS)
    drafter = make("assistant", target, model=assistant)
    with tempfile.TemporaryDirectory() as store, Journal(store) as journal:

        def ours(prompt: list[int]) -> list[int]:
            return (
                speculate(
                    target,
                    drafter,
                    prompt,
                    draft_length=DRAFT_LENGTH,
                    max_tokens=SHORT_TOKENS,
                    eos=(),
                    recorder=Recorder(journal),
                )
                .drain()
                .tokens
            )

        def theirs(prompt: list[int]) -> list[int]:
            steps = speculative_generate_step(
                mx.array(prompt), target.model, assistant.model, num_draft_tokens=DRAFT_LENGTH, max_tokens=SHORT_TOKENS
            )
            return [int(token) for token, _, _ in steps]

        return _compare("speculative_generate_step", ours, theirs, _prompts(target))


def _prompts(target: MlxTarget) -> list[list[int]]:
    return [prompt for class_ in ("answer", "free-writing") for prompt in take_prompts(target, class_, 4)]


def _compare(
    name: str,
    ours: Callable[[list[int]], list[int]],
    theirs: Callable[[list[int]], list[int]],
    prompts: Sequence[list[int]],
) -> bool:
    # Repeats are summed per prompt: they are no independent evidence.
    times = {"ours": [0.0] * len(prompts), "theirs": [0.0] * len(prompts)}
    n_equal = 0
    for call in (ours, theirs):
        call(prompts[0])
    for repeat in range(REPEATS):
        for index, prompt in enumerate(prompts):
            order = (("ours", ours), ("theirs", theirs))
            outputs = []
            for label, call in order if (repeat + index) % 2 else order[::-1]:
                start = time.perf_counter()
                outputs.append(call(prompt))
                times[label][index] += time.perf_counter() - start
            n_equal += outputs[0] == outputs[1]
    ratio = paired_ratio(times["ours"], times["theirs"])
    print(f"  time of ours over mlx-lm's {name}: {ratio}; limit for the upper end {LIMIT}")
    print(f"  equal outputs: {n_equal} of {REPEATS * len(prompts)}")
    return ratio.high <= LIMIT and n_equal == REPEATS * len(prompts)
