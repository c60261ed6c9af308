-- name: trim_and_rewind
-- summary: how rejected positions leave the target's cache and the drafter's state, how often, and what that takes
-- question: What does going back after a rejection cost?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them
--   drafter: name of the drafter
--   draft_length: proposed tokens asked for per round at most [tokens]
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   trim_way: how rejected positions left the target's cache: none, trim or snapshot
--   rewind_way: how the drafter came back to the committed history: none, trim or snapshot
--   n_rounds: fused rounds that did so, without warm-up, of generations that ended by themselves
--   share_of_rounds: of the arm's such rounds in the class
--   n_rejected: tokens rejected in them [tokens]
--   n_replayed: accepted positions fed again in them, after a snapshot took them back [positions]
--   n_attributed: attributed rounds that did so; the times are theirs
--   trim_seconds: mean time of trimming in an attributed round; NULL: there is none [s]
--   rewind_seconds: mean time of rewinding in an attributed round; NULL: there is none [s]
--   share_of_time: trimming and rewinding over T_round in attributed rounds; NULL: there is none
with rounds_of_arms as (
    select
        g.arm,
        g.drafter,
        g.draft_length,
        g.scope,
        r.trim_way,
        r.rewind_way,
        count(*) filter (where g.timing = 'fused') as n_rounds,
        sum(r.proposed - r.accepted - r.cut) filter (where g.timing = 'fused') as n_rejected,
        sum(r.replayed) filter (where g.timing = 'fused') as n_replayed,
        count(*) filter (where g.timing = 'attributed') as n_attributed,
        sum(r.trim_ns) filter (where g.timing = 'attributed')::double as trim_ns,
        sum(r.rewind_ns) filter (where g.timing = 'attributed')::double as rewind_ns,
        sum(r.t_round_ns) filter (where g.timing = 'attributed')::double as t
    from rounds as r
    inner join scoped_generations as g on r.generation_id = g.generation_id
    where not g.warm_up and g.is_whole and g.drafter is not null
    group by all
)

select
    (select run_id from selected_run) as run_id,
    arm,
    drafter,
    draft_length,
    scope as class,
    trim_way,
    rewind_way,
    n_rounds,
    n_rounds / nullif(sum(n_rounds) over (partition by arm, drafter, draft_length, scope), 0) as share_of_rounds,
    coalesce(n_rejected, 0)::bigint as n_rejected,
    coalesce(n_replayed, 0)::bigint as n_replayed,
    n_attributed,
    trim_ns / nullif(n_attributed, 0) / 1e9 as trim_seconds,
    rewind_ns / nullif(n_attributed, 0) / 1e9 as rewind_seconds,
    (trim_ns + rewind_ns) / nullif(t, 0) as share_of_time
from rounds_of_arms
order by drafter, draft_length, arm, scope = 'all', scope, trim_way, rewind_way;
