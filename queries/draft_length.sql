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
--   n_prompts: prompts whose ordinary output was forecast; 0: the drafter was not, and `note` says why
--   predicted_rounds: rounds at this draft length, replayed exactly
--   measured_rounds: rounds of the arm that ran at it, on the same prompts, first repeat; NULL: none did
--   predicted_proposed: tokens proposed in the replayed rounds [tokens]
--   predicted_accepted: tokens accepted in them [tokens]
--   measured_accepted: tokens accepted in the measured ones [tokens]
--   predicted_committed: tokens committed in the replayed rounds [tokens]
--   predicted_seconds_per_token: replayed rounds at the price of a round with so many proposed tokens in its context:
--     drafting as it was measured, and least squares over what a forward of that width cost after the run and over the
--     context of the round [s]
--   priced_on: rounds that the line was fitted to: 'other lengths', or 'this length' where no other ran: then what was
--     measured is no check of it
--   position_seconds: what a further position of context adds to a round in that price, by ordinary steps and those
--     rounds; 0: they got no dearer; NULL: contexts vary too little to tell, and the price is that of one context [s]
--   measured_seconds_per_token: of the arm that ran at it [s]
--   ordinary_seconds_per_token: ordinary decoding's on the same prompts [s]
--   predicted_speedup: ordinary's over the predicted
--   predicted_speedup_low: lower end of its 95 % interval over prompts, widened for picking the best of 16 lengths
--   predicted_speedup_high: upper end of it; the error of the price itself is not in the interval
--   predicted_verdict: pays, loses or indistinguishable, by that interval; NULL under 5 prompts
--   is_best: the cheapest of m = 1 to 16 that is predicted to pay, the shorter of equals, or m = 0 where none is; NULL
--     under 5 prompts
--   note: why there is no prediction; NULL: there is one
with recursive
whole as materialized (
    select
        -- A controller's rounds have no one length, which 0 says: they serve to price any, and are no check of one.
        * replace (case when controlled then 0 else draft_length end as draft_length),
        regexp_replace(arm, ' m=(auto|\d+)$', '') as spec
    from generation_totals
    where
        timing = 'fused'
        and not warm_up
        and is_whole
        -- Rules of acceptance that forecasts know nothing of.
        and policy is distinct from 'relaxed'
        and coupling is distinct from 'equality'
),

outputs as materialized (
    select
        row_number() over (order by f.generation_id, f.spec) << 32 as origin,
        f.generation_id,
        f.spec,
        f.longest,
        f.prompt_tokens,
        g.prompt_id,
        g.class
    from forecasts as f
    inner join whole as g on f.generation_id = g.generation_id
),

-- Every position of every output by one number, with what a round that begins there may propose, accept and commit.
asked as materialized (
    select
        o.origin + p.position as place,
        least(p.n_offer, p.budget - p.position - 1) as proposable,
        least(p.n_right, p.n_out - p.position) as acceptable,
        p.n_out - p.position as committable
    from positions as p
    inner join outputs as o on p.generation_id = o.generation_id and p.spec = o.spec
),

replayed as (
    select
        o.origin as place,
        l.m,
        null::bigint as proposed,
        null::bigint as accepted,
        0::bigint as committed
    from outputs as o,
        lateral (select unnest(range(1, o.longest + 1)) as m) as l
    union all
    select
        r.place + c.committed as place,
        r.m,
        o.proposed,
        a.accepted,
        c.committed
    from replayed as r
    -- There is no row past the end of an output, so the recursion stops there.
    inner join asked as p on r.place = p.place,
        lateral (select least(p.proposable, r.m) as proposed) as o,
        lateral (select least(p.acceptable, o.proposed) as accepted) as a,
        lateral (select least(a.accepted + 1, p.committable) as committed) as c
),

-- What drafting takes: a constant, and a part per proposed token. Only where its own time was measured: `host_launch`
-- tells nothing of the device's.
drafting as (
    select
        regexp_replace(g.arm, ' m=(auto|\d+)$', '') as spec,
        case when var_pop(r.proposed) > 0 then regr_intercept(r.draft_ns, r.proposed) else avg(r.draft_ns) end as base,
        case when var_pop(r.proposed) > 0 then regr_slope(r.draft_ns, r.proposed) else 0 end as per_token
    from rounds as r
    inner join generation_totals as g on r.generation_id = g.generation_id
    where not g.warm_up and g.is_whole and g.drafter is not null and r.draft_basis in ('host', 'barrier')
    group by all
),

