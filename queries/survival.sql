-- name: survival
-- summary: how likely the first j proposed tokens are all accepted, for every j up to the draft length
-- question: How far does the drafter get, and at which position does it fail?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them
--   drafter: name of the drafter
--   draft_length: proposed tokens asked for per round at most [tokens]
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   position: j, from 1 to the draft length
--   n_judged: fused rounds, no warm-up, of generations that ended by themselves, whose position j was proposed and
--     not cut
--   n_accepted: of these, rounds that accepted j tokens or more
--   survival: Pr(A >= j), n_accepted over n_judged; NULL: no such round
--   n_reached: of n_judged, rounds that accepted j - 1 tokens or more
--   conditional_survival: Pr(A >= j | A >= j - 1), n_accepted over n_reached; NULL: no such round
--   n_cut: rounds whose position j was proposed and never judged, because the generation ended before it
with positions as (
    -- Every position of every arm has a row, so that a drafter that offered nothing shows it.
    select
        a.*,
        unnest(range(1, a.draft_length + 1)) as j
    from (
        select distinct
            arm,
            drafter,
            draft_length,
            scope
        from scoped_generations
        where not warm_up and drafter is not null
    ) as a
),

counts as (
    select
        p.arm,
        p.drafter,
        p.draft_length,
        p.scope,
        p.j,
        coalesce(sum(s.n_rounds) filter (where s.judged >= p.j), 0)::bigint as n_judged,
        coalesce(sum(s.n_rounds) filter (where s.judged >= p.j and s.accepted >= p.j), 0)::bigint as n_accepted,
        coalesce(sum(s.n_rounds) filter (where s.judged >= p.j and s.accepted >= p.j - 1), 0)::bigint as n_reached,
        coalesce(sum(s.n_rounds) filter (where s.proposed >= p.j and s.judged < p.j), 0)::bigint as n_cut
    from positions as p
    left join round_shapes as s
        on p.arm = s.arm and p.drafter = s.drafter and p.draft_length = s.draft_length and p.scope = s.scope
    group by all
)

select
    (select run_id from selected_run) as run_id,
    arm,
    drafter,
    draft_length,
    scope as class,
    j as position,
    n_judged,
    n_accepted,
    n_accepted / nullif(n_judged, 0) as survival,
    n_reached,
    n_accepted / nullif(n_reached, 0) as conditional_survival,
    n_cut
from counts
order by drafter, draft_length, arm, scope = 'all', scope, j;
