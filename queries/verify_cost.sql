-- name: verify_cost
-- summary: what a forward of the target costs by its width and the context it follows, relative to a step
-- question: How much dearer is verifying a proposal than one ordinary step, and does that grow with the context?
-- runs: speculation
-- variables:
--   run_id: id of the run; default: the latest
--   calibration_id: id of a measurement, as `roundscope calibrate` shows it; default: the run's own
-- columns:
--   calibration_id: id of the measurement that all its widths and contexts share
--   run_id: id of the run it was made in; NULL: by `roundscope calibrate`
--   model: name of the target
--   dtype: type of the target's weights
--   context: positions in the cache before the forward [positions]
--   width: positions of the forward: a round that proposes m tokens verifies m + 1 [positions]
--   n: times it was measured
--   verify_seconds: median time from launching the forward to its tokens on the host [s]
--   fastest_seconds: shortest of these times [s]
--   slowest_seconds: longest of these times [s]
--   relative_to_step: verify_seconds over that of one position at the same context: the tokens that a round so wide has
--     to commit to pay for its verification alone; NULL: one position was not measured
--   accepted_share_needed: relative_to_step - 1 over the proposed tokens: the share of them that has to be accepted if
--     drafting is free; over 1: no drafter can pay at this width; NULL: nothing is proposed at width 1
with chosen as (
    select * from verify_costs
    where coalesce(
        calibration_id = getvariable('calibration_id')::varchar,
        run_id = (select run_id from selected_run)
    )
)

select
    c.calibration_id,
    c.run_id,
    c.model,
    c.dtype,
    c.context,
    c.width,
    c.n,
    c.verify_ns / 1e9 as verify_seconds,
    c.fastest_ns / 1e9 as fastest_seconds,
    c.slowest_ns / 1e9 as slowest_seconds,
    c.verify_ns / nullif(s.verify_ns, 0) as relative_to_step,
    (c.verify_ns / nullif(s.verify_ns, 0) - 1) / nullif(c.width - 1, 0) as accepted_share_needed
from chosen as c
left join chosen as s
    on c.calibration_id = s.calibration_id and c.context = s.context and s.width = 1
order by c.calibration_id, c.context, c.width;
