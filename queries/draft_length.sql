-- name: draft_length
-- summary: what every draft length would have cost, replayed over one forecast of each ordinary output
-- question: At what draft length would it pay, and what would a token cost then?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   drafter: drafter with its options, as the arms name it
--   class: class of the prompts; 'all': all classes
--   m: draft length; 0: ordinary decoding [tokens]
--   n_prompts: prompts whose ordinary output was forecast
--   predicted_rounds: rounds at this draft length, replayed exactly
--   measured_rounds: rounds of the arm that ran at it, on the same prompts, first repeat; NULL: none did
--   predicted_proposed: tokens proposed in the replayed rounds [tokens]
--   predicted_accepted: tokens accepted in them [tokens]
--   measured_accepted: tokens accepted in the measured ones [tokens]
--   predicted_committed: tokens committed in the replayed rounds [tokens]
--   predicted_seconds_per_token: replayed rounds at the measured price of a round with so many proposed tokens [s]
--   measured_seconds_per_token: of the arm that ran at it [s]
--   ordinary_seconds_per_token: ordinary decoding's on the same prompts [s]
--   predicted_speedup: ordinary's over the predicted
--   predicted_speedup_low: lower end of its 95 % interval over prompts, widened for picking the best of 16 draft lengths
--   predicted_speedup_high: upper end of it; the error of the price itself is not in the interval
--   predicted_verdict: pays, loses or indistinguishable, by that interval; NULL under 5 prompts
--   is_best: the cheapest that is predicted to pay, or m = 0 where none is; NULL under 5 prompts
with recursive
asked as (
    select
        p.*,
        g.repeat
    from positions as p
    inner join generation_totals as g on p.generation_id = g.generation_id
    where g.is_whole and not g.warm_up
),

replayed as (
    select
        s.generation_id,
        s.spec,
        l.m,
        0 as position,
        0 as proposed,
        0 as accepted,
        0 as committed,
        false as is_round
    from (select distinct generation_id, spec, longest from asked) as s,
        lateral (select unnest(range(1, s.longest + 1)) as m) as l
    union all
    select
        r.generation_id,
        r.spec,
        r.m,
        r.position + c.committed as position,
        o.proposed,
        a.accepted,
        c.committed,
        true as is_round
    from replayed as r
    -- There is no row past the end of the output, so the recursion stops there.
    inner join asked as p on r.generation_id = p.generation_id and r.spec = p.spec and r.position = p.position,
        lateral (select least(p.n_offer, r.m, p.budget - p.position - 1) as proposed) as o,
        lateral (select least(p.n_right, o.proposed, p.n_out - p.position) as accepted) as a,
        lateral (select least(a.accepted + 1, p.n_out - p.position) as committed) as c
),

curve as (
    select
        width,
        verify_ns::double as ns
    from verify_costs
    where run_id = (select run_id from selected_run)
),

-- The price of verifying w positions: measured, or between the widths measured on either side.
verifying as (
    select
        w.width,
        case
            when low.width = high.width then low.ns
            else low.ns + (high.ns - low.ns) * (w.width - low.width) / (high.width - low.width)
        end as ns
    from (select unnest(range(1, 2 + (select max(longest) from asked))) as width) as w
    asof join curve as low on w.width >= low.width
    asof join curve as high on w.width <= high.width
),

arms as (
    select
        *,
        regexp_replace(arm, ' m=\d+$', '') as spec
    from generation_totals
    where timing = 'fused' and not warm_up and is_whole and drafter is not null
),

-- What a measured round takes beyond verifying: a constant, and a part per proposed token.
rests as (
    select
        a.spec,
        coalesce(regr_intercept(r.t_round_ns - coalesce(v.ns, 0), r.proposed), avg(r.t_round_ns - coalesce(v.ns, 0)))
            as base,
        coalesce(regr_slope(r.t_round_ns - coalesce(v.ns, 0), r.proposed), 0) as per_token
    from rounds as r
    inner join arms as a on r.generation_id = a.generation_id
    left join verifying as v on v.width = r.proposed + 1
    group by a.spec
),

predicted as (
    select
        r.generation_id,
        r.spec,
        r.m,
        count(*) as n_rounds,
        sum(r.proposed) as proposed,
        sum(r.accepted) as accepted,
        sum(r.committed)::double as committed,
        sum(greatest(coalesce(v.ns, 0) + c.base + c.per_token * r.proposed, 0)) as t
    from replayed as r
    left join rests as c on r.spec = c.spec
    left join verifying as v on v.width = r.proposed + 1
    where r.is_round
    group by all
),

