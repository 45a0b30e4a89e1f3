"""Metrics of observed savers in a registry of prometheus_client."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
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

    _known: weakref.WeakKeyDictionary[CollectorRegistry, Metrics] = weakref.WeakKeyDictionary()
    _lock = threading.Lock()

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
        with cls._lock:
            found = cls._known.get(registry)
            if found is None:
                found = cls._known[registry] = cls(registry)
            return found

    def sink(self, saver: object, backend: str) -> PrometheusSink:
        """Return a sink for a saver, and export the saver's own counters, if it has any."""
        self._savers.add(saver, backend)
        return PrometheusSink(self._durations, self._errors, backend)


# -- counters of the saver itself --------------------------------------------------------

_COUNTERS = (  # name, help, and for each value of the label "cache" the attribute of `Counters`
    ("threadkeep_written_bytes", "Bytes that saves have stored.", {"": "written_bytes"}),
    (
        "threadkeep_saved_bytes",
        "Bytes that whole copies of the states would have taken beyond that.",
        {"": "saved_bytes"},
    ),
    (
        "threadkeep_cache_hits",
        "Reads that were answered from memory or the hot store.",
        {"working_set": "working_set_hits", "segments": "cache_hits"},
    ),
    (
        "threadkeep_cache_misses",
        "Reads that the store had to answer.",
        {"working_set": "working_set_misses", "segments": "cache_misses"},
    ),
    ("threadkeep_conflicts", "Runs that left another run's head behind.", {"": "conflicts"}),
    ("threadkeep_retries", "Calls of the store that were made again.", {"": "retries"}),
)
_GAUGES = (
    ("threadkeep_queued_saves", "Saves that wait to be stored (write-behind).", "queued"),
    ("threadkeep_queued_bytes", "Bytes of saves that wait to be stored.", "queued_bytes"),
)
