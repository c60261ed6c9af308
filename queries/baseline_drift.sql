-- name: baseline_drift
-- summary: how ordinary decoding's time a step changed over the run, fifth by fifth, and the load beside it
-- question: Did the machine change during the run?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   part: fifth of ordinary's generations in the order of execution, from 1
--   n_generations: fused generations of ordinary decoding in it that ended by themselves, without warm-up
--   first_sequence: position in the run's order of the first of them
--   last_sequence: position of the last
--   step_seconds: median over them of the mean time of a step [s]
--   relative_to_run: step_seconds over the median of the whole run
--   change: trend of a step's time from the first generation of the run to the last, as a ratio less 1; the same in
--     every row, like all that follows; NULL: under 3 generations
--   change_low: lower end of its 95 % interval
--   change_high: upper end of it
--   drifted: whether the change is more than chance and over 5 %; arms take turns, so it falls on all of them alike
--   load1: load average over one minute when the run began
--   load1_end: the same when it ended; the run's own work is in it
--   cores: processors that the run might use
--   power: what the machine drew from when the run began: mains or battery; NULL: the system does not tell
--   power_end: the same when it ended
--   speed_limit: least percentage of the processors' speed that the system allowed, at the beginning or the end; NULL:
--     it does not tell
--   n_throttled: times that processors were slowed for heat during the run; NULL: the system does not count
with steps as (
    select
        sequence,
        total_t / nullif(n_rounds, 0) / 1e9 as step,
        ntile(5) over (order by sequence) as part
    from generation_totals
    where timing = 'fused' and not warm_up and is_whole and drafter is null
),

parts as (
    select
        part,
        count(*) as n_generations,
        min(sequence) as first_sequence,
        max(sequence) as last_sequence,
        median(step) as step_seconds
    from steps
    group by part
)

select
    (select run_id from selected_run) as run_id,
    p.part,
    p.n_generations,
    p.first_sequence,
    p.last_sequence,
    p.step_seconds,
    p.step_seconds / nullif((select median(step) from steps), 0) as relative_to_run,
    d.change,
    d.change_low,
    d.change_high,
    d.drifted,
    r.load1,
    r.load1_end,
    r.cores,
    r.power,
    r.power_end,
    least(r.speed_limit, r.speed_limit_end) as speed_limit,
    r.throttle_count_end - r.throttle_count as n_throttled
from parts as p
left join machine_drift as d on true
left join runs as r on r.run_id = (select run_id from selected_run)
order by p.part;
