"""The view `spans`: the rows of `telemetry.spans` in SQL, made from the same names and fields.

One row a span, with the columns of `SpanData`, and `generation_id` and `run_id`. `attributes` is JSON, `links` a list
of structs. A generation that still goes on has no end yet (`end_unix_ns` is NULL).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.records import ComparisonRecord, GenerationEnd, GenerationRecord, RoundRecord
from telemetry.schema import quote, quote_name
from telemetry.span_data import ABORTED, HAS_IS_REMOTE, IS_REMOTE, OTHER_ERROR, SAMPLED
from telemetry.span_names import (
    ERROR_TYPE,
    FORWARD_FIELDS,
    NCM_ENDING,
    NCM_GENERATE,
    NCM_LEVEL,
    NCM_STAGES,
    OPERATION,
    OPERATION_NAME,
    PREFILL,
    PROVIDER,
    PROVIDER_NAME,
    RESPONSE_MODEL,
    ROUND,
    ROUND_STAGES,
    STAGE_BASIS,
    Attribute,
    attributes_of,
)

_MACROS = """
create or replace macro span_id_of(generation_id, place) as sha256(concat(generation_id, '/', place))[1:16];
create or replace macro trace_id_of(generation_id) as
case when regexp_full_match(generation_id, '[0-9a-f]{32}') then generation_id else sha256(generation_id)[1:32] end;
"""
_ROOTS = """
    select
        g.generation_id,
        g.run_id,
        '' as place,
        case when {apart} then null else g.parent_span_id end as parent_id,
        {name} as name,
        0 as start_ns,
        case
            when g.total_ns is not null then g.total_ns
            when g.finish_reason = 'aborted' then coalesce(p.last_ns, 0)
        end as duration_ns,
        {attributes} as attributes,
        {links} as links,
        case
            when g.finish_reason = 'aborted' then {aborted}
            when g.finish_reason = 'error' then coalesce(g.error_type, {other})
        end as error_type
    from {table} as g
    left join (select generation_id, max(start_ns + {duration}) as last_ns from {parts} group by all) as p
        on g.generation_id = p.generation_id"""
_PARTS = """
    select
        r.generation_id,
        g.run_id,
        r.{index}::varchar as place,
        span_id_of(r.generation_id, '') as parent_id,
        {name} as name,
        r.start_ns,
        r.{duration} as duration_ns,
        {attributes} as attributes,
        {links} as links,
        {error} as error_type
    from {parts} as r
    inner join {table} as g on r.generation_id = g.generation_id"""
_STAGE = """
    select
        r.generation_id,
        g.run_id,
        concat(r.{index}, {suffix}) as place,
        span_id_of(r.generation_id, r.{index}) as parent_id,
        {name} as name,
        {start} as start_ns,
        r.{stage}_ns as duration_ns,
        {attributes} as attributes,
        {links} as links,
        null as error_type
    from {parts} as r
    inner join {table} as g on r.generation_id = g.generation_id
    where r.{stage}_basis is not null"""
_ENDING = """
    select
        g.generation_id,
        g.run_id,
        {place} as place,
        span_id_of(g.generation_id, '') as parent_id,
        {name} as name,
        {start} as start_ns,
        g.{stage}_ns as duration_ns,
        {attributes} as attributes,
        {links} as links,
        null as error_type
    from ncm_generations as g
    where g.{stage}_basis is not null"""
_VIEW = """
create or replace view spans as
with placed as (
{placed}
),

callers as (
    select generation_id, started_wall_ns, sampled, case when rank is null then trace_id end as trace_id
    from generations
    union all
    select generation_id, started_wall_ns, sampled, trace_id from ncm_generations
)

select
    coalesce(c.trace_id, trace_id_of(p.generation_id)) as trace_id,
    span_id_of(p.generation_id, p.place) as span_id,
    p.parent_id,
    p.name,
    'internal' as kind,
    c.started_wall_ns + p.start_ns as start_unix_ns,
    c.started_wall_ns + p.start_ns + p.duration_ns as end_unix_ns,
    -- Merging takes out what is null.
    json_merge_patch(json_merge_patch('{{}}'::json, p.attributes), json_object({error_type}, p.error_type))
        as attributes,
    p.links,
    case when p.error_type is null then 'unset' else 'error' end as status,
    p.error_type,
    {known} + if(c.sampled is false, 0, {sampled}) + if(p.place = '' and p.parent_id is not null, {remote}, 0) as flags,
    p.generation_id,
    p.run_id
