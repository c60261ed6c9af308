-- Shared meaning of the queries about coarse-to-fine generations, installed after views.sql, whose macros and view
-- selected_run it uses. Times are double nanoseconds until a query shows them.

-- Every coarse-to-fine generation of the run with the sums over its levels. `is_whole`: it ended by itself and no level
-- of it is missing; only such enter figures.
create or replace view ncm_totals as
with of_run as materialized (
    select * from ncm_generations
    where run_id = (select run_id from selected_run)
),

sums as (
    select
        l.generation_id,
        count(*) as n_levels,
        sum(l.batch)::bigint as n_sample_levels,
        sum(l.prefix_processed + l.level_processed)::double as total_positions,
        sum(l.pairs_allowed)::double as total_allowed,
        sum(l.pairs_computed)::double as total_computed,
        sum(l.decode_ns + l.check_ns)::double as total_checking,
        sum(l.t_level_ns)::double as total_t
    from levels as l
    semi join of_run as g on l.generation_id = g.generation_id
    group by l.generation_id
)

select
    g.* exclude (n_levels),
    g.n_levels as n_levels_reported,
    coalesce(s.n_levels, 0) as n_levels,
    s.* exclude (generation_id, n_levels),
    case
        when g.equal then 'equal'
        when g.near_tie then 'near tie'
        when not g.equal then 'divergent'
    end as output,
    coalesce(g.finish_reason in ('complete', 'exited') and s.n_levels = g.n_levels, false) as is_whole
from of_run as g
left join sums as s on g.generation_id = s.generation_id;

-- What whole generations took: a row a generation (level is NULL), its time that from the start to the output on the
-- host; and a row a level of attributed generations, since the level times of fused ones are those of launches.
create or replace view ncm_work as
select
    generation_id,
    config,
    config_digest,
    arm,
    cache,
    exit,
    batch_id,
    seed,
    temperature,
    repeat,
    timing,
    null::bigint as level,
    null::varchar as basis,
    batch,
    n_layers,
    total_ns::double as t,
    n_sample_levels,
    n_solved,
    total_positions,
    total_allowed,
    total_computed,
    total_checking / nullif(total_t, 0) as checking_share,
    kv_bytes,
    peak_memory_bytes,
    codes_digest
from ncm_totals
where is_whole and not warm_up
union all
select
    g.generation_id,
    g.config,
    g.config_digest,
    g.arm,
    g.cache,
    g.exit,
    g.batch_id,
    g.seed,
    g.temperature,
    g.repeat,
    g.timing,
    l.level,
    l.forward_basis as basis,
    l.batch,
    g.n_layers,
    l.t_level_ns::double as t,
    l.batch as n_sample_levels,
    null as n_solved,
    (l.prefix_processed + l.level_processed)::double as total_positions,
    l.pairs_allowed::double as total_allowed,
    l.pairs_computed::double as total_computed,
    (l.decode_ns + l.check_ns) / nullif(l.t_level_ns, 0) as checking_share,
    l.kv_bytes,
    null as peak_memory_bytes,
    l.codes_digest
from ncm_totals as g
inner join levels as l on g.generation_id = l.generation_id
where g.is_whole and not g.warm_up and g.timing = 'attributed';

-- An arm beside another on the same batch, by level: one row a batch, summed over the repeats that both completed.
create or replace view ncm_batches as
select
    a.config,
    a.config_digest,
    a.arm,
    a.cache,
    a.exit,
    b.arm as against,
    b.cache as against_cache,
    b.exit as against_exit,
    a.timing,
    a.level,
    a.batch_id,
    count(*) as n_pairs,
    sum(a.batch)::double as n_samples,
    any_value(a.n_layers) as n_layers,
    string_agg(distinct a.basis, ', ' order by a.basis) as basis,
    sum(a.t) as t,
    sum(b.t) as against_t,
    sum(a.n_solved)::double as n_solved,
    sum(b.n_solved)::double as against_n_solved,
    sum(a.n_sample_levels)::double as n_sample_levels,
    sum(b.n_sample_levels)::double as against_n_sample_levels,
    sum(a.total_positions) as positions,
    sum(b.total_positions) as against_positions,
    sum(a.total_allowed) as allowed,
    sum(b.total_allowed) as against_allowed,
    sum(a.total_computed) as computed,
    sum(b.total_computed) as against_computed,
    max(a.kv_bytes) as kv_bytes,
    max(a.batch) as largest_batch,
    max(a.peak_memory_bytes) as peak_memory_bytes,
    max(b.peak_memory_bytes) as against_peak_memory_bytes,
    count(*) filter (where a.codes_digest is not null and b.codes_digest is not null) as n_codes_compared,
    count(*) filter (where a.codes_digest = b.codes_digest) as n_codes_equal
