"""Rounds as mlx-lm's responses: one for each token, with the text that it completes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from runtime.compat.drafting import HandedAssistant
from runtime.compat.prompt_cache import PromptCache
from runtime.device import peak_memory
from runtime.generation import Generation
from runtime.processing import Rows
from runtime.rounds import Round
from runtime.session import Session
from runtime.targets import MlxTarget


def respond(
    generation: Generation,
    session: Session,
    target: MlxTarget,
    cache: PromptCache,
    stream: Any,
    prompt_tokens: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Any]:
    """Run `generation` and yield a response for every token; at the end, however it comes, settle `cache`.

    prompt_tokens: of this call's prompt. progress: told how many of them are processed, and how many there are.
    """
    from mlx_lm.generate import wired_limit

    if progress is not None:
        _report_progress(session, progress, prompt_tokens)
    session.rows = deque()
    counted = _Counted(target.tokenizer, session.rows, prompt_tokens, cache.drafter)
    try:
        with wired_limit(target.model, None if stream is None else [stream]):
            while (closed := _take_round(generation, stream)) is not None:
                if progress is not None and closed.index == 0:
                    progress(prompt_tokens, prompt_tokens)
                yield from counted.split(closed, generation.finish_reason)
    finally:
        generation.close()
        if generation.error is None and generation.finish_reason is not None:
            with _on(stream):
                cache.settle(session.history[: session.prompt_length + counted.delivered], session.forward)
        cache.hand_back()


def _report_progress(session: Session, progress: Callable[[int, int], None], total: int) -> None:
    done = 0

    def add(n: int) -> None:
        nonlocal done
        done += n
        progress(done, total)

    session.on_prefill = add
    progress(0, total)


def _take_round(generation: Generation, stream: Any) -> Round | None:
    with _on(stream):
        return next(generation, None)


def _on(stream: Any) -> contextlib.AbstractContextManager[Any]:
    import mlx.core as mx

    return contextlib.nullcontext() if stream is None else mx.stream(stream)


class _Counted:
    """Splits rounds into responses; `delivered` of their tokens were handed out so far."""

    def __init__(self, tokenizer: Any, rows: Rows, prompt_tokens: int, drafter: HandedAssistant | None) -> None:
        self._tokenizer = tokenizer
        self._rows = rows
        self._detokenizer = tokenizer.detokenizer
        self._prompt_tokens = prompt_tokens
        self._drafter = drafter
        self._prompt_tps = 0.0
        self._since = time.perf_counter()
        self.delivered = 0

    def split(self, closed: Round, finish_reason: str | None) -> Iterator[Any]:
        """A response for each token of a round; finish_reason: how the generation ended in it, if it did."""
        from mlx_lm.generate import GenerationResponse

        if not self._prompt_tps:
            began = time.perf_counter() - closed.t_round_ns / 1e9  # the first round begins where the prefill ends
            self._prompt_tps = self._prompt_tokens / max(began - self._since, 1e-9)
            self._since = began
        ended = finish_reason in ("stop", "length")
        for index, token in enumerate(closed.tokens):
            last = ended and index == len(closed.tokens) - 1
            ends_text = token in self._tokenizer.eos_token_ids
            if not ends_text:
                self._detokenizer.add_token(token)
            if last:
                self._detokenizer.finalize()
            from_draft = index < closed.accepted
            if last and not from_draft and self._drafter is not None:
                from_draft = self._drafter.said_last(token)
            self.delivered += 1
            yield GenerationResponse(
                text=self._detokenizer.last_segment,
                token=token,
                logprobs=self._take_logprobs(),
                from_draft=from_draft,
                prompt_tokens=self._prompt_tokens,
                prompt_tps=self._prompt_tps,
                generation_tokens=self.delivered,
                generation_tps=self.delivered / max(time.perf_counter() - self._since, 1e-9),
                peak_memory=peak_memory() / 1e9,
                finish_reason=("stop" if ends_text else "length") if last else None,
            )

    def _take_logprobs(self) -> Any:
        """Log probabilities (vocab,) that the next token in order was chosen from, lazily."""
        import mlx.core as mx

        row = self._rows.popleft()
        return (row - mx.logsumexp(row, keepdims=True)).squeeze(0)
