-- name: break_even_surface
-- summary: the tokens a round has to commit at every draft length and draft cost here, and on which side drafters lie
-- question: Which acceptance would pay on this machine, and how far from that are the drafters that were recorded?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   kind: surface: a point of the grid, by the measured price of verification; drafter: an arm that was run with one m
--   arm: drafter and draft length, as the run names them; NULL: a point of the grid
--   class: class of the prompts; 'all': pooled over the classes
--   m: draft length [tokens]
--   draft_cost: drafting and rewinding per proposed token, in ordinary's time per token; NULL: not known
--   verify_cost: a forward over m + 1 positions, in ordinary's time per token; NULL: not measured
--   committed_needed: E[C] at which it breaks even: of an arm, its T_round over ordinary's time per token; of the grid,
--     verify_cost + m draft_cost [tokens]
--   committed_per_round: E[C] that the arm had; NULL: a point of the grid [tokens]
--   side: pays or loses, by E[C] alone; NULL: a point of the grid
--   verdict: the verdict on the arm, by the interval of its speedup; NULL: none
--   iid_acceptance_needed: illustration: the chance a at which 1 + a + ... + a^m is committed_needed; NULL: over m + 1
--   iid_acceptance_seen: illustration: accepted over judged tokens, as if all had one chance; NULL: none was judged
--   iid_committed: illustration: 1 + a + ... + a^m with the chance seen [tokens]
--   iid_error: iid_committed over the E[C] actually seen, less 1: what the illustration is wrong by
with recursive
ordinary as (
    select per_token
    from comparisons
    where drafter is null and scope = 'all' and per_token > 0
),

judged as (
    select
        g.arm,
        g.scope,
        sum(r.accepted)::double as accepted,
        count(*) filter (where r.outcome = 'correction') as n_mismatches
    from rounds as r
    inner join scoped_generations as g on r.generation_id = g.generation_id
    where g.timing = 'fused' and not g.warm_up and g.is_whole and g.drafter is not null
    group by all
),

points as (
    select
        'surface' as kind,
        null::varchar as arm,
        null::varchar as drafter,
        'all' as scope,
        v.width - 1 as m,
        c.draft_cost::double as draft_cost,
        v.ns / o.per_token as verify_cost,
        v.ns / o.per_token + (v.width - 1) * c.draft_cost as committed_needed,
        null::double as committed_per_round,
        null::varchar as verdict,
        null::double as seen
    from verify_prices as v
    cross join ordinary as o
    cross join (values (0), (0.01), (0.02), (0.05), (0.1), (0.2), (0.5)) as c (draft_cost)
    where v.width > 1
    union all
    select
        'drafter' as kind,
        c.arm,
        c.drafter,
        c.scope,
        c.draft_length as m,
        c.drafting_share * c.total_t / nullif(c.total_proposed, 0) / c.ordinary_per_token as draft_cost,
        v.ns / c.ordinary_per_token as verify_cost,
        c.total_t / c.n_rounds / c.ordinary_per_token as committed_needed,
        c.total_committed / c.n_rounds as committed_per_round,
        c.verdict,
        j.accepted / nullif(j.accepted + j.n_mismatches, 0) as seen
    from comparisons as c
    left join judged as j on c.arm = j.arm and c.scope = j.scope
    left join verify_prices as v on v.width = c.draft_length + 1
    -- A controller's arm has no one m.
    where
        c.draft_length > 0
        and c.n_rounds > 0
        and c.arm not in (
            select g.arm from run_generations as g
            where g.controlled
        )
),

-- By bisection: more acceptance never commits less.
halved as (
    select distinct
        m,
        committed_needed,
        0.0::double as low,
        1.0::double as high,
        0 as step
    from points
    where committed_needed <= m + 1
    union all
    select
        h.m,
        h.committed_needed,
        case when c.too_few then c.middle else h.low end as low,
        case when c.too_few then h.high else c.middle end as high,
        h.step + 1 as step
    from halved as h,
        lateral (
            select
                (h.low + h.high) / 2 as middle,
                iid_committed((h.low + h.high) / 2, h.m) < h.committed_needed as too_few
        ) as c
    where h.step < 40
)

select
    (select run_id from selected_run) as run_id,
    p.kind,
    p.arm,
    p.scope as class,
    p.m,
    p.draft_cost,
    p.verify_cost,
    p.committed_needed,
    p.committed_per_round,
    case when p.committed_per_round > p.committed_needed then 'pays' when p.arm is not null then 'loses' end as side,
    p.verdict,
    h.low as iid_acceptance_needed,
    p.seen as iid_acceptance_seen,
    iid_committed(p.seen, p.m) as iid_committed,
    iid_committed(p.seen, p.m) / nullif(p.committed_per_round, 0) - 1 as iid_error
from points as p
left join halved as h on p.m = h.m and p.committed_needed = h.committed_needed and h.step = 40
order by p.kind, p.drafter, p.m, p.arm, p.scope = 'all', p.scope, p.draft_cost;
