"""mlx-lm's `stream_generate` and `generate`, run by our loop and recorded.

    from runtime.compat.mlx_lm import load, generate, stream_generate    # instead of: from mlx_lm import ...

Arguments, defaults and responses are those of the installed mlx-lm. Every option either acts or is refused by the call
itself; what differs, because mlx-lm is wrong or silent there:

- `sampler` is what mlx-lm's `make_sampler` makes of temp, top_p, min_p and top_k; XTC, min_tokens_to_keep and samplers
  of your own are refused. The tokens have mlx-lm's distribution and are others: each position has randomness of its
  own, from a seed that MLX's state gives. With a draft model p/q with the residual accepts more than mlx-lm's equality;
- input embeddings are refused;
- `max_kv_size` is refused where the model makes its own cache (mlx-lm ignores it) and together with a draft model;
- a target or drafter is refused before the first token if rejected tokens could not be taken back out of its cache;
- output ends where the model's positions end;
- `prefill_step_size` is 2048 with a draft model too, where mlx-lm takes 512;
- with a draft model, `prompt_cache` holds the target's layers, as many as `make_prompt_cache(model)` makes, then the
  drafter's, and after the last response both hold the prompt and every delivered token, the last one included.

Records go to `recorder`, or to the store that the environment variable ROUNDSCOPE_STORE names, or stay in memory. Where
`prompt_cache` held tokens, whose ids nobody told, records count them as cached and have -1 for their ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from runtime.backend import prepare
from runtime.compat.prompt_cache import PromptCache
from runtime.compat.responses import respond
from runtime.compat.samplers import read_sampler
from runtime.device import read
from runtime.generate import fit_budget
from runtime.generation import Generation
from runtime.generation_log import GenerationLog
from runtime.ordinary import Ordinary
from runtime.processing import LogitsProcessor
from runtime.session import Session
from runtime.speculative.stepper import Speculative
from runtime.stopping import Stopper
from runtime.targets import MlxTarget
from telemetry.context import find_caller
from telemetry.errors import Unsupported, UsageError
from telemetry.journal import Journal
from telemetry.recorder import Recorder

STORE_VARIABLE = "ROUNDSCOPE_STORE"
NO_LIMIT = 2**31 - 1
"""Stands for mlx-lm's max_tokens=-1."""


def load(*arguments: Any, **options: Any) -> Any:
    """`mlx_lm.load`, with the BLAS that makes verification cheap put in front of MLX's first."""
    prepare()
    import mlx_lm

    return mlx_lm.load(*arguments, **options)


def stream_generate(
    model: Any,
    tokenizer: Any,
    prompt: Any,
    max_tokens: int = 256,
    draft_model: Any = None,
    stream: Any = None,
    *,
    num_draft_tokens: int = 2,
    sampler: Any = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    max_kv_size: int | None = None,
    prompt_cache: list[Any] | None = None,
    prefill_step_size: int = 2048,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = 5000,
    prompt_progress_callback: Callable[[int, int], None] | None = None,
    input_embeddings: Any = None,
    recorder: Recorder | None = None,
) -> Iterator[Any]:
    """Responses (`mlx_lm.generate.GenerationResponse`) for one token each, as `mlx_lm.stream_generate` gives them.

    prompt: text, token ids or an array of them; appended to what `prompt_cache` holds. max_tokens: -1 for no limit.
    stream: the MLX stream to run on, this thread's default one if None. num_draft_tokens: the draft length.
    kv_bits: quantises the target's K/V. recorder: where records go; see the module.

    Raises UsageError (a ValueError) for arguments that make no sense and Unsupported (one too) for what is refused.
    """
    prepare()
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    _check_limits(max_tokens, prefill_step_size, num_draft_tokens)
    sampling = read_sampler(sampler)
    if input_embeddings is not None:
        raise Unsupported("input_embeddings is refused: prompts are token ids here; call mlx_lm.stream_generate")
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    target = MlxTarget(_name(model, tokenizer), model, tokenizer)
    ids = _tokenise(target, prompt)
    cache = PromptCache(target, draft_model, prompt_cache, max_kv_size)
    history = cache.held + ids
    limit = NO_LIMIT if max_tokens == -1 else max_tokens
    session = Session(
        target,
        cache.kept,
        history,
        max_tokens=fit_budget(target, history, limit),
        stopper=Stopper(tokenizer.eos_token_ids),
        processors=cache.hide_held(logits_processors or ()),
        quantising=cache.make_quantising(kv_bits, kv_group_size, quantized_kv_start),
        sampling=sampling,
    )
    session.prefill_chunk = prefill_step_size
    stepper: Ordinary | Speculative = Ordinary(session, pipelined=True)
    if draft_model is not None:
        drafter = cache.make_drafter(num_draft_tokens, len(history) + session.max_tokens)
        stepper = Speculative(session, drafter, draft_length=num_draft_tokens, timing="fused")
    cache.kept.acquire(target)
    recorder = recorder or _find_recorder()
    log = GenerationLog(recorder, timing="fused", cached_tokens=len(cache.held), caller=find_caller())
    generation = Generation(session, stepper, log)
    return respond(generation, session, target, cache, stream, len(ids), prompt_progress_callback)


