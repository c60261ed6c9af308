"""The values behind the metrics: whole numbers by label values, shown as prometheus-client's families.

prometheus-client's own counters hold floats and cannot be set, so they could neither go on where an earlier process
stopped nor be without `_created`. These can: `state` and `restore` are exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from telemetry.metric_names import BUCKETS_NS, METRICS, NS_PER_S, Metric

if TYPE_CHECKING:
    from prometheus_client.core import Exemplar
    from prometheus_client.core import Metric as Family

LabelValues: TypeAlias = tuple[str, ...]


class Sighting(Struct, array_like=True, frozen=True):
    """An exemplar: a trace in which this duration was seen, and when."""

    trace_id: str
    duration_ns: int
    wall_ns: int


class Histogram(Struct, omit_defaults=True):
    """Durations: how many fell into each of BUCKETS_NS (and beyond), their sum, and each bucket's latest exemplar."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS_NS) + 1))
    sum_ns: int = 0
    sightings: dict[int, Sighting] = {}

    def observe(self, duration_ns: int, trace_id: str | None, wall_ns: int) -> None:
        """Count a duration; without a trace that somebody could look at, it leaves no exemplar."""
        bucket = bisect_left(BUCKETS_NS, duration_ns)
        self.counts[bucket] += 1
        self.sum_ns += duration_ns
        if trace_id is not None:
            self.sightings[bucket] = Sighting(trace_id, duration_ns, wall_ns)


class NumberState(Struct, array_like=True):
    """A number and the label values it belongs to."""

    labels: LabelValues
    value: int


class HistogramState(Struct, array_like=True):
    """A histogram and the label values it belongs to."""

    labels: LabelValues
    value: Histogram


class ValuesState(Struct):
    """All values, as JSON can hold them: by metric, a list of label values and value."""

    numbers: dict[str, list[NumberState]] = {}
    histograms: dict[str, list[HistogramState]] = {}


class Values:
    """All metrics' values. Numbers are those of counters, gauges and info metrics."""

    def __init__(self) -> None:
        self.numbers: dict[str, dict[LabelValues, int]] = {
            name: {} for name, metric in METRICS.items() if metric.kind != "histogram"
        }
        self.histograms: dict[str, dict[LabelValues, Histogram]] = {
            name: {} for name, metric in METRICS.items() if metric.kind == "histogram"
        }

    def add(self, name: str, labels: LabelValues, amount: int = 1) -> None:
        """Raise a counter; by 0, so that it is shown before it first counts."""
        numbers = self.numbers[name]
        try:
            numbers[labels] += amount
        except KeyError:
            numbers[labels] = amount

    def histogram(self, name: str, labels: LabelValues) -> Histogram:
        """The histogram of these label values, made now if there was none."""
        found = self.histograms[name].get(labels)
        if found is None:
            found = self.histograms[name][labels] = Histogram()
        return found

    def collect(self) -> Iterator[Family]:
        """Every metric with its samples, as prometheus-client writes them."""
        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                yield _show_histogram(metric, self.histograms[name])
            else:
                yield _show_numbers(metric, self.numbers[name])

    def state(self) -> ValuesState:
        """All values, to be restored by another process."""
        return ValuesState(
            {name: [NumberState(*item) for item in of.items()] for name, of in self.numbers.items()},
            {name: [HistogramState(*item) for item in of.items()] for name, of in self.histograms.items()},
        )

    def restore(self, state: ValuesState) -> None:
        """Go on from `state`; what other definitions than today's left in it is ignored."""
        for name in self.numbers.keys() & state.numbers.keys():
            n_labels = len(METRICS[name].labels)
            self.numbers[name] = {
                each.labels: each.value for each in state.numbers[name] if len(each.labels) == n_labels
            }
        for name in self.histograms.keys() & state.histograms.keys():
            n_labels, n_counts = len(METRICS[name].labels), len(BUCKETS_NS) + 1
            self.histograms[name] = {
                each.labels: each.value
                for each in state.histograms[name]
                if (len(each.labels), len(each.value.counts)) == (n_labels, n_counts)
            }


def _show_numbers(metric: Metric, numbers: Mapping[LabelValues, int]) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    if metric.kind == "info":
        info = InfoMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for labels in numbers:
            info.add_metric(labels, {})
        return info
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=metric.labels, unit=metric.unit)
    for labels, value in numbers.items():
        family.add_metric(labels, value / metric.parts if metric.parts > 1 else value)
    return family


def _show_histogram(metric: Metric, histograms: Mapping[LabelValues, Histogram]) -> Family:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels, unit=metric.unit)
    bounds = [*(str(bound / NS_PER_S) for bound in BUCKETS_NS), "+Inf"]
    for labels, histogram in histograms.items():
        total, buckets = 0, []
        for index, bound in enumerate(bounds):
            total += histogram.counts[index]
            sighting = histogram.sightings.get(index)
            buckets.append((bound, total) if sighting is None else (bound, total, _show_exemplar(sighting)))
        family.add_metric(labels, buckets, histogram.sum_ns / NS_PER_S)
    return family


def _show_exemplar(sighting: Sighting) -> Exemplar:
    from prometheus_client.core import Exemplar

    return Exemplar({"trace_id": sighting.trace_id}, sighting.duration_ns / NS_PER_S, sighting.wall_ns / NS_PER_S)
