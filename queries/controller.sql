-- name: controller
-- summary: what a controller chose and what that cost, beside the best draft length that was held fixed in the same run
-- question: Did choosing the draft length round by round pay, and what did learning it cost?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   arm: drafter and `m=auto`, as the run names them
--   drafter: name of the drafter
--   draft_length: most proposed tokens that the controller may ask for [tokens]
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   n_prompts: prompts that the arm and ordinary decoding completed with the same repeats, fused and without warm-up
--   n_rounds: fused rounds, no warm-up, of generations that ended by themselves
--   share_of_steps: part of them that proposed nothing
--   mean_proposed: proposed tokens of the others, on average; NULL: there are none [tokens]
--   n_prior: rounds that proposed before anything of that proposer was judged in their generation
--   n_probes: rounds made to learn
--   n_budget: rounds whose probe was left out, because too much had been lost
--   n_landings: rounds that read a step in flight before a proposal could be asked for
--   probe_seconds: time of the probes, over all these generations [s]
--   probing_share: that as a part of the time of all rounds
--   probing_lost_share: what the probes took beyond ordinary decoding's time for what they committed, as such a part
--   expected_over_measured: time that the controller expected of its choices over the time they took, without rounds
--     that were to propose and had nothing; NULL: it knew none
--   seconds_per_token: of the arm [s]
--   ordinary_seconds_per_token: ordinary decoding's on the same prompts [s]
--   best_fixed: arm of the same drafter with a fixed draft length, or ordinary decoding, whichever was cheapest; NULL:
--     no fixed length was run
--   best_fixed_seconds_per_token: of that arm [s]
--   regret: seconds_per_token over the best fixed one's, less 1; NULL: no fixed length was run
with compared as (
    select
        *,
        regexp_replace(arm, ' m=(auto|\d+)', '') as spec,
        arm in (
            select g.arm from run_generations as g
            where g.controlled
        ) as is_controlled
    from comparisons
),

chosen as (
    select
        g.arm,
        g.scope,
        count(*) as n_rounds,
        avg((r.proposed = 0)::bigint) as share_of_steps,
        avg(r.proposed) filter (where r.proposed > 0) as mean_proposed,
        count(*) filter (where r.reason = 'prior' and r.proposed > 0) as n_prior,
        count(*) filter (where r.reason = 'probe') as n_probes,
        count(*) filter (where r.reason = 'budget') as n_budget,
        count(*) filter (where r.reason = 'landing') as n_landings,
        coalesce(sum(r.t_round_ns) filter (where r.reason = 'probe'), 0)::double as probes,
        coalesce(sum(r.committed) filter (where r.reason = 'probe'), 0)::double as probed,
        sum(r.t_round_ns)::double as total,
        -- What was expected of a proposal cannot be held against a round in which there was none.
        sum(r.expected_ns * r.committed) filter (where r.requested = 0 or r.proposed > 0)::double as expected,
        sum(r.t_round_ns) filter (
            where r.expected_ns is not null and (r.requested = 0 or r.proposed > 0)
        )::double as measured
    from rounds as r
    inner join scoped_generations as g on r.generation_id = g.generation_id
    where g.timing = 'fused' and not g.warm_up and g.is_whole and g.controlled
    group by all
),

fixed as (
    select
        a.arm,
        a.scope,
        count(f.drafter) as n_fixed,
        min_by(f.arm, f.per_token) as best,
        min(f.per_token) as per_token
    from compared as a
    inner join compared as f
        on a.scope = f.scope and not f.is_controlled and (f.drafter is null or a.spec = f.spec) and f.per_token > 0
    where a.is_controlled
    group by all
)

select
    c.run_id,
    c.arm,
    c.drafter,
    c.draft_length,
    c.scope as class,
    c.n_prompts,
    coalesce(d.n_rounds, 0) as n_rounds,
    d.share_of_steps,
    d.mean_proposed,
    coalesce(d.n_prior, 0) as n_prior,
    coalesce(d.n_probes, 0) as n_probes,
    coalesce(d.n_budget, 0) as n_budget,
    coalesce(d.n_landings, 0) as n_landings,
    d.probes / 1e9 as probe_seconds,
    d.probes / nullif(d.total, 0) as probing_share,
    (d.probes - d.probed * c.ordinary_per_token) / nullif(d.total, 0) as probing_lost_share,
    d.expected / nullif(d.measured, 0) as expected_over_measured,
    c.per_token / 1e9 as seconds_per_token,
    c.ordinary_per_token / 1e9 as ordinary_seconds_per_token,
    case when f.n_fixed > 0 then f.best end as best_fixed,
    case when f.n_fixed > 0 then f.per_token / 1e9 end as best_fixed_seconds_per_token,
    case when f.n_fixed > 0 then c.per_token / f.per_token - 1 end as regret
from compared as c
left join chosen as d on c.arm = d.arm and c.scope = d.scope
left join fixed as f on c.arm = f.arm and c.scope = f.scope
where c.is_controlled
order by c.drafter, c.draft_length, c.arm, c.scope = 'all', c.scope;
