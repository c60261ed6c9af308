-- name: drafters
-- summary: all drafters of a run side by side in each class: how far they get, what drafting costs, what comes of it
-- question: Which drafter is best for which prompts, and is it acceptance or what drafting costs that decides?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
-- columns:
--   run_id: id of the run
--   class: class of the prompts; 'all': pooled over the classes, prompts without a class among them
--   arm: drafter and draft length, as the run names them
--   drafter: name of the drafter
--   draft_length: proposed tokens asked for per round at most [tokens]
--   n_prompts: prompts that this arm and ordinary decoding both completed with the same repeats, fused, without warm-up
--   verdict: pays, loses or indistinguishable, as in `verdict`; NULL: none
--   speedup: ordinary's seconds per committed token over this arm's
--   speedup_low: lower end of its 95 % interval
--   speedup_high: upper end of it
--   seconds_per_token: seconds per committed token of this arm [s]
--   ordinary_seconds_per_token: ordinary decoding's on the same prompts [s]
--   proposed_per_round: mean of proposed tokens per round [tokens]
--   accepted_per_round: mean of accepted tokens per round [tokens]
--   survival_1: Pr(A >= 1) over rounds whose position 1 was proposed and not cut, as in `survival`; NULL: no such round
--   survival_2: Pr(A >= 2), likewise
--   survival_3: Pr(A >= 3), likewise
--   survival_4: Pr(A >= 4), likewise
--   survival_8: Pr(A >= 8), likewise
--   draft_seconds_per_round: mean time of drafting and rewinding in attributed rounds; NULL: there were none [s]
--   proposers: rounds in which each part of a composed drafter proposed; NULL: none did, or it is not composed
--   limited_by: as in `verdict`
with fused as materialized (
    select *
    from round_shapes
),

shapes as (
    select
        arm,
        drafter,
        draft_length,
        scope,
        sum(n_rounds) as total_rounds,
        sum(n_rounds * proposed)::double as total_proposed,
        sum(n_rounds * accepted)::double as total_accepted,
        sum(n_rounds) filter (where judged >= 1 and accepted >= 1) as accepted_1,
        sum(n_rounds) filter (where judged >= 1) as judged_1,
        sum(n_rounds) filter (where judged >= 2 and accepted >= 2) as accepted_2,
        sum(n_rounds) filter (where judged >= 2) as judged_2,
        sum(n_rounds) filter (where judged >= 3 and accepted >= 3) as accepted_3,
        sum(n_rounds) filter (where judged >= 3) as judged_3,
        sum(n_rounds) filter (where judged >= 4 and accepted >= 4) as accepted_4,
        sum(n_rounds) filter (where judged >= 4) as judged_4,
        sum(n_rounds) filter (where judged >= 8 and accepted >= 8) as accepted_8,
        sum(n_rounds) filter (where judged >= 8) as judged_8
    from fused
    group by all
),

named as (
    select
        arm,
        drafter,
        draft_length,
        scope,
        string_agg(printf('%s %d', proposer, n_proposer), ', ' order by proposer) as proposers
    from (
        select
            arm,
            drafter,
            draft_length,
            scope,
            proposer,
            sum(n_rounds)::bigint as n_proposer
        from fused
        where proposer is not null and proposed > 0
        group by all
    )
    group by all
),

drafting as (
    select
        arm,
        drafter,
        draft_length,
        scope,
        sum(total_draft + total_rewind) / nullif(sum(n_rounds), 0) as ns
    from scoped_generations
    where timing = 'attributed' and not warm_up and is_whole
    group by all
)

select
    c.run_id,
    c.scope as class,
    c.arm,
    c.drafter,
    c.draft_length,
    c.n_prompts,
    c.verdict,
    c.speedup,
    c.speedup_low,
    c.speedup_high,
    c.per_token / 1e9 as seconds_per_token,
    c.ordinary_per_token / 1e9 as ordinary_seconds_per_token,
    s.total_proposed / s.total_rounds as proposed_per_round,
    s.total_accepted / s.total_rounds as accepted_per_round,
    coalesce(s.accepted_1, 0) / s.judged_1 as survival_1,
    coalesce(s.accepted_2, 0) / s.judged_2 as survival_2,
    coalesce(s.accepted_3, 0) / s.judged_3 as survival_3,
    coalesce(s.accepted_4, 0) / s.judged_4 as survival_4,
    coalesce(s.accepted_8, 0) / s.judged_8 as survival_8,
    d.ns / 1e9 as draft_seconds_per_round,
    n.proposers,
    c.limited_by
from comparisons as c
left join shapes as s
    on c.arm = s.arm and c.drafter = s.drafter and c.draft_length = s.draft_length and c.scope = s.scope
left join named as n
    on c.arm = n.arm and c.drafter = n.drafter and c.draft_length = n.draft_length and c.scope = n.scope
left join drafting as d
    on c.arm = d.arm and c.drafter = d.drafter and c.draft_length = d.draft_length and c.scope = d.scope
where c.drafter is not null
order by c.scope = 'all', c.scope, c.drafter, c.draft_length, c.arm;
