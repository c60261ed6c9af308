-- name: compare
-- summary: two runs on the same prompts, arm by arm and class by class, with what differs between their environments
-- question: Did anything get faster or slower from one run to the other, and can that be told from noise?
-- runs: speculation
-- variables:
--   run_a: id of the run to compare with; default: the run before run_b
--   run_b: id of the run that is judged; default: the latest
-- columns:
--   run_a: id of the run to compare with
--   run_b: id of the run that is judged
--   arm: drafter and draft length, as both runs name them; ordinary decoding has rows of its own
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   n_prompts: prompts of the same id, class and length that the arm and ordinary decoding completed in both runs,
--     fused and without warm-up
--   seconds_per_token_a: sum of T_round over the sum of committed tokens in run_a, repeats averaged [s]
--   seconds_per_token_b: the same in run_b [s]
--   ratio: run_b's seconds per token over run_a's
--   ratio_low: lower end of its 95 % interval: delta method, Student's t over prompts within their classes
--   ratio_high: upper end of it
--   change: faster, slower or indistinguishable, by that interval; NULL under 5 prompts, and on another machine
--   speedup_a: ordinary's seconds per token over the arm's, in run_a on these prompts; NULL: ordinary decoding
--   speedup_b: the same in run_b
--   speedup_ratio: speedup_b over speedup_a: what is left of the change once both machines are as fast
--   speedup_ratio_low: lower end of its 95 % interval; NULL under 2 prompts
--   speedup_ratio_high: upper end of it
--   accepted_per_round_a: mean of accepted tokens per round in run_a [tokens]
--   accepted_per_round_b: the same in run_b [tokens]
--   peak_bytes_a: most that MLX held during a generation of run_a on these prompts [bytes]
--   peak_bytes_b: the same in run_b [bytes]
--   differences: what differs between the two runs' environments and requests; NULL: nothing that is recorded
--   same_machine: whether host, processor, cores and device are the same; NULL: a run's own line is lost
with latest as (
    select coalesce(getvariable('run_b')::varchar, max(run_id)) as run_b
    from prompt_work
),

ends as (
    select
        l.run_b,
        coalesce(getvariable('run_a')::varchar, (
            select max(p.run_id) from prompt_work as p
            where p.run_id < l.run_b
        )) as run_a
    from latest as l
),

facts as (
    select
        r.run_id,
        f.ordinal,
        f.name,
        f.value,
        f.ordinal <= 4 as is_machine
    from runs as r
    left join run_sampling as s on r.run_id = s.run_id,
        lateral (
            values
            (1, 'host', r.host),
            (2, 'processor', r.cpu),
            (3, 'cores', r.cores::varchar),
            (4, 'device', r.device),
            (5, 'os', r.os),
            (6, 'python', r.python_version),
            (7, 'mlx', r.mlx_version),
            (8, 'mlx-lm', r.mlx_lm_version),
            (9, 'blas', concat_ws(' ', r.blas, r.blas_version)),
            (10, 'blas threads', r.blas_threads::varchar),
            (11, 'precision variables', r.precision::varchar),
            (12, 'roundscope', r.roundscope_version),
            (13, 'model', r.model),
            (14, 'dtype', r.dtype),
            (15, 'bytes of weights', r.parameter_bytes::varchar),
            (16, 'prompts', r.workload_digest),
            (17, 'max tokens', r.max_tokens::varchar),
            (18, 'power', r.power),
            (19, 'sampling', s.sampling)
        ) as f (ordinal, name, value)
),

differing as (
    select
        string_agg(
            printf('%s: %s, then %s', a.name, coalesce(a.value, 'none'), coalesce(b.value, 'none')), '; '
            order by a.ordinal
        ) filter (where a.value is distinct from b.value) as differences,
        -- NULL where a run's own line is lost.
        bool_and(a.value is not distinct from b.value) filter (where a.is_machine) as same_machine
    from ends as e
    inner join facts as a on e.run_a = a.run_id
    inner join facts as b on e.run_b = b.run_id and a.name = b.name
),

