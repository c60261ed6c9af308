"""Batched decoding: a target answers many prompts at once, which on a CPU is several times as fast as one by one.

Prompts are padded on the left to the same length; mlx-lm's batch cache masks the padding and gives each row its own
positions. Rows that ended leave the batch. The arithmetic differs from that of one row, so a greedy answer equals
ordinary decoding's but for near ties.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from runtime.device import barrier, read, release_memory
from runtime.targets import MlxTarget
from telemetry.errors import Unsupported

if TYPE_CHECKING:
    import mlx.core as mx

    from runtime.distillation.labels import LabelWriter

PREFILL_CHUNK = 64
LEAST_GONE = 8
"""One part in so many of a batch has to have ended before the others are copied together."""


class BatchDecoder:
    """Decodes batches with `target`. Raises Unsupported if its cache is not made of plain K/V layers."""

    def __init__(self, target: MlxTarget) -> None:
        from mlx_lm.models.cache import KVCache

        self._model = target.model
        self._eos = frozenset(target.eos)
        layers = target.make_cache()
        strange = sorted({type(layer).__name__ for layer in layers if type(layer) is not KVCache})
        if strange:
            raise Unsupported(
                f"{target.name} cannot write in batches: its cache has layers of {', '.join(strange)}, and only plain "
                "K/V caches can be padded. Take another target"
            )
        self._n_layers = len(layers)

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        temperatures: Sequence[Sequence[float]],
        max_tokens: int,
        key: mx.array,
        labels: LabelWriter | None = None,
    ) -> list[list[list[int]]]:
        """For each prompt an answer for each of its temperatures (0: greedy), of at most `max_tokens` tokens, the
        token that ended it included. `key`: of mlx's generator, for everything that is drawn in this batch. labels:
        takes down what was likely at each token, by the numbers of prompt and answer.

        A prompt is taken in once, however many answers it gets.
        """
        import mlx.core as mx

        logits, cache = self._prefill(prompts)
        rows = [(i, j, t) for i, each in enumerate(temperatures) for j, t in enumerate(each)]
        # Those that are drawn come last, so that random numbers are made for them alone.
        rows.sort(key=lambda row: row[2] > 0)
        answers: list[list[list[int]]] = [[[] for _ in each] for each in temperatures]
        logits = logits[mx.array([i for i, _, _ in rows])]
        _keep(cache, [i for i, _, _ in rows])
        alive = list(range(len(rows)))
        for step in range(max_tokens):
            tokens = _choose(logits, [rows[row][2] for row in alive], mx.random.split(key, max_tokens)[step])
            chosen = read(tokens)[0]
            going, written = [], []
            for place, row in enumerate(alive):
                i, j, _ = rows[row]
                if answers[i][j] and answers[i][j][-1] in self._eos:
                    continue
                answers[i][j].append(chosen[place])
                written.append((place, (i, j)))
                if chosen[place] not in self._eos:
                    going.append(place)
            if labels is not None:
                labels.note(logits, written)
            if not going or step + 1 == max_tokens:
                break
            if len(going) <= len(alive) - max(1, len(alive) // LEAST_GONE):
                tokens, alive = tokens[mx.array(going)], [alive[place] for place in going]
                _keep(cache, going)
            logits = self._model(tokens[:, None], cache=cache)[:, -1]
        release_memory()
        return answers

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[mx.array, list[Any]]:
        """The logits (B, vocab) after each prompt, and the cache that holds them, padded on the left."""
        import mlx.core as mx
        from mlx_lm.models.cache import BatchKVCache

        longest = max(len(prompt) for prompt in prompts)
        padding = [longest - len(prompt) for prompt in prompts]
        cache: list[Any] = [BatchKVCache(padding) for _ in range(self._n_layers)]
        ids = mx.array([[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)], mx.int32)
        for start in range(0, longest - 1, PREFILL_CHUNK):
            self._model(ids[:, start : min(start + PREFILL_CHUNK, longest - 1)], cache=cache)
            barrier([layer.state[:2] for layer in cache])
        return self._model(ids[:, longest - 1 :], cache=cache)[:, -1], cache


def _keep(cache: Sequence[Any], rows: Collection[int]) -> None:
    """Leave these rows in every layer, in this order; a row may be named twice."""
    import mlx.core as mx

    index = mx.array(list(rows))
    for layer in cache:
        layer.filter(index)
    barrier([layer.state[:2] for layer in cache])


def _choose(logits: mx.array, temperatures: Sequence[float], key: mx.array) -> mx.array:
    """The next token (B,) of each row: the likeliest at temperature 0, else drawn."""
    import mlx.core as mx

    n_greedy = sum(temperature == 0 for temperature in temperatures)
    chosen = [mx.argmax(logits[:n_greedy], axis=-1)] if n_greedy else []
    if n_greedy < len(temperatures):
        scale = mx.array(list(temperatures[n_greedy:]))[:, None]
        chosen.append(mx.random.categorical(logits[n_greedy:].astype(mx.float32) / scale, key=key))
    return mx.concatenate(chosen)
