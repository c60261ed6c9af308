-- Shared meaning of the queries, each once: which generations count, how prompts are paired, what arms are compared by.
-- queries.install_views() runs these statements: kept in a database that can be written, temporary in one that cannot.
-- Times are double nanoseconds until a query shows them.

-- Total, tails and longest of a duration over rows.
create or replace macro spread(ns) as (
    struct_pack(total := sum(ns)::double, tails := quantile_cont(ns, [0.5, 0.95, 0.99]), longest := max(ns))
);

-- E[C] of a round whose m proposed tokens were each accepted with the same chance a, whatever came before:
-- 1 + a + ... + a^m. No real drafter is like that; it serves as an illustration.
create or replace macro iid_committed(a, m) as (
    case when a >= 1 then m + 1 else (1 - pow(a, m + 1)) / (1 - a) end
);

-- The run that is asked for, or the latest: ids of runs sort by time.
create or replace view selected_run as
select coalesce(
    getvariable('run_id')::varchar,
    (
        select max(run_id)
        from (
            select run_id from runs
            union all
            select run_id from generations
            union all
            select run_id from ncm_generations
        )
    )
) as run_id;

-- The generations of the run, and whether their outputs are ordinary decoding's.
create or replace view run_generations as
select
    *,
    case
        when equal then 'equal'
        when near_tie then 'near tie'
        when not equal then 'divergent'
    end as output
from generations
where run_id = (select run_id from selected_run);

-- Every generation of the run with the sums over its rounds. `is_whole`: it ended by itself and no round of it is
-- missing; only such generations enter figures, the others are counted by `completeness`.
create or replace view generation_totals as
with sums as (
    select
        r.generation_id,
        count(*) as n_rounds,
        sum(r.proposed)::double as total_proposed,
        sum(r.accepted)::double as total_accepted,
        sum(r.committed)::double as total_committed,
        sum(r.t_round_ns)::double as total_t,
        sum(r.draft_ns)::double as total_draft,
        sum(r.verify_ns)::double as total_verify,
        sum(r.synchronize_ns)::double as total_synchronize,
        sum(r.rewind_ns)::double as total_rewind
    from rounds as r
    semi join (
        select generation_id from generations
        where run_id = (select run_id from selected_run)
    ) as g on r.generation_id = g.generation_id
    group by r.generation_id
)

select
    g.* exclude (n_rounds),
    g.n_rounds as n_rounds_reported,
    coalesce(s.n_rounds, 0) as n_rounds,
    s.* exclude (generation_id, n_rounds),
    coalesce(
        g.finish_reason in ('stop', 'length')
        and s.n_rounds = g.n_rounds
        and s.total_committed = g.n_committed,
        false
    ) as is_whole
from run_generations as g
left join sums as s on g.generation_id = s.generation_id;

-- Every generation of the run once under its own class and once under 'all'; `scope` is what the queries show as class.
-- A workload's class that is itself called 'all' is in the pooled rows only.
create or replace view scopes as
select
    case when p.pooled then 'all' else g.class end as scope,
    g.*
from run_generations as g
cross join (values (true), (false)) as p (pooled)
where p.pooled or g.class <> 'all';

-- The same with the sums over its rounds.
create or replace view scoped_generations as
select
    case when p.pooled then 'all' else t.class end as scope,
    t.*
from generation_totals as t
cross join (values (true), (false)) as p (pooled)
where p.pooled or t.class <> 'all';

-- How many fused rounds of an arm had each shape: `judged` of the proposed tokens were not cut.
create or replace view round_shapes as
select
    g.arm,
    g.drafter,
    g.draft_length,
    g.scope,
    r.proposed,
    r.proposed - r.cut as judged,
    r.accepted,
    r.proposer,
    count(*) as n_rounds
from rounds as r
inner join scoped_generations as g on r.generation_id = g.generation_id
where g.timing = 'fused' and not g.warm_up and g.is_whole and g.drafter is not null
group by all;

