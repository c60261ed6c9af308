-- name: ranks
-- summary: what every rank of a distributed run did, how fast, whether it is whole, and how far its clock is off
-- question: Did every rank do its share, and can moments of different ranks be compared?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   rank: rank of the process, from 0; no rows if the run was not distributed
--   host: name of its machine; NULL: the rank left no record in this store
--   finish: complete, interrupted or error; aborted: its process died; running; unknown: not ended, and written on
--     another machine; absent: it left no record in this store
--   is_whole: whether it ended by itself and everything it did is in the store
--   n_prompts: prompts of the workload that fell to it
--   n_prompts_done: of these, with a generation of every arm that ended by itself, fused and without warm-up
--   n_generations: its generations, warm-up and attributed ones included
--   n_rounds: rounds of these
--   n_committed: tokens that these rounds committed [tokens]
--   seconds_per_token: seconds per committed token of its fused generations of all arms, without warm-up [s]
--   ordinary_seconds_per_token: the same of ordinary decoding alone [s]
--   median_round_seconds: median duration of the rounds of those generations [s]
--   longest_round_seconds: longest of them [s]
--   offset_seconds: its wall clock less rank 0's, estimated when the run began [s]
--   uncertainty_seconds: how far that may be off, either way: half the round trip [s]
--   skew_in_median_rounds: how many of its median rounds the offset is, without sign
--   skew_in_longest_rounds: how many of its longest rounds
--   skew_exceeds_round: whether the offset is certainly more than its median round
with work as (
    select
        rank,
        count(*) as n_generations,
        sum(n_rounds)::bigint as n_rounds,
        sum(total_committed)::bigint as n_committed
    from generation_totals
    group by rank
),

counted as (
    select * from generation_totals
    where timing = 'fused' and not warm_up and is_whole
),

speed as (
    select
        rank,
        sum(total_t) / nullif(sum(total_committed), 0) as per_token,
        sum(total_t) filter (where drafter is null)
        / nullif(sum(total_committed) filter (where drafter is null), 0) as ordinary_per_token
    from counted
    group by rank
),

prompts as (
    select
        rank,
        count(*) filter (where n_arms = (select count(distinct arm) from counted)) as n_prompts_done
    from (
        select
            rank,
            class,
            prompt_id,
            count(distinct arm) as n_arms
        from counted
        group by all
    )
    group by rank
),

durations as (
    select
        c.rank,
        median(r.t_round_ns) as median_ns,
        max(r.t_round_ns)::double as longest_ns
    from rounds as r
    inner join counted as c on r.generation_id = c.generation_id
    group by c.rank
)

select
    (select run_id from selected_run) as run_id,
    s.rank,
    s.host,
    s.finish,
    s.is_whole,
    s.n_prompts,
    coalesce(p.n_prompts_done, 0) as n_prompts_done,
    coalesce(w.n_generations, 0) as n_generations,
    coalesce(w.n_rounds, 0) as n_rounds,
    coalesce(w.n_committed, 0) as n_committed,
    v.per_token / 1e9 as seconds_per_token,
    v.ordinary_per_token / 1e9 as ordinary_seconds_per_token,
    d.median_ns / 1e9 as median_round_seconds,
    d.longest_ns / 1e9 as longest_round_seconds,
    s.offset_ns / 1e9 as offset_seconds,
    s.uncertainty_ns / 1e9 as uncertainty_seconds,
    abs(s.offset_ns) / nullif(d.median_ns, 0) as skew_in_median_rounds,
    abs(s.offset_ns) / nullif(d.longest_ns, 0) as skew_in_longest_rounds,
    abs(s.offset_ns) - s.uncertainty_ns > d.median_ns as skew_exceeds_round
from rank_states as s
left join work as w on s.rank = w.rank
left join speed as v on s.rank = v.rank
left join prompts as p on s.rank = p.rank
left join durations as d on s.rank = d.rank
order by s.rank;
