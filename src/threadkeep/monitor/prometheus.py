"""Metrics of observed savers in a registry of prometheus_client."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from threadkeep.backends.open import extra
from threadkeep.monitor.counters import Counters
from threadkeep.monitor.observe import error_type

with extra("Prometheus", "monitor"):
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Upper bounds of durations, in seconds."""

_Observe: TypeAlias = Callable[[float], None]


class _Durations(dict[str, _Observe]):
    """Histograms by operation, made when they are first needed."""

    def __init__(self, histogram: Histogram, backend: str) -> None:
        super().__init__()
        self._histogram = histogram
        self._backend = backend

    def __missing__(self, operation: str) -> _Observe:
        observe = self._histogram.labels(operation, self._backend).observe
        self[operation] = observe
        return observe


class PrometheusSink:
    """Durations and errors of one observed saver."""

    def __init__(self, durations: Histogram, errors: Counter, backend: str) -> None:
        self._durations = _Durations(durations, backend)
        self._errors = errors
        self._backend = backend

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """See `Sink`."""
        self._durations[operation](seconds)
        if error is not None:
            self._errors.labels(operation, self._backend, error_type(error)).inc()


class Metrics:
    """Metrics of all observed savers of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations = Histogram(
            "threadkeep_operation_duration_seconds",
            "Duration of operations of savers.",
            ("operation", "backend"),
            registry=registry,
            buckets=BUCKETS,
        )
        self._errors = Counter(
            "threadkeep_operation_errors",
            "Operations of savers that failed.",
            ("operation", "backend", "error"),
            registry=registry,
        )
        self._savers = SaverCollector()
        registry.register(self._savers)

    @classmethod
    def of(cls, registry: CollectorRegistry) -> Metrics:
        """Return the metrics of a registry, made at the first call."""
        with _lock:
            found = _known.get(registry)
            if found is None:
                found = _known[registry] = cls(registry)
            return found

    def sink(self, saver: object, backend: str) -> PrometheusSink:
        """Return a sink for a saver, and export the saver's own counters, if it has any."""
        self._savers.add(saver, backend)
        return PrometheusSink(self._durations, self._errors, backend)


_lock = threading.Lock()
_known: weakref.WeakKeyDictionary[CollectorRegistry, Metrics] = weakref.WeakKeyDictionary()


# -- counters of the saver itself --------------------------------------------------------

COUNTERS = {  # by name: help, and the attribute of `Counters` for each value of the label "cache"
    "threadkeep_written_bytes": ("Bytes that saves have stored.", {"": "written_bytes"}),
    "threadkeep_saved_bytes": (
        "Bytes that a whole copy of the state per checkpoint would have taken beyond that.",
        {"": "saved_bytes"},
    ),
    "threadkeep_cache_hits": (
        "Reads that memory or the hot store answered.",
        {"working_set": "working_set_hits", "segments": "cache_hits"},
    ),
    "threadkeep_cache_misses": (
        "Reads that the store had to answer.",
        {"working_set": "working_set_misses", "segments": "cache_misses"},
    ),
    "threadkeep_conflicts": ("Runs that left another run's head behind.", {"": "conflicts"}),
    "threadkeep_retries": ("Calls of the store that were made again.", {"": "retries"}),
}
GAUGES = {
    "threadkeep_queued_saves": ("Saves that wait to be stored (write-behind).", "queued"),
    "threadkeep_queued_bytes": ("Bytes of the saves that wait to be stored.", "queued_bytes"),
}


class SaverCollector:
    """Collector of the counters that savers keep themselves, summed up by backend.

    A saver that is gone counts as it was last seen, so that counters never decrease.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._savers: list[_Watched] = []
        self._gone: dict[str, Counters] = {}

    def add(self, saver: object, backend: str) -> None:
        """Collect the counters of a saver for as long as it is there; nothing if it has none."""
        if callable(getattr(saver, "counters", None)):
            with self._lock:
                self._savers.append(_Watched(saver, backend))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all savers."""
        totals = self._totals()
        for name, (text, attributes) in COUNTERS.items():
            labels = ["backend", "cache"] if len(attributes) > 1 else ["backend"]
            counter = CounterMetricFamily(name, text, labels=labels)
            for backend, counters in totals.items():
                for cache, attribute in attributes.items():
                    values = [backend, cache][: len(labels)]
                    counter.add_metric(values, getattr(counters, attribute))
            yield counter
        for name, (text, attribute) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["backend"])
            for backend, counters in totals.items():
                gauge.add_metric([backend], getattr(counters, attribute))
            yield gauge

    def _totals(self) -> dict[str, Counters]:
        with self._lock:
            there = []
            for one in self._savers:
                if one.look():
                    there.append(one)
                else:
                    last = replace(one.last, queued=0, queued_bytes=0)
                    self._gone[one.backend] = self._gone.get(one.backend, Counters()) + last
            self._savers = there
            totals = dict(self._gone)
            for one in there:
                totals[one.backend] = totals.get(one.backend, Counters()) + one.last
            return totals


class _Watched:
    """A saver as long as somebody uses it, and its counters when they were last read."""

    def __init__(self, saver: Any, backend: str) -> None:
        self.backend = backend
        self.last = Counters()
        self._saver = weakref.ref(saver)

    def look(self) -> bool:
        """Read the counters; return False if the saver is gone."""
        saver = self._saver()
        if saver is None:
            return False
        self.last = saver.counters()
        return True
