"""Exports of observed operations to sinks, spans and logs, and of counters as metrics."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

from threadkeep._core.engine.usage import STATUSES, Counters, ThreadStatuses
from threadkeep._core.texts import shown
from threadkeep._stores.process_forks import ResetInChild
from threadkeep.errors import invalid

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_log = logging.getLogger("threadkeep")


class Sink(Protocol):
    """Receiver of measurements, called after each operation by the thread that ran it."""

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """Receive the measurement of an operation. Must be quick: the caller waits for it.

        Args:
            operation: the method, such as "put" or "get_tuple", also for its async variant. For
                stores and caches with their kind: "store.put", "cache.get".
            seconds: its duration.
            error: the error that ended it, or None if it succeeded.
        """


class Exports:
    """Receivers of the operations of an observed saver, store or cache and of its clones."""

    def __init__(self, observed: object, backend: str) -> None:
        self.observed = observed
        self.backend = backend
        self.sinks: tuple[Sink, ...] = ()
        self.start_span: Callable[..., Callable[[BaseException | None], None]] | None = None
        self.logs: Logs | None = None
        self.totals: tuple[Totals, ...] = ()
        self.lock = threading.Lock()

    def show(self, statuses: ThreadStatuses | None) -> None:
        """Export the last measurement of a monitor, None for none."""
        for totals in self.totals:
            others = {name: one for name, one in totals.statuses.items() if name != self.backend}
            totals.statuses = {**others, self.backend: statuses} if statuses else others


class Timing:
    """Context of one operation."""

    __slots__ = ("_began", "_end_span", "_exports", "_is_current", "_operation", "_subject")

    def __init__(
        self, exports: Exports, operation: str, subject: object, *, is_current: bool = True
    ) -> None:
        self._exports = exports
        self._operation = operation
        self._subject = subject
        self._is_current = is_current

    def __enter__(self) -> None:
        self._end_span = None
        if (start := self._exports.start_span) is not None:
            thread, is_current = thread_of(self._subject), self._is_current
            self._end_span = _guarded(
                "tracer", start, self._operation, thread, is_current=is_current
            )
        self._began = perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        seconds = perf_counter() - self._began
        if kind is GeneratorExit:  # (the reader of a listing stopped early)
            error = None
        for sink in self._exports.sinks:
            try:
                sink.record(self._operation, seconds, error)
            except Exception:  # noqa: BLE001 - sinks of users may raise any error
                _log.exception("A sink of an observed saver failed: %r", sink)
        if (logs := self._exports.logs) is not None:
            _guarded("logger", logs.record, self._operation, self._subject, seconds, error)
        if self._end_span is not None:
            _guarded("tracer", self._end_span, error)


class Observed:
    """Base of observed savers, stores and caches, with their sinks."""

    _exports: Exports

    def add_sink(self, sink: Sink) -> None:
        """Add a receiver of measurements, once. See `Sink`."""
        if not callable(getattr(sink, "record", None)):
            raise invalid("sink", sink, "Use an object with record(operation, seconds, error).")
        with self._exports.lock:
            if not any(one is sink for one in self._exports.sinks):
                self._exports.sinks += (sink,)

    def remove_sink(self, sink: Sink) -> None:
        """Remove a receiver of measurements, if it was added."""
        with self._exports.lock:
            sinks = self._exports.sinks
            self._exports.sinks = tuple([one for one in sinks if one is not sink])


def _guarded(name: str, call: Callable[..., T], *args: Any, **options: Any) -> T | None:
    """Call code of the program. A failure is logged, and does not fail the operation."""
    try:
        return call(*args, **options)
    except Exception:  # noqa: BLE001 - tracers and loggers of users may raise any error
        _log.exception("The %s of an observed saver failed.", name)
        return None


def thread_of(subject: object) -> str | None:
    """Return the thread id in a config, or the id itself, or None if there is none."""
    if isinstance(subject, str):
        return subject
    try:
        return str(subject["configurable"]["thread_id"])  # type: ignore[index] # tried
    except (TypeError, KeyError):
        return None


# -- logs ------------------------------------------------------------------------------


class Logs:
    """Events of operations, in a logger of the standard library or of structlog."""

    def __init__(self, logger: Any, backend: str) -> None:
        if not callable(getattr(logger, "debug", None)):
            raise invalid("logger", logger, "Use a logger of logging or structlog.")
        self._logger = logger
        self._backend = backend
        self._is_standard = isinstance(logger, logging.Logger | logging.LoggerAdapter)

    def record(
        self, operation: str, subject: object, seconds: float, error: BaseException | None
    ) -> None:
        """Log an operation."""
        level = logging.DEBUG if error is None else logging.WARNING
        if self._is_standard and not self._logger.isEnabledFor(level):
            return
        fields: dict[str, Any] = {
            "operation": operation,
            "backend": self._backend,
            "seconds": seconds,
        }
        thread = thread_of(subject)
        if thread is not None:
            fields["thread_id"] = thread
        if error is not None:
            fields["error"] = type(error).__qualname__
        if self._is_standard:
            self._log(level, fields)
        else:
            log = self._logger.debug if error is None else self._logger.warning
            log("checkpoint operation", **fields)

    def _log(self, level: int, fields: dict[str, Any]) -> None:
        text = "%s on %s took %.6f s"
        text += ", thread %s" if "thread_id" in fields else ""
        text += ": %s" if "error" in fields else ""
        logger, options = self._logger, {"extra": fields}
        if isinstance(logger, logging.LoggerAdapter):  # (its own fields would replace these)
            text, processed = logger.process(text, options)
            options = {**processed, "extra": {**(processed.get("extra") or {}), **fields}}
            logger = logger.logger
        values = [shown(one) if isinstance(one, str) else one for one in fields.values()]
        logger.log(level, text, *values, **options)


# -- counters as metrics ---------------------------------------------------------------


class Metric(NamedTuple):
    """Exported metric: an attribute of `Counters` or `ThreadStatuses` by its label values."""

    name: str
    help: str
    attributes: Mapping[tuple[str, ...], str]
    labels: tuple[str, ...] = ()


def _cache_metric(name: str, help: str, counter: str) -> Metric:
    attributes: dict[tuple[str, ...], str] = {
        ("working_set",): f"working_set_{counter}",
        ("results",): f"result_{counter}",
        ("vectors",): f"vector_{counter}",
    }
    return Metric(name, help, attributes, labels=("cache",))


METRICS = (
    Metric("written_bytes", "Bytes that saves stored.", {(): "written_bytes"}),
    Metric(
        "saved_bytes",
        "Estimated bytes saved compared with storing each full state.",
        {(): "saved_bytes"},
    ),
    _cache_metric("cache_hits", "Values found in a cache.", "hits"),
    _cache_metric("cache_misses", "Values not found in a cache.", "misses"),
    Metric(
        "cache_evictions",
        "Values that a cache removed to stay within its limits.",
        {("results",): "result_evictions"},
        labels=("cache",),
    ),
    Metric("embedding_calls", "Calls of the embedding model.", {(): "embedding_calls"}),
    Metric(
        "embedding_failures", "Failed calls of the embedding model.", {(): "embedding_failures"}
    ),
    Metric("conflicts", "Runs that met another run of their thread.", {(): "conflicts"}),
    Metric("retries", "Repeated calls of the store.", {(): "retries"}),
)
GAUGES = (
    Metric(
        "threads",
        "Threads that are not done.",
        {(status,): status for status in STATUSES},
        labels=("status",),
    ),
    Metric("failures_per_minute", "Failures in the last minute.", {(): "failures_per_minute"}),
    Metric("oldest_unfinished_seconds", "Longest idle time.", {(): "oldest_unfinished"}),
)
"""Gauges of a `Monitor`."""


class Totals(ResetInChild):
    """Counters of savers, stores and caches, summed by backend.

    A saver that is gone keeps its last counts, so that counters never decrease.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[weakref.ref[Any], tuple[str, Counters]] = {}
        self._gone: dict[str, Counters] = {}

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.statuses: dict[str, ThreadStatuses] = {}  # by backend

    def add(self, saver: object, backend: str, observer: object) -> None:
        """Count a saver, store or cache, once. Ignore it if it has no counters.

        Its counters are read a last time when the observer is collected.
        """
        counters = getattr(saver, "counters", None)
        if callable(counters):
            owner = getattr(counters, "__self__", saver)  # (delegates pass the call on)
            ref = weakref.ref(owner)
            with self._lock:
                self._last.setdefault(ref, (backend, Counters()))
            weakref.finalize(observer, self._see, ref, owner).atexit = False

    def _see(self, ref: weakref.ref[Any], saver: Any) -> Counters:
        """Read the counters of a saver. Takes no lock: the garbage collector may call this."""
        counters: Counters = saver.counters()
        self._last[ref] = self._last[ref][0], counters
        return counters

    def read(self) -> dict[str, Counters]:
        """Return the sums by backend."""
        with self._lock:
            totals = dict(self._gone)
            for ref in list(self._last):
                saver = ref()
                backend, last = self._last[ref]
                if saver is not None:
                    last = self._see(ref, saver)
                else:
                    self._gone[backend] = self._gone.get(backend, Counters()) + last
                    del self._last[ref]
                totals[backend] = totals.get(backend, Counters()) + last
            return totals


def made_once(make: Callable[[K], T]) -> Callable[[K], T]:
    """Return a function that calls `make` once for each key, as long as the key exists."""
    lock = threading.Lock()
    known: weakref.WeakKeyDictionary[K, T] = weakref.WeakKeyDictionary()

    def get(key: K) -> T:
        with lock:
            if key not in known:
                known[key] = make(key)
            return known[key]

    return get
