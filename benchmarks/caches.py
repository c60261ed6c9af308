"""What each kind of cache costs: beside mlx-lm's speculative loop where that is right, and a snapshot beside a trim.

Random models big enough that a forward outweighs Python. The assistant is the target with noise on its weights, so that
some of its proposals are right. mlx-lm's loop is right as long as nothing has left a window or a chunk; recurrent
caches it refuses. Every output is held against mlx-lm's ordinary loop: both loops may fall to the other side of a near
tie there, since a forward over several positions adds in another order.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from benchmarks.ratios import Ratio, paired_ratio
from runtime.caches import undo
from runtime.caches.kinds import Plain, needs_snapshot
from runtime.drafters import make
from runtime.generate import speculate
from runtime.targets import MlxTarget
from telemetry.journal import Journal
from telemetry.recorder import Recorder
from tests.architectures import ARCHITECTURES, Architecture

Loop: TypeAlias = Callable[[list[int]], list[int]]

TOKENS = 48
PROMPT_LENGTH = 64
PROMPTS = 12
REPEATS = 3
DRAFT_LENGTH = 4
NOISE = 0.03
LIMIT = 1.03
SNAPSHOT_LIMIT = 1.15
WINDOW = 512
_SLIDING = ["full_attention", "sliding_attention"] * 3

_SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 8192,
    "num_hidden_layers": 6,
}


def _enlarge(name: str, **options: Any) -> Architecture:
    """An architecture of the tests at the size of this benchmark."""
    small = ARCHITECTURES[name]
    return replace(small, options={**small.options, **_SIZES, **options}, scale=1.0)


KINDS: dict[str, tuple[Architecture, dict[str, Any]]] = {
    "plain": (Architecture("llama", _SIZES), {}),
    "quantised to 8 bits": (Architecture("llama", _SIZES), {"kv_bits": 8, "quantized_kv_start": 0}),
    "rotating": (Architecture("llama", {**_SIZES, "layer_types": _SLIDING, "sliding_window": WINDOW}), {}),
    "chunked": (_enlarge("llama4", attention_chunk_size=WINDOW, intermediate_size_mlp=1408), {}),
    "lists": (
        _enlarge(
            "deepseek_v32",
            num_hidden_layers=4,
            num_key_value_heads=8,
            index_topk=WINDOW,
            index_head_dim=64,
            index_n_heads=4,
            moe_intermediate_size=256,
            kv_lora_rank=128,
            q_lora_rank=256,
            qk_rope_head_dim=32,
            qk_nope_head_dim=32,
            v_head_dim=64,
        ),
        {},
    ),
    "shared between layers": (
        _enlarge(
            "gemma4_text",
            sliding_window=WINDOW,
            vocab_size_per_layer_input=8192,
            global_head_dim=64,
            num_kv_shared_layers=2,
        ),
        {},
    ),
}
"""By the layout of the cache: a model that has it, and what both loops are told."""


def run() -> bool:
    """Print a ratio for each kind of cache, then snapshot over trim; True if all keep to their limits."""
    kept = [_compare_kind(name, *KINDS[name]) for name in KINDS]
    return all([*kept, _compare_snapshot(*KINDS["plain"])])


def _compare_kind(name: str, architecture: Architecture, options: dict[str, Any]) -> bool:
    import mlx.core as mx
    from mlx_lm.generate import speculative_generate_step

    target, assistant = architecture.build(0), _disturb(architecture.build(0))

    def theirs(prompt: list[int]) -> list[int]:
        steps = speculative_generate_step(
            mx.array(prompt),
            target.model,
            assistant.model,
            num_draft_tokens=DRAFT_LENGTH,
            max_tokens=TOKENS,
            **options,
        )
        return [int(token) for token, _, _ in steps]

    with _our_loop(target, assistant, options) as ours:
        ratio, n_equal = _measure({"ours": ours, "theirs": theirs, "ordinary": _ordinary(target, options)})
    print(
        f"  {name}: time over mlx-lm's loop {ratio}; limit for the upper end {LIMIT}; equal to ordinary decoding: "
        f"ours {n_equal['ours']}, theirs {n_equal['theirs']} of {PROMPTS}",
        flush=True,
    )
    return ratio.high <= LIMIT and n_equal["ours"] >= n_equal["theirs"]


def _compare_snapshot(architecture: Architecture, options: dict[str, Any]) -> bool:
    target, assistant = architecture.build(0), _disturb(architecture.build(0))
    with _our_loop(target, assistant, options) as trimming:

        def snapshotting(prompt: list[int]) -> list[int]:
            with _forcing_snapshots():
                return trimming(prompt)

        ratio, n_equal = _measure({"ours": snapshotting, "theirs": trimming, "ordinary": _ordinary(target, options)})
    print(
        f"  snapshot: time over a trim {ratio}; limit {SNAPSHOT_LIMIT}; equal to ordinary decoding: "
        f"{n_equal['ours']} and {n_equal['theirs']} of {PROMPTS}",
        flush=True,
    )
    return ratio.value <= SNAPSHOT_LIMIT and n_equal["ours"] == n_equal["theirs"]


def _ordinary(target: MlxTarget, options: dict[str, Any]) -> Loop:
    """mlx-lm's ordinary loop."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    def decode(prompt: list[int]) -> list[int]:
        steps = generate_step(mx.array(prompt), target.model, max_tokens=TOKENS, **options)
        return [int(token) for token, _ in steps]

    return decode


