"""From coarse to fine: the levels of one generation, with or without prefix cache and verified exit.

Fused, without exit: levels are launched one after another and waited for once, at the end. With exit, every level's
partial decode is read, because whether to go on depends on it. Attributed: a barrier after every stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import mlx.core as mx

from runtime.device import barrier, read_rows
from runtime.ncm.log import OpenLevel, Setting, Stopwatch
from runtime.ncm.prefix_cache import PrefixCache
from runtime.ncm.sampling import choose_codes, derive_keys
from telemetry.errors import UsageError
from telemetry.fields import Basis

if TYPE_CHECKING:
    from runtime.ncm.model import NcmModel

Check: TypeAlias = Callable[[list[list[int]], list[int]], Sequence[bool]]
"""Given output tokens (b, N) and which samples of the batch they are, (b,): which of them are valid, (b,)."""


class Descent:
    """The samples of a batch on their way down. What has left the device is in `codes`, `tokens` and `solved`.

    alive: the samples still in the batch, by their index. codes: by sample, then level. tokens: by sample, None
    until it is known. solved: what the checker said last, None: not checked.
    """

    def __init__(
        self,
        model: NcmModel,
        setting: Setting,
        conditioning: list[list[int]],
        sample_ids: list[int],
        cache: PrefixCache | None,
        check: Check | None,
        keep_prefix: bool,
    ) -> None:
        self._model, self._setting, self._cache, self._check = model, setting, cache, check
        self._keep_prefix = keep_prefix
        self._ids = sample_ids
        self.alive = list(range(setting.batch))
        self.codes: list[list[list[int]]] = [[] for _ in self.alive]
        self.tokens: list[list[int]] = [[] for _ in self.alive]
        self.solved: list[bool] | None = None if check is None else [False for _ in self.alive]
        self._prefix = mx.array(conditioning)
        self._partial = model.codec.start(setting.batch)
        self._inputs: list[mx.array] = []
        self._unread: list[mx.array] = []

    def run_level(self, opened: OpenLevel) -> None:
        """Do one level: one forward, codes, reconstruction, and where samples may leave, decoding and the check."""
        codec, level = self._model.codec, opened.level
        logits = self._forward(opened)
        self._mark(opened, "forward", logits)
        keys = self._draw_keys(level)
        codes = choose_codes(logits, self._setting.temperature, keys)
        self._mark(opened, "sample", codes)
        self._partial = codec.add_level(level, self._partial, codes)
        if self._setting.exit == "none":
            self._unread.append(codes)
            mx.async_eval(self._partial, codes)
        self._mark(opened, "reconstruct", self._partial)
        if self._setting.exit == "verified":
            self._decode(opened, codes)
            self._check_and_leave(opened)

    def finish(self, watch: Stopwatch) -> None:
        """Bring what is still on the device to the host, and check it if it is not checked yet."""
        if self._setting.exit == "verified":
            return
        tokens = self._decode_tokens()
        *codes, read_tokens = read_rows(*self._unread, tokens)
        for row, sample in enumerate(self.alive):
            self.codes[sample] = [level[row] for level in codes]
            self.tokens[sample] = read_tokens[row]
        watch.mark("decode", self._basis("host_wait"))
        if self._check is not None:
            self.solved = self._ask(self.tokens, self.alive)
            watch.mark("check", "host")

    def _forward(self, opened: OpenLevel) -> mx.array:
        model, level, cache = self._model, opened.level, self._cache
        inputs = model.codec.make_input(level, self._partial)
        if self._setting.config.policy == "block_causal":
            self._inputs.append(inputs)
            return model.generator.forward_levels(self._inputs, self._prefix, opened.tally)[-1]
        if cache is None:
            return model.generator.forward_level(level, inputs, self._prefix, None, opened.tally)
        cache.check(model, len(self.alive))
        prefix = None if cache.is_filled else self._prefix
        logits = model.generator.forward_level(level, inputs, prefix, cache, opened.tally)
        opened.kv_bytes = cache.nbytes
        if self._keep_prefix and level == 0:  # of the whole batch: before anybody leaves
            cache.copy_prefix()
        return logits

    def _draw_keys(self, level: int) -> mx.array | None:
        if not self._setting.temperature:
            return None
        return derive_keys(self._setting.seed, [self._ids[sample] for sample in self.alive], level)

    def _decode_tokens(self) -> mx.array:
        return mx.argmax(self._model.codec.decode(self._partial), axis=-1)

    def _decode(self, opened: OpenLevel, codes: mx.array) -> None:
        opened.codes, tokens = read_rows(codes, self._decode_tokens())
        for sample, row, output in zip(self.alive, opened.codes, tokens, strict=True):
            self.codes[sample].append(row)
            self.tokens[sample] = output
        opened.mark("decode", self._basis("host_wait"))

    def _check_and_leave(self, opened: OpenLevel) -> None:
        valid = self._ask([self.tokens[sample] for sample in self.alive], self.alive)
        assert self.solved is not None
        for sample, is_valid in zip(self.alive, valid, strict=True):
            self.solved[sample] = is_valid
        opened.n_exited = sum(valid)
        if opened.n_exited:
            self._compact([row for row, is_valid in enumerate(valid) if not is_valid])
        opened.mark("check", self._basis("host"))

    def _ask(self, tokens: list[list[int]], samples: list[int]) -> list[bool]:
        assert self._check is not None
        valid = [bool(answer) for answer in self._check([row[:] for row in tokens], samples[:])]
        if len(valid) != len(samples):
            raise UsageError(f"check answered for {len(valid)} samples and was asked about {len(samples)}")
        return valid

    def _compact(self, rows: list[int]) -> None:
        """Go on with these rows of the batch only."""
        self.alive = [self.alive[row] for row in rows]
        if not rows:
            return
        kept = mx.array(rows)
        self._partial, self._prefix = self._partial[kept], self._prefix[kept]
        self._inputs = [inputs[kept] for inputs in self._inputs]
        if self._cache is not None:
            self._cache.compact(kept, len(rows))
        if self._is_attributed:
            barrier(self._partial, self._prefix, self._inputs, self._cache.arrays if self._cache else [])

    @property
    def _is_attributed(self) -> bool:
        return self._setting.timing == "attributed"

    def _basis(self, fused: Basis) -> Basis:
        """What a stage was timed by that is timed by `fused` in fused timing."""
        return "barrier" if self._is_attributed else fused

    def _mark(self, opened: OpenLevel, stage: str, result: mx.array) -> None:
        if self._is_attributed:
            barrier(result)
        opened.mark(stage, self._basis("host_launch"))
