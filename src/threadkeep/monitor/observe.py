"""Observation of a saver: each operation is timed, and exported to sinks, spans and logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from time import perf_counter
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from threadkeep import validation
from threadkeep.delegate import Delegate, behind
from threadkeep.errors import invalid
from threadkeep.monitor.texts import shown

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry

    from threadkeep.monitor import opentelemetry, prometheus

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("threadkeep")


class Sink(Protocol):
    """Receiver of measurements. Called after each operation, from whatever thread runs it."""

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """Take note of an operation. Quick: the caller waits for it.

        Args:
            operation: the method, such as "put" or "get_tuple"; that of an async variant, too.
            seconds: how long it took.
            error: the error that it ended with; None if it succeeded.
        """


class _Exports:
    """Exports of an observed saver and its clones."""

    def __init__(self, saver: BaseCheckpointSaver[Any], backend: str) -> None:
        self.saver = saver
        self.backend = backend
        self.sinks: tuple[Sink, ...] = ()
        self.spans: opentelemetry.Spans | None = None
        self.logs: _Logs | None = None
        self.lock = threading.Lock()

    def add(self, metrics: prometheus.Metrics | opentelemetry.Metrics) -> None:
        metrics.totals.add(self.saver, self.backend, self)
        self.sinks += (metrics.sink(self.backend),)


class _Operation:
    """Context of one operation."""

    __slots__ = ("_began", "_end_span", "_exports", "_is_current", "_operation", "_subject")

    def __init__(
        self, exports: _Exports, operation: str, subject: object, *, is_current: bool = True
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


def _guarded(name: str, call: Callable[..., T], *args: Any, **options: Any) -> T | None:
    """Call what is the program's. A failure is logged, and fails no operation."""
    try:
        return call(*args, **options)
    except Exception:  # noqa: BLE001 - tracers and loggers are other people's
        _log.exception("The %s of an observed saver failed.", name)
        return None


def _named(options: dict[str, Any]) -> object:
    return options.get("config", options.get("thread_id"))


