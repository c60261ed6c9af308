"""Counting records: every metric from known records, its text, its bounds, and going on from a state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import queries
from telemetry import roundscope_version
from telemetry.following import Line
from telemetry.metric_names import BUCKETS_NS, DEVICE, MAX_DEVICES, MAX_GROUPS, METRICS
from telemetry.metrics import Metrics, MetricsState
from telemetry.records import SCHEMA_VERSION, LossRecord, Record
from telemetry.store import connect
from telemetry.testing import Spans, assert_sinks_agree
from tests.telemetry import stores
from tests.telemetry.coarse import ncm, ncm_comparison, whole_ncm

LABELS = {"model": "scripted", "arm": "prompt-lookup-8", "timing": "fused", "warm_up": "false", "policy": "greedy"}
LEVELS = {"config": "tiny", "arm": "cache", "timing": "attributed", "warm_up": "false"}


def labelled(name: str, /, labels: Mapping[str, str] = LABELS, **more: str) -> str:
    """A sample's name with labels, those of the records of `stores` by default, as the text format writes it."""
    pairs = (f'{label}="{value}"' for label, value in sorted({**labels, **more}.items()))
    return f"{name}{{{','.join(pairs)}}}"


def counted(records: Iterable[Record], journal: str = "j") -> Metrics:
    """Metrics that have counted these records."""
    metrics = Metrics()
    for record in records:
        metrics.count(record, journal)
    return metrics


