-- name: verdict
-- summary: whether an arm pays, per class and over all, with its interval and what limits it
-- question: Does speculation lower the time per committed token here, how sure is that, and if not, what is in the way?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
--   resamples: resamples of the bootstrap; default: 2000
--   seed: seed of the bootstrap's draws; default: 0
-- columns:
--   run_id: id of the run
--   arm: drafter and draft length, as the run names them
--   drafter: name of the drafter
--   draft_length: proposed tokens asked for per round at most [tokens]
--   is_exact: whether the output is, or is distributed as, ordinary decoding's; false: a relaxed policy
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   n_prompts: prompts that both arms completed with the same repeats, fused and without warm-up
--   verdict: pays, loses or indistinguishable, by the 95 % interval of the speedup; NULL: none, and `note` says why
--   speedup: ordinary's seconds per committed token over this arm's, each a ratio of sums over the prompts
--   speedup_low: lower end of its 95 % interval: delta method, Student's t over prompts; over all classes for prompts
--     in these proportions, the chance being in the prompts of each class and not in which classes there are
--   speedup_high: upper end of it
--   df: degrees of freedom of Student's t in it: n_prompts - 1, over several classes Satterthwaite's
--   boot_low: the same by a percentile bootstrap over the prompts of each class; NULL under 48 prompts, where that is
--     too narrow
--   boot_high: upper end of it
--   seconds_per_token: seconds per committed token of this arm [s]
--   ordinary_seconds_per_token: ordinary decoding's on the same prompts [s]
--   accepted_per_round: mean of accepted tokens per round [tokens]
--   limited_by: drafting, verification or acceptance, whichever would save most if it were ideal; or nothing proposed;
--     NULL: not known, or nothing does
--   more_prompts: further prompts like these that would settle an indistinguishable verdict; NULL: over 10,000
--   would_settle: the verdict they would settle on, going by the speedup
--   n_equal: outputs, fused or attributed, with the ids of ordinary decoding
--   n_compared: outputs that were compared
--   n_divergent: outputs that differ from them at no near tie: a fault, and the arm is not recommended
--   note: what else a reader should know; NULL: nothing
with compared as materialized (
    select * from comparisons
    where drafter is not null
),

-- A percentile bootstrap draws whole prompts, so that repeats stay in their prompt, each from those of its own class.
groups as materialized (
    select
        arm,
        draft_length,
        scope,
        n_prompts,
        samples,
        row_number() over (order by arm, draft_length, scope) as g
    from compared
    where n_prompts >= 48
),

numbered as materialized (
    select
        s.g,
        s.i,
        s.prompt.ordinary_t,
        s.prompt.ordinary_committed,
        s.prompt.total_t,
        s.prompt.total_committed,
        min(s.i) over c as first_alike,
        count(*) over c as n_alike
    from (
        select
            g,
            unnest(range(n_prompts)) as i,
            unnest(samples) as prompt
        from groups
    ) as s
    window c as (partition by s.g, s.prompt.stratum)
),

-- Arms and classes whose prompts are divided alike share the weights of a resample.
layouts as materialized (
    select
        g,
        dense_rank() over (order by layout) as layout
    from (
        select
            g,
            list([first_alike, n_alike] order by i) as layout
        from numbered
        group by g
    )
),

-- md5 gives the same draws in every version and thread, which random() does not; its 32 digits make four draws. An arm
-- and a class of n prompts take the first n draws of a resample, so that arms are compared on the same resamples.
draws as materialized (
    select
        h.b,
        h.k + q.q as k,
        ('0x' || substr(h.digits, 8 * q.q + 1, 8))::bigint as draw
    from (
        select
            b.b,
            k.k,
            md5(concat_ws('|', coalesce(getvariable('seed')::bigint, 0), b.b, k.k)) as digits
        from (select unnest(range(coalesce(getvariable('resamples')::bigint, 2000)))) as b (b)
        cross join (select unnest(range(0, (select max(n_prompts) from groups), 4))) as k (k)
    ) as h
    cross join (values (0), (1), (2), (3)) as q (q)
),

weights as (
    select
        s.layout,
        d.b,
        s.first_alike + d.draw % s.n_alike as i,
        count(*)::double as w
    from (
        select distinct
            l.layout,
            n.i,
            n.first_alike,
            n.n_alike
        from numbered as n
        inner join layouts as l on n.g = l.g
    ) as s
    inner join draws as d on s.i = d.k
    group by all
),

resampled as (
    select
        p.g,
        w.b,
        (sum(w.w * p.ordinary_t) / sum(w.w * p.ordinary_committed))
        / (sum(w.w * p.total_t) / sum(w.w * p.total_committed)) as speedup
    from layouts as l
    inner join weights as w on l.layout = w.layout
    inner join numbered as p on l.g = p.g and w.i = p.i
    group by all
),

bootstrapped as (
    select
        p.arm,
        p.draft_length,
        p.scope,
        quantile_cont(r.speedup, 0.025) as boot_low,
        quantile_cont(r.speedup, 0.975) as boot_high
    from resampled as r
    inner join groups as p on r.g = p.g
    group by all
)

select
    c.run_id,
    c.arm,
    c.drafter,
    c.draft_length,
    c.is_exact,
    c.scope as class,
    c.n_prompts,
    c.verdict,
    c.speedup,
    c.speedup_low,
    c.speedup_high,
    c.df,
    b.boot_low,
    b.boot_high,
    c.per_token / 1e9 as seconds_per_token,
    c.ordinary_per_token / 1e9 as ordinary_seconds_per_token,
    c.total_accepted / nullif(c.n_rounds, 0) as accepted_per_round,
    c.limited_by,
    c.more_prompts,
    c.would_settle,
    e.n_equal,
    e.n_compared,
    e.n_divergent,
    nullif(concat_ws(
        '; ',
        c.note,
        case
            when e.n_divergent > 0
                then printf(
                    '%d of %d outputs differ from ordinary decoding beyond a near tie', e.n_divergent, e.n_compared
                )
        end,
        case
            when d.drifted
                then printf(
                    'the machine changed during the run: ordinary steps got %.0f %% %s',
                    abs(100 * d.change),
                    case when d.change > 0 then 'slower' else 'faster' end
                )
        end,
        m.note
    ), '') as note
from compared as c
left join bootstrapped as b on c.arm = b.arm and c.draft_length = b.draft_length and c.scope = b.scope
left join output_equality as e
    on c.arm = e.arm and c.drafter = e.drafter and c.draft_length = e.draft_length and c.scope = e.scope
left join machine_drift as d on true
cross join machine_notes as m
order by c.drafter, c.draft_length, c.arm, c.scope = 'all', c.scope;
