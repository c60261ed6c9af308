-- What queries share about the machines and processes of a run: did a machine change, what became of each rank?

-- Did the machine change during the run? The trend of ordinary's time a step over the order of execution: `change` is
-- what it amounts to from the first generation to the last, as a ratio less 1, with its 95 % interval (least squares on
-- the logarithm). Prompts come in a seeded random order, so that their differences are noise here. Ranks have an order
-- each, and may have machines of their own: each is held against its own mean.
create or replace view machine_drift as
with steps as (
    select
        rank,
        ln(total_t / nullif(n_rounds, 0)) as log_step,
        sequence::double as place
    from generation_totals
    where timing = 'fused' and not warm_up and is_whole and drafter is null and total_t > 0
),

centred as (
    select
        rank,
        log_step - avg(log_step) over (partition by rank) as y,
        place - avg(place) over (partition by rank) as x
    from steps
),

fits as (
    select
        count(*) as n,
        count(*) - greatest(count(distinct rank), 1) - 1 as df,
        max(x) - min(x) as reach,
        regr_slope(y, x) as slope,
        sqrt(greatest(regr_syy(y, x) - regr_slope(y, x) * regr_sxy(y, x), 0) / nullif(df, 0))
        / nullif(sqrt(regr_sxx(y, x)), 0) as error
    from centred
    having df > 0 and max(x) > min(x)
)

select
    n as n_generations,
    exp(slope * reach) - 1 as change,
    exp((slope - t_975(df) * error) * reach) - 1 as change_low,
    exp((slope + t_975(df) * error) * reach) - 1 as change_high,
    -- Under 5 % nobody need care, and one that may be chance is none.
    abs(slope) > t_975(df) * error and abs(slope * reach) > ln(1.05) as drifted
from fits;

-- What a reader of any verdict should know of the machine it was made on; one row, NULL: nothing.
create or replace view machine_notes as
select
    nullif(concat_ws(
        '; ',
        case
            when m.load1 > m.cores / 2
                then printf(
                    'something else was running: the load was %.1f on %d core%s at the start',
                    m.load1, m.cores, case when m.cores = 1 then '' else 's' end
                )
        end,
        case when 'battery' in (m.power, m.power_end) then 'the machine ran on its battery' end,
        case
            when m.throttle_count_end > m.throttle_count
                then printf('processors were slowed for heat %d times', m.throttle_count_end - m.throttle_count)
        end,
        case
            when least(m.speed_limit, m.speed_limit_end) < 100
                then printf('the system allowed %.0f %% of the speed', least(m.speed_limit, m.speed_limit_end))
        end
    ), '') as note
from selected_run as s
left join runs as m on s.run_id = m.run_id;

-- What became of every rank that a distributed run began with, present or not; no rows where it was not distributed.
-- `is_whole`: it ended by itself, and everything it did is in the store.
create or replace view rank_states as
with expected as (
    select unnest(range(max(size))) as rank
    from ranks
    where run_id = (select run_id from selected_run)
),

ended as (
    select
        rank,
        count(*) filter (where is_whole) as n_whole
    from generation_totals
    group by rank
)

select
    e.rank,
    r.* exclude (run_id, rank, finish_reason),
    coalesce(r.finish_reason, 'absent') as finish,
    coalesce(r.finish_reason = 'complete' and coalesce(g.n_whole, 0) = r.n_generations, false) as is_whole
from expected as e
left join ranks as r on r.run_id = (select run_id from selected_run) and e.rank = r.rank
left join ended as g on e.rank = g.rank;
