"""Collectors of metrics: families filled at scrape time, a fast histogram, common labels, additional names."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

PREFIX = "lightwell_"

Values = float | Iterable[tuple[Sequence[str], float]]
"""One number, or one with each combination of the values of labels."""


def gauge(name: str, text: str, values: Values, labels: Sequence[str] = ()) -> Metric:
    """Build the family of a gauge, as it is now."""
    return _filled(GaugeMetricFamily(PREFIX + name, text, labels=labels), values)


def counter(name: str, text: str, values: Values, labels: Sequence[str] = ()) -> Metric:
    """Build the family of a counter, as it is now; `name` ends in `_total`."""
    return _filled(CounterMetricFamily(PREFIX + name, text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in values if isinstance(values, Iterable) else [((), values)]:
        family.add_metric(labels, float(value))
    return family


class ReadAtScrape(Collector):
    """Families that a function builds each time that the metrics are read."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


class Histogram(Collector):
    """A histogram that one thread updates with each token; prometheus_client's own takes eight calls and two locks."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = (*bounds, math.inf)
        """Upper bounds, which belong to their buckets."""
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        buckets = list(zip(map(floatToGoString, self._bounds), accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets, self._sum)


Samples = list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]
"""The families of another process: name, type, text, and samples with their names, labels and values."""

_SUMMED_GAUGES = ("process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds")


def samples_of(families: Iterable[Metric]) -> Samples:
    """Return the samples that another process can add to its own: counters, histograms and sizes."""
    return [
        (each.name, each.type, each.documentation, [(s.name, s.labels, s.value) for s in each.samples])
        for each in families
        if each.type != "gauge" or each.name in _SUMMED_GAUGES
    ]


def sum_of(several: Iterable[Samples]) -> Samples:
    """Return the sums over several processes, without gauges."""
    families: dict[str, Metric] = {}
    for samples in several:
        _add(families, samples)
    return samples_of(each for each in families.values() if each.type != "gauge")


def _add(families: dict[str, Metric], samples: Samples) -> None:
    for name, kind, text, values in samples:
        family = families.setdefault(name, Metric(name, text, kind))
        places = {(each.name, *sorted(each.labels.items())): i for i, each in enumerate(family.samples)}
        for sample, labels, value in values:
            place = places.get((sample, *sorted(labels.items())))
            if place is None:
                family.add_sample(sample, labels, value)
            else:
                known = family.samples[place]
                family.samples[place] = known._replace(value=known.value + value)


class Shown(Collector):
    """The metrics of several registries as one: our own with the labels of their registry, and repeated under each of
    their other names.
    """

    def __init__(self, aliases: Sequence[tuple[str, str]]) -> None:
        self._aliases = aliases
        self.parts: list[tuple[CollectorRegistry, dict[str, str]]] = []
        """Each registry, with the labels that its samples get."""
        self.others: Callable[[], Iterable[Samples]] = tuple
        """Returns the samples of the other processes."""

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for registry, labels in self.parts:
            for family in registry.collect():
                if labels and family.name.startswith(PREFIX):
                    family.samples = [each._replace(labels={**each.labels, **labels}) for each in family.samples]
                if families.setdefault(family.name, family) is not family:
                    families[family.name].samples += family.samples
        for samples in self.others():
            _add(families, samples)
        for family in families.values():
            yield family
            ending = "_total" if family.type == "counter" else ""  # the names of counters' families lack it
            for name, original in self._aliases:
                if family.name + ending == PREFIX + original:
                    copy = Metric(name.removesuffix(ending), family.documentation, family.type)
                    start = len(family.name)
                    copy.samples = [each._replace(name=copy.name + each.name[start:]) for each in family.samples]
                    yield copy
