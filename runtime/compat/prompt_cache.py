"""The list of cache layers that a caller of mlx-lm holds, used in place.

Nobody knows which tokens such a list holds: only how many. Their places in the history are taken by `UNKNOWN`, which is
no token, and nothing may read them: the prompt is appended, so nothing of it is compared with them; processors are
shown what mlx-lm shows them, the history from this prompt on; the drafter has layers of its own for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.caches import KeptCache, require_undo
from runtime.caches.kinds import describe_layer, flatten
from runtime.caches.quantising import Quantising
from runtime.compat.drafting import HandedAssistant
from runtime.device import barrier
from runtime.processing import LogitsProcessor
from runtime.targets import MlxTarget
from telemetry.errors import Unsupported, UsageError
from telemetry.logs import get_logger

UNKNOWN = -1
"""Stands in a history for a token whose id nobody told."""


class PromptCache:
    """A caller's list, or a fresh one if it is None, as the caches of target and drafter.

    kept: the target's. held: one `UNKNOWN` for each token that the list holds already.
    """

    def __init__(
        self, target: MlxTarget, draft_model: Any, layers: list[Any] | None, max_kv_size: int | None = None
    ) -> None:
        self._draft = None if draft_model is None else MlxTarget("draft model", draft_model)
        self._given = layers
        self._target = target
        self.drafter: HandedAssistant | None = None
        fresh = _make_layers(target, draft_model, max_kv_size, layers)
        own, rest = self._split(layers, len(fresh))
        self.held = [UNKNOWN] * _count_held(own, rest)
        self.kept = KeptCache(target)
        self.kept.adopt(fresh if layers is None else own, self.held)
        self._draft_layers = rest
        if self._draft is not None:
            require_undo(self.kept.layers, "the model")

    def _split(self, layers: list[Any] | None, n_own: int) -> tuple[list[Any], list[Any]]:
        if layers is None:
            return [], []
        n_draft = 0 if self._draft is None else len(self._draft.make_cache())
        if len(layers) != n_own + n_draft:
            wanted = f"{n_own} layers of the model" + (f", then {n_draft} of the draft model" if n_draft else "")
            raise UsageError(f"prompt_cache has {len(layers)} layers; give {wanted}, as make_prompt_cache makes them")
        return layers[:n_own], layers[n_own:]

    def make_quantising(self, bits: int | None, group_size: int, start: int) -> Quantising | None:
        """What `bits` asks for, None if nothing; Unsupported for layers that cannot be quantised."""
        if bits is None:
            return None
        quantising = Quantising(bits, group_size, start)
        quantising.check([x for x in flatten(self.kept.layers) if type(x).__name__ != "QuantizedKVCache"])
        return quantising

    def make_drafter(self, draft_length: int, end: int) -> HandedAssistant:
        """The drafter over its part of the list; `end`: length of the history when the budget is spent."""
        assert self._draft is not None
        layers = self._draft_layers or self._draft.make_cache()
        self.drafter = HandedAssistant(self._draft, layers, len(self.held), draft_length=draft_length, end=end)
        self.drafter.check(self._target)
        return self.drafter

    def hide_held(self, processors: Sequence[LogitsProcessor]) -> list[LogitsProcessor]:
        """The processors, shown the history from the prompt on."""
        return [_skip(processor, len(self.held)) for processor in processors]

    def settle(self, history: Sequence[int], feed: Any) -> None:
        """Bring the caller's list to hold `history`, all of it: feed what is missing, give back what is too much.

        feed: the session's forward. What cannot be given back stays, and a warning says so.
        """
        import mlx.core as mx

        if self._given is None:
            return
        kept = self.kept
        excess = kept.length - len(history)
        if excess < 0:
            feed(mx.array(list(history[excess:])))
            kept.hold(history[excess:])
        elif excess and kept.undo.can_trim(excess):
            kept.trim_to(len(history))
        elif excess:
            get_logger().warning("prompt_cache.ahead", tokens=excess, cure="read every response, or drop the cache")
        if self.drafter is not None:
            self.drafter.settle(history)
        self.hand_back()
        barrier([layer.state for layer in flatten(self._given)])

    def hand_back(self) -> None:
        """Put layers that were replaced (by quantised ones) into the caller's list."""
        if self._given is not None:
            self._given[: len(self.kept.layers)] = self.kept.layers


def _skip(processor: LogitsProcessor, n: int) -> LogitsProcessor:
    return lambda tokens, logits: processor(tokens[n:], logits)


def _make_layers(target: MlxTarget, draft_model: Any, max_kv_size: int | None, given: list[Any] | None) -> list[Any]:
    from mlx_lm.models.cache import make_prompt_cache

    if max_kv_size is None:
        return target.make_cache()
    if given is not None:
        raise Unsupported(
            "max_kv_size is refused with a prompt_cache, which has its size already: leave one of them out"
        )
    if draft_model is not None:
        raise Unsupported(
            "max_kv_size is refused with a draft_model: such a cache cannot verify several tokens exactly"
        )
    if hasattr(target.model, "make_cache"):
        raise Unsupported("max_kv_size is refused: this model makes its own cache, which it would not act on")
    return list(make_prompt_cache(target.model, max_kv_size))


def _count_held(own: Sequence[Any], rest: Sequence[Any]) -> int:
    """How many tokens the layers hold; recurrent ones, which cannot tell, count as none. UsageError if they differ."""
    counts = {layer.offset: layer for layer in flatten([*own, *rest]) if hasattr(layer, "offset")}
    if len(counts) > 1:
        described = " and ".join(f"{count} tokens in {describe_layer(layer)}" for count, layer in counts.items())
        raise UsageError(f"the layers of prompt_cache do not agree: {described}; start with a fresh one")
    return next(iter(counts), 0)
