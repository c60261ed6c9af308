-- What an interval and a verdict are, as macros, each once: installed before the views that use them. Influences are
-- those of the delta method on a logarithm, one a prompt (or batch).

-- The 0.975 quantile of Student's t, absolute error below 1e-7. From 31 degrees of freedom on it is the
-- Cornish-Fisher expansion about z = 1.95996... (Abramowitz and Stegun 26.7.5), whose terms are numbers for a fixed z.
create or replace macro t_975(df) as (
    case
        when df < 1 then null
        when df <= 30
            then ([
                12.7062047362, 4.3026527297, 3.1824463053, 2.7764451052, 2.5705818356, 2.4469118511,
                2.3646242516, 2.3060041352, 2.2621571628, 2.2281388520, 2.2009851601, 2.1788128297,
                2.1603686565, 2.1447866879, 2.1314495456, 2.1199052992, 2.1098155778, 2.1009220402,
                2.0930240544, 2.0859634473, 2.0796138447, 2.0738730679, 2.0686576104, 2.0638985616,
                2.0595385528, 2.0555294386, 2.0518305165, 2.0484071418, 2.0452296421, 2.0422724563
            ]::double[])[df]
        else
            1.959963984540054
            + (2.372271230299 + (2.822498615740 + (2.555849679508 + 1.589534053394 / df) / df) / df) / df
    end
);

-- The quantile of Student's t at 1 - 0.025 / 16: what t_975 is for one comparison, for the best of 16 (Bonferroni).
create or replace macro t_975_of_16(df) as (
    case
        when df < 1 then null
        when df <= 30
            then ([
                203.7166909088, 17.8465902198, 8.7676328891, 6.3642854006, 5.3259203202, 4.7604316095,
                4.4083653212, 4.1693229819, 3.9969024388, 3.8668815891, 3.7654430289, 3.6841535167,
                3.6175847817, 3.5620894950, 3.5151287168, 3.4748818870, 3.4400102516, 3.4095077814,
                3.3826041001, 3.3586994536, 3.3373200486, 3.3180866963, 3.3006923645, 3.2848858210,
                3.2704595278, 3.2572405513, 3.2450836484, 3.2338659441, 3.2234827906, 3.2138445119
            ]::double[])[df]
        else
            2.9551668474978343
            + (7.190667929713 + (16.131996985035 + (27.555293853122 + 34.363041180973 / df) / df) / df) / df
    end
);

-- Over several classes these are what they are and only the prompts within them are chance: a stratified sample
-- (Cochran, Sampling Techniques, 3rd edition, sections 5.4 and 5.9). With n_h prompts in class h and s_h^2 the
-- variance of their influences d on a logarithm, its variance is sum(n_h s_h^2) / n^2, and Satterthwaite's degrees of
-- freedom are sum(v_h)^2 / sum(v_h^2 / (n_h - 1)) with v_h = n_h s_h^2, rounded down. With one class they are s^2 / n
-- and n - 1. Prompts without a class and classes of a single prompt are taken together as one class; where that is a
-- single prompt too, the square of its influence stands for the variance, which is too large rather than too small.
create or replace macro stratum(class, n_alike) as (case when n_alike > 1 then class end);

create or replace macro stratum_spread(n_alike, variance, d) as (n_alike * coalesce(variance, d * d));

-- Aggregates over prompts: each brings the v_h and the n_h of its class.
create or replace macro standard_error(v, n_alike) as (sqrt(sum(v / n_alike)) / count(*));

create or replace macro degrees_of_freedom(v, n_alike) as (
    coalesce(
        -- What rounding takes from a whole number is given back.
        floor(1e-6 + pow(sum(v / n_alike), 2) / nullif(sum(v * v / n_alike / greatest(n_alike - 1, 1)), 0))::bigint,
        count(*) - 1
    )
);

-- Fewest prompts like these at which the interval would leave ln S = 0 out, if there are `lost` degrees of freedom
-- fewer than prompts. t falls with n, so the search starts where the normal quantile would do, and few more are ever
-- needed. NULL where there is no effect to settle.
create or replace macro prompts_to_settle(log_speedup, sd, lost := 1) as (
    select min(n)
    from (
        select
            r.k
            + greatest(floor(least(pow(1.959963984540054 * sd / nullif(log_speedup, 0), 2), 1e9))::bigint, lost) as n
        from range(1, 64) as r (k)
    )
    where t_975(n - lost) * sd / sqrt(n) < abs(log_speedup)
);

-- What the 95 % interval of a speedup says: ln S +- half_width, over n clusters that are independent of each other.
create or replace macro judge(n, log_speedup, half_width) as (
    case
        when n < 5 then null
        when log_speedup > half_width then 'pays'
        when -log_speedup > half_width then 'loses'
        when abs(log_speedup) <= half_width then 'indistinguishable'
    end
);