ordinary as (
    select
        prompt_id,
        avg(total_t) as t,
        avg(total_committed) as committed
    from generation_totals
    where timing = 'fused' and not warm_up and is_whole and drafter is null
    group by prompt_id
),

measured as (
    select
        a.spec,
        a.draft_length as m,
        a.prompt_id,
        sum(a.n_rounds) as n_rounds,
        sum(a.total_accepted) as accepted,
        sum(a.total_committed) as committed,
        sum(a.total_t) as t
    from arms as a
    where a.repeat = 0
    group by all
),

per_prompt as (
    select
        p.spec,
        p.m,
        case when s.pooled then 'all' else g.class end as scope,
        p.n_rounds,
        p.proposed,
        p.accepted,
        p.committed,
        p.t,
        o.t as ordinary_t,
        o.committed as ordinary_committed,
        x.n_rounds as measured_rounds,
        x.accepted as measured_accepted,
        x.committed as measured_committed,
        x.t as measured_t
    from predicted as p
    inner join generations as g on p.generation_id = g.generation_id
    inner join ordinary as o on g.prompt_id = o.prompt_id
    left join measured as x on p.spec = x.spec and p.m = x.m and g.prompt_id = x.prompt_id
    cross join (values (true), (false)) as s (pooled)
    where s.pooled or g.class <> 'all'
),

influences as (
    select
        *,
        ordinary_t / nullif(avg(ordinary_t) over g, 0)
        - ordinary_committed / nullif(avg(ordinary_committed) over g, 0)
        - t / nullif(avg(t) over g, 0)
        + committed / nullif(avg(committed) over g, 0) as d
    from per_prompt
    window g as (partition by spec, m, scope)
),

sums as (
    select
        spec,
        scope,
        m,
        count(*) as n_prompts,
        sum(n_rounds)::bigint as predicted_rounds,
        case when count(measured_rounds) = count(*) then sum(measured_rounds)::bigint end as measured_rounds,
        sum(proposed)::bigint as predicted_proposed,
        sum(accepted)::bigint as predicted_accepted,
        case when count(measured_rounds) = count(*) then sum(measured_accepted)::bigint end as measured_accepted,
        sum(committed)::bigint as predicted_committed,
        sum(t) / nullif(sum(committed), 0) as per_token,
        case when count(measured_rounds) = count(*) then sum(measured_t) / nullif(sum(measured_committed), 0) end
            as measured_per_token,
        sum(ordinary_t) / nullif(sum(ordinary_committed), 0) as ordinary_per_token,
        t_975_of_16(count(*) - 1) * stddev_samp(d) / sqrt(count(*)) as half_width
    from influences
    group by all
),

-- Ordinary decoding stands beside them as m = 0.
rows as (
    select
        *,
        ordinary_per_token / nullif(per_token, 0) as speedup
    from sums
    union all by name
    select distinct on (spec, scope)
        spec,
        scope,
        0 as m,
        n_prompts,
        predicted_committed as predicted_rounds,
        0 as predicted_proposed,
        0 as predicted_accepted,
        predicted_committed,
        ordinary_per_token as per_token,
        ordinary_per_token,
        1.0 as speedup
    from sums
    order by spec, scope, m
),

judged as (
    select
        *,
        case
            when m = 0 or n_prompts < 5 then null
            when ln(speedup) > half_width then 'pays'
            when -ln(speedup) > half_width then 'loses'
            when abs(ln(speedup)) <= half_width then 'indistinguishable'
        end as verdict
    from rows
)

select
    (select run_id from selected_run) as run_id,
    spec as drafter,
    scope as class,
    m,
    n_prompts,
    predicted_rounds,
    measured_rounds,
    predicted_proposed,
    predicted_accepted,
    measured_accepted,
    predicted_committed,
    per_token / 1e9 as predicted_seconds_per_token,
    measured_per_token / 1e9 as measured_seconds_per_token,
    ordinary_per_token / 1e9 as ordinary_seconds_per_token,
    speedup as predicted_speedup,
    speedup * exp(-half_width) as predicted_speedup_low,
    speedup * exp(half_width) as predicted_speedup_high,
    verdict as predicted_verdict,
    case
        when n_prompts >= 5
            then m = coalesce(
                arg_min(m, per_token) filter (where verdict = 'pays') over (partition by spec, scope), 0
            )
    end as is_best
from judged
order by spec, scope = 'all', scope, m;