from ncm_work as a
inner join ncm_work as b
    on a.config_digest = b.config_digest
    and a.batch_id = b.batch_id
    and a.seed = b.seed
    and a.temperature = b.temperature
    and a.repeat = b.repeat
    and a.timing = b.timing
    and a.level is not distinct from b.level
    and (a.cache <> b.cache or a.exit <> b.exit)
group by a.config, a.config_digest, a.arm, a.cache, a.exit, b.arm, b.cache, b.exit, a.timing, a.level, a.batch_id;

-- An arm against another: time a generation and time a solved sample, each as a speedup with the interval of
-- `comparisons`, over batches. Verdicts come from whole generations, fused.
create or replace view ncm_comparisons as
with influences as (
    select
        *,
        against_t / nullif(avg(against_t) over g, 0) - t / nullif(avg(t) over g, 0) as d,
        against_t / nullif(avg(against_t) over g, 0)
        - against_n_solved / nullif(avg(against_n_solved) over g, 0)
        - t / nullif(avg(t) over g, 0)
        + n_solved / nullif(avg(n_solved) over g, 0) as solved_d
    from ncm_batches
    window g as (partition by config_digest, arm, against, timing, level)
),

sums as (
    select
        config,
        config_digest,
        arm,
        cache,
        exit,
        against,
        against_cache,
        against_exit,
        timing,
        level,
        count(*) as n_batches,
        sum(n_pairs)::bigint as n_pairs,
        sum(n_samples) as n_samples,
        any_value(n_layers) as n_layers,
        max(basis) as basis,
        sum(t) as t,
        sum(against_t) as against_t,
        sum(n_solved) as n_solved,
        sum(against_n_solved) as against_n_solved,
        sum(n_sample_levels) as n_sample_levels,
        sum(against_n_sample_levels) as against_n_sample_levels,
        sum(positions) as positions,
        sum(against_positions) as against_positions,
        sum(allowed) as allowed,
        sum(against_allowed) as against_allowed,
        sum(computed) as computed,
        sum(against_computed) as against_computed,
        max(kv_bytes) as kv_bytes,
        max(largest_batch) as largest_batch,
        max(peak_memory_bytes) as peak_memory_bytes,
        max(against_peak_memory_bytes) as against_peak_memory_bytes,
        sum(n_codes_compared)::bigint as n_codes_compared,
        sum(n_codes_equal)::bigint as n_codes_equal,
        stddev_samp(d) as sd,
        stddev_samp(solved_d) as solved_sd
    from influences
    group by config, config_digest, arm, cache, exit, against, against_cache, against_exit, timing, level
),

intervals as (
    select
        *,
        against_t / nullif(t, 0) as speedup,
        ln(nullif(against_t, 0) / nullif(t, 0)) as log_speedup,
        t_975(n_batches - 1) * sd / sqrt(n_batches) as half_width,
        t / nullif(n_solved, 0) as per_solved,
        against_t / nullif(against_n_solved, 0) as against_per_solved,
        ln((nullif(against_t, 0) / nullif(against_n_solved, 0)) / (nullif(t, 0) / nullif(n_solved, 0)))
            as solved_log_speedup,
        t_975(n_batches - 1) * solved_sd / sqrt(n_batches) as solved_half_width
    from sums
)

select
    *,
    case when timing = 'fused' then judge(n_batches, log_speedup, half_width) end as verdict,
    case when timing = 'fused' then judge(n_batches, solved_log_speedup, solved_half_width) end as solved_verdict
from intervals;
