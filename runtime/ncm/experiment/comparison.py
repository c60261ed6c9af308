"""Are a cached generation's codes the uncached one's? If not, is that a near tie?

A forward over fewer rows may be rounded another way, and flip an argmax between two codes that are all but equal. At a
sample's first level with other codes, the uncached forward is done again: each other code must be what would have been
chosen had its logit been greater by the tolerance. What comes after follows from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.device import read
from telemetry.ncm_records import NcmComparison

if TYPE_CHECKING:
    from runtime.ncm.generation import NcmOutput
    from runtime.ncm.model import NcmModel

LOGIT_TOLERANCE = {"float32": 2e-5, "float16": 2e-2, "bfloat16": 2e-1}
"""Largest gap, by dtype, that rounding is taken to make between a code's cached and uncached logit, and may so close
one as large: in float32 five times what was seen on OpenBLAS, 3.6e-6; else a few units in the last place below 8."""


class Comparer:
    """Compares generations of one model, seed and temperature."""

    def __init__(self, model: NcmModel, seed: int, temperature: float) -> None:
        self._model = model
        self._seed = seed
        self._temperature = temperature
        self._tolerance = LOGIT_TOLERANCE[model.config.dtype]

    def compare(
        self, conditioning: Sequence[Sequence[int]], sample_ids: Sequence[int], uncached: NcmOutput, cached: NcmOutput
    ) -> NcmComparison:
        """Hold `cached` against `uncached`, both for this batch (B, P) of samples with these ids."""
        if cached.codes == uncached.codes:
            return NcmComparison(generation_id=cached.id, pair_id=uncached.id, equal=True)
        levels, near = [], []
        for row, (ours, theirs) in enumerate(zip(uncached.codes, cached.codes, strict=True)):
            if ours != theirs:
                level = find_divergence(ours, theirs)
                levels.append(level)
                near.append(
                    level < min(len(ours), len(theirs))
                    and self._is_near(conditioning[row], sample_ids[row], ours[: level + 1], theirs[level])
                )
        return NcmComparison(
            generation_id=cached.id,
            pair_id=uncached.id,
            equal=False,
            diverged_level=min(levels),
            tolerance=self._tolerance,
            near_tie=all(near),
        )

    def _is_near(
        self, conditioning: Sequence[int], sample_id: int, ours: Sequence[Sequence[int]], theirs: Sequence[int]
    ) -> bool:
        """Whether at the last level of `ours` all other codes of `theirs` lie within the tolerance."""
        import mlx.core as mx

        from runtime.ncm.sampling import choose_codes, derive_keys

        model, level = self._model, len(ours) - 1
        partial = model.codec.start(1)
        for index, codes in enumerate(ours[:-1]):
            partial = model.codec.add_level(index, partial, mx.array([list(codes)]))
        inputs = model.codec.make_input(level, partial)
        logits = model.generator.forward_level(level, inputs, mx.array([list(conditioning)]))
        said = mx.arange(logits.shape[-1]) == mx.array([list(theirs)])[..., None]
        keys = derive_keys(self._seed, [sample_id], level) if self._temperature else None
        [chosen] = read(choose_codes(logits + self._tolerance * said, self._temperature, keys)[0])
        # Where both chose the same code, raising it changes nothing.
        return chosen == list(theirs)


def find_divergence(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> int:
    """The first level at which codes differ; the shorter one's depth if it is the other's beginning."""
    shared = min(len(ours), len(theirs))
    return next((level for level in range(shared) if ours[level] != theirs[level]), shared)
