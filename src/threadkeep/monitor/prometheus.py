"""Metrics of observed savers, stores and caches in a registry of prometheus_client.

A scrape reads the counters and adds the difference to the metrics. With PROMETHEUS_MULTIPROC_DIR,
another process may answer the scrape, so each process also writes its metrics to files once a
second.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from multiprocessing.util import Finalize

from threadkeep._core.engine.usage import ThreadStatuses
from threadkeep._stores.external import extra
from threadkeep.errors import invalid
from threadkeep.monitor import exports
from threadkeep.monitor.exports import GAUGES, METRICS, Totals, made_once

with extra("Prometheus", "monitor"):
    from prometheus_client import CollectorRegistry, Counter, Histogram, values
    from prometheus_client.metrics_core import GaugeMetricFamily, Metric

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Upper bounds of durations, in seconds."""

_EVERY = 1.0  # seconds between two updates of the files
_IS_SHARED = values.ValueClass is not values.MutexValue  # (with PROMETHEUS_MULTIPROC_DIR)


class PrometheusMetrics:
    """Metrics of everything observed for one registry.

    Raises:
        InvalidArgumentError: it is not a registry, or it has other metrics of these names.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        if not isinstance(registry, CollectorRegistry):
            raise invalid("registry", registry, "Use a CollectorRegistry of prometheus_client.")
        try:
            self._durations = Histogram(
                "threadkeep_operation_duration_seconds",
                "Duration of operations of savers, stores and caches.",
                ("operation", "backend"),
                registry=registry,
                buckets=BUCKETS,
            )
            self._errors = Counter(
                "threadkeep_operation_errors",
                "Operations of savers, stores and caches that failed.",
                ("operation", "backend", "error"),
                registry=registry,
            )
            self.totals = Totals()
            self._exported = [(metric, _exported(metric)) for metric in METRICS]
            self._added: defaultdict[tuple[str, str], float] = defaultdict(float)
            registry.register(self)
        except ValueError as error:
            hint = f"Use a registry without other metrics of these names. {error}"
            raise invalid("registry", registry, hint) from error
        _known.add(self)

    def sink(self, backend: str) -> PrometheusSink:
        """Return the sink of one observed saver, store or cache."""
        kind = _SharedSink if _IS_SHARED else PrometheusSink
        return kind(self._durations, self._errors, backend)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics that `collect` yields, without values."""
        counters = [one for _, exported in self._exported for one in exported.describe()]
        return [*counters, *_gauges({})]

    def collect(self) -> Iterator[Metric]:
        """Yield the current counters, and the gauges of monitors."""
        with _updating:
            self.update()
        for _, exported in self._exported:
            yield from exported.collect()
        yield from _gauges(self.totals.statuses)

    def update(self) -> None:
        """Add the counts since the last update. The caller holds the lock."""
        for exported, backend, labels, attribute, value in self._values():
            child = exported.labels(backend, *labels)
            child.inc(max(value - self._added[backend, attribute], 0))
            self._added[backend, attribute] = value

    def begin_in_child(self) -> None:
        """Leave out the counts of a fork's parent: the parent exports that itself."""
        for _, backend, _, attribute, value in self._values():
            self._added[backend, attribute] = value

    def _values(self) -> Iterator[tuple[Counter, str, tuple[str, ...], str, float]]:
        totals = self.totals.read()
        for metric, exported in self._exported:
            for backend, found in totals.items():
                for labels, attribute in metric.attributes.items():
                    yield exported, backend, labels, attribute, getattr(found, attribute)


def _exported(metric: exports.Metric) -> Counter:
    name, labels = f"threadkeep_{metric.name}", ("backend", *metric.labels)
    return Counter(name, metric.help, labels, registry=None)


def _gauges(statuses: Mapping[str, ThreadStatuses]) -> Iterator[Metric]:
    for metric in GAUGES:
        labels = ("backend", *metric.labels)
        family = GaugeMetricFamily(f"threadkeep_{metric.name}", metric.help, labels=labels)
        for backend, found in statuses.items():
            for values, attribute in metric.attributes.items():
                family.add_metric((backend, *values), getattr(found, attribute) or 0)
        yield family


metrics_of = made_once(PrometheusMetrics)


class PrometheusSink:
    """Sink for the durations and errors of one observed saver, store or cache."""

    def __init__(self, durations: Histogram, errors: Counter, backend: str) -> None:
        self._observing = cache(lambda operation: durations.labels(operation, backend).observe)
        self._errors = errors
        self._backend = backend

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        self._observing(operation)(seconds)
        if error is not None:
            self._errors.labels(operation, self._backend, type(error).__qualname__).inc()


# -- several processes -------------------------------------------------------------------

_known: weakref.WeakSet[PrometheusMetrics] = weakref.WeakSet()
_updating = threading.Lock()
_updater: threading.Thread | None = None


class _SharedSink(PrometheusSink):
    """Sink of one of several processes. Starts the thread that writes the counters to files."""

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        super().record(operation, seconds, error)
        if _updater is None or not _updater.is_alive():
            _start_updater()


def _start_updater() -> None:
    """Start the thread that updates the files of this process, also in the child of a fork."""
    global _updater  # noqa: PLW0603 - one per process
    with _updating:
        if _updater is not None and _updater.is_alive():
            return
        _updater = threading.Thread(target=_run, name="threadkeep-metrics", daemon=True)
        _updater.start()
        # (unlike atexit's functions, this also runs in processes of multiprocessing)
        Finalize(None, _update_all, exitpriority=0)


def _run() -> None:
    pause = threading.Event()
    while not pause.wait(_EVERY):
        _update_all()


def _update_all() -> None:
    with _updating:
        for metrics in tuple(_known):
            metrics.update()


def _after_in_child() -> None:
    _updating.release()
    for metrics in tuple(_known):
        metrics.begin_in_child()


if hasattr(os, "register_at_fork"):
    # Registered after `process_forks`, whose locks protect the counters: this runs first before a
    # fork, and last after it. An update must not be under way: it holds prometheus_client's lock.
    os.register_at_fork(
        before=_updating.acquire,
        after_in_parent=_updating.release,
        after_in_child=_after_in_child,
    )
