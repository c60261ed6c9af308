"""Which records make up the rows of which table, what must hold of those rows, and what a record's fields are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from telemetry.fields import COMMITS_ONE_MORE, LEVEL_STAGES, STAGES
from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.records import (
    ComparisonRecord,
    ForecastRecord,
    GenerationEnd,
    GenerationRecord,
    RankEnd,
    RankRecord,
    RoundRecord,
    RunEnd,
    RunRecord,
    VerifyCostRecord,
)


@dataclass(frozen=True)
class Check:
    """An invariant of a table's rows, as a SQL condition over its columns, with the reason given for a bad row."""

    condition: str
    reason: str


@dataclass(frozen=True)
class Table:
    """A table: its rows begin with records of kind `opens`; records of the kinds in `adds` fill further columns.

    indexed: the key is a PRIMARY KEY. Else it ends in a count, and `telemetry.unique` holds it before a commit, which
    takes a thirtieth of the time and half the file.
    """

    name: str
    key: tuple[str, ...]
    opens: type[Struct]
    adds: tuple[type[Struct], ...] = ()
    checks: tuple[Check, ...] = ()
    indexed: bool = True


_STAGE_SUM = " + ".join(f"{stage}_ns" for stage in STAGES)
_LEVEL_STAGE_SUM = " + ".join(f"{stage}_ns" for stage in LEVEL_STAGES)
_ONE_MORE = ", ".join(f"'{outcome}'" for outcome in COMMITS_ONE_MORE)

TABLES: tuple[Table, ...] = (
    Table("runs", ("run_id",), RunRecord, (RunEnd,)),
    Table(
        "ranks",
        ("run_id", "rank"),
        RankRecord,
        (RankEnd,),
        (Check("rank < size", "a rank beyond the number of ranks"),),
    ),
    Table(
        "generations",
        ("generation_id",),
        GenerationRecord,
        (GenerationEnd, ComparisonRecord),
        (
            Check("cached_tokens <= prompt_tokens", "more cached tokens than the prompt has"),
            Check("coalesce(n_committed <= max_tokens, true)", "more output than the limit"),
        ),
    ),
    Table(
        "rounds",
        ("generation_id", "index"),
        RoundRecord,
        (),
        (
            Check("accepted + cut <= proposed", "more tokens accepted and cut than proposed"),
            Check("proposed <= requested", "more tokens proposed than requested"),
            Check(
                f"committed = accepted + (outcome in ({_ONE_MORE}))::bigint",
                "committed tokens do not follow from accepted ones and the outcome",
            ),
            Check(f"{_STAGE_SUM} <= t_round_ns", "stages last longer than the round"),
            Check("coalesce(overlap_positions <= proposed - cut, true)", "more overlaps measured than tokens judged"),
            Check("coalesce(overlap between 0 and overlap_positions, true)", "an overlap outside of 0 and 1"),
        ),
        indexed=False,
    ),
    Table(
        "forecasts",
        ("generation_id", "spec"),
        ForecastRecord,
        (),
        (Check('len(offered) = len("right")', "as many positions offered as right"),),
    ),
    Table("verify_costs", ("calibration_id", "context", "width"), VerifyCostRecord),
    Table("ncm_generations", ("generation_id",), NcmRecord, (NcmEnd, NcmComparison)),
    Table(
        "levels",
        ("generation_id", "level"),
        LevelRecord,
        (),
        (
            Check("pairs_allowed <= pairs_computed", "more pairs allowed than computed"),
            Check("n_exited <= batch", "more samples left than there were"),
            Check(f"{_LEVEL_STAGE_SUM} <= t_level_ns", "stages last longer than the level"),
        ),
    ),
)


@dataclass(frozen=True)
class FieldInfo:
    """One field of a record kind: name in the journal and in the table, Python type, unit, meaning."""

    name: str
    type: Any
    optional: bool
    unit: str | None
    meaning: str


def describe_fields(record: type[Struct]) -> list[FieldInfo]:
    """The fields of a record kind in order, as documentation and DDL need them."""
    hints = get_type_hints(record, include_extras=True)
    described = []
    for item in msgspec.structs.fields(record):
        plain, *_, meta = get_args(hints[item.name])
        optional = type(None) in get_args(plain)
        if optional:
            plain = get_args(plain)[0]
        if get_origin(plain) is Annotated:
            plain = get_args(plain)[0]
        described.append(FieldInfo(item.encode_name, plain, optional, (meta.extra or {})["unit"], meta.description))
    return described