from placed as p
inner join callers as c on p.generation_id = c.generation_id;
"""
_NO_LINKS = "[]::struct(trace_id varchar, span_id varchar)[]"
_LINKS = """list_filter([
            case
                when g.rank is not null and g.trace_id is not null
                    then {'trace_id': g.trace_id, 'span_id': coalesce(g.parent_span_id, '')}
            end,
            case
                when g.pair_id is not null then {
                    'trace_id': coalesce(case when g.rank is null then g.trace_id end, trace_id_of(g.pair_id)),
                    'span_id': span_id_of(g.pair_id, '')
                }
            end
        ], lambda link: link is not null)"""
_NCM_LINKS = """list_filter([
            case
                when g.pair_id is not null then {
                    'trace_id': coalesce(g.trace_id, trace_id_of(g.pair_id)), 'span_id': span_id_of(g.pair_id, '')
                }
            end
        ], lambda link: link is not null)"""


def render_view() -> str:
    """The statements that make the view and what it needs."""
    placed = "\n    union all".join([*_write_speculation(), *_write_ncm()])
    flags = {"known": HAS_IS_REMOTE, "remote": IS_REMOTE, "sampled": SAMPLED}
    return _MACROS + _VIEW.format(placed=placed, error_type=quote(ERROR_TYPE), **flags)


def _write_speculation() -> Iterator[str]:
    where = {"table": "generations", "parts": "rounds", "duration": "t_round_ns", "index": quote_name("index")}
    fixed = {OPERATION_NAME: quote(OPERATION), PROVIDER_NAME: quote(PROVIDER), RESPONSE_MODEL: "g.model"}
    yield _ROOTS.format(
        **where,
        apart="g.rank is not null",
        name=f"concat({quote(OPERATION + ' ')}, g.model)",
        attributes=_write_object(fixed, "g", GenerationRecord, GenerationEnd, ComparisonRecord),
        links=_LINKS,
        aborted=quote(ABORTED),
        other=quote(OTHER_ERROR),
    )
    yield f"""
    select
        g.generation_id,
        g.run_id,
        {quote(PREFILL)} as place,
        span_id_of(g.generation_id, '') as parent_id,
        {quote(PREFILL)} as name,
        0 as start_ns,
        g.prefill_ns as duration_ns,
        {_write_object({STAGE_BASIS: quote("barrier")}, "g")} as attributes,
        {_NO_LINKS} as links,
        null as error_type
    from generations as g
    where g.total_ns is not null"""
    error = f"case when r.outcome = 'error' then coalesce(g.error_type, {quote(OTHER_ERROR)}) end"
    yield _PARTS.format(
        **where, name=quote(ROUND), attributes=_write_object({}, "r", RoundRecord), links=_NO_LINKS, error=error
    )
    before_trim = "r.start_ns + r.draft_ns + r.verify_ns + r.synchronize_ns"
    trim = f"greatest({before_trim}, r.start_ns + r.t_round_ns - r.trim_ns - r.rewind_ns)"
    starts = {"trim": trim, "rewind": f"{trim} + r.trim_ns"}
    yield from _write_stages(ROUND_STAGES, where, starts, {})


def _write_ncm() -> Iterator[str]:
    where = {"table": "ncm_generations", "parts": "levels", "duration": "t_level_ns", "index": quote_name("level")}
    yield _ROOTS.format(
        **where,
        apart="false",
        name=quote(NCM_GENERATE),
        attributes=_write_object({}, "g", NcmRecord, NcmEnd, NcmComparison),
        links=_NCM_LINKS,
        aborted=quote(ABORTED),
        other=quote(OTHER_ERROR),
    )
    yield _PARTS.format(
        **where, name=quote(NCM_LEVEL), attributes=_write_object({}, "r", LevelRecord), links=_NO_LINKS, error="null"
    )
    forward = {a.name: _write_value(a, "r") for a in attributes_of(LevelRecord) if a.field.name in FORWARD_FIELDS}
    yield from _write_stages(NCM_STAGES, where, {}, {"forward": forward})
    start = "g.total_ns - g.finish_ns"
    for stage in NCM_ENDING:
        yield _ENDING.format(
            stage=stage,
            place=quote(f"end/{stage}"),
            name=quote(NCM_STAGES[stage]),
            start=start,
            attributes=_write_object({STAGE_BASIS: f"g.{stage}_basis"}, "g"),
            links=_NO_LINKS,
        )
        start += f" + coalesce(g.{stage}_ns, 0)"


def _write_stages(
    names: Mapping[str, str],
    where: Mapping[str, str],
    starts: Mapping[str, str],
    extra: Mapping[str, Mapping[str, str]],
) -> Iterator[str]:
    start = "r.start_ns"
    for stage, name in names.items():
        fixed = {STAGE_BASIS: f"r.{stage}_basis", **extra.get(stage, {})}
        yield _STAGE.format(
            **where,
            stage=stage,
            suffix=quote(f"/{stage}"),
            name=quote(name),
            start=starts.get(stage, start),
            attributes=_write_object(fixed, "r"),
            links=_NO_LINKS,
        )
        start += f" + r.{stage}_ns"


def _write_object(fixed: Mapping[str, str], table: str, *kinds: type[Struct]) -> str:
    members = dict(fixed)
    for kind in kinds:
        members |= {attribute.name: _write_value(attribute, table) for attribute in attributes_of(kind)}
    return "json_object(" + ", ".join(f"{quote(name)}, {value}" for name, value in members.items()) + ")"


def _write_value(attribute: Attribute, table: str) -> str:
    column = f"{table}.{quote_name(attribute.field.name)}"
    if attribute.form == "seconds":
        return f"{column} / 1e9"
    if attribute.field.name == "finish_reason":
        # The states of a generation without an end are no reasons for which one ended.
        value = f"[{column}]" if attribute.form == "list" else column
        return f"case when {table}.total_ns is not null then {value} end"
    return column