pairs as (
    select
        a.arm,
        a.drafter,
        a.draft_length,
        case when s.pooled then 'all' else a.class end as scope,
        a.class,
        a.t as t_a,
        a.committed as c_a,
        a.n_rounds as r_a,
        a.accepted as accepted_a,
        a.peak_bytes as peak_a,
        b.t as t_b,
        b.committed as c_b,
        b.n_rounds as r_b,
        b.accepted as accepted_b,
        b.peak_bytes as peak_b,
        oa.t as ot_a,
        oa.committed as oc_a,
        ob.t as ot_b,
        ob.committed as oc_b
    from ends as e
    inner join prompt_work as a on e.run_a = a.run_id
    inner join prompt_work as b
        on e.run_b = b.run_id
        and a.arm = b.arm
        and a.class is not distinct from b.class
        and a.prompt_id = b.prompt_id
        and a.prompt_tokens = b.prompt_tokens
    inner join prompt_work as oa
        on a.run_id = oa.run_id
        and a.class is not distinct from oa.class
        and a.prompt_id = oa.prompt_id
        and oa.drafter is null
    inner join prompt_work as ob
        on b.run_id = ob.run_id
        and b.class is not distinct from ob.class
        and b.prompt_id = ob.prompt_id
        and ob.drafter is null
    cross join (values (true), (false)) as s (pooled)
    where s.pooled or a.class <> 'all'
),

influences as (
    select
        *,
        stratum(class, count(*) over (partition by arm, drafter, draft_length, scope, class)) as stratum,
        t_b / nullif(avg(t_b) over g, 0) - c_b / nullif(avg(c_b) over g, 0)
        - t_a / nullif(avg(t_a) over g, 0) + c_a / nullif(avg(c_a) over g, 0) as d,
        ot_b / nullif(avg(ot_b) over g, 0) - oc_b / nullif(avg(oc_b) over g, 0)
        - ot_a / nullif(avg(ot_a) over g, 0) + oc_a / nullif(avg(oc_a) over g, 0) as ordinary_d
    from pairs
    window g as (partition by arm, drafter, draft_length, scope)
),

varied as (
    select
        *,
        count(*) over s as n_alike,
        stratum_spread(count(*) over s, var_samp(d) over s, d) as v,
        stratum_spread(count(*) over s, var_samp(ordinary_d - d) over s, ordinary_d - d) as speedup_v
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
        sum(t_a) / nullif(sum(c_a), 0) as per_token_a,
        sum(t_b) / nullif(sum(c_b), 0) as per_token_b,
        sum(ot_a) / nullif(sum(oc_a), 0) as ordinary_a,
        sum(ot_b) / nullif(sum(oc_b), 0) as ordinary_b,
        sum(accepted_a) / nullif(sum(r_a), 0) as accepted_a,
        sum(accepted_b) / nullif(sum(r_b), 0) as accepted_b,
        max(peak_a) as peak_a,
        max(peak_b) as peak_b,
        t_975(degrees_of_freedom(v, n_alike)) * standard_error(v, n_alike) as half_width,
        t_975(degrees_of_freedom(speedup_v, n_alike)) * standard_error(speedup_v, n_alike) as speedup_half_width
    from varied
    group by all
),

ratios as (
    select
        *,
        per_token_b / nullif(per_token_a, 0) as ratio,
        ordinary_a / nullif(per_token_a, 0) as speedup_a,
        ordinary_b / nullif(per_token_b, 0) as speedup_b
    from sums
)

select
    e.run_a,
    e.run_b,
    r.arm,
    r.scope as class,
    r.n_prompts,
    r.per_token_a / 1e9 as seconds_per_token_a,
    r.per_token_b / 1e9 as seconds_per_token_b,
    r.ratio,
    r.ratio * exp(-r.half_width) as ratio_low,
    r.ratio * exp(r.half_width) as ratio_high,
    case
        when r.n_prompts < 5 or not coalesce(d.same_machine, false) then null
        when ln(r.ratio) > r.half_width then 'slower'
        when -ln(r.ratio) > r.half_width then 'faster'
        when abs(ln(r.ratio)) <= r.half_width then 'indistinguishable'
    end as change,
    case when r.drafter is not null then r.speedup_a end as speedup_a,
    case when r.drafter is not null then r.speedup_b end as speedup_b,
    case when r.drafter is not null then r.speedup_b / nullif(r.speedup_a, 0) end as speedup_ratio,
    case when r.drafter is not null then r.speedup_b / nullif(r.speedup_a, 0) * exp(-r.speedup_half_width) end
        as speedup_ratio_low,
    case when r.drafter is not null then r.speedup_b / nullif(r.speedup_a, 0) * exp(r.speedup_half_width) end
        as speedup_ratio_high,
    r.accepted_a as accepted_per_round_a,
    r.accepted_b as accepted_per_round_b,
    r.peak_a as peak_bytes_a,
    r.peak_b as peak_bytes_b,
    d.differences,
    d.same_machine
from ratios as r
cross join ends as e
cross join differing as d
order by r.drafter nulls first, r.draft_length, r.arm, r.scope = 'all', r.scope;