def show(metrics: Metrics) -> dict[str, float]:
    """Every sample of the text format: name with labels as written, and value."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix("roundscope_"): float(value) for name, _, value in pairs}


def select(metrics: Metrics, *beginnings: str) -> dict[str, float]:
    """Samples whose names begin like this."""
    return {name: value for name, value in show(metrics).items() if name.startswith(beginnings)}


def test_a_run_is_counted_exactly() -> None:
    """Four rounds with A = 0, 1, 2, 3 and C = A + 1, a fifth that a stop cut, the sixth without a proposal."""
    [cut] = stores.rounds(
        "g1", 1, index=4, accepted=1, committed=1, cut=3, outcome="stop", trim_way="snapshot", replayed=1
    )
    [step] = stores.rounds(
        "g1", 1, index=5, proposed=0, committed=1, outcome="step", width=1, trim_way="none", rewind_way="trim"
    )
    records = [
        stores.header(),
        stores.run(),
        stores.generation("g1", cached_tokens=2),
        *stores.rounds("g1", 4),
        cut,
        step,
        stores.generation_end("g1", n_rounds=6, prefill_ns=2_000_000_000, decode_ns=1_500_000_000, unaccounted_ns=1),
        stores.comparison("g1"),
        stores.comparison("g2", equal=False, near_tie=True),
        stores.comparison("g3", equal=False, near_tie=False),
        stores.run_end(),
    ]
    device = {name: str(getattr(stores.run(), name)) for name in DEVICE}
    expected = {
        labelled("device_info", device): 1,
        labelled("runs_started_total", {}, kind="speculation"): 1,
        labelled("runs_total", {}, outcome="complete"): 1,
        labelled("generations_started_total"): 1,
        labelled("generations_total", finish_reason="length"): 1,
        labelled("prompt_tokens_total"): 5,
        labelled("cached_prompt_tokens_total"): 2,
        labelled("prefill_seconds_total"): 2,
        labelled("decode_seconds_total"): 1.5,
        labelled("unaccounted_seconds_total"): 1e-9,
        labelled("rounds_total", outcome="correction"): 4,
        labelled("rounds_total", outcome="stop"): 1,
        labelled("rounds_total", outcome="step"): 1,
        labelled("proposals_total"): 5,
        labelled("draft_tokens_total"): 20,
        labelled("accepted_tokens_total"): 7,
        labelled("accepted_tokens_per_position_total", position="0"): 4,
        labelled("accepted_tokens_per_position_total", position="1"): 2,
        labelled("accepted_tokens_per_position_total", position="2"): 1,
        labelled("committed_tokens_total"): 12,
        labelled("cut_tokens_total"): 3,
        labelled("cache_trimmed_positions_total"): 4 + 3 + 2 + 1 + 4,
        labelled("cache_replayed_positions_total"): 1,
        labelled("cache_trims_total", way="trim"): 4,
        labelled("cache_trims_total", way="snapshot"): 1,
        labelled("rewinds_total", way="trim"): 1,
        labelled("device_syncs_total"): 6,
        labelled("comparisons_total", {}, output="equal"): 1,
        labelled("comparisons_total", {}, output="near_tie"): 1,
        labelled("comparisons_total", {}, output="divergent"): 1,
        labelled("kv_cache_bytes"): 100,
        labelled("peak_memory_bytes"): 1000,
        labelled("build_info", {}, version=roundscope_version(), schema_version=str(SCHEMA_VERSION)): 1,
        "open_generations": 0,
        **{
            labelled("telemetry_dropped_total", {}, sink="journal", reason=reason): 0
            for reason in ("write_failed", "torn", "invalid", "newer_version", "unreadable")
        },
        labelled("telemetry_dropped_total", {}, sink="metrics", reason="orphan"): 0,
    }
    shown = show(counted(records))
    assert {
        name: value for name, value in shown.items() if not name.startswith(("round_seconds", "stage_seconds"))
    } == expected


def test_overlaps_are_summed_exactly_and_a_policy_is_a_label() -> None:
    """In whole millionths, so that no sum depends on its order; relaxed generations have series of their own."""
    drawn = {"policy": "stochastic", "timing": "attributed"}
    records: list[Record] = [
        stores.generation("g1", **drawn),
        *stores.rounds("g1", 1, overlap=0.3, overlap_positions=1),
        *stores.rounds("g1", 1, index=1, overlap=1.75, overlap_positions=2),
        *stores.rounds("g1", 1, index=2),
        stores.generation("g2", policy="relaxed"),
        stores.generation("g3", policy=None),
    ]
    found = show(counted(records))
    assert found[labelled("overlap_tokens_total", **drawn)] == 2.05
    assert found[labelled("overlap_positions_total", **drawn)] == 3
    started = [labelled("generations_started_total", policy=policy) for policy in ("relaxed", "greedy")]
    assert [found[name] for name in started] == [1, 1]


def test_durations_fall_into_buckets_from_a_tenth_of_a_millisecond_to_ten_seconds() -> None:
    assert [BUCKETS_NS[0], *BUCKETS_NS[3::3]] == [10**5, 10**6, 10**7, 10**8, 10**9, 10**10]
    durations = [99_999, 100_000, 100_001, 10**10, 10**10 + 1]
    records: list[Record] = [stores.generation("g1")]
    for index, duration in enumerate(durations):
        records += stores.rounds("g1", 1, index=index, start_ns=0, t_round_ns=duration)
    found = select(counted(records), "round_seconds")
    buckets = {name.partition('le="')[2].partition('"')[0]: n for name, n in found.items() if "_bucket" in name}
    assert buckets == {
        "0.0001": 2,
        **dict.fromkeys(("0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05"), 3),
        **dict.fromkeys(("0.1", "0.25", "0.5", "1.0", "2.5", "5.0"), 3),
        "10.0": 4,
        "+Inf": 5,
    }
    assert found[labelled("round_seconds_count")] == 5
    assert found[labelled("round_seconds_sum")] == pytest.approx(sum(durations) / 1e9, rel=1e-15)


def test_stages_say_what_they_were_timed_by_and_those_not_entered_are_absent() -> None:
    found = select(counted([stores.generation("g1"), *stores.rounds("g1", 2)]), "stage_seconds_sum")
    stages = {
        ("draft", "host"): 4e-8,
        ("verify", "host_launch"): 6e-8,
        ("synchronize", "host_wait"): 8e-8,
        ("trim", "host"): 0,
    }
    assert found == {
        labelled("stage_seconds_sum", stage=stage, basis=basis): seconds for (stage, basis), seconds in stages.items()
    }


def test_levels_of_a_coarse_to_fine_generation() -> None:
    stages = {"forward": 1e-6, "sample": 4e-7, "reconstruct": 2e-7}
    assert {name: n for name, n in select(counted(whole_ncm("n1")), "ncm_").items() if "_bucket" not in name} == {
        labelled("ncm_generations_started_total", LEVELS): 1,
        labelled("ncm_generations_total", LEVELS, finish_reason="complete"): 1,
        labelled("ncm_seconds_total", LEVELS): 2.5e-6,
        labelled("ncm_forwards_total", LEVELS): 2,
        labelled("ncm_prefix_positions_computed_total", LEVELS): 8,
        labelled("ncm_prefix_positions_reused_total", LEVELS): 8,
        labelled("ncm_samples_exited_total", LEVELS): 0,
        labelled("ncm_kv_cache_bytes", LEVELS): 64,
        labelled("ncm_level_seconds_count", LEVELS): 2,
        labelled("ncm_level_seconds_sum", LEVELS): 1.8e-6,
        **{
            labelled(f"ncm_stage_seconds_{end}", LEVELS, stage=stage, basis="barrier"): value
            for stage, seconds in stages.items()
            for end, value in (("count", 2), ("sum", seconds))
        },
    }


def test_comparisons_of_coarse_to_fine_generations() -> None:
    verdicts = [(True, None), (True, None), (False, True), (False, False)]
    records = [ncm_comparison(str(n), equal=equal, near_tie=near) for n, (equal, near) in enumerate(verdicts)]
    assert select(counted(records), "ncm_comparisons", "comparisons") == {
        labelled("ncm_comparisons_total", {}, output="equal"): 2,
        labelled("ncm_comparisons_total", {}, output="near_tie"): 1,
        labelled("ncm_comparisons_total", {}, output="divergent"): 1,
    }


def test_exemplars_are_in_openmetrics_text_only_and_name_the_trace() -> None:
    records: list[Record] = [
        stores.generation("1" * 32),
        *stores.rounds("1" * 32, 1, t_round_ns=2_000_000),
        stores.generation("2" * 32, trace_id="a" * 32, parent_span_id="b" * 16, sampled=True),
        *stores.rounds("2" * 32, 1, t_round_ns=20_000_000, start_ns=5_000_000),
        stores.generation("3" * 32, trace_id="c" * 32, parent_span_id="b" * 16, sampled=False),
        *stores.rounds("3" * 32, 1, t_round_ns=200_000_000),
    ]
    metrics = counted(records)
    registry = metrics.registry
    assert b"trace_id" not in generate_latest(registry)
    [family] = [
        family
        for family in text_string_to_metric_families(generate_openmetrics(registry).decode())
        if family.name == "roundscope_round_seconds"
    ]
    exemplars = {sample.labels["le"]: sample.exemplar for sample in family.samples if sample.exemplar}
    found = {le: (each.labels, each.value, each.timestamp) for le, each in exemplars.items()}
    assert {le: found[le][:2] for le in found} == {
        "0.0025": ({"trace_id": "1" * 32}, 0.002),
        "0.025": ({"trace_id": "a" * 32}, 0.02),
    }
    assert float(found["0.025"][2]) == pytest.approx(1_700_000_000.148456789, abs=1e-6)
    # Who is not sampled counts all the same.
    assert select(metrics, "generations_started_total", "rounds_total", "round_seconds_count", "round_seconds_sum") == {
        labelled("generations_started_total"): 3,
        labelled("rounds_total", outcome="correction"): 3,
        labelled("round_seconds_count"): 3,
        labelled("round_seconds_sum"): 0.222,
    }


def test_a_controllers_rounds_are_counted_by_reason_and_length() -> None:
    chosen = [("prior", 4), ("best", 4), ("best", 4), ("probe", 1), ("best", 0), ("best", 64), ("best", 80)]
    steps = {"proposed": 0, "accepted": 0, "outcome": "step"}
    rounds = [
        next(stores.rounds("g1", 1, t_round_ns=10**index, index=index, reason=reason, requested=m, **steps))
        for index, (reason, m) in enumerate(chosen)
    ]
    metrics = counted([stores.generation("g1", controlled=True), *rounds, *stores.rounds("g1", 1, index=9)])
    found = select(metrics, "controlled_rounds_total")
    counts = {("prior", "4"): 1, ("best", "4"): 2, ("probe", "1"): 1, ("best", "0"): 1, ("best", "64+"): 2}
    assert found == {labelled("controlled_rounds_total", reason=reason, m=m): n for (reason, m), n in counts.items()}
    spent = {"prior": 1, "best": 1_110_110, "probe": 1_000, "budget": 0, "landing": 0, "last": 0}
    assert select(metrics, "controlled_seconds_total") == {
        labelled("controlled_seconds_total", reason=reason): ns / 1e9 for reason, ns in spent.items()
    }


def test_proposers_are_counted_up_to_a_number_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("telemetry.metrics.MAX_PROPOSERS", 2)
    accepted = [("suffix", 3), ("ar", 1), (None, 0), ("suffix", 2), ("mine", 4), ("theirs", 1)]
    rounds = [
        next(stores.rounds("g1", 1, index=index, proposer=proposer, accepted=n))
        for index, (proposer, n) in enumerate(accepted)
    ]
    metrics = counted([stores.generation("g1"), *rounds[:4]])
    again = Metrics()
    again.restore(metrics.state())
    for each in rounds[4:]:
        again.count(each)
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["event"], each["limit"], each["effect"]) for each in said] == [
        ("metrics.label_overflow", 2, "more proposers count as 'other'")
    ]
    counts = {"suffix": (2, 5), "ar": (1, 1), "other": (2, 5)}
    names = ("proposer_proposals_total", "proposer_accepted_tokens_total")
    assert select(again, *names) == {
        labelled(name, proposer=proposer): n
        for proposer, each in counts.items()
        for name, n in zip(names, each, strict=True)
    }


def test_a_part_that_was_chosen_and_had_nothing_did_not_propose(tmp_path: Path) -> None:
    """All count the same: the metric, the query `drafters`, and the assertion on sinks."""
    empty = {"proposed": 0, "accepted": 0, "committed": 1, "outcome": "step"}
    records = [
        stores.header(),
        stores.run(),
        stores.generation("g1", drafter="suffix+ar"),
        *stores.rounds("g1", 4, proposer="suffix"),
        *stores.rounds("g1", 1, index=4, proposer="suffix", **empty),
        *stores.rounds("g1", 1, index=5, proposer="ar", **empty),
        stores.generation_end("g1", n_rounds=6, n_committed=12),
        stores.run_end(),
    ]
    metrics = counted(records)
    names = ("proposer_proposals_total", "proposer_accepted_tokens_total")
    assert select(metrics, *names) == {
        labelled(name, proposer="suffix"): n for name, n in zip(names, (4, 6), strict=True)
    }
    stores.write_lines(tmp_path, records)
    with connect(tmp_path) as connected:
        queries.install_views(connected.con)
        result = queries.run(connected.con, "drafters")
        assert {row[result.columns.index("proposers")] for row in result.rows} == {"suffix 4"}
    assert_sinks_agree(records=records, spans=Spans.from_records(records), store=tmp_path, counters=metrics.registry)


def test_every_metric_is_named_as_defined_and_nothing_is_created() -> None:
    """vllm#41916: `_created` samples summed as counters."""
    records = [*stores.whole_run(), *whole_ncm("n1")]
    metrics = counted(records)
    metrics.set_journals(["running"])
    for text in (generate_latest(metrics.registry).decode(), generate_openmetrics(metrics.registry).decode()):
        assert "_created" not in text
        names = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
        assert names <= {series for metric in METRICS.values() for series in metric.series}
        families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(families) == len(set(families)) == len(METRICS)


