-- name: completeness
-- summary: what was recorded and what is missing, by arm and class, and for the whole run
-- question: Is the record whole, and were the outputs those of ordinary decoding, or of the uncached generator?
-- runs: speculation, ncm
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, or cache and exit, as the run names them; 'all': the whole run
--   class: class of the prompts; 'all': all classes, prompts without a class among them
--   n_generations: generations, warm-up included; the next seven add up to it
--   n_whole: of these, ended by themselves, no round or level missing: what figures come from, less warm-up
--   n_cancelled: cancelled
--   n_error: ended by an exception
--   n_aborted: their process died before they ended
--   n_running: not ended, their process lives
--   n_unknown: not ended, written on another machine
--   n_incomplete: ended by themselves, but rounds or levels are missing
--   n_warm_up: generations that were warm-up, whatever became of them
--   n_rounds: rounds of the generations
--   n_rounds_missing: rounds that ended generations had and the store lacks
--   n_levels: levels of coarse-to-fine generations
--   n_levels_missing: levels that ended generations had and the store lacks
--   n_nothing_proposed: generations that were to speculate and had rounds, but never a proposal
--   n_compared: outputs that were compared with ordinary decoding's, or cached codes with uncached ones
--   n_attributed: of these, from the pass that measures stage shares; its durations enter no other figure
--   n_equal: of these, with the same ids
--   n_near_ties: of these, different from a near tie on, which rounding explains
--   n_divergent: of these, different for no such reason
--   n_sampled: generations that drew their tokens at a temperature: equality is not asked of them
--   n_relaxed: generations of a relaxed policy, which are not exact: equality does not apply to them
--   n_torn_lines: journal lines of the run that break off; NULL unless arm is 'all', like the next three
--   n_rejected_lines: journal lines of the run that are in `rejected`
--   n_waiting_lines: ends and comparisons in the run's journals whose run or generation is in no table
--   n_lost_records: records of the run that could not be written, by the writers' own count; torn ones are among them
--   n_unassigned_lines: torn and rejected lines of journals of which nothing else could be read, whose-ever they are
--   n_ranks: ranks that a distributed run began with; 0: it was not distributed; NULL unless arm is 'all', like the
--     next
--   missing_ranks: of these, those that did not end by themselves or are not wholly in the store, with what became of
--     each; NULL: none
with every_generation as (
    select
        arm,
        drafter,
        draft_length,
        class,
        finish_reason,
        is_whole,
        warm_up,
        timing,
        output,
        policy = 'stochastic' as is_sampled,
        policy = 'relaxed' as is_relaxed,
        total_proposed,
        n_rounds,
        n_rounds_reported - n_rounds as n_rounds_lacking,
        0 as n_levels,
        0 as n_levels_lacking
    from generation_totals
    union all
    select
        arm,
        null as drafter,
        0 as draft_length,
        null as class,
        finish_reason,
        is_whole,
        warm_up,
        timing,
        output,
        false as is_sampled,
        false as is_relaxed,
        null as total_proposed,
        0 as n_rounds,
        0 as n_rounds_lacking,
        n_levels,
        n_levels_reported - n_levels as n_levels_lacking
    from ncm_totals
),