-- Fused work of an arm beside ordinary decoding's on the same prompt: one row per arm, scope and prompt, summed over
-- the repeats that both completed, because repeats of a prompt are no independent evidence. Ordinary decoding pairs
-- with itself.
create or replace view prompt_pairs as
with repeats as (
    select
        scope,
        class,
        prompt_id,
        repeat,
        arm,
        drafter,
        draft_length,
        count(*) as n_generations,
        sum(n_rounds)::double as n_rounds,
        sum(total_proposed) as total_proposed,
        sum(total_accepted) as total_accepted,
        sum(total_committed) as total_committed,
        sum(total_t) as total_t,
        sum(prefill_ns)::double as total_prefill,
        count(ttft_ns) as n_first_tokens,
        sum(ttft_ns)::double as total_ttft,
        sum(total_ns)::double as total_end_to_end
    from scoped_generations
    where timing = 'fused' and not warm_up and is_whole
    group by all
)

select
    s.arm,
    s.drafter,
    s.draft_length,
    s.scope,
    s.class,
    s.prompt_id,
    sum(s.n_generations) as n_generations,
    sum(s.n_rounds) as n_rounds,
    sum(s.total_proposed) as total_proposed,
    sum(s.total_accepted) as total_accepted,
    sum(s.total_committed) as total_committed,
    sum(s.total_t) as total_t,
    sum(s.total_prefill) as total_prefill,
    sum(s.n_first_tokens) as n_first_tokens,
    sum(s.total_ttft) as total_ttft,
    sum(s.total_end_to_end) as total_end_to_end,
    sum(o.n_rounds) as ordinary_n_rounds,
    sum(o.total_committed) as ordinary_committed,
    sum(o.total_t) as ordinary_t,
    sum(o.n_generations) as ordinary_n_generations,
    sum(o.total_end_to_end) as ordinary_end_to_end
from repeats as s
inner join repeats as o
    on s.scope = o.scope
    and s.class is not distinct from o.class
    and s.prompt_id = o.prompt_id
    and s.repeat = o.repeat
where o.drafter is null
group by all;

-- What every forecast says, one row per output position: how many tokens the drafter would have offered there, and how
-- many of them would have been right. `budget` is the limit of the output, `n_out` what it came to.
create or replace view positions as
select
    g.run_id,
    f.generation_id,
    f.spec,
    f.longest,
    f.prompt_tokens,
    g.prompt_id,
    g.class,
    g.max_tokens as budget,
    len(f.offered) as n_out,
    unnest(range(len(f.offered))) as position,
    unnest(f.offered) as n_offer,
    unnest(f."right") as n_right
from forecasts as f
inner join generations as g on f.generation_id = g.generation_id;

-- What verification of every width costs in the run, averaged over its contexts: measured, or on the straight line
-- between the widths measured on either side.
create or replace view verify_prices as
with curve as (
    select
        width,
        avg(verify_ns) as ns
    from verify_costs
    where run_id = (select run_id from selected_run)
    group by width
)

select
    w.width,
    case
        when low.width = high.width then low.ns
        else low.ns + (high.ns - low.ns) * (w.width - low.width) / (high.width - low.width)
    end as ns
from (select unnest(range(1, 1 + (select max(width) from curve))) as width) as w
asof join curve as low on w.width >= low.width
asof join curve as high on w.width <= high.width;

-- The work of every run that counts, fused and without warm-up: one row per run, arm, class and prompt, averaged over
-- the repeats.
create or replace view prompt_work as
with sums as (
    select
        generation_id,
        count(*) as n_rounds,
        sum(proposed)::double as proposed,
        sum(accepted)::double as accepted,
        sum(committed)::double as committed,
        sum(t_round_ns)::double as t
    from rounds
    group by generation_id
)

select
    g.run_id,
    g.arm,
    g.drafter,
    g.draft_length,
    g.class,
    g.prompt_id,
    g.prompt_tokens,
    avg(s.n_rounds) as n_rounds,
    avg(s.proposed) as proposed,
    avg(s.accepted) as accepted,
    avg(s.committed) as committed,
    avg(s.t) as t,
    max(g.peak_memory_bytes) as peak_bytes
from generations as g
inner join sums as s on g.generation_id = s.generation_id
where
    g.timing = 'fused'
    and not g.warm_up
    and g.finish_reason in ('stop', 'length')
    and s.n_rounds = g.n_rounds
    and s.committed = g.n_committed
group by all;

-- What each run chose its tokens from, by its ordinary decoding.
create or replace view run_sampling as
select
    run_id,
    string_agg(distinct sampling, ' or ' order by sampling) as sampling