-- Milliseconds of every measured round without drafting (y), what its forward cost in the calibration (x; without one,
-- its width), and the positions that stood before it (c). Sums and products of them by draft length are enough for
-- least squares over any choice of lengths.
moments as (
    select
        a.spec,
        a.draft_length as m,
        count(*) as n,
        sum(x.x) as sum_x,
        sum(y.y) as sum_y,
        sum(x.x * x.x) as sum_xx,
        sum(x.x * y.y) as sum_xy,
        sum(c.c) as sum_c,
        sum(c.c * c.c) as sum_cc,
        sum(c.c * x.x) as sum_cx,
        sum(c.c * y.y) as sum_cy
    from rounds as r
    inner join whole as a on r.generation_id = a.generation_id
    left join drafting as d on a.spec = d.spec
    left join verify_prices as v on v.width = least(r.proposed + 1, (select max(width) from verify_prices)),
        lateral (select coalesce(v.ns / 1e6, r.proposed + 1) as x) as x,
        lateral (
            select (r.t_round_ns - greatest(coalesce(d.base + d.per_token * r.proposed, 0), 0)) / 1e6 as y
        ) as y,
        lateral (select (r.cache_length - r.committed)::double as c) as c
    where a.drafter is not null
    group by all
),

-- Ordinary steps say how time grows with the context too; how long one takes is their own.
steps as (
    select
        coalesce(regr_sxx(r.t_round_ns / 1e6, r.cache_length - r.committed), 0) as cc,
        coalesce(regr_sxy(r.t_round_ns / 1e6, r.cache_length - r.committed), 0) as cy
    from rounds as r
    inner join whole as a on r.generation_id = a.generation_id
    where a.drafter is null
),

-- A length is priced on the rounds of all others, so that what was measured at it is a check of the price.
chosen as (
    select
        o.spec,
        o.m,
        bool_and(k.m <> o.m) as has_others,
        sum(k.n) as n,
        sum(k.sum_x) / sum(k.n) as x,
        sum(k.sum_y) / sum(k.n) as y,
        sum(k.sum_c) / sum(k.n) as c,
        sum(k.sum_xx) as sum_xx,
        sum(k.sum_xy) as sum_xy,
        sum(k.sum_cc) as sum_cc,
        sum(k.sum_cx) as sum_cx,
        sum(k.sum_cy) as sum_cy
    from (select distinct spec, unnest(range(1, longest + 1)) as m from outputs) as o
    inner join (select *, count(*) over (partition by spec) as n_lengths from moments) as k
        on o.spec = k.spec and (o.m <> k.m or k.n_lengths = 1)
    group by o.spec, o.m
),

-- About their means; of contexts, ordinary steps' about theirs among them.
spreads as (
    select
        c.* exclude (sum_xx, sum_xy, sum_cc, sum_cx, sum_cy),
        c.sum_xx - c.n * c.x * c.x as xx,
        c.sum_xy - c.n * c.x * c.y as xy,
        c.sum_cx - c.n * c.c * c.x as cx,
        c.sum_cc - c.n * c.c * c.c + s.cc as cc,
        c.sum_cy - c.n * c.c * c.y + s.cy as cy,
        xx > 1e-9 * c.n * c.x * c.x as has_widths,
        cc > 1e-9 * c.n * c.c * c.c as has_contexts
    from chosen as c
    cross join steps as s
),

-- A round takes `scale` times its forward in the calibration, `slope` for every position of context, a constant, and
-- drafting. Where widths or times do not vary enough to tell, it takes the forward once; where contexts do not, or only
-- as widths do, there is no slope.
prices as (
    select
        c.spec,
        c.m,
        c.has_others,
        case
            when not c.has_contexts then null
            when not c.has_widths then greatest(c.cy / c.cc, 0)
            when c.xx * c.cc - c.cx * c.cx > 1e-6 * c.xx * c.cc
                then greatest((c.xx * c.cy - c.cx * c.xy) / (c.xx * c.cc - c.cx * c.cx), 0)
        end as slope,
        c.xy - coalesce(slope, 0) * c.cx as left_xy,
        case when c.has_widths and left_xy > 0 then left_xy / c.xx else 1 end as scale,
        c.y - scale * c.x - coalesce(slope, 0) * c.c as base,
        coalesce(d.base, 0) as draft_base,
        coalesce(d.per_token, 0) as draft_per_token
    from spreads as c
    left join drafting as d on c.spec = d.spec
),

counted as (
    select
        place >> 32 as output,
        m,
        proposed,
        count(*) as n_rounds,
        sum((place & 4294967295) - committed) as sum_position,
        sum(accepted) as accepted,
        sum(committed) as committed
    from replayed
    where proposed is not null
    group by all
),

