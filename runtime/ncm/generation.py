"""Generation of a batch of samples, coarse to fine: exactly one forward of the generator a level.

What cannot be done right is refused before anything runs; what does run leaves its records, however it ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from runtime.device import drain
from runtime.ncm.conditioning import Conditioning, check_conditioning
from runtime.ncm.descent import Check, Descent
from runtime.ncm.log import NcmLog, Setting
from runtime.ncm.prefix_cache import KeptPrefix, PrefixCache
from runtime.ncm.temperature import MEANT, is_temperature
from telemetry.context import find_caller
from telemetry.errors import Unsupported, UsageError
from telemetry.fields import Exit, NcmFinish, Timing
from telemetry.recorder import Recorder

if TYPE_CHECKING:
    from runtime.ncm.model import NcmModel


@dataclass(frozen=True)
class NcmOutput:
    """What a generation gave. Lists are by sample.

    id: the generation's in the records. tokens: the output, N each. codes: of each level that the sample went
    through. n_levels: how many those are. solved: whether the checker found the output valid; None: not checked.
    prefix: the kept prefix, where it was asked for.
    """

    id: str
    tokens: list[list[int]]
    codes: list[list[list[int]]]
    n_levels: list[int]
    solved: list[bool] | None
    finish_reason: NcmFinish
    prefix: KeptPrefix | None


def generate(
    model: NcmModel,
    conditioning: Conditioning,
    *,
    cache: bool = True,
    seed: int = 0,
    temperature: float = 0.0,
    exit: Exit = "none",
    check: Check | None = None,
    timing: Timing = "fused",
    prefix: KeptPrefix | None = None,
    keep_prefix: bool = False,
    sample_ids: Sequence[int] | None = None,
    recorder: Recorder | None = None,
    traceparent: str | None = None,
) -> NcmOutput:
    """Outputs for `conditioning`, rows of P tokens: lists, or an integer array of numpy or MLX.

    cache: keep the prefix's keys and values from the first level for the others. temperature: 0 takes the most
    probable codes, else they are drawn by `seed`, sample and level; `sample_ids` (all different; default: places in the
    batch) say which samples these are, so that a sample can be drawn alike in another batch.
    exit: "verified" decodes after every level and lets samples go whose output `check` finds valid; that selects
    other outputs than the whole hierarchy would give. With exit "none" a `check` is asked once, about the outputs.
    keep_prefix: return the prefix's states; prefix: such states, for the identical complete conditioning.
    traceparent: the caller's W3C trace context, where it is not the active span or the environment's.
    recorder None: records are kept in memory and go with it.

    Raises UsageError or Unsupported before anything runs; StalePrefix where model or conditioning change on the way,
    or `prefix` was made under other conditions.
    """
    setting, rows = _settle(model, conditioning, cache, seed, temperature, exit, timing, prefix is not None)
    _check_options(setting, check, keep_prefix)
    ids = _check_ids(sample_ids, len(rows))
    held = PrefixCache(model, rows, prefix) if cache else None
    log = NcmLog(Recorder() if recorder is None else recorder, setting, find_caller(traceparent))
    descent = Descent(model, setting, rows, ids, held, check, keep_prefix)
    log.begin()
    try:
        kept = _descend(model, conditioning, descent, log, held, keep_prefix)
    except BaseException as error:
        with contextlib.suppress(Exception):  # the device may be what failed; the first error is reported
            drain()
        reason: NcmFinish = "cancelled" if isinstance(error, KeyboardInterrupt) else "error"
        log.end(reason, descent.codes, None, error)
        raise
    finally:
        if held is not None:
            held.close()
    finish: NcmFinish = "complete" if log.n_levels == setting.config.n_levels else "exited"
    log.end(finish, descent.codes, None if descent.solved is None else sum(descent.solved))
    depths = [len(levels) for levels in descent.codes]
    return NcmOutput(log.generation_id, descent.tokens, descent.codes, depths, descent.solved, finish, kept)


def _descend(
    model: NcmModel,
    conditioning: Conditioning,
    descent: Descent,
    log: NcmLog,
    cache: PrefixCache | None,
    keep_prefix: bool,
) -> KeptPrefix | None:
    for level in range(model.config.n_levels):
        if not descent.alive:
            break
        descent.run_level(log.open_level(level, len(descent.alive)))
    descent.finish(log.open_end())
    if cache is None:
        return None
    cache.check_contents(conditioning)
    return cache.keep() if keep_prefix else None


def _settle(
    model: NcmModel,
    conditioning: Conditioning,
    cache: bool,
    seed: int,
    temperature: float,
    exit: Exit,
    timing: Timing,
    reused: bool,
) -> tuple[Setting, list[list[int]]]:
    config = model.config
    for name, value, known in (("exit", exit, Exit), ("timing", timing, Timing)):
        if value not in get_args(known):
            raise UsageError(f"{name} must be one of {', '.join(get_args(known))}, not {value!r}")
    if not is_temperature(temperature):
        raise UsageError(f"temperature must be {MEANT}, not {temperature}")
    if not model.state().is_evaluating():
        raise Unsupported("the model, or a part of it, is in training mode, whose dropout is random: call its eval()")
    if cache and config.policy == "block_causal":
        raise Unsupported(
            "policy block_causal with the prefix cache: levels there read the states of earlier levels, which would "
            "need a contract of their own for positions and masks. Generate with cache=False, or use block_diagonal"
        )
    rows = check_conditioning(conditioning, config)
    return Setting(config, cache, exit, timing, seed, float(temperature), len(rows), reused), rows


def _check_options(setting: Setting, check: Check | None, keep_prefix: bool) -> None:
    if setting.exit == "verified" and check is None:
        raise UsageError("exit verified needs a check: a function that tells of output tokens which are valid")
    if not setting.cache and (setting.reused_prefix or keep_prefix):
        raise UsageError("prefix and keep_prefix need the cache: leave them out, or generate with cache=True")


def _check_ids(sample_ids: Sequence[int] | None, batch: int) -> list[int]:
    ids = list(range(batch)) if sample_ids is None else [int(sample) for sample in sample_ids]
    if len(ids) != batch:
        raise UsageError(f"there are {len(ids)} sample_ids for {batch} samples")
    if len({*ids}) != batch:
        raise UsageError("sample_ids name a sample twice, which would get the same draws: make them different")
    return ids