def test_a_generation_whose_process_died_is_aborted_and_an_open_one_is_not() -> None:
    metrics = counted([stores.generation("g1"), ncm("n1")], "dead")
    metrics.count(stores.generation("g2"), "alive")
    metrics.end_journals(["dead"])
    metrics.end_journals(["dead"])
    assert select(metrics, "generations_total", "ncm_generations_total", "open_generations") == {
        labelled("generations_total", finish_reason="aborted"): 1,
        labelled("ncm_generations_total", LEVELS, finish_reason="aborted"): 1,
        "open_generations": 1,
    }


def test_losses_faults_and_orphans_are_counted_as_dropped() -> None:
    metrics = counted([LossRecord(n_records=3, reason="No space left on device"), *stores.rounds("unknown", 2)])
    kinds = ("torn", "invalid", "invalid", "too_new", "unreadable")
    metrics.count_lines([Line("j", 1, None, "why", kind) for kind in kinds])
    metrics.drop("otlp", "refused", 7)
    assert select(metrics, "telemetry_dropped") == {
        'telemetry_dropped_total{reason="write_failed",sink="journal"}': 3,
        'telemetry_dropped_total{reason="torn",sink="journal"}': 1,
        'telemetry_dropped_total{reason="invalid",sink="journal"}': 2,
        'telemetry_dropped_total{reason="newer_version",sink="journal"}': 1,
        'telemetry_dropped_total{reason="unreadable",sink="journal"}': 1,
        'telemetry_dropped_total{reason="orphan",sink="metrics"}': 2,
        'telemetry_dropped_total{reason="refused",sink="otlp"}': 7,
    }


