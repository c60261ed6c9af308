-- name: decisions
-- summary: how often a controller chose each draft length and proposer, by the quarter of the output in which it did
-- question: Which draft lengths and whose proposals did the controller choose, and how as outputs grew?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and `m=auto`, as the run names them
--   drafter: name of the drafter
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   quarter: 1 to 4: where in its generation's output the round began
--   m: proposed tokens that it was to ask for; 0: an ordinary step [tokens]
--   proposer: part of a composed drafter that was to propose; NULL: none, or the drafter is not composed
--   n_rounds: fused rounds, no warm-up, of generations that ended by themselves
--   share: part of the quarter's rounds
--   n_empty: of n_rounds, those in which the drafter had nothing
--   accepted_per_round: accepted tokens of a round [tokens]
with places as (
    select
        r.generation_id,
        r.requested as m,
        r.proposer,
        r.proposed,
        r.accepted,
        sum(r.committed) over (partition by r.generation_id order by r.index) - r.committed as before
    from rounds as r
    semi join (
        select generation_id from run_generations
        where controlled
    ) as g on r.generation_id = g.generation_id
),

placed as (
    select
        g.arm,
        g.drafter,
        g.scope,
        least(1 + 4 * p.before // greatest(g.n_committed, 1), 4)::bigint as quarter,
        p.*
    from places as p
    inner join scoped_generations as g on p.generation_id = g.generation_id
    where g.timing = 'fused' and not g.warm_up and g.is_whole
)

select
    (select run_id from selected_run) as run_id,
    arm,
    drafter,
    scope as class,
    quarter,
    m,
    proposer,
    count(*) as n_rounds,
    count(*) / sum(count(*)) over (partition by arm, drafter, scope, quarter) as share,
    count(*) filter (where m > 0 and proposed = 0) as n_empty,
    avg(accepted) as accepted_per_round
from placed
group by arm, drafter, scope, quarter, m, proposer
order by drafter, arm, scope = 'all', scope, quarter, m, proposer nulls first;
