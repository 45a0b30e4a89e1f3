"""Exports of the operations of what is observed: to sinks, spans and logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from threadkeep._core.texts import shown
from threadkeep.errors import invalid

if TYPE_CHECKING:
    from threadkeep.monitor import opentelemetry, prometheus

T = TypeVar("T")
_log = logging.getLogger("threadkeep")


class Sink(Protocol):
    """Receiver of measurements. Called after each operation, from whatever thread runs it."""

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """Take note of an operation. Quick: the caller waits for it.

        Args:
            operation: the method, such as "put" or "get_tuple"; that of an async variant, too. Of a
                store or cache with its kind: "store.put", "cache.get".
            seconds: how long it took.
            error: the error that it ended with; None if it succeeded.
        """


class Exports:
    """Exports of what is observed, and of its clones."""

    def __init__(self, observed: object, backend: str) -> None:
        self.observed = observed
        self.backend = backend
        self.sinks: tuple[Sink, ...] = ()
        self.spans: opentelemetry.Spans | None = None
        self.logs: Logs | None = None
        self.lock = threading.Lock()

    def add(
        self, metrics: prometheus.PrometheusMetrics | opentelemetry.OpenTelemetryMetrics
    ) -> None:
        """Export to these metrics, too."""
        metrics.totals.add(self.observed, self.backend, self)
        self.sinks += (metrics.sink(self.backend),)


class Operation:
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
        if (spans := self._exports.spans) is not None:
            thread, is_current = thread_of(self._subject), self._is_current
            self._end_span = _guarded(
                "tracer", spans.start, self._operation, thread, is_current=is_current
            )
        self._began = perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        seconds = perf_counter() - self._began
        if kind is GeneratorExit:  # a listing that its reader has left
            error = None
        for sink in self._exports.sinks:
            try:
                sink.record(self._operation, seconds, error)
            except Exception:  # noqa: BLE001 - sinks are other people's, and the save is made
                _log.exception("A sink of an observed saver failed: %r", sink)
        if (logs := self._exports.logs) is not None:
            _guarded("logger", logs.record, self._operation, self._subject, seconds, error)
        if self._end_span is not None:
            _guarded("tracer", self._end_span, error)


class Observed:
    """Base of what is observed, with its sinks."""

    _exports: Exports

    def add_sink(self, sink: Sink) -> None:
        """Add a receiver of measurements, once. See `Sink`."""
        if not callable(getattr(sink, "record", None)):
            raise invalid("sink", sink, "Use an object with record(operation, seconds, error).")
        with self._exports.lock:
            if not any(one is sink for one in self._exports.sinks):
                self._exports.sinks += (sink,)

    def remove_sink(self, sink: Sink) -> None:
        """Remove a receiver of measurements; nothing if it is not there."""
        with self._exports.lock:
            sinks = self._exports.sinks
            self._exports.sinks = tuple([one for one in sinks if one is not sink])


def _guarded(name: str, call: Callable[..., T], *args: Any, **options: Any) -> T | None:
    """Call what is the program's. A failure is logged, and fails no operation."""
    try:
        return call(*args, **options)
    except Exception:  # noqa: BLE001 - tracers and loggers are other people's
        _log.exception("The %s of an observed saver failed.", name)
        return None


def thread_of(subject: object) -> str | None:
    """Return the id of the thread that a config, or an id, names; None if it names none."""
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
        if isinstance(logger, logging.LoggerAdapter):  # (whose fields would replace these)
            text, processed = logger.process(text, options)
            options = {**processed, "extra": {**(processed.get("extra") or {}), **fields}}
            logger = logger.logger
        values = [shown(one) if isinstance(one, str) else one for one in fields.values()]
        logger.log(level, text, *values, **options)