from (
    select
        run_id,
        concat_ws(
            ', ',
            case when temperature is null then 'greedy' else printf('temperature %g', temperature) end,
            case when top_k > 0 then printf('top-k %d', top_k) end,
            case when top_p < 1 then printf('top-p %g', top_p) end,
            case when min_p > 0 then printf('min-p %g', min_p) end,
            case
                when repetition_penalty is not null
                    then printf('repetition penalty %g over %d', repetition_penalty, repetition_context)
            end
        ) as sampling
    from generations
    where drafter is null
)
group by run_id;

-- Where attributed rounds spend their time: one row per arm and scope. Their durations enter no other figure.
create or replace view attributed_shares as
select
    arm,
    drafter,
    draft_length,
    scope,
    sum(n_rounds) as n_rounds,
    sum(total_draft + total_rewind) / nullif(sum(total_t), 0) as drafting,
    sum(total_verify + total_synchronize) / nullif(sum(total_t), 0) as verification
from scoped_generations
where timing = 'attributed' and not warm_up and is_whole
group by all;

-- Whether outputs are ordinary decoding's: one row per arm and scope, over generations of both timing modes.
create or replace view output_equality as
select
    arm,
    drafter,
    draft_length,
    scope,
    count(output) as n_compared,
    count(*) filter (where output = 'equal') as n_equal,
    count(*) filter (where output = 'divergent') as n_divergent
from scopes
group by all;

-- Every arm against ordinary decoding: one row per arm and scope, a verdict with what it stands on. The interval is
-- exp(ln S +- t(df) standard error), with d the influence of each prompt on ln S (delta method), over several classes
-- that of a stratified sample. `samples` are the sums of each prompt and its stratum, in the order of these.
create or replace view comparisons as
with influences as (
    select
        *,
        stratum(class, count(*) over (partition by arm, drafter, draft_length, scope, class)) as stratum,
        ordinary_t / nullif(avg(ordinary_t) over g, 0)
        - ordinary_committed / nullif(avg(ordinary_committed) over g, 0)
        - total_t / nullif(avg(total_t) over g, 0)
        + total_committed / nullif(avg(total_committed) over g, 0) as d
    from prompt_pairs
    window g as (partition by arm, drafter, draft_length, scope)
),

varied as (
    select
        *,
        count(*) over s as n_alike,
        stratum_spread(count(*) over s, var_samp(d) over s, d) as v
    from influences
    window s as (partition by arm, drafter, draft_length, scope, stratum)
),

sums as (
    select
        arm,
        drafter,
        draft_length,
        scope,
        count(*) as n_prompts,
        sum(n_generations)::bigint as n_generations,
        sum(n_rounds)::bigint as n_rounds,
        sum(total_proposed) as total_proposed,
        sum(total_accepted) as total_accepted,
        sum(total_committed) as total_committed,
        sum(total_t) as total_t,
        sum(total_prefill) / nullif(sum(n_generations), 0) as prefill,
        sum(total_ttft) / nullif(sum(n_first_tokens), 0) as ttft,
        sum(total_end_to_end) / nullif(sum(n_generations), 0) as end_to_end,
        sum(ordinary_end_to_end) / nullif(sum(ordinary_n_generations), 0) as ordinary_end_to_end,
        sum(total_t) / nullif(sum(total_committed), 0) as per_token,
        sum(ordinary_t) / nullif(sum(ordinary_committed), 0) as ordinary_per_token,
        sum(ordinary_t) / nullif(sum(ordinary_n_rounds), 0) as ordinary_per_step,
        standard_error(v, n_alike) as error,
        degrees_of_freedom(v, n_alike) as df,
        list(
            struct_pack(
                stratum := stratum,
                ordinary_t := ordinary_t,
                ordinary_committed := ordinary_committed,
                total_t := total_t,
                total_committed := total_committed
            )
            order by stratum, class, prompt_id
        ) as samples
    from varied
    group by all
),

intervals as (
    select
        *,
        ordinary_per_token / nullif(per_token, 0) as speedup,
        ln(nullif(ordinary_per_token, 0) / nullif(per_token, 0)) as log_speedup,
        t_975(df) * error as half_width
    from sums
),

verdicts as (
    select
        *,
        speedup * exp(-half_width) as speedup_low,
        speedup * exp(half_width) as speedup_high,
        judge(n_prompts, log_speedup, half_width) as verdict
    from intervals
),

