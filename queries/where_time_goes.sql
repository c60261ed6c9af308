-- name: where_time_goes
-- summary: the time of every stage by arm, class and timing, with its tails, beside what is unaccounted for
-- question: Where does the time go, and how long are the longest rounds?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them; ordinary decoding has rows of its own
--   drafter: name of the drafter; NULL: ordinary decoding
--   draft_length: proposed tokens asked for per round at most [tokens]
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   timing: fused: only the round's own time is true; attributed: the stages' are
--   stage: draft, verify, synchronize, trim or rewind; other: what is left of T_round; round: T_round; unaccounted:
--     decode wall time outside of rounds, by generation
--   basis: what the stage was timed by; NULL: never entered, or no stage
--   n: rounds, without warm-up, of generations that ended by themselves; generations where unaccounted
--   total_seconds: sum over them [s]
--   share: of the decode wall time, which is all rounds and what is unaccounted
--   p50_seconds: median over them [s]
--   p95_seconds: 95th percentile [s]
--   p99_seconds: 99th percentile [s]
--   longest_seconds: the longest [s]
with counted as materialized (
    select
        generation_id,
        arm,
        drafter,
        draft_length,
        class,
        timing,
        unaccounted_ns
    from generation_totals
    where not warm_up and is_whole
),

shapes as (
    select
        g.arm,
        g.draft_length,
        g.class,
        g.timing,
        r.draft_basis,
        r.verify_basis,
        r.synchronize_basis,
        r.trim_basis,
        r.rewind_basis
    from rounds as r
    inner join counted as g on r.generation_id = g.generation_id
    group by all
),

bases as (
    select
        s.arm,
        s.draft_length,
        s.timing,
        p.stage,
        s.class,
        case p.stage
            when 'draft' then s.draft_basis
            when 'verify' then s.verify_basis
            when 'synchronize' then s.synchronize_basis
            when 'trim' then s.trim_basis
            when 'rewind' then s.rewind_basis
        end as basis
    from shapes as s
    cross join (values ('draft'), ('verify'), ('synchronize'), ('trim'), ('rewind')) as p (stage)
),

named_bases as (
    select
        arm,
        draft_length,
        timing,
        stage,
        case when grouping(class) = 1 then 'all' else class end as scope,
        string_agg(distinct basis, ', ' order by basis) as basis
    from bases
    group by grouping sets ((arm, draft_length, timing, stage, class), (arm, draft_length, timing, stage))
    having grouping(class) = 1 or class <> 'all'
),

rounds_spread as (
    select
        g.arm,
        g.drafter,
        g.draft_length,
        g.timing,
        case when grouping(g.class) = 1 then 'all' else g.class end as scope,
        count(*) as n,
        spread(r.draft_ns) as draft,
        spread(r.verify_ns) as verify,
        spread(r.synchronize_ns) as synchronize,
        spread(r.trim_ns) as trim,
        spread(r.rewind_ns) as rewind,
        spread(
            r.t_round_ns - r.draft_ns - r.verify_ns - r.synchronize_ns - r.trim_ns - r.rewind_ns
        ) as other,
        spread(r.t_round_ns) as round
    from rounds as r
    inner join counted as g on r.generation_id = g.generation_id
    group by
        grouping sets (
            (g.arm, g.drafter, g.draft_length, g.timing, g.class), (g.arm, g.drafter, g.draft_length, g.timing)
        )
    having grouping(g.class) = 1 or g.class <> 'all'
),

generations_spread as (
    select
        arm,
        draft_length,
        timing,
        case when grouping(class) = 1 then 'all' else class end as scope,
        count(*) as n,
        spread(unaccounted_ns) as unaccounted
    from counted
    group by grouping sets ((arm, draft_length, timing, class), (arm, draft_length, timing))
    having grouping(class) = 1 or class <> 'all'
),

stages as (
    select
        r.arm,
        r.drafter,
        r.draft_length,
        r.timing,
        r.scope,
        p.ordinal,
        p.stage,
        r.round.total + coalesce(g.unaccounted.total, 0) as whole,
        case when p.stage = 'unaccounted' then g.n else r.n end as n,
        case p.stage
            when 'draft' then r.draft
            when 'verify' then r.verify
            when 'synchronize' then r.synchronize
            when 'trim' then r.trim
            when 'rewind' then r.rewind
            when 'other' then r.other
            when 'round' then r.round
            when 'unaccounted' then g.unaccounted
        end as spread
    from rounds_spread as r
    inner join generations_spread as g
        on r.arm = g.arm and r.draft_length = g.draft_length and r.timing = g.timing and r.scope = g.scope
    cross join (
        values
        (1, 'draft'),
        (2, 'verify'),
        (3, 'synchronize'),
        (4, 'trim'),
        (5, 'rewind'),
        (6, 'other'),
        (7, 'round'),
        (8, 'unaccounted')
    ) as p (ordinal, stage)
)

select
    (select run_id from selected_run) as run_id,
    s.arm,
    s.drafter,
    s.draft_length,
    s.scope as class,
    s.timing,
    s.stage,
    b.basis,
    s.n,
    s.spread.total / 1e9 as total_seconds,
    s.spread.total / nullif(s.whole, 0) as share,
    s.spread.tails[1] / 1e9 as p50_seconds,
    s.spread.tails[2] / 1e9 as p95_seconds,
    s.spread.tails[3] / 1e9 as p99_seconds,
    s.spread.longest / 1e9 as longest_seconds
from stages as s
left join named_bases as b
    on s.arm = b.arm
    and s.draft_length = b.draft_length
    and s.timing = b.timing
    and s.scope = b.scope
    and s.stage = b.stage
order by s.drafter nulls first, s.draft_length, s.arm, s.scope = 'all', s.scope, s.timing, s.ordinal;