counted as (
    select
        case when grouping(arm) = 1 then 'all' else arm end as arm,
        drafter,
        draft_length,
        case when grouping(class) = 1 then 'all' else class end as class,
        grouping(arm) = 1 as is_run,
        count(*) as n_generations,
        count(*) filter (where is_whole) as n_whole,
        count(*) filter (where finish_reason = 'cancelled') as n_cancelled,
        count(*) filter (where finish_reason = 'error') as n_error,
        count(*) filter (where finish_reason = 'aborted') as n_aborted,
        count(*) filter (where finish_reason = 'running') as n_running,
        count(*) filter (where finish_reason = 'unknown') as n_unknown,
        count(*) filter (
            where finish_reason in ('stop', 'length', 'complete', 'exited') and not is_whole
        ) as n_incomplete,
        count(*) filter (where warm_up) as n_warm_up,
        coalesce(sum(n_rounds), 0)::bigint as n_rounds,
        coalesce(sum(greatest(n_rounds_lacking, 0)), 0)::bigint as n_rounds_missing,
        coalesce(sum(n_levels), 0)::bigint as n_levels,
        coalesce(sum(greatest(n_levels_lacking, 0)), 0)::bigint as n_levels_missing,
        count(*) filter (where draft_length > 0 and total_proposed = 0) as n_nothing_proposed,
        count(output) as n_compared,
        count(output) filter (where timing = 'attributed') as n_attributed,
        count(*) filter (where output = 'equal') as n_equal,
        count(*) filter (where output = 'near tie') as n_near_ties,
        count(*) filter (where output = 'divergent') as n_divergent,
        count(*) filter (where is_sampled) as n_sampled,
        count(*) filter (where is_relaxed) as n_relaxed
    from every_generation
    group by grouping sets ((arm, drafter, draft_length, class), (arm, drafter, draft_length), ())
    having grouping(class) = 1 or class <> 'all'
),

-- A process has one journal, and a run is one process's, or has one for every rank.
run_journals as (
    select journal from runs
    where run_id = (select run_id from selected_run)
    union
    select journal from ranks
    where run_id = (select run_id from selected_run)
    union
    select journal from generations
    where run_id = (select run_id from selected_run)
    union
    select journal from ncm_generations
    where run_id = (select run_id from selected_run)
),

used_journals as (
    select journal from runs
    union
    select journal from ranks
    union
    select journal from generations
    union
    select journal from ncm_generations
),

lines as (
    select
        coalesce(sum(j.n_torn) filter (where r.journal is not null), 0)::bigint as n_torn_lines,
        coalesce(sum(j.n_rejected) filter (where r.journal is not null), 0)::bigint as n_rejected_lines,
        coalesce(sum(j.n_lost) filter (where r.journal is not null), 0)::bigint as n_lost_records,
        coalesce(sum(j.n_torn + j.n_rejected) filter (where u.journal is null), 0)::bigint as n_unassigned_lines
    from journals as j
    left join run_journals as r on j.journal = r.journal
    left join used_journals as u on j.journal = u.journal
),

waiters as (
    select count(*) as n_waiting_lines
    from waiting as w
    semi join run_journals as r on w.journal = r.journal
),

distributed as (
    select
        count(*) as n_ranks,
        string_agg(
            concat(rank, ' (', case when finish = 'complete' then 'records missing' else finish end, ')'), ', '
            order by rank
        ) filter (where not is_whole) as missing_ranks
    from rank_states
)

select
    (select run_id from selected_run) as run_id,
    c.arm,
    c.class,
    c.n_generations,
    c.n_whole,
    c.n_cancelled,
    c.n_error,
    c.n_aborted,
    c.n_running,
    c.n_unknown,
    c.n_incomplete,
    c.n_warm_up,
    c.n_rounds,
    c.n_rounds_missing,
    c.n_levels,
    c.n_levels_missing,
    c.n_nothing_proposed,
    c.n_compared,
    c.n_attributed,
    c.n_equal,
    c.n_near_ties,
    c.n_divergent,
    c.n_sampled,
    c.n_relaxed,
    case when c.is_run then l.n_torn_lines end as n_torn_lines,
    case when c.is_run then l.n_rejected_lines end as n_rejected_lines,
    case when c.is_run then w.n_waiting_lines end as n_waiting_lines,
    case when c.is_run then l.n_lost_records end as n_lost_records,
    case when c.is_run then l.n_unassigned_lines end as n_unassigned_lines,
    case when c.is_run then d.n_ranks end as n_ranks,
    case when c.is_run then d.missing_ranks end as missing_ranks
from counted as c
cross join lines as l
cross join waiters as w
cross join distributed as d
order by c.is_run, c.drafter nulls first, c.draft_length, c.arm, c.class = 'all', c.class;
