-- name: break_even
-- summary: how far every arm is from break-even: the tokens per round it has and needs, the dearest round and draft
-- question: What would have to change for speculation to cost what ordinary decoding costs?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them
--   drafter: name of the drafter
--   draft_length: proposed tokens asked for per round at most [tokens]
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   n_prompts: prompts that both arms completed with the same repeats, fused and without warm-up
--   committed_per_round: mean of committed tokens per round, E[C] [tokens]
--   committed_per_round_needed: E[C] at which it breaks even: E[T_round] over ordinary's seconds per token [tokens]
--   round_seconds: mean of T_round [s]
--   round_seconds_dearest: mean of T_round at which it would break even [s]
--   draft_seconds: drafting and rewinding in a round: their attributed share of T_round; NULL: no attributed rounds [s]
--   draft_seconds_dearest: dearest draft that would break even; negative: not even a free one would [s]
--   verdict: pays, loses or indistinguishable, by the 95 % interval of the speedup; NULL: none
--   limited_by: drafting, verification or acceptance, whichever would save most if it were ideal; or nothing proposed;
--     NULL: not known, or nothing does
--   more_prompts: further prompts like these that would settle an indistinguishable verdict; NULL: over 10,000
with means as (
    select
        *,
        total_t / nullif(n_rounds, 0) / 1e9 as round_seconds,
        total_committed / nullif(n_rounds, 0) as committed_per_round
    from comparisons
    where drafter is not null
),

limits as (
    select
        *,
        round_seconds * drafting_share as draft_seconds,
        committed_per_round * ordinary_per_token / 1e9 as round_seconds_dearest
    from means
)

select
    run_id,
    arm,
    drafter,
    draft_length,
    scope as class,
    n_prompts,
    committed_per_round,
    round_seconds / nullif(ordinary_per_token / 1e9, 0) as committed_per_round_needed,
    round_seconds,
    round_seconds_dearest,
    draft_seconds,
    round_seconds_dearest - (round_seconds - draft_seconds) as draft_seconds_dearest,
    verdict,
    limited_by,
    more_prompts
from limits
order by drafter, draft_length, arm, scope = 'all', scope;
