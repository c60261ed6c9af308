-- name: overlap
-- summary: how often proposed tokens stand at a temperature, by coupling, beside 1 - TV(p, q)
-- question: How near is the drafter to what is drawn from, and how much of that does each coupling accept?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter, draft length and coupling, as the run names them
--   drafter: name of the drafter
--   draft_length: proposed tokens asked for per round at most [tokens]
--   coupling: residual (p/q), or equality: the target draws for itself, and what is equal stands
--   q_source: what proposals were judged by: point, a point mass; drafter, its own q; NULL: by no q. Of a composed
--     drafter each kind of its parts' proposals has a row
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   n_judged: proposed tokens that were judged and whose overlap was measured, in attributed rounds, no warm-up, of
--     generations that ended by themselves [tokens]
--   overlap: mean of 1 - TV(p, q) over them, p(y) where q is a point mass: what the residual rule accepts on average
--   accepted_share: share of the same tokens that was accepted
--   n_judged_fused: proposed tokens judged in fused rounds [tokens]
--   accepted_share_fused: share of these that was accepted
with sums as (
    select
        g.arm,
        g.drafter,
        g.draft_length,
        g.coupling,
        coalesce(r.q_source, g.q_source) as q_source,
        g.scope,
        sum(r.overlap) as total_overlap,
        sum(r.overlap_positions)::bigint as n_measured,
        sum(r.accepted) filter (where r.overlap_positions is not null) as n_accepted,
        sum(least(r.accepted + 1, r.proposed - r.cut)) filter (where g.timing = 'fused')::bigint as n_judged,
        sum(r.accepted) filter (where g.timing = 'fused') as n_accepted_fused
    from rounds as r
    inner join scoped_generations as g on r.generation_id = g.generation_id
    where not g.warm_up and g.is_whole and g.coupling is not null and r.proposed > 0
    group by all
)

select
    (select run_id from selected_run) as run_id,
    arm,
    drafter,
    draft_length,
    coupling,
    q_source,
    scope as class,
    coalesce(n_measured, 0) as n_judged,
    total_overlap / nullif(n_measured, 0) as overlap,
    n_accepted / nullif(n_measured, 0) as accepted_share,
    coalesce(n_judged, 0) as n_judged_fused,
    n_accepted_fused / nullif(n_judged, 0) as accepted_share_fused
from sums
where n_measured > 0 or n_judged > 0
-- Couplings of a drafter stand beside each other.
order by drafter asc, draft_length asc, scope = 'all' asc, scope asc, coupling desc, q_source asc, arm asc;