-- What the one idealisation of each factor would save, in time per committed token: drafting (and rewinding) for
-- nothing; a verification no dearer than an ordinary step; every proposed token accepted in the same time.
savings as (
    select
        v.*,
        a.drafting as drafting_share,
        v.per_token * a.drafting as saved_by_free_draft,
        greatest(v.total_t * a.verification - v.n_rounds * v.ordinary_per_step, 0)
        / nullif(v.total_committed, 0) as saved_by_one_step,
        v.per_token - v.total_t / nullif(v.total_proposed + v.n_rounds, 0) as saved_by_acceptance
    from verdicts as v
    left join attributed_shares as a
        on v.arm = a.arm
        and v.drafter is not distinct from a.drafter
        and v.draft_length = a.draft_length
        and v.scope = a.scope
),

limits as (
    select
        *,
        case
            when draft_length = 0 then null
            when total_proposed = 0 then 'nothing proposed'
            when drafting_share is null then null
            -- Under 1 %, no factor is what stands in the way.
            when greatest(saved_by_free_draft, saved_by_one_step, saved_by_acceptance) < 0.01 * per_token then null
            when saved_by_one_step >= greatest(saved_by_free_draft, saved_by_acceptance) then 'verification'
            when saved_by_acceptance >= saved_by_free_draft then 'acceptance'
            else 'drafting'
        end as limited_by,
        -- Where nothing was proposed the arms do the same, and no number of prompts settles a difference.
        case
            when verdict = 'indistinguishable' and (total_proposed > 0 or draft_length = 0)
                then prompts_to_settle(log_speedup, error * sqrt(n_prompts), n_prompts - df) - n_prompts
        end as n_more
    from savings
),

-- Arms of which no prompt could be paired have a row too.
groups as (
    select
        arm,
        drafter,
        draft_length,
        scope,
        bool_or(timing = 'fused') as has_fused,
        bool_and(policy is distinct from 'relaxed') as is_exact
    from scopes
    where not warm_up
    group by all
)

select
    (select run_id from selected_run) as run_id,
    g.arm,
    g.drafter,
    g.draft_length,
    g.scope,
    coalesce(l.n_prompts, 0) as n_prompts,
    coalesce(l.n_generations, 0) as n_generations,
    coalesce(l.n_rounds, 0) as n_rounds,
    l.total_proposed,
    l.total_accepted,
    l.total_committed,
    l.total_t,
    l.prefill,
    l.ttft,
    l.end_to_end,
    l.ordinary_end_to_end,
    l.per_token,
    l.ordinary_per_token,
    l.speedup,
    l.speedup_low,
    l.speedup_high,
    l.df,
    l.drafting_share,
    l.verdict,
    l.samples,
    l.limited_by,
    g.is_exact,
    case when l.n_more <= 10000 then l.n_more end as more_prompts,
    case
        when l.n_more <= 10000 and l.log_speedup > 0 then 'pays'
        when l.n_more <= 10000 and l.log_speedup < 0 then 'loses'
    end as would_settle,
    nullif(concat_ws(
        '; ',
        case when not g.is_exact then 'not exact: its output is not the target''s, and was not compared with it' end,
        case
            when not g.has_fused then 'no verdict: attributed rounds give shares only'
            when coalesce(l.n_prompts, 0) < 5
                then printf('no verdict under 5 prompts that both arms completed, here %d', coalesce(l.n_prompts, 0))
        end,
        case when g.draft_length = 0 then 'drafts nothing: shows what the loop itself costs' end,
        case
            when g.draft_length > 0 and l.total_proposed > 0 and l.drafting_share is not null and l.limited_by is null
                then printf(
                    'no single factor would save 1 %%; %.2f tokens are proposed a round', l.total_proposed / l.n_rounds
                )
        end,
        case when l.limited_by = 'nothing proposed' then 'asked to speculate, but nothing was ever proposed' end,
        case
            when g.draft_length > 0 and l.total_proposed > 0 and l.drafting_share is null
                then 'no attributed rounds, so what limits is not known'
        end,
        case
            when
                l.verdict = 'indistinguishable'
                and (l.total_proposed > 0 or g.draft_length = 0)
                and coalesce(l.n_more > 10000, true)
                then 'practically equal: 10,000 more prompts would not settle it'
        end
    ), '') as note
from groups as g
left join limits as l
    on g.arm = l.arm
    and g.drafter is not distinct from l.drafter
    and g.draft_length = l.draft_length
    and g.scope = l.scope;
