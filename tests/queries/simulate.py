"""Rows of a run as the recorder would have left them, made by a small seeded model of speculation.

Every prompt has its own chance that a proposed token is right and its own length of output; every round has noise in
its time. So rows vary as real ones do, while what is true of them is known. The queries' tests and benchmarks fill a
database with them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import duckdb

from queries import install_views
from telemetry.schema import create_schema

Row = dict[str, Any]
STEP_NS = 50_000_000
"""Time of one ordinary step."""
PROMPT_TOKENS = 20


@dataclass(frozen=True)
class Arm:
    """What is simulated: chance that a proposed token is right, time of drafting one, growth of a wider verify.

    `rates` gives a class its chance, `rate` those not named. `widening` is what each further position adds to the
    verification's forward, as a part of a step. `offers` is the chance that there is a proposal at all. `coupling`:
    of its sampled generations; `policy`: of all, instead of greedy and sampled ones in turns. `auto`: each round draws
    its own m, up to `draft_length`, as if a controller had chosen it.
    """

    drafter: str | None = None
    draft_length: int = 0
    rate: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)
    draft_ns: int = 200_000
    widening: float = 0.05
    offers: float = 1.0
    coupling: str = "residual"
    policy: str | None = None
    auto: bool = False

    @property
    def name(self) -> str:
        """The arm's name in the rows."""
        ending = " equality" if self.coupling == "equality" else ""
        if self.policy == "relaxed":
            ending = " (not exact, relaxed)"
        length = "auto" if self.auto else self.draft_length
        return f"{self.drafter} m={length}{ending}" if self.drafter else "ordinary"


