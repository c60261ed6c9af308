-- name: stages
-- summary: where attributed rounds spend their time, stage by stage, with the basis of each and the observer effect
-- question: Which stage takes the time, and how much does measuring it so disturb?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them; ordinary decoding has rows of its own
--   drafter: name of the drafter; NULL: ordinary decoding
--   draft_length: proposed tokens asked for per round at most [tokens]
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   stage: draft, verify, synchronize, trim or rewind; other: what is left of T_round
--   basis: what the stage was timed by: host, host_launch, host_wait or barrier; NULL: never entered, or other
--   n_rounds: attributed rounds without warm-up, of generations that ended by themselves
--   n_entered: of these, rounds that entered the stage; NULL: other
--   seconds_per_round: mean time of the stage over all of these rounds [s]
--   share: the stage's part of the sum of T_round
--   n_prompts: prompts that this arm completed both attributed and fused
--   attributed_seconds_per_token: seconds per committed token on them, attributed [s]
--   fused_seconds_per_token: the same, fused [s]
--   observer_effect: attributed over fused; NULL: no such prompt
with shapes as (
    select
        g.arm,
        g.drafter,
        g.draft_length,
        g.scope,
        r.draft_basis,
        r.verify_basis,
        r.synchronize_basis,
        r.trim_basis,
        r.rewind_basis,
        count(*) as n_rounds,
        sum(r.t_round_ns)::double as t,
        sum(r.draft_ns)::double as draft,
        sum(r.verify_ns)::double as verify,
        sum(r.synchronize_ns)::double as synchronize,
        sum(r.trim_ns)::double as trim,
        sum(r.rewind_ns)::double as rewind
    from rounds as r
    inner join scoped_generations as g on r.generation_id = g.generation_id
    where g.timing = 'attributed' and not g.warm_up and g.is_whole
    group by all
),

parts as (
    select
        s.*,
        p.ordinal,
        p.stage,
        case p.stage
            when 'draft' then s.draft_basis
            when 'verify' then s.verify_basis
            when 'synchronize' then s.synchronize_basis
            when 'trim' then s.trim_basis
            when 'rewind' then s.rewind_basis
        end as basis,
        case p.stage
            when 'draft' then s.draft
            when 'verify' then s.verify
            when 'synchronize' then s.synchronize
            when 'trim' then s.trim
            when 'rewind' then s.rewind
            else s.t - s.draft - s.verify - s.synchronize - s.trim - s.rewind
        end as ns
    from shapes as s
    cross join (
        values (1, 'draft'), (2, 'verify'), (3, 'synchronize'), (4, 'trim'), (5, 'rewind'), (6, 'other')
    ) as p (ordinal, stage)
),

stages as (
    select
        arm,
        drafter,
        draft_length,
        scope,
        ordinal,
        stage,
        string_agg(distinct basis, ', ' order by basis) as basis,
        sum(n_rounds)::bigint as n_rounds,
        coalesce(sum(n_rounds) filter (where basis is not null), 0)::bigint as n_entered,
        sum(ns) / nullif(sum(n_rounds), 0) / 1e9 as seconds_per_round,
        sum(ns) / nullif(sum(t), 0) as share
    from parts
    group by all
),

prompts as (
    select
        arm,
        draft_length,
        scope,
        class,
        prompt_id,
        sum(total_t) filter (where timing = 'attributed') as attributed_t,
        sum(total_committed) filter (where timing = 'attributed') as attributed_committed,
        sum(total_t) filter (where timing = 'fused') as fused_t,
        sum(total_committed) filter (where timing = 'fused') as fused_committed
    from scoped_generations
    where not warm_up and is_whole and prompt_id is not null
    group by all
),

observed as (
    select
        arm,
        draft_length,
        scope,
        count(*) as n_prompts,
        sum(attributed_t) / nullif(sum(attributed_committed), 0) / 1e9 as attributed_seconds_per_token,
        sum(fused_t) / nullif(sum(fused_committed), 0) / 1e9 as fused_seconds_per_token
    from prompts
    where attributed_t is not null and fused_t is not null
    group by all
)

select
    (select run_id from selected_run) as run_id,
    s.arm,
    s.drafter,
    s.draft_length,
    s.scope as class,
    s.stage,
    s.basis,
    s.n_rounds,
    case when s.stage <> 'other' then s.n_entered end as n_entered,
    s.seconds_per_round,
    s.share,
    coalesce(o.n_prompts, 0) as n_prompts,
    o.attributed_seconds_per_token,
    o.fused_seconds_per_token,
    o.attributed_seconds_per_token / nullif(o.fused_seconds_per_token, 0) as observer_effect
from stages as s
left join observed as o on s.arm = o.arm and s.draft_length = o.draft_length and s.scope = o.scope
order by s.drafter nulls first, s.draft_length, s.arm, s.scope = 'all', s.scope, s.ordinal;
