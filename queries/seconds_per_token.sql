-- name: seconds_per_token
-- summary: seconds per committed token of every arm beside ordinary decoding's on the same prompts
-- question: What does a committed token cost, and what does a whole answer cost with the prefill?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them; ordinary decoding has rows of its own
--   drafter: name of the drafter; NULL: ordinary decoding
--   draft_length: proposed tokens asked for per round at most [tokens]
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   n_prompts: prompts that both arms completed with the same repeats, fused and without warm-up
--   n_generations: generations of this arm on them
--   n_rounds: rounds of these generations
--   n_tokens: committed tokens of these generations [tokens]
--   seconds_per_token: sum of T_round over the sum of committed tokens [s]
--   ordinary_seconds_per_token: ordinary decoding's on the same prompts [s]
--   speedup: ordinary's over this arm's; NULL in ordinary decoding's own rows
--   speedup_low: lower end of its 95 % interval: delta method, Student's t over prompts
--   speedup_high: upper end of it
--   prefill_seconds: mean time from the start of prefill to its barrier; no part of seconds_per_token [s]
--   ttft_seconds: mean time from the start of prefill to the first committed token [s]
--   end_to_end_seconds: mean time from the start of prefill to the end of closing [s]
--   ordinary_end_to_end_seconds: ordinary decoding's on the same prompts [s]
select
    run_id,
    arm,
    drafter,
    draft_length,
    scope as class,
    n_prompts,
    n_generations,
    n_rounds,
    total_committed::bigint as n_tokens,
    per_token / 1e9 as seconds_per_token,
    ordinary_per_token / 1e9 as ordinary_seconds_per_token,
    case when drafter is not null then speedup end as speedup,
    case when drafter is not null then speedup_low end as speedup_low,
    case when drafter is not null then speedup_high end as speedup_high,
    prefill / 1e9 as prefill_seconds,
    ttft / 1e9 as ttft_seconds,
    end_to_end / 1e9 as end_to_end_seconds,
    ordinary_end_to_end / 1e9 as ordinary_end_to_end_seconds
from comparisons
order by drafter nulls first, draft_length, arm, scope = 'all', scope;
