"""The two calls: `decode` (ordinary decoding) and `speculate`.

Whatever cannot be done right is refused here, by the call itself, before a forward runs: the message names
the cause and the cure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, get_args

from runtime.backend import prepare
from runtime.caches import KeptCache, require_undo
from runtime.generation import Generation
from runtime.generation_log import GenerationLog
from runtime.ordinary import Ordinary
from runtime.protocols import Drafter, Prompt, Target, Textual
from runtime.session import Session
from runtime.speculative.stepper import Speculative
from runtime.stopping import make_stopper
from telemetry.errors import Unsupported, UsageError
from telemetry.recorder import Recorder
from telemetry.records import Timing


def decode(
    target: Target,
    prompt: Prompt,
    *,
    max_tokens: int,
    stop: Sequence[int | str] = (),
    eos: Collection[int] | None = None,
    logits_processors: Sequence[Any] = (),
    temperature: float = 0.0,
    cache: KeptCache | None = None,
    pipelined: bool = True,
    recorder: Recorder | None = None,
) -> Generation:
    """Ordinary greedy decoding: the argmax of every step, the lowest id on ties.

    prompt: text, tokenised as it stands, or ids. max_tokens: limit of the output. stop: ids and strings that
    end it; the tokens up to the one that completes a stop are committed. eos: ends of text, the target's own
    if None. cache: what a finished generation left (`Generation.cache`); its longest common prefix with the
    prompt is not computed again. pipelined: launch a step before the last one is read; a cache that cannot be
    trimmed is decoded without. recorder: where records go; in memory if None.

    Raises UsageError (a ValueError) for arguments that make no sense and Unsupported (one too) for what is
    refused.
    """
    session, log = _prepare(
        target, prompt, max_tokens, stop, eos, logits_processors, temperature, cache, recorder, timing="fused"
    )
    return Generation(session, Ordinary(session, pipelined=pipelined), log)


def speculate(
    target: Target,
    drafter: Drafter | str,
    prompt: Prompt,
    *,
    draft_length: int,
    timing: Timing = "fused",
    max_tokens: int,
    stop: Sequence[int | str] = (),
    eos: Collection[int] | None = None,
    logits_processors: Sequence[Any] = (),
    temperature: float = 0.0,
    cache: KeptCache | None = None,
    recorder: Recorder | None = None,
) -> Generation:
    """Speculative greedy decoding: the same committed ids as `decode`, in rounds of up to `draft_length`
    proposed tokens.

    drafter: a Drafter, or the name of a registered one (options as in `prompt-lookup:max_n=4`). timing:
    `fused`, one synchronisation a round, or `attributed`, a barrier after each stage (true stage durations,
    dearer rounds). The rest is as in `decode`.

    Raises UsageError and Unsupported as `decode` does; Unsupported also for a target or drafter whose cache
    cannot be trimmed and for a drafter with another vocabulary.
    """
    if draft_length < 0:
        raise UsageError(f"draft_length is {draft_length}; it must be 0 or more")
    if timing not in get_args(Timing):
        raise UsageError(f"timing is {timing!r}; it must be one of {', '.join(get_args(Timing))}")
    if isinstance(drafter, str):
        from runtime.drafters import make

        drafter = make(drafter, target)
    check = getattr(drafter, "check", None)
    if check is not None:
        check(target)
    session, log = _prepare(
        target, prompt, max_tokens, stop, eos, logits_processors, temperature, cache, recorder, timing=timing
    )
    try:
        require_undo(session.cache.layers, "the target")
        stepper = Speculative(session, drafter, draft_length=draft_length, timing=timing)
    except Exception:
        session.cache.release()
        raise
    return Generation(session, stepper, log)


def _prepare(
    target: Target,
    prompt: Prompt,
    max_tokens: int,
    stop: Sequence[int | str],
    eos: Collection[int] | None,
    logits_processors: Sequence[Any],
    temperature: float,
    cache: KeptCache | None,
    recorder: Recorder | None,
    *,
    timing: Timing,
) -> tuple[Session, GenerationLog]:
    if temperature != 0:
        raise Unsupported(
            f"temperature {temperature} is refused: only greedy decoding (temperature 0) is exact here yet"
        )
    if logits_processors:
        raise Unsupported("logits_processors are refused: the loop does not apply them yet")
    if max_tokens < 1:
        raise UsageError(f"max_tokens is {max_tokens}; it must be 1 or more")
    prepare()
    ids = _tokenise(target, prompt)
    budget = _fit(target, ids, max_tokens)
    stopper = make_stopper(target, stop, eos)
    kept = KeptCache(target) if cache is None else cache
    kept.acquire(target)
    try:
        cached = kept.keep_prefix(ids)
    except Exception:
        kept.release()
        raise
    session = Session(target, kept, ids, max_tokens=budget, stopper=stopper)
    return session, GenerationLog(recorder or Recorder(), timing=timing, cached_tokens=cached)


def _tokenise(target: Target, prompt: Prompt) -> list[int]:
    if isinstance(prompt, str):
        if not isinstance(target, Textual):
            raise Unsupported("this target has no tokenizer; pass the prompt as token ids")
        ids = target.encode(prompt)
    else:
        ids = [int(token) for token in prompt]
    if not ids:
        raise UsageError("the prompt is empty; pass at least one token")
    for position, token in enumerate(ids):
        if not 0 <= token < target.vocab_size:
            raise UsageError(
                f"prompt token {token} at position {position} is not in the target's vocabulary of {target.vocab_size}"
            )
    return ids


def _fit(target: Target, ids: Sequence[int], max_tokens: int) -> int:
    if target.max_positions is None:
        return max_tokens
    room = target.max_positions - len(ids)
    if room < 1:
        raise Unsupported(
            f"the prompt has {len(ids)} tokens, the target positions for {target.max_positions}; shorten the prompt"
        )
    return min(max_tokens, room)
