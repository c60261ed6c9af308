"""The two calls: `decode` (ordinary decoding) and `speculate`.

Whatever cannot be done right is refused here, by the call itself, before a forward runs: the message names
the cause and the cure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypedDict, Unpack, get_args

from runtime.backend import prepare
from runtime.caches import KeptCache, require_undo
from runtime.caches.quantising import Quantising, refuse_quantised
from runtime.generation import Generation, Stepper
from runtime.generation_log import GenerationLog
from runtime.ordinary import Ordinary
from runtime.penalty import DEFAULT_CONTEXT, make_penalty
from runtime.processing import LogitsProcessor
from runtime.protocols import Drafter, Prompt, Target, Textual
from runtime.sampling import make_sampling
from runtime.session import Session
from runtime.speculative.adaptive import Adaptive
from runtime.speculative.controller import Controller
from runtime.speculative.relaxed import EXACT, Relaxed, parse_policy
from runtime.speculative.stepper import Speculative
from runtime.stopping import make_stopper
from telemetry.context import find_caller
from telemetry.errors import Unsupported, UsageError
from telemetry.fields import Coupling, Timing
from telemetry.recorder import Recorder


class Options(TypedDict, total=False):
    """What `decode` and `speculate` take alike.

    stop: ids and strings that end the output; the tokens up to the one that completes a stop are committed. eos:
    ends of text, the target's own if None. logits_processors: called as mlx-lm does, `processor(tokens (n,), logits
    (1, vocab))`. repetition_penalty, repetition_context: as in `runtime.penalty.Penalty`, before all other processors;
    1 is none. temperature, top_k, top_p, min_p, seed: as in `runtime.sampling.Sampling`; temperature 0 is greedy, and
    without a seed a fresh one is taken, which the record tells. cache: what a finished generation left
    (`Generation.cache`); its longest common prefix with the prompt is not computed again. kv_bits, kv_group_size,
    quantized_kv_start: quantise K/V as mlx-lm does, from that many positions on. recorder: where records go; in memory
    if None. traceparent: the caller's W3C trace context; the active OpenTelemetry span or TRACEPARENT if None.
    """

    stop: Sequence[int | str]
    eos: Collection[int] | None
    logits_processors: Sequence[LogitsProcessor]
    repetition_penalty: float
    repetition_context: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    cache: KeptCache | None
    kv_bits: int | None
    kv_group_size: int
    quantized_kv_start: int
    recorder: Recorder | None
    traceparent: str | None


def decode(
    target: Target, prompt: Prompt, *, max_tokens: int, pipelined: bool = True, **options: Unpack[Options]
) -> Generation:
    """Ordinary decoding: of every step the argmax, the lowest id on ties, or at a temperature a draw.

    prompt: text, tokenised as it stands, or ids. max_tokens: limit of the output. pipelined: launch a step before
    the last one is read. options: see `Options`.

    Raises UsageError (a ValueError) for arguments that make no sense and Unsupported (one too) for what is refused.
    """
    session, log = _prepare(target, prompt, max_tokens, "fused", options)
    return Generation(session, Ordinary(session, pipelined=pipelined), log)


def speculate(
    target: Target,
    drafter: Drafter | str,
    prompt: Prompt,
    *,
    draft_length: int | Literal["auto"],
    max_tokens: int,
    controller: Controller | None = None,
    timing: Timing = "fused",
    coupling: Coupling = "residual",
    policy: str = EXACT,
    **options: Unpack[Options],
) -> Generation:
    """Speculative decoding, in rounds of up to `draft_length` proposed tokens: greedy with the same committed ids as
    `decode`, at a temperature with the same distribution (and with nothing proposed the same ids too, for a seed).

    drafter: a Drafter, or the name of a registered one (options as in `prompt-lookup:max_n=4`). timing: `fused`,
    one synchronisation a round, or `attributed`, a barrier after each stage (true stage durations, dearer rounds).
    coupling: at a temperature, `residual` (p/q), or `equality`, which accepts what the target draws itself, as mlx-lm
    does: fewer are accepted, and the tokens are those of `decode` with the seed. policy: `exact`, or `relaxed:...`
    as in `runtime.speculative.relaxed`: more proposed tokens stand, and the output is not the target's. The rest is as
    in `decode`.

    draft_length "auto": a controller chooses for each round, 0 among others; `controller` is the one to use, which goes
    on with what it knows of costs, and of acceptance on prompts of a class (docs/controller.md).

    Raises UsageError and Unsupported as `decode` does; Unsupported also for a target or drafter whose cache can be
    neither trimmed nor restored, and for a drafter with another vocabulary.
    """
    _check_length(draft_length, controller)
    if timing not in get_args(Timing):
        raise UsageError(f"timing is {timing!r}; it must be one of {', '.join(get_args(Timing))}")
    relaxed = parse_policy(policy)
    check_coupling(coupling, options.get("temperature", 0.0), relaxed)
    if isinstance(drafter, str):
        from runtime.drafters import make

        drafter = make(drafter, target)
    check = getattr(drafter, "check", None)
    if check is not None:
        check(target)
    session, log = _prepare(target, prompt, max_tokens, timing, options, takes_back=True)
    try:
        rule: _Rule = {"timing": timing, "coupling": coupling, "relaxed": relaxed}
        if isinstance(draft_length, str):
            stepper: Stepper = Adaptive(session, drafter, controller=controller or Controller(), **rule)
        else:
            stepper = Speculative(session, drafter, draft_length=draft_length, **rule)
    except Exception:
        session.cache.release()
        raise
    return Generation(session, stepper, log)


def check_coupling(coupling: Coupling, temperature: float, relaxed: Relaxed | None) -> None:
    """Raise UsageError for what is no coupling, and for one that would have no effect."""
    if coupling not in get_args(Coupling):
        raise UsageError(f"coupling is {coupling!r}; it must be one of {', '.join(get_args(Coupling))}")
    if coupling == "equality" and not temperature:
        raise UsageError(
            "coupling='equality' would have no effect at temperature 0; give a temperature, or leave it out"
        )
    if coupling == "equality" and relaxed is not None:
        raise UsageError(
            f"coupling='equality' has no effect with the policy relaxed:{relaxed.rule}; leave one of them out"
        )


def _check_length(draft_length: int | str, controller: Controller | None) -> None:
    if isinstance(draft_length, str) and draft_length != "auto":
        raise UsageError(f"draft_length is {draft_length!r}; it must be a number or 'auto'")
    if isinstance(draft_length, int) and draft_length < 0:
        raise UsageError(f"draft_length is {draft_length}; it must be 0 or more, or 'auto'")
    if controller is not None and draft_length != "auto":
        raise UsageError("a controller chooses the draft length: give draft_length='auto' with it, or leave it out")


class _Rule(TypedDict):
    """What rounds of any length are done by."""

    timing: Timing
    coupling: Coupling
    relaxed: Relaxed | None


def _prepare(
    target: Target, prompt: Prompt, max_tokens: int, timing: Timing, options: Options, *, takes_back: bool = False
) -> tuple[Session, GenerationLog]:
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    sampling = make_sampling(
        options.get("temperature", 0.0),
        options.get("top_k", 0),
        options.get("top_p", 1.0),
        options.get("min_p", 0.0),
        options.get("seed"),
    )
    penalty = make_penalty(options.get("repetition_penalty", 1.0), options.get("repetition_context", DEFAULT_CONTEXT))
    if max_tokens < 1:
        raise UsageError(f"max_tokens is {max_tokens}; it must be 1 or more")
    caller = find_caller(options.get("traceparent"))
    prepare()
    ids = _tokenise(target, prompt)
    budget = fit_budget(target, ids, max_tokens)
    stopper = make_stopper(target, options.get("stop", ()), options.get("eos"))
    kept = options.get("cache")
    quantising = _make_quantising(options)
    if kept is None:
        kept = KeptCache(target)
        if quantising is not None:
            quantising.check(kept.layers)
    else:
        refuse_quantised(kept.layers)
    kept.acquire(target)
    try:
        if takes_back:
            require_undo(kept.layers, "the target")
        cached = kept.keep_prefix(ids)
    except Exception:
        kept.release()
        raise
    session = Session(
        target,
        kept,
        ids,
        max_tokens=budget,
        stopper=stopper,
        processors=options.get("logits_processors") or (),
        quantising=quantising,
        sampling=sampling,
        penalty=penalty,
    )
    recorder = options.get("recorder") or Recorder()
    return session, GenerationLog(recorder, timing=timing, cached_tokens=cached, caller=caller)


def _make_quantising(options: Options) -> Quantising | None:
    bits = options.get("kv_bits")
    if bits is None:
        return None
    if options.get("cache") is not None:
        raise Unsupported(
            "kv_bits is refused with a kept cache: a prefix that was quantised before gives other values than one that "
            "is quantised after this prompt's prefill; leave one of them out"
        )
    return Quantising(bits, options.get("kv_group_size", 64), options.get("quantized_kv_start", 0))


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


def fit_budget(target: Target, ids: Sequence[int], max_tokens: int) -> int:
    """`max_tokens`, or what the target's positions leave after the prompt; Unsupported if that is nothing."""
    if target.max_positions is None:
        return max_tokens
    room = target.max_positions - len(ids)
    if room < 1:
        raise Unsupported(
            f"the prompt has {len(ids)} tokens, the target positions for {target.max_positions}; shorten the prompt"
        )
    return min(max_tokens, room)