predicted as (
    select
        o.spec,
        o.prompt_id,
        o.class,
        r.m,
        sum(r.n_rounds) as n_rounds,
        sum(r.n_rounds * r.proposed) as proposed,
        sum(r.accepted) as accepted,
        sum(r.committed)::double as committed,
        any_value(c.has_others) as has_others,
        any_value(c.slope) as slope,
        sum(
            greatest(
                r.n_rounds * (
                    1e6 * (c.scale * coalesce(v.ns / 1e6, r.proposed + 1) + c.base)
                    + greatest(c.draft_base + c.draft_per_token * r.proposed, 0)
                )
                + 1e6 * coalesce(c.slope, 0) * (r.sum_position + r.n_rounds * (o.prompt_tokens - 1)),
                0
            )
        ) as t
    from counted as r
    inner join outputs as o on r.output = o.origin >> 32
    left join prices as c on o.spec = c.spec and r.m = c.m
    left join verify_prices as v on v.width = least(r.proposed + 1, (select max(width) from verify_prices))
    group by all
),

ordinary as (
    select
        prompt_id,
        avg(total_t) as t,
        avg(total_committed) as committed
    from whole
    where drafter is null
    group by prompt_id
),

measured as (
    select
        a.spec,
        a.draft_length as m,
        a.prompt_id,
        a.class,
        sum(a.n_rounds) as n_rounds,
        sum(a.total_accepted) as accepted,
        sum(a.total_committed) as committed,
        sum(a.total_t) as t
    from whole as a
    where a.repeat = 0 and a.draft_length > 0
    group by all
),

-- Arms whose drafter was not forecast stand here by what was measured alone.
lengths as (
    select * from predicted
    union all by name
    select
        m.spec,
        m.m,
        m.prompt_id,
        m.class
    from measured as m
    anti join outputs as o on m.spec = o.spec
),

per_prompt as (
    select
        p.spec,
        p.m,
        case when s.pooled then 'all' else p.class end as scope,
        p.class,
        p.n_rounds,
        p.proposed,
        p.accepted,
        p.committed,
        p.t,
        p.has_others,
        p.slope,
        o.t as ordinary_t,
        o.committed as ordinary_committed,
        x.n_rounds as measured_rounds,
        x.accepted as measured_accepted,
        x.committed as measured_committed,
        x.t as measured_t
    from lengths as p
    inner join ordinary as o on p.prompt_id = o.prompt_id
    left join measured as x on p.spec = x.spec and p.m = x.m and p.prompt_id = x.prompt_id
    cross join (values (true), (false)) as s (pooled)
    where s.pooled or p.class <> 'all'
),

influences as (
    select
        *,
        stratum(class, count(*) over (partition by spec, m, scope, class)) as stratum,
        ordinary_t / nullif(avg(ordinary_t) over g, 0)
        - ordinary_committed / nullif(avg(ordinary_committed) over g, 0)
        - t / nullif(avg(t) over g, 0)
        + committed / nullif(avg(committed) over g, 0) as d
    from per_prompt
    window g as (partition by spec, m, scope)
),

varied as (
    select
        *,
        count(*) over s as n_alike,
        stratum_spread(count(*) over s, var_samp(d) over s, d) as v
    from influences
    window s as (partition by spec, m, scope, stratum)
),

sums as (
    select
        spec,
        scope,
        m,
        count(n_rounds) as n_prompts,
        sum(n_rounds)::bigint as predicted_rounds,
        case when count(measured_rounds) = count(*) then sum(measured_rounds)::bigint end as measured_rounds,
        sum(proposed)::bigint as predicted_proposed,
        sum(accepted)::bigint as predicted_accepted,
        case when count(measured_rounds) = count(*) then sum(measured_accepted)::bigint end as measured_accepted,
        sum(committed)::bigint as predicted_committed,
        sum(t) / nullif(sum(committed), 0) as per_token,
        case when bool_and(has_others) then 'other lengths' when bool_or(not has_others) then 'this length' end
            as priced_on,
        any_value(slope) as slope,
        case when count(measured_rounds) = count(*) then sum(measured_t) / nullif(sum(measured_committed), 0) end
            as measured_per_token,
        sum(ordinary_t) / nullif(sum(ordinary_committed), 0) as ordinary_per_token,
        t_975_of_16(degrees_of_freedom(v, n_alike)) * standard_error(v, n_alike) as half_width
    from varied
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
    where n_prompts > 0
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
    priced_on,
    slope / 1e3 as position_seconds,
    measured_per_token / 1e9 as measured_seconds_per_token,
    ordinary_per_token / 1e9 as ordinary_seconds_per_token,
    speedup as predicted_speedup,
    speedup * exp(-half_width) as predicted_speedup_low,
    speedup * exp(half_width) as predicted_speedup_high,
    verdict as predicted_verdict,
    case
        when n_prompts >= 5
            then m = coalesce(
                arg_min(m, (round(per_token, 3), m)) filter (where verdict = 'pays' and m <= 16)
                    over (partition by spec, scope),
                0
            )
    end as is_best,
    case
        when n_prompts = 0
            then
                'not forecast: it proposes by more than the history, or the run ended before forecasts were made; '
                || 'every draft length has to be run'
    end as note
from judged
order by spec, scope = 'all', scope, m;
