-- name: ncm_cache
-- summary: cached against uncached coarse-to-fine generations without exit: time, work, memory and codes, by level too
-- question: Does keeping the prefix between levels pay here, is the output the same, and what work and memory is it?
-- runs: ncm
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   config: name of the configuration
--   level: position in the hierarchy, from 0; 'all': the generation from its start to its output
--   timing: timing mode of the row's times: fused for 'all', attributed for a level; they are never mixed
--   basis: what the cached level's forward was timed by; NULL: 'all', a wall clock around the whole
--   n_pairs: cached and uncached generations of the same batch, seed and repeat, both whole, without warm-up
--   n_batches: different batches among them, which the interval is over
--   verdict: pays, loses or indistinguishable, by the 95 % interval of the speedup of 'all'; NULL: none, see `note`
--   speedup: uncached over cached time, a ratio of sums
--   speedup_low: lower end of its 95 % interval: delta method, Student's t over batches
--   speedup_high: upper end of it
--   cached_seconds: time of a cached generation, or of the level in it [s]
--   uncached_seconds: the same uncached [s]
--   n_codes_compared: pairs of which both sides' codes were read
--   n_codes_equal: of these, with the same codes
--   cached_positions: positions that each layer processed for a sample, cached [positions]
--   cached_positions_formula: the same by the formula: P + sum l[k]
--   uncached_positions: positions that each layer processed for a sample, uncached [positions]
--   uncached_positions_formula: the same by the formula: K P + sum l[k]
--   cached_allowed: query/key pairs a head and layer that the masks allowed a sample, cached [pairs]
--   cached_allowed_formula: the same by the formula: p + sum (r[k] + l[k] l[k]), where p = P P, or 9 P within units,
--     and r[k] = l[k] P, or P + l[k] - gcd(P, l[k]) where a position sees the cells it covers
--   uncached_allowed: query/key pairs a head and layer that the masks allowed a sample, uncached [pairs]
--   uncached_allowed_formula: the same by the formula: sum (p + r[k] + l[k] l[k])
--   cached_computed: query/key pairs a head and layer of the shapes that ran for a sample, cached [pairs]
--   uncached_computed: the same uncached [pairs]
--   kv_bytes: most that the prefix's kept keys and values took, without the room for a level's beside them [bytes]
--   kv_bytes_formula: payload of the largest batch: 2 layers batch P heads head_dim bytes-a-value [bytes]
--   cached_peak_bytes: most that MLX held in a cached generation; NULL for a level [bytes]
--   uncached_peak_bytes: the same uncached [bytes]
--   more_batches: further batches like these that would settle an indistinguishable verdict; NULL: over 10,000
--   would_settle: the verdict they would settle on, going by the speedup
--   note: what else a reader should know; NULL: nothing
with shapes as (
    select distinct
        config_digest,
        config,
        prefix_length::double as p,
        prefix_attention,
        level_attention,
        lengths,
        2 * n_layers * n_heads * head_dim * prefix_length
        * case dtype when 'float32' then 4 when 'float16' then 2 when 'bfloat16' then 2 end as payload
    from ncm_totals
    where exit = 'none' and not warm_up
),

levels_of as (
    select
        config_digest,
        p,
        prefix_attention,
        level_attention,
        unnest(lengths)::double as l,
        generate_subscripts(lengths, 1) - 1 as level
    from shapes
),

-- Covered cells overlap by one where a boundary between two positions lies inside a cell: at gcd - 1 it does not.
pairs_of as (
    select
        *,
        p * if(prefix_attention = 'units', 9, p) as of_prefix,
        l * l + if(level_attention = 'cells', p + l - gcd(p::bigint, l::bigint), l * p) as of_level
    from levels_of
),

by_level as (
    select
        config_digest,
        level,
        l + case when level = 0 then p else 0 end as positions_once,
        l + p as positions_repeated,
        of_level + case when level = 0 then of_prefix else 0 end as pairs_once,
        of_level + of_prefix as pairs_repeated
    from pairs_of
),

formulas as (
    select * from by_level
    union all
    select
        config_digest,
        null as level,
        sum(positions_once) as positions_once,
        sum(positions_repeated) as positions_repeated,
        sum(pairs_once) as pairs_once,
        sum(pairs_repeated) as pairs_repeated
    from by_level
    group by config_digest
),

compared as (
    select
        *,
        case
            when verdict = 'indistinguishable' then prompts_to_settle(log_speedup, sd) - n_batches
        end as n_more
    from ncm_comparisons
    where cache and not against_cache and exit = 'none' and against_exit = 'none'
),

-- A configuration that could not be paired has a row too.
wanted as (
    select config_digest, null::bigint as level, 'fused' as timing
    from shapes
    union all
    select config_digest, level, timing
    from compared
    where level is not null
)

select
    (select run_id from selected_run) as run_id,
    s.config,
    coalesce(w.level::varchar, 'all') as level,
    w.timing,
    c.basis,
    coalesce(c.n_pairs, 0) as n_pairs,
    coalesce(c.n_batches, 0) as n_batches,
    case when w.level is null then c.verdict end as verdict,
    c.speedup,
    c.speedup * exp(-c.half_width) as speedup_low,
    c.speedup * exp(c.half_width) as speedup_high,
    c.t / c.n_pairs / 1e9 as cached_seconds,
    c.against_t / c.n_pairs / 1e9 as uncached_seconds,
    coalesce(c.n_codes_compared, 0) as n_codes_compared,
    coalesce(c.n_codes_equal, 0) as n_codes_equal,
    c.positions / c.n_samples as cached_positions,
    f.positions_once as cached_positions_formula,
    c.against_positions / c.n_samples as uncached_positions,
    f.positions_repeated as uncached_positions_formula,
    c.allowed / c.n_samples / c.n_layers as cached_allowed,
    f.pairs_once as cached_allowed_formula,
    c.against_allowed / c.n_samples / c.n_layers as uncached_allowed,
    f.pairs_repeated as uncached_allowed_formula,
    c.computed / c.n_samples / c.n_layers as cached_computed,
    c.against_computed / c.n_samples / c.n_layers as uncached_computed,
    c.kv_bytes,
    (s.payload * c.largest_batch)::bigint as kv_bytes_formula,
    c.peak_memory_bytes as cached_peak_bytes,
    c.against_peak_memory_bytes as uncached_peak_bytes,
    case when w.level is null and c.n_more <= 10000 then c.n_more end as more_batches,
    case
        when w.level is null and c.n_more <= 10000 then if(c.log_speedup > 0, 'pays', 'loses')
    end as would_settle,
    nullif(concat_ws(
        '; ',
        case
            when w.level is null and coalesce(c.n_batches, 0) < 5
                then printf(
                    'no verdict under 5 batches that were completed fused, cached and uncached, here %d',
                    coalesce(c.n_batches, 0)
                )
        end,
        case
            when c.n_codes_equal < c.n_codes_compared
                then printf('%d of %d have other codes', c.n_codes_compared - c.n_codes_equal, c.n_codes_compared)
        end,
        case
            when w.level is null and c.verdict = 'indistinguishable' and coalesce(c.n_more > 10000, true)
                then 'practically equal: 10,000 more batches would not settle it'
        end,
        case when w.level is null then m.note end
    ), '') as note
from wanted as w
inner join shapes as s on w.config_digest = s.config_digest
inner join formulas as f on w.config_digest = f.config_digest and w.level is not distinct from f.level
left join compared as c
    on w.config_digest = c.config_digest
    and w.level is not distinct from c.level
    and w.timing = c.timing
cross join machine_notes as m
order by s.config, s.config_digest, w.level is null, w.level;
