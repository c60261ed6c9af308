"""Rows of a coarse-to-fine run as the recorder would have left them: every batch by four arms, with noise in its times.

Work is counted here as a forward would: level by level, from the samples that are left. A sample of an arm with the
exit leaves at a level of its own, or never.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from tests.queries.simulate import Row, Simulation, insert

ARMS = ((True, "none"), (False, "none"), (True, "verified"), (False, "verified"))
POSITION_NS = 10_000
CHECK_NS = 50_000


def name_arm(cache: bool, exit_: str) -> str:
    """An arm's name in the rows."""
    return ("cache" if cache else "no-cache") + (" exit" if exit_ == "verified" else "")


@dataclass(frozen=True)
class NcmSimulation:
    """A run: `n_batches` of `batch` samples by every arm, `repeats` times, and some once more attributed."""

    n_batches: int = 6
    batch: int = 2
    repeats: int = 1
    n_attributed: int = 2
    arms: Sequence[tuple[bool, str]] = ARMS
    prefix_length: int = 5
    lengths: tuple[int, ...] = (1, 2, 4)
    n_layers: int = 2
    noise: float = 0.05
    solve_rate: float = 0.8
    leave_rate: float = 0.3
    seed: int = 0
    run_id: str = "run-1"

    def run_row(self) -> Row:
        """The row of `runs`."""
        return Simulation(run_id=self.run_id, seed=self.seed).run_row() | {
            "kind": "ncm",
            "command": "roundscope ncm run",
            "workload": "generated",
            "n_prompts": self.n_batches * self.batch,
            "arms": [name_arm(*arm) for arm in self.arms],
            "repeats": self.repeats,
        }

    def generations(self) -> Iterator[tuple[Row, list[Row]]]:
        """Every generation's row with its levels' rows, in the order of execution."""
        chance = random.Random(self.seed)
        n = 0
        for timing, count, repeats in (("fused", self.n_batches, self.repeats), ("attributed", self.n_attributed, 1)):
            for index in range(count):
                levels = [self._draw_exit(chance) for _ in range(self.batch)]
                solved = [chance.random() < self.solve_rate for _ in range(self.batch)]
                for repeat in range(repeats):
                    for cache, exit_ in chance.sample(self.arms, len(self.arms)):
                        row = {
                            "generation_id": f"{self.seed:08x}{n:024x}",
                            "run_id": self.run_id,
                            "timing": timing,
                            "batch_id": f"b{index}",
                            "repeat": repeat,
                            "sequence": n,
                            "warm_up": n < len(self.arms),
                        }
                        yield self._generation(row, cache, exit_, chance, levels, solved)
                        n += 1

    def _draw_exit(self, chance: random.Random) -> int:
        """The level after which a sample is valid; one that does not exist: never."""
        level = 0
        while level < len(self.lengths) and chance.random() >= self.leave_rate:
            level += 1
        return level

    def _generation(
        self, row: Row, cache: bool, exit_: str, chance: random.Random, leaves: list[int], solved: list[bool]
    ) -> tuple[Row, list[Row]]:
        verified = exit_ == "verified"
        levels: list[Row] = []
        left, start = self.batch, 0
        for level, length in enumerate(self.lengths):
            if not left:
                break
            n_exited = leaves.count(level) if verified else 0
            levels.append(self._level(level, length, left, cache, verified, n_exited, chance))
            levels[-1] |= {"generation_id": row["generation_id"], "start_ns": start}
            start += levels[-1]["t_level_ns"]
            left -= n_exited
        early = [level < len(self.lengths) for level in leaves]
        row |= {
            "arm": name_arm(cache, exit_),
            "cache": cache,
            "exit": exit_,
            "reused_prefix": False,
            "config": "scripted",
            "config_digest": "c" * 64,
            "policy": "block_diagonal",
            "prefix_attention": "all",
            "level_attention": "all",
            "dtype": "float32",
            "n_layers": self.n_layers,
            "n_heads": 2,
            "head_dim": 4,
            "prefix_length": self.prefix_length,
            "lengths": list(self.lengths),
            "batch": self.batch,
            "seed": self.seed,
            "temperature": 0.0,
            "started_wall_ns": 1_700_000_000_000_000_000,
            "started_monotonic_ns": 0,
            "finish_reason": "complete" if left else "exited",
            "n_levels": len(levels),
            "n_solved": sum(a or (verified and b) for a, b in zip(solved, early, strict=True)),
            "total_ns": start + 200_000,
            "levels_ns": start,
            "finish_ns": 200_000,
            "peak_memory_bytes": 3_000_000 + 1_000 * chance.randrange(100) + 1_700_000 * cache,
            "kv_bytes": self.payload() * cache,
            "codes_digest": f"{exit_} {row['batch_id']}",
            "equal": True if cache and not row["warm_up"] else None,
        }
        return row, levels

    def payload(self) -> int:
        """Bytes of the prefix's keys and values."""
        return 2 * self.n_layers * self.batch * self.prefix_length * 2 * 4 * 4

    def _level(
        self, level: int, length: int, left: int, cache: bool, verified: bool, n_exited: int, chance: random.Random
    ) -> Row:
        p = self.prefix_length
        repeats_prefix = not cache or level == 0
        positions = left * (length + p * repeats_prefix)
        allowed = left * self.n_layers * (length * p + length * length + p * p * repeats_prefix)
        forward = int(positions * POSITION_NS * chance.lognormvariate(0, self.noise))
        check = left * CHECK_NS if verified else 0
        return {
            "level": level,
            "t_level_ns": forward + check + 30_000,
            "length": length,
            "batch": left,
            "forwards": 1,
            "prefix_processed": left * p * repeats_prefix,
            "level_processed": left * length,
            "prefix_reused": 0 if repeats_prefix else left * p,
            "pairs_allowed": allowed,
            "pairs_computed": allowed + left * self.n_layers * length * p * (not cache),
            "kv_bytes": self.payload() * cache,
            "syncs": 1 + verified,
            "n_exited": n_exited,
            "forward_ns": forward,
            "sample_ns": 10_000,
            "reconstruct_ns": 10_000,
            "decode_ns": check // 2,
            "check_ns": check - check // 2,
            "forward_basis": "barrier",
            "codes_digest": f"{level}",
        }

    def rows(self) -> tuple[list[Row], list[Row]]:
        """The rows of `ncm_generations` and of `levels`."""
        generations, levels = [], []
        for generation, its_levels in self.generations():
            generations.append(generation)
            levels += its_levels
        return generations, levels

    def fill(self, con: duckdb.DuckDBPyConnection) -> None:
        """Puts the run into the tables that `telemetry.store` made."""
        fill(con, self.run_row(), *self.rows())


def fill(con: duckdb.DuckDBPyConnection, run: dict[str, Any], generations: list[Row], levels: list[Row]) -> None:
    """Puts these rows into the tables."""
    insert(con, "runs", [run])
    insert(con, "ncm_generations", generations)
    insert(con, "levels", levels)
