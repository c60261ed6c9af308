-- name: history
-- summary: what every arm of every run cost, the latest first, and how that changed since the run before it
-- question: How have seconds per token, speedup and acceptance developed from run to run?
-- runs: speculation
-- variables:
--   run_id: id of the last run to show; default: the latest
-- columns:
--   run_id: id of the run
--   started: when it began, in UTC
--   outcome: complete, interrupted or error; NULL: it has not ended
--   host: name of the machine
--   cpu: processor model
--   model: name of the target
--   dtype: type of the target's weights
--   workload: name of the workload
--   arm: drafter and draft length, as the run names them; ordinary decoding has rows of its own
--   n_prompts: prompts that it completed, fused and without warm-up
--   seconds_per_token: sum of T_round over the sum of committed tokens, repeats averaged [s]
--   speedup: ordinary's seconds per token over this arm's on the prompts that both completed; NULL: ordinary decoding
--   accepted_per_round: mean of accepted tokens per round [tokens]
--   committed_per_round: mean of committed tokens per round [tokens]
--   peak_bytes: most that MLX held during a generation [bytes]
--   change: seconds_per_token over those of the run before with the same arm, model, dtype, prompts, sampling, limit of
--     output and machine (host, processor, cores, device, BLAS and its threads), less 1; NULL: there is none
with works as (
    select
        s.run_id,
        s.arm,
        s.drafter,
        s.draft_length,
        count(*) as n_prompts,
        sum(s.t) / nullif(sum(s.committed), 0) as per_token,
        (sum(o.t) / nullif(sum(o.committed), 0))
        / nullif(
            sum(s.t) filter (where o.t is not null) / nullif(sum(s.committed) filter (where o.t is not null), 0), 0
        ) as speedup,
        sum(s.accepted) / nullif(sum(s.n_rounds), 0) as accepted_per_round,
        sum(s.committed) / nullif(sum(s.n_rounds), 0) as committed_per_round,
        max(s.peak_bytes) as peak_bytes
    from prompt_work as s
    left join prompt_work as o
        on s.run_id = o.run_id
        and s.class is not distinct from o.class
        and s.prompt_id = o.prompt_id
        and o.drafter is null
    where s.run_id <= (select run_id from selected_run)
    group by all
)

select
    w.run_id,
    strftime(make_timestamp(r.started_wall_ns // 1000), '%Y-%m-%dT%H:%M:%SZ') as started,
    r.outcome,
    r.host,
    r.cpu,
    r.model,
    r.dtype,
    r.workload,
    w.arm,
    w.n_prompts,
    w.per_token / 1e9 as seconds_per_token,
    case when w.drafter is not null then w.speedup end as speedup,
    w.accepted_per_round,
    w.committed_per_round,
    w.peak_bytes,
    w.per_token / nullif(lag(w.per_token) over (
        partition by
            w.arm,
            r.model,
            r.dtype,
            r.workload_digest,
            r.max_tokens,
            r.host,
            r.cpu,
            r.cores,
            r.device,
            r.blas,
            r.blas_threads,
            s.sampling
        order by w.run_id
    ), 0) - 1 as change
from works as w
left join runs as r on w.run_id = r.run_id
left join run_sampling as s on w.run_id = s.run_id
order by w.run_id desc, w.drafter asc nulls first, w.draft_length asc, w.arm asc;