def _timed(
    method: Callable[P, T],
) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a method that times the one of the same name of the saver inside, and its variant."""
    name, awaited = method.__name__, f"a{method.__name__}"

    @wraps(method)
    def timed(self: Any, *args: Any, **options: Any) -> Any:
        with _Operation(self._exports, name, args[0] if args else _named(options)):
            return getattr(self._inner, name)(*args, **options)

    @wraps(getattr(BaseCheckpointSaver, awaited))
    async def variant(self: Any, *args: Any, **options: Any) -> Any:
        with _Operation(self._exports, name, args[0] if args else _named(options)):
            return await getattr(self._inner, awaited)(*args, **options)

    return cast("tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]", (timed, variant))


class ObservedSaver(Delegate):
    """A saver whose operations are observed, as `observe` returns it.

    The methods of `BaseCheckpointSaver` are measured; all others are those of the saver inside.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], backend: str) -> None:
        super().__init__(saver)
        self._exports = _Exports(saver, backend)

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

    get_tuple, aget_tuple = _timed(BaseCheckpointSaver.get_tuple)
    put, aput = _timed(BaseCheckpointSaver.put)
    put_writes, aput_writes = _timed(BaseCheckpointSaver.put_writes)
    delete_thread, adelete_thread = _timed(BaseCheckpointSaver.delete_thread)
    delete_for_runs, adelete_for_runs = _timed(BaseCheckpointSaver.delete_for_runs)
    copy_thread, acopy_thread = _timed(BaseCheckpointSaver.copy_thread)
    prune, aprune = _timed(BaseCheckpointSaver.prune)
    get_delta_channel_history, aget_delta_channel_history = _timed(
        BaseCheckpointSaver.get_delta_channel_history
    )

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """See `BaseCheckpointSaver`. Measured until it is exhausted or closed."""
        # (its span is not the current one: the reader's own work is not part of it)
        with _Operation(self._exports, "list", config, is_current=False):
            yield from self._inner.list(config, **options)

    async def alist(
        self, config: RunnableConfig | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """See `BaseCheckpointSaver` and `list`."""
        with _Operation(self._exports, "list", config, is_current=False):
            async for found in self._inner.alist(config, **options):
                yield found


def observe(
    saver: BaseCheckpointSaver[Any],
    *,
    registry: CollectorRegistry | None = None,
    opentelemetry: bool = False,
    tracer: Tracer | None = None,
    meter: Meter | None = None,
    logger: Any = None,
    sinks: Iterable[Sink] = (),
    backend: str | None = None,
) -> ObservedSaver:
    """Return a saver that does what the other one does, and exports what it costs.

    Counts, errors and durations of the methods of `BaseCheckpointSaver`, sync and async, to what is
    named here and nothing else. No content of threads is exported.

    Args:
        saver: any LangGraph saver; closed with this one.
        registry: a registry of `prometheus_client`, in which the metrics `threadkeep_*` are.
            Observed savers may share one.
        opentelemetry: spans and metrics by the program's own tracer and meter providers, where
            `tracer` or `meter` is None.
        tracer: spans by this tracer of OpenTelemetry, as children of the current span.
        meter: the metric `db.client.operation.duration` by this meter of OpenTelemetry.
        logger: a logger of `logging` or `structlog`: an event for each operation, at level debug,
            and at level warning for those that fail.
        sinks: further receivers of measurements; see `Sink`.
        backend: the store's name in what is exported; None finds it out ("sqlite", "postgresql",
            "redis", "memory" and so on).

    Raises:
        InvalidArgumentError: an argument is invalid.
        OpenError: a library that is needed is not installed.
    """
    if not isinstance(saver, BaseCheckpointSaver):
        raise invalid("saver", saver, "Use a LangGraph saver, such as SqliteSaver(path).")
    if not isinstance(sinks, Iterable):
        raise invalid("sinks", sinks, "Use a list of objects with record().")
    if backend is not None and not validation.text("backend", backend):
        raise invalid("backend", backend, "Use the store's name, or None.")
    observed = ObservedSaver(saver, backend or backend_of(saver))
    exports = observed._exports  # noqa: SLF001 - made here
    if registry is not None:
        from threadkeep.monitor import prometheus  # noqa: PLC0415 - of an extra

        exports.add(prometheus.metrics_of(registry))
    if validation.flag("opentelemetry", opentelemetry) or tracer is not None or meter is not None:
        _export_to_opentelemetry(exports, tracer, meter, is_global=opentelemetry)
    for sink in sinks:
        observed.add_sink(sink)
    if logger is not None:
        exports.logs = _Logs(logger, exports.backend)
    return observed


def _export_to_opentelemetry(
    exports: _Exports, tracer: Tracer | None, meter: Meter | None, *, is_global: bool
) -> None:
    from threadkeep.monitor import opentelemetry  # noqa: PLC0415 - of an extra

    if is_global:
        own_tracer, own_meter = opentelemetry.tracer_and_meter()
        tracer, meter = tracer or own_tracer, meter or own_meter
    if meter is not None:
        exports.add(opentelemetry.metrics_of(meter))
    if tracer is not None:
        exports.spans = opentelemetry.Spans(tracer, exports.backend)


# -- what is observed ------------------------------------------------------------------

_BACKENDS = {  # by a part of the name of a saver's class; the values are OpenTelemetry's names
    "sqlite": "sqlite",
    "postgres": "postgresql",
    "redis": "redis",
    "valkey": "redis",
    "memory": "memory",
    "mongo": "mongodb",
    "mysql": "mysql",
    "dynamo": "aws.dynamodb",
    "cosmos": "azure.cosmosdb",
}


def backend_of(saver: object) -> str:
    """Return the name of the store behind a saver, by the name of its class."""
    saver = behind(saver)
    store = getattr(saver, "backend", saver)
    for cls in type(store).__mro__:
        for part, name in _BACKENDS.items():
            if part in cls.__name__.lower():
                return name
    return type(store).__name__


def thread_of(subject: object) -> str | None:
    """Return the id of the thread that a config, or an id, names; None if it names none."""
    if isinstance(subject, str):
        return subject
    try:
        return str(subject["configurable"]["thread_id"])  # type: ignore[index] # tried
    except (TypeError, KeyError):
        return None


# -- logs ------------------------------------------------------------------------------


class _Logs:
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
