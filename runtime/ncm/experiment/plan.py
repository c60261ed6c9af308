"""What a run of the generator will do: which arms, on which batches, in which order, and how long that may take.

Everything that can be wrong with the request is found here, before anything is timed or recorded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.ncm.config import NcmConfig
from runtime.ncm.experiment.samples import Samples
from runtime.ncm.temperature import MEANT, is_temperature
from telemetry.errors import Unsupported, UsageError
from telemetry.fields import Exit, Timing

N_ATTRIBUTED = 2
"""Batches that the attributed pass takes: enough for stage shares, which vary little between batches."""


@dataclass(frozen=True)
class Request:
    """What the user asked for. cache, exit: that alone, or (None) with and without."""

    cache: bool | None
    exit: bool | None
    batch: int
    repeats: int
    temperature: float
    timing: Timing
    seed: int

    def __post_init__(self) -> None:
        for name, value in (("--batch", self.batch), ("--repeats", self.repeats)):
            if value < 1:
                raise UsageError(f"{name} is {value}; it must be 1 or more")
        if not is_temperature(self.temperature):
            raise UsageError(f"--temperature is {self.temperature}; it must be {MEANT}")


@dataclass(frozen=True)
class Arm:
    """One way of generating."""

    cache: bool
    exit: Exit

    @property
    def name(self) -> str:
        """Its name in the records."""
        return ("cache" if self.cache else "no-cache") + (" exit" if self.exit == "verified" else "")


@dataclass(frozen=True)
class Batch:
    """Samples that are generated together: their places among all samples, and their conditioning, each of P tokens."""

    id: str
    sample_ids: tuple[int, ...]
    conditioning: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Block:
    """One repetition of one batch, by all arms in this order."""

    batch: Batch
    repeat: int
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Plan:
    """Everything a run does, in its order. `attributed` are the blocks of the pass that measures stage shares."""

    request: Request
    config: NcmConfig
    samples: Samples
    arms: tuple[Arm, ...]
    batches: tuple[Batch, ...]
    blocks: tuple[Block, ...]
    attributed: tuple[Block, ...]

    @property
    def n_generations(self) -> int:
        """How many generations that is, warm-up included."""
        return len(self.arms) + sum(len(block.arms) for block in (*self.blocks, *self.attributed))


def make_plan(request: Request, config: NcmConfig, samples: Samples) -> Plan:
    """Plan a run over `samples`.

    Raises Unsupported for an exit without a checker, or a cache that the attention policy does not allow.
    """
    arms = _make_arms(request, config, samples)
    batches = _make_batches(samples.conditioning, request.batch)
    order = random.Random(request.seed)
    blocks = [
        Block(batch, repeat, tuple(order.sample(arms, len(arms))))
        for repeat in range(request.repeats)
        for batch in order.sample(batches, len(batches))
    ]
    attributed = [Block(batch, 0, tuple(order.sample(arms, len(arms)))) for batch in batches[:N_ATTRIBUTED]]
    if request.timing == "attributed":
        attributed = []
    return Plan(request, config, samples, tuple(arms), tuple(batches), tuple(blocks), tuple(attributed))


def _make_arms(request: Request, config: NcmConfig, samples: Samples) -> list[Arm]:
    """The reference comes first: without cache and exit, where that is run."""
    if request.exit and samples.judge is None:
        raise Unsupported(
            f"--exit needs a checker that tells a valid output from others, and {config.name} has none: leave it out"
        )
    if request.cache is not False and config.policy != "block_diagonal":
        raise Unsupported(
            f"{config.name} has policy {config.policy}, under which levels read earlier levels and the prefix cache is "
            "not defined: use --no-cache"
        )
    exits = (False, True) if request.exit is None and samples.judge is not None else (bool(request.exit),)
    caches = (False, True) if request.cache is None else (request.cache,)
    return [Arm(cache, "verified" if exit_ else "none") for exit_ in exits for cache in caches]


def _make_batches(conditioning: Sequence[tuple[int, ...]], size: int) -> list[Batch]:
    places = [range(start, min(start + size, len(conditioning))) for start in range(0, len(conditioning), size)]
    return [Batch(f"b{i}", tuple(ids), tuple(conditioning[place] for place in ids)) for i, ids in enumerate(places)]
