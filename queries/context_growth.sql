-- name: context_growth
-- summary: what a round and a committed token cost as the context grows, beside ordinary decoding's
-- question: Does speculation pay less, or more, the longer the context is?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them; ordinary decoding has rows of its own
--   drafter: name of the drafter; NULL: ordinary decoding
--   draft_length: proposed tokens asked for per round at most [tokens]
--   context_from: fewest positions that the target's cache held after such a round; steps are doublings [positions]
--   context_to: most that it may have held [positions]
--   n_rounds: fused rounds, without warm-up, of generations that ended by themselves
--   n_tokens: tokens committed in them [tokens]
--   round_seconds: mean of T_round [s]
--   seconds_per_token: sum of T_round over the sum of committed tokens [s]
--   ordinary_seconds_per_token: ordinary decoding's in the same step, on all of its prompts [s]
--   speedup: ordinary's over this arm's; NULL in ordinary decoding's own rows, and where it has none
--   committed_per_round: mean of committed tokens per round [tokens]
with steps as (
    select
        g.arm,
        g.drafter,
        g.draft_length,
        floor(log2(greatest(r.cache_length, 1)))::bigint as doubling,
        count(*) as n_rounds,
        sum(r.committed) as committed,
        sum(r.t_round_ns)::double as t
    from rounds as r
    inner join generation_totals as g on r.generation_id = g.generation_id
    where g.timing = 'fused' and not g.warm_up and g.is_whole
    group by all
)

select
    (select run_id from selected_run) as run_id,
    s.arm,
    s.drafter,
    s.draft_length,
    pow(2, s.doubling)::bigint as context_from,
    pow(2, s.doubling + 1)::bigint - 1 as context_to,
    s.n_rounds,
    s.committed::bigint as n_tokens,
    s.t / s.n_rounds / 1e9 as round_seconds,
    s.t / nullif(s.committed, 0) / 1e9 as seconds_per_token,
    o.t / nullif(o.committed, 0) / 1e9 as ordinary_seconds_per_token,
    case
        when s.drafter is not null
            then (o.t / nullif(o.committed, 0)) / nullif(s.t / nullif(s.committed, 0), 0)
    end as speedup,
    s.committed / s.n_rounds as committed_per_round
from steps as s
left join steps as o on s.doubling = o.doubling and o.drafter is null
order by s.drafter nulls first, s.draft_length, s.arm, s.doubling;