@dataclass(frozen=True)
class Simulation:
    """A run: `n_prompts` of each class by every arm, `repeats` times, and once more attributed where asked.

    `longest` is the longest draft length that is forecast. `growth` is what each position of context adds to a forward,
    as a part of a step.
    """

    classes: Sequence[str] = ("copy", "list", "write")
    n_prompts: int = 6
    arms: Sequence[Arm] = (Arm(), Arm("prompt-lookup", 4, rate=0.5, rates={"copy": 0.9, "write": 0.05}))
    repeats: int = 1
    attributed: bool = True
    tokens: int = 40
    noise: float = 0.05
    seed: int = 0
    run_id: str = "run-1"
    longest: int = 8
    growth: float = 0.0

    def run_row(self) -> Row:
        """The row of `runs`."""
        return {
            "run_id": self.run_id,
            "started_wall_ns": 1_700_000_000_000_000_000,
            "kind": "speculation",
            "command": "roundscope run",
            "model": "scripted",
            "dtype": "float32",
            "parameter_bytes": 1,
            "workload": "simulated",
            "workload_digest": "0" * 64,
            "n_prompts": len(self.classes) * self.n_prompts,
            "arms": [arm.name for arm in self.arms],
            "timing": "fused",
            "seed": self.seed,
            "max_tokens": self.tokens,
            "repeats": self.repeats,
            "record_text": False,
            "roundscope_version": "0",
            "python_version": "3.11",
            "mlx_version": "0",
            "os": "Linux",
            "machine": "x86_64",
            "host": "here",
            "cpu": "a cpu",
            "cores": 2,
            "device": "cpu",
            "blas": "openblas",
            "blas_threads": 2,
            "precision": {},
            "outcome": "complete",
            "ended_wall_ns": 1_700_000_100_000_000_000,
        }

    def generations(self) -> Iterator[tuple[Row, list[Row]]]:
        """Every generation's row with its rounds' rows, in the order of execution."""
        chance = random.Random(self.seed)
        passes = [("fused", repeat, False) for repeat in range(self.repeats)]
        passes = [("fused", 0, True), *passes] + ([("attributed", 0, False)] if self.attributed else [])
        n = 0
        for class_ in self.classes:
            for i in range(self.n_prompts):
                shift, tokens = chance.gauss(0, 0.05), chance.randint(self.tokens // 2, self.tokens)
                speed = chance.lognormvariate(0, self.noise)
                for timing, repeat, warm_up in passes if i == 0 else [p for p in passes if not p[2]]:
                    for arm in self.arms:
                        row = {"prompt_id": f"{class_}-{i}", "class": class_, "timing": timing, "repeat": repeat}
                        row |= {
                            "warm_up": warm_up,
                            "sequence": n,
                            "generation_id": f"{crc32(self.run_id.encode()):08x}{n:024x}",
                        }
                        yield self._generation(row, arm, chance, shift, tokens, speed)
                        n += 1

    def _generation(
        self, row: Row, arm: Arm, chance: random.Random, shift: float, tokens: int, speed: float
    ) -> tuple[Row, list[Row]]:
        """One generation of `tokens` tokens; shorter than the limit means that it met EOS."""
        rate = min(max(arm.rates.get(row["class"], arm.rate) + shift, 0.0), 1.0) if arm.draft_length else 0.0
        rounds: list[Row] = []
        left = tokens
        while left:
            rounds.append(self._round(arm, chance, rate, left, left + self.tokens - tokens, speed, row["timing"]))
            left -= rounds[-1]["committed"]
        start = 0
        for index, one in enumerate(rounds):
            one |= {"generation_id": row["generation_id"], "index": index, "start_ns": start}
            start += one["t_round_ns"]
        stopped = tokens < self.tokens
        prefill = 3 * STEP_NS
        row |= {
            "run_id": self.run_id,
            "arm": arm.name,
            "drafter": arm.drafter,
            "draft_length": arm.draft_length,
            "controlled": arm.auto,
            "pipelined": arm.drafter is None,
            "model": "scripted",
            "prompt_tokens": PROMPT_TOKENS,
            "cached_tokens": 0,
            "max_tokens": self.tokens,
            "n_processors": 0,
            "policy": arm.policy or ("stochastic" if row["sequence"] % 3 == 1 else "greedy"),
            "temperature": 0.5 if row["sequence"] % 3 == 1 else None,
            "started_wall_ns": 1_700_000_000_000_000_000,
            "started_monotonic_ns": 0,
            "finish_reason": "stop" if stopped else "length",
            "stop_kind": "eos" if stopped else None,
            "n_rounds": len(rounds),
            "n_committed": tokens,
            "prefill_ns": prefill,
            "decode_ns": start + 1000 * tokens,
            "unaccounted_ns": 1000 * tokens,
            "consumer_ns": 0,
            "ttft_ns": prefill + rounds[0]["t_round_ns"],
            "total_ns": prefill + start,
            "peak_memory_bytes": 1_000_000 + row["sequence"] % 7 * 1000,
            "cache_bytes": 100 * tokens,
            "snapshot_bytes": row["sequence"] % 5,
            "equal": None if row["warm_up"] or arm.policy == "relaxed" else True,
        }
        is_coupled = row["policy"] == "stochastic" and arm.draft_length > 0
        row["coupling"] = arm.coupling if is_coupled else None
        row["q_source"] = "drafter" if is_coupled and arm.coupling == "residual" else None
        for one in rounds if row["q_source"] else ():
            if one["proposer"] is not None and one["proposed"]:
                one["q_source"] = "point" if str(arm.drafter).startswith(one["proposer"]) else "drafter"
        for one in rounds if is_coupled and row["timing"] == "attributed" else ():
            one["overlap_positions"] = min(one["accepted"] + 1, one["proposed"] - one["cut"]) or None
            share = one["t_round_ns"] % 997 / 997
            one["overlap"] = share * one["overlap_positions"] if one["overlap_positions"] else None
        return row, rounds

    def _round(
        self, arm: Arm, chance: random.Random, rate: float, left: int, budget: int, speed: float, timing: str
    ) -> Row:
        """One round with `left` tokens before the end of the output and `budget` before the limit."""
        longest = min(arm.draft_length, budget - 1)
        requested = chance.randint(0, longest) if arm.auto else longest
        proposed = requested if chance.random() < arm.offers else 0
        accepted = 0
        while accepted < proposed and chance.random() < rate:
            accepted += 1
        ended = accepted >= left
        accepted = min(accepted, left)
        outcome = "stop" if ended else "correction" if accepted < proposed else "bonus" if proposed else "step"
        noisy = speed * chance.lognormvariate(0, self.noise)
        barrier = 1.1 if timing == "attributed" else 1.0
        draft = int(arm.draft_ns * proposed * barrier)
        before = PROMPT_TOKENS + self.tokens - budget - 1
        verify = int(STEP_NS * (1 + arm.widening * proposed + self.growth * before) * noisy * barrier)
        trim = 1_000 if accepted < proposed else 0
        spent, launched = (verify, 0) if timing == "attributed" else (verify // 50, verify - verify // 50)
        return (self._decide(chance, requested) if arm.auto else {}) | {
            "t_round_ns": draft + verify + trim + 20_000,
            "requested": requested,
            "proposed": proposed,
            "accepted": accepted,
            "committed": accepted + (not ended),
            "cut": proposed - accepted if ended else 0,
            "outcome": outcome,
            "width": proposed + 1,
            "processed": 0,
            "syncs": 1,
            "cache_length": before + accepted + (not ended),
            "trim_way": "trim" if trim else "none",
            "replayed": 0,
            "rewind_way": "trim" if trim and left % 2 else "none",
            "draft_ns": draft,
            "draft_basis": "host" if arm.drafter else None,
            "verify_ns": spent,
            "verify_basis": "barrier" if timing == "attributed" else "host_launch",
            "synchronize_ns": launched,
            "synchronize_basis": "barrier" if timing == "attributed" else "host_wait",
            "trim_ns": trim,
            "trim_basis": "host" if trim else None,
            "rewind_ns": 0,
            "proposer": arm.drafter.split("+")[left % 2] if requested and "+" in (arm.drafter or "") else None,
        }

    def _decide(self, chance: random.Random, requested: int) -> Row:
        """What a controller said of a round; now and then it knew nothing of costs."""
        reasons = ["prior", "best", "probe"] if requested else ["best", "budget", "landing", "last"]
        knows = chance.random() < 0.9
        return {
            "reason": chance.choice(reasons),
            "expected_ns": chance.randint(STEP_NS // 2, STEP_NS) if knows else None,
            "expected_step_ns": STEP_NS if knows else None,
        }

    def rows(self) -> tuple[list[Row], list[Row]]:
        """The rows of `generations` and of `rounds`."""
        generations, rounds = [], []
        for generation, its_rounds in self.generations():
            generations.append(generation)
            rounds += its_rounds
        return generations, rounds

    def forecasts(self, generations: Iterable[Row]) -> Iterator[Row]:
        """A forecast of every first ordinary output by every drafter that proposes; drawn apart from the rounds."""
        chance = random.Random(f"forecasts {self.seed}")
        for g in generations:
            if g["drafter"] is None and g["timing"] == "fused" and g["repeat"] == 0 and not g["warm_up"]:
                for drafter in sorted({arm.drafter for arm in self.arms if arm.drafter and arm.draft_length}):
                    offered = [chance.randint(0, self.longest) for _ in range(g["n_committed"])]
                    right = [chance.randint(0, most) for most in offered]
                    row = {
                        "generation_id": g["generation_id"],
                        "spec": drafter,
                        "longest": self.longest,
                        "journal": "a",
                    }
                    yield row | {"prompt_tokens": PROMPT_TOKENS, "offered": offered, "right": right}

    def verify_costs(self) -> Iterator[Row]:
        """What verification costs by width, at two contexts."""
        for context in (30, 400):
            for width in (1, 2, 4, 5, self.longest + 1):
                ns = int(STEP_NS * (1 + 0.05 * (width - 1)) * (1 + context / 10_000))
                row = {
                    "calibration_id": f"of {self.run_id}",
                    "run_id": self.run_id,
                    "journal": "a",
                    "model": "scripted",
                }
                times = {"verify_ns": ns, "fastest_ns": ns - 5, "slowest_ns": ns + 5}
                yield row | {"dtype": "float32", "context": context, "width": width, "n": 3} | times

    def fill(self, con: duckdb.DuckDBPyConnection) -> None:
        """Puts the run into the tables that `telemetry.store` made."""
        generations, rounds = self.rows()
        insert(con, "runs", [self.run_row()])
        insert(con, "generations", generations)
        insert(con, "rounds", rounds)
        insert(con, "forecasts", self.forecasts(generations))
        insert(con, "verify_costs", self.verify_costs())


@contextmanager
def open_store() -> Iterator[duckdb.DuckDBPyConnection]:
    """Empty tables with the views, in memory; one thread, so that sums come out the same every time."""
    with duckdb.connect(config={"threads": 1}) as con:
        create_schema(con)
        install_views(con)
        yield con


def insert(con: duckdb.DuckDBPyConnection, table: str, rows: Iterable[Row]) -> None:
    """Appends rows, given by column name; columns that a row does not name are NULL."""
    columns = [name for name, *_ in con.execute(f"describe {table}").fetchall()]
    with con.appender(table) as appender:
        for row in rows:
            if unknown := row.keys() - set(columns):
                raise ValueError(f"{table} has no columns {unknown}")
            appender.append_row(*[row.get(name) for name in columns])