def generate(model: Any, tokenizer: Any, prompt: Any, verbose: bool = False, **options: Any) -> str:
    """The whole text, as `mlx_lm.generate` gives it; `verbose` prints it and the rates.

    options: those of `stream_generate`.
    """
    rule = "=" * 10
    if verbose:
        print(rule)
    text, response = "", None
    for response in stream_generate(model, tokenizer, prompt, **options):
        if verbose:
            print(response.text, end="", flush=True)
        text += response.text
    if verbose:
        print(f"\n{rule}")
        if not text or response is None:
            print("No text generated for this prompt")
        else:
            print(f"Prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec")
            print(f"Generation: {response.generation_tokens} tokens, {response.generation_tps:.3f} tokens-per-sec")
            print(f"Peak memory: {response.peak_memory:.3f} GB")
    return text


def _check_limits(max_tokens: int, prefill_step_size: int, num_draft_tokens: int) -> None:
    if max_tokens < 1 and max_tokens != -1:
        raise UsageError(f"max_tokens is {max_tokens}; it must be 1 or more, or -1 for no limit")
    if prefill_step_size < 1:
        raise UsageError(f"prefill_step_size is {prefill_step_size}; it must be 1 or more")
    if num_draft_tokens < 0:
        raise UsageError(f"num_draft_tokens is {num_draft_tokens}; it must be 0 or more")


def _name(model: Any, tokenizer: Any) -> str:
    path = str(getattr(tokenizer, "name_or_path", "") or "")
    return Path(path).name or str(getattr(model, "model_type", "") or type(model).__name__)


def _tokenise(target: MlxTarget, prompt: Any) -> list[int]:
    """Ids of a prompt; text gets special tokens unless it begins with one, as in mlx-lm."""
    if isinstance(prompt, str):
        tokenizer, bos = target.tokenizer, target.tokenizer.bos_token
        prompt = tokenizer.encode(prompt, add_special_tokens=bos is None or not prompt.startswith(bos))
    elif hasattr(prompt, "tolist"):
        [prompt] = read(prompt)
    ids = [int(token) for token in prompt]
    if not ids:
        raise UsageError("the prompt is empty; pass at least one token")
    bad = [token for token in ids if not 0 <= token < target.vocab_size]
    if bad:
        raise UsageError(f"prompt token {bad[0]} is not in the model's vocabulary of {target.vocab_size}")
    return ids


def _find_recorder() -> Recorder:
    store = os.environ.get(STORE_VARIABLE)
    return Recorder(_open_journal(store)) if store else Recorder()


@lru_cache(maxsize=8)
def _open_journal(store: str) -> Journal:
    return Journal(store)