@contextmanager
def _our_loop(target: MlxTarget, assistant: MlxTarget, options: dict[str, Any]) -> Iterator[Loop]:
    drafter = make("assistant", target, model=assistant)
    with tempfile.TemporaryDirectory() as store, Journal(store) as journal:

        def ours(prompt: list[int]) -> list[int]:
            recorder = Recorder(journal)
            generation = speculate(
                target,
                drafter,
                prompt,
                draft_length=DRAFT_LENGTH,
                max_tokens=TOKENS,
                eos=(),
                recorder=recorder,
                **options,
            )
            return generation.drain().tokens

        yield ours


class _Saving(Plain):
    """A plain cache brought back as a recurrent state is, to weigh the two ways on one model."""

    def can_undo_steps(self, layer: Any, n: int) -> bool:
        """Never: that is the point."""
        return False

    def save(self, layer: Any) -> list[Any]:
        """Keys, values and their number."""
        return [layer.keys, layer.values, layer.offset]

    def load(self, layer: Any, saved: Sequence[Any]) -> None:
        """Put them back."""
        layer.keys, layer.values, layer.offset = saved


@contextmanager
def _forcing_snapshots() -> Iterator[None]:
    # Patched here alone: the product takes a snapshot only where nothing else leads back.
    saving = _Saving()
    undo.needs_snapshot = lambda layer, *, stepwise: needs_snapshot(layer, stepwise=stepwise) if stepwise else saving
    try:
        yield
    finally:
        undo.needs_snapshot = needs_snapshot


def _disturb(model: MlxTarget) -> MlxTarget:
    """The model with noise on its weights."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_unflatten

    named: Any = tree_flatten(model.model.parameters())
    keys = mx.random.split(mx.random.key(1), len(named))
    model.model.update(
        tree_unflatten(
            [
                (path, array + NOISE * array.std() * mx.random.normal(array.shape, key=key))
                for (path, array), key in zip(named, keys, strict=True)
            ]
        )
    )
    mx.eval(model.model.parameters())
    return model


def _measure(loops: dict[str, Loop]) -> tuple[Ratio, dict[str, int]]:
    """Time of "ours" over that of "theirs", paired by prompt, and how many outputs of each are those of "ordinary".

    The best of the repeats counts.
    """
    prompts = [[(7 * i * i + 11 * i + seed) % 8000 for i in range(PROMPT_LENGTH)] for seed in range(PROMPTS)]
    ordinary, timed = loops["ordinary"], {name: loops[name] for name in ("ours", "theirs")}
    times: dict[str, list[float]] = {name: [] for name in timed}
    n_equal = dict.fromkeys(timed, 0)
    for loop in timed.values():
        loop(prompts[0])
    for index, prompt in enumerate(prompts):
        best, expected = dict.fromkeys(timed, float("inf")), ordinary(prompt)
        outputs: dict[str, list[int]] = {}
        for repeat in range(REPEATS):
            for name in sorted(timed, reverse=bool((repeat + index) % 2)):
                start = time.perf_counter()
                outputs[name] = timed[name](prompt)
                best[name] = min(best[name], time.perf_counter() - start)
        for name in timed:
            times[name].append(best[name])
            n_equal[name] += outputs[name] == expected
    return paired_ratio(times["ours"], times["theirs"]), n_equal
