-- name: ncm_exit
-- summary: every arm of a coarse-to-fine run: samples solved, time; and those with verified exit against those without
-- question: How many does an arm solve, in what time; does ending a sample at its first valid partial decode pay?
-- runs: ncm
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   config: name of the configuration
--   arm: what was done
--   against: what an arm with the exit is compared with; `cache exit` against `no-cache` is both measures together;
--     NULL: nothing, the row's figures are of the arm by itself
--   selection: that the exit changes which outputs are selected, in every row
--   n_generations: generations of the arm, whole, fused, without warm-up; with `against`, those that have a partner
--     there on the same batch, seed and repeat
--   n_batches: different batches among them, which the interval is over
--   n_samples: samples of these generations; with `against`, on either side
--   verdict: pays, loses or indistinguishable, by the 95 % interval of the speedup; NULL: none, and `note` says why
--   speedup: seconds per solved sample of `against` over the arm's, each a ratio of sums over the batches
--   speedup_low: lower end of its 95 % interval: delta method, Student's t over batches
--   speedup_high: upper end of it
--   solved_seconds: seconds per solved sample of the arm; the time of those not solved is in it [s]
--   against_solved_seconds: the same of `against` [s]
--   n_solved: samples whose output the checker found valid; NULL: no checker
--   against_n_solved: the same of `against`
--   solved_share: n_solved over n_samples
--   against_solved_share: the same of `against`
--   generation_seconds: mean time of a generation of the arm [s]
--   against_generation_seconds: the same of `against` [s]
--   levels_used: levels that a sample of the arm took part in, on average [levels]
--   against_levels_used: the same of `against` [levels]
--   checking_share: decoding, checking and compaction in attributed level times of the arm; NULL: no attributed pass
--   more_batches: further batches like these that would settle an indistinguishable verdict; NULL: over 10,000
--   would_settle: the verdict they would settle on, going by the speedup
--   note: what else a reader should know; NULL: nothing
with arms as (
    select distinct
        config,
        config_digest,
        arm,
        cache,
        exit
    from ncm_totals
    where not warm_up
),

-- Every arm by itself; those with the exit also against those without, even where no generations could be paired.
wanted as (
    select
        config,
        config_digest,
        arm,
        null::varchar as against
    from arms
    union all
    select
        a.config,
        a.config_digest,
        a.arm,
        b.arm as against
    from arms as a
    inner join arms as b on a.config_digest = b.config_digest and (a.cache = b.cache or a.cache)
    where a.exit = 'verified' and b.exit = 'none'
),

compared as (
    select
        *,
        case
            when solved_verdict = 'indistinguishable' then prompts_to_settle(solved_log_speedup, solved_sd) - n_batches
        end as n_more
    from ncm_comparisons
    where level is null and timing = 'fused'
),

alone as (
    select
        config_digest,
        arm,
        count(*) as n_pairs,
        count(distinct batch_id) as n_batches,
        sum(batch)::double as n_samples,
        sum(t) as t,
        sum(n_solved)::double as n_solved,
        sum(t) / nullif(sum(n_solved), 0) as per_solved,
        sum(n_sample_levels)::double as n_sample_levels
    from ncm_work
    where level is null and timing = 'fused'
    group by config_digest, arm
),

figures as (
    select * from compared
    union all by name
    select * from alone
),

checking as (
    select
        config_digest,
        arm,
        sum(checking_share * t) / nullif(sum(t), 0) as share
    from ncm_work
    where level is not null and timing = 'attributed'
    group by config_digest, arm
)

select
    (select run_id from selected_run) as run_id,
    w.config,
    w.arm,
    w.against,
    'the exit changes which outputs are selected' as selection,
    coalesce(c.n_pairs, 0) as n_generations,
    coalesce(c.n_batches, 0) as n_batches,
    coalesce(c.n_samples, 0)::bigint as n_samples,
    c.solved_verdict as verdict,
    exp(c.solved_log_speedup) as speedup,
    exp(c.solved_log_speedup - c.solved_half_width) as speedup_low,
    exp(c.solved_log_speedup + c.solved_half_width) as speedup_high,
    c.per_solved / 1e9 as solved_seconds,
    c.against_per_solved / 1e9 as against_solved_seconds,
    c.n_solved::bigint as n_solved,
    c.against_n_solved::bigint as against_n_solved,
    c.n_solved / c.n_samples as solved_share,
    c.against_n_solved / c.n_samples as against_solved_share,
    c.t / c.n_pairs / 1e9 as generation_seconds,
    c.against_t / c.n_pairs / 1e9 as against_generation_seconds,
    c.n_sample_levels / c.n_samples as levels_used,
    c.against_n_sample_levels / c.n_samples as against_levels_used,
    k.share as checking_share,
    case when c.n_more <= 10000 then c.n_more end as more_batches,
    case when c.n_more <= 10000 then if(c.solved_log_speedup > 0, 'pays', 'loses') end as would_settle,
    nullif(concat_ws(
        '; ',
        case
            when w.against is null and c.n_pairs is null then 'no generation was completed fused'
            when w.against is not null and coalesce(c.n_batches, 0) < 5
                then printf('no verdict under 5 batches that both completed fused, here %d', coalesce(c.n_batches, 0))
        end,
        case when c.n_solved = 0 or c.against_n_solved = 0 then 'no time per solved sample where none was solved' end,
        case
            when c.solved_verdict = 'indistinguishable' and coalesce(c.n_more > 10000, true)
                then 'practically equal: 10,000 more batches would not settle it'
        end,
        case when w.against is not null then m.note end
    ), '') as note
from wanted as w
left join figures as c
    on w.config_digest = c.config_digest and w.arm = c.arm and w.against is not distinct from c.against
left join checking as k on w.config_digest = k.config_digest and w.arm = k.arm
cross join machine_notes as m
order by w.config, w.config_digest, w.against is not null, w.arm, w.against;
