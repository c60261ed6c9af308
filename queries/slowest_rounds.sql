-- name: slowest_rounds
-- summary: the rounds that took longest, each beside the median of its arm, with what they did
-- question: Which rounds stand out, and what happened in them?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
--   rounds: how many to show; default: 20
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them; ordinary decoding's rounds are among them
--   class: class of the prompt; NULL: it has none
--   prompt_id: the prompt's id in the workload
--   generation_id: id of the generation
--   sequence: position of the generation in the order of execution, from 0
--   round: position in the generation, from 0
--   round_seconds: T_round; the rounds are fused, of generations that ended by themselves, without warm-up [s]
--   relative_to_arm: T_round over the median of the arm
--   draft_seconds: drafting; like the other stages, only as true as its basis in `rounds` [s]
--   verify_seconds: verification's forward [s]
--   synchronize_seconds: reading the target's tokens [s]
--   trim_seconds: taking rejected positions out of the target's cache [s]
--   rewind_seconds: bringing the drafter back to the committed history [s]
--   width: positions in the verify forward [positions]
--   cache_length: positions that the target's cache holds afterwards [positions]
--   proposed: proposed tokens returned [tokens]
--   accepted: of these, accepted [tokens]
--   committed: tokens that became output [tokens]
--   outcome: how the round ended
with counted as materialized (
    select
        generation_id,
        arm,
        class,
        prompt_id,
        sequence
    from generation_totals
    where timing = 'fused' and not warm_up and is_whole
),

medians as (
    select
        g.arm,
        median(r.t_round_ns) as t
    from rounds as r
    inner join counted as g on r.generation_id = g.generation_id
    group by g.arm
),

slowest as (
    select
        r.*,
        g.arm,
        g.class,
        g.prompt_id,
        g.sequence
    from rounds as r
    inner join counted as g on r.generation_id = g.generation_id
    order by r.t_round_ns desc, g.sequence asc, r.index asc
    limit coalesce(getvariable('rounds')::bigint, 20)
)

select
    (select run_id from selected_run) as run_id,
    s.arm,
    s.class,
    s.prompt_id,
    s.generation_id,
    s.sequence,
    s.index as round,
    s.t_round_ns / 1e9 as round_seconds,
    s.t_round_ns / nullif(m.t, 0) as relative_to_arm,
    s.draft_ns / 1e9 as draft_seconds,
    s.verify_ns / 1e9 as verify_seconds,
    s.synchronize_ns / 1e9 as synchronize_seconds,
    s.trim_ns / 1e9 as trim_seconds,
    s.rewind_ns / 1e9 as rewind_seconds,
    s.width,
    s.cache_length,
    s.proposed,
    s.accepted,
    s.committed,
    s.outcome
from slowest as s
inner join medians as m on s.arm = m.arm
order by s.t_round_ns desc, s.sequence asc, s.index asc;