def test_labels_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = counted(stores.generation(str(n), arm=f"arm {n}") for n in range(MAX_GROUPS + 20))
    started = select(metrics, "generations_started_total")
    assert len(started) == MAX_GROUPS + 1
    assert started[labelled("generations_started_total", arm="other", model="other")] == 20
    assert capsys.readouterr().err.count("metrics.label_overflow") == 1
    resumed = Metrics()
    resumed.restore(metrics.state())
    resumed.count(stores.generation("more", arm="new"))
    assert len(select(resumed, "generations_started_total")) == MAX_GROUPS + 1
    for n in range(2 * MAX_DEVICES):
        metrics.count(stores.run(host=f"host {n}"))
    hosts = {name.partition('host="')[2].partition('"')[0] for name in select(metrics, "device_info")}
    assert hosts == {f"host {n}" for n in range(MAX_DEVICES, 2 * MAX_DEVICES)}


def test_positions_are_bounded() -> None:
    [long] = stores.rounds("g1", 1, proposed=70, accepted=67, committed=68, width=71)
    found = select(counted([stores.generation("g1"), long]), "accepted_tokens_per_position_total")
    assert sum(found.values()) == 67
    assert [value for name, value in found.items() if 'position="64+"' in name] == [3]
    assert len(found) == 65


def test_counting_goes_on_from_a_state_as_if_it_had_never_stopped() -> None:
    records = [*stores.whole_run(), *whole_ncm("n1")]
    whole = counted(records)
    for cut in range(len(records)):
        first = counted(records[:cut])
        state = msgspec.json.decode(msgspec.json.encode(first.state()), type=MetricsState)
        second = Metrics()
        second.restore(state)
        for record in records[cut:]:
            second.count(record, "j")
        assert generate_openmetrics(second.registry) == generate_openmetrics(whole.registry)


def test_what_other_definitions_left_in_a_state_is_ignored() -> None:
    state = counted(stores.whole_run()).state()
    state.values.numbers["gone"] = state.values.numbers["rounds"]
    state.values.numbers["rounds"] = state.values.numbers["proposals"]
    del state.values.numbers["cut_tokens"]
    for each in state.values.histograms["round_seconds"]:
        each.value.counts.pop()
    metrics = Metrics()
    metrics.restore(state)
    assert select(metrics, "rounds_total", "cut_tokens", "round_seconds", "gone") == {}
    assert select(metrics, "proposals") == {labelled("proposals_total"): 6}
