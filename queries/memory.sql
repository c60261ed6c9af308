-- name: memory
-- summary: the peak memory of every arm and class beside ordinary decoding's, with what caches and snapshots hold
-- question: What does speculation cost in memory?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them; ordinary decoding has rows of its own
--   drafter: name of the drafter; NULL: ordinary decoding
--   draft_length: proposed tokens asked for per round at most [tokens]
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   n_generations: generations that ended by themselves, fused and without warm-up
--   peak_bytes: most that MLX held during any of them, weights among it [bytes]
--   mean_peak_bytes: mean over them of the most that MLX held [bytes]
--   ordinary_peak_bytes: peak_bytes of ordinary decoding [bytes]
--   relative_to_ordinary: peak_bytes over ordinary's
--   cache_bytes: largest K/V cache of the target at the end of any of them [bytes]
--   snapshot_bytes: most that snapshots of target and drafter held in any round [bytes]
with peaks as (
    select
        arm,
        drafter,
        draft_length,
        scope,
        count(*) as n_generations,
        max(peak_memory_bytes) as peak_bytes,
        avg(peak_memory_bytes) as mean_peak_bytes,
        max(cache_bytes) as cache_bytes,
        max(snapshot_bytes) as snapshot_bytes
    from scoped_generations
    where timing = 'fused' and not warm_up and is_whole
    group by all
)

select
    (select run_id from selected_run) as run_id,
    p.arm,
    p.drafter,
    p.draft_length,
    p.scope as class,
    p.n_generations,
    p.peak_bytes,
    p.mean_peak_bytes,
    o.peak_bytes as ordinary_peak_bytes,
    p.peak_bytes / nullif(o.peak_bytes, 0) as relative_to_ordinary,
    p.cache_bytes,
    p.snapshot_bytes
from peaks as p
left join peaks as o on p.scope = o.scope and o.drafter is null
order by p.drafter nulls first, p.draft_length, p.arm, p.scope = 'all', p.scope;
