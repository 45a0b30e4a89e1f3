"""Observation of savers, stores and caches: each operation is timed, and exported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.store.base import BaseStore

from threadkeep._core import validation
from threadkeep._run.delegate import Delegate, behind
from threadkeep.errors import invalid
from threadkeep.monitor.exports import Exports, Logs, Observed, Operation, Sink
from threadkeep.monitor.observe_items import ObservedCache, ObservedStore

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry

P = ParamSpec("P")
T = TypeVar("T")


def _named(options: dict[str, Any]) -> object:
    return options.get("config", options.get("thread_id"))


def _plain(name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a call with ids in place of configs that name threads."""
    if name in {"delete_thread", "copy_thread"}:
        return tuple(map(validation.thread_in, given))
    if name == "prune" and given:
        return (validation.threads_in(given[0]), *given[1:])
    return given


def _timed(
    method: Callable[P, T],
) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a method that times the one of the same name of the saver inside, and its variant."""
    name, awaited = method.__name__, f"a{method.__name__}"

    @wraps(method)
    def timed(self: Any, *args: Any, **options: Any) -> Any:
        with Operation(self._exports, name, args[0] if args else _named(options)):
            return getattr(self._inner, name)(*_plain(name, args), **options)

    @wraps(getattr(BaseCheckpointSaver, awaited))
    async def variant(self: Any, *args: Any, **options: Any) -> Any:
        with Operation(self._exports, name, args[0] if args else _named(options)):
            return await getattr(self._inner, awaited)(*_plain(name, args), **options)

    return cast("tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]", (timed, variant))


class ObservedSaver(Observed, Delegate):
    """A saver whose operations are observed, as `observe` returns it.

    The methods of `BaseCheckpointSaver` are measured; all others are those of the saver inside.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], backend: str) -> None:
        super().__init__(saver)
        self._exports = Exports(saver, backend)

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
        with Operation(self._exports, "list", config, is_current=False):
            yield from self._inner.list(config, **options)

    async def alist(
        self, config: RunnableConfig | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """See `BaseCheckpointSaver` and `list`."""
        with Operation(self._exports, "list", config, is_current=False):
            async for found in self._inner.alist(config, **options):
                yield found


@overload
def observe(
    saver: BaseCheckpointSaver[Any],
    *,
    registry: CollectorRegistry | None = ...,
    opentelemetry: bool = ...,
    tracer: Tracer | None = ...,
    meter: Meter | None = ...,
    logger: Any = ...,
    sinks: Iterable[Sink] = ...,
    backend: str | None = ...,
) -> ObservedSaver: ...


@overload
def observe(
    saver: BaseStore,
    *,
    registry: CollectorRegistry | None = ...,
    opentelemetry: bool = ...,
    tracer: Tracer | None = ...,
    meter: Meter | None = ...,
    logger: Any = ...,
    sinks: Iterable[Sink] = ...,
    backend: str | None = ...,
) -> ObservedStore: ...


@overload
def observe(
    saver: BaseCache[Any],
    *,
    registry: CollectorRegistry | None = ...,
    opentelemetry: bool = ...,
    tracer: Tracer | None = ...,
    meter: Meter | None = ...,
    logger: Any = ...,
    sinks: Iterable[Sink] = ...,
    backend: str | None = ...,
) -> ObservedCache: ...


def observe(
    saver: BaseCheckpointSaver[Any] | BaseStore | BaseCache[Any],
    *,
    registry: CollectorRegistry | None = None,
    opentelemetry: bool = False,
    tracer: Tracer | None = None,
    meter: Meter | None = None,
    logger: Any = None,
    sinks: Iterable[Sink] = (),
    backend: str | None = None,
) -> ObservedSaver | ObservedStore | ObservedCache:
    """Return a saver, store or cache that does what the other one does, and exports what it costs.

    Counts, errors and durations of the methods of `BaseCheckpointSaver`, `BaseStore` or
    `BaseCache`, sync and async, to what is named here and nothing else. No content is exported.

    Args:
        saver: any LangGraph saver, store or cache; closed with this one.
        registry: a registry of `prometheus_client`, in which the metrics `threadkeep_*` are.
            All that is observed may share one.
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
    if not isinstance(sinks, Iterable):
        raise invalid("sinks", sinks, "Use a list of objects with record().")
    if backend is not None and not validation.text("backend", backend):
        raise invalid("backend", backend, "Use the store's name, or None.")
    observed = _observed(saver, backend)
    exports = observed._exports  # noqa: SLF001 - made here
    if registry is not None:
        from threadkeep.monitor import prometheus  # noqa: PLC0415 - of an extra

        exports.add(prometheus.metrics_of(registry))
    if validation.flag("opentelemetry", opentelemetry) or tracer is not None or meter is not None:
        _export_to_opentelemetry(exports, tracer, meter, is_global=opentelemetry)
    for sink in sinks:
        observed.add_sink(sink)
    if logger is not None:
        exports.logs = Logs(logger, exports.backend)
    return observed


def _observed(saver: object, backend: str | None) -> ObservedSaver | ObservedStore | ObservedCache:
    name = backend or backend_of(saver)
    if isinstance(saver, BaseStore):
        return ObservedStore(saver, name)
    if isinstance(saver, BaseCache):
        return ObservedCache(saver, name)
    if isinstance(saver, BaseCheckpointSaver):
        return ObservedSaver(saver, name)
    raise invalid("saver", saver, "Use a LangGraph saver, store or cache.")


def _export_to_opentelemetry(
    exports: Exports, tracer: Tracer | None, meter: Meter | None, *, is_global: bool
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

_BACKENDS = {  # by a part of the name of a class; the values are OpenTelemetry's names
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
    """Return the name of the database of a saver, store or cache, by the name of its class."""
    saver = behind(saver)
    store = getattr(saver, "backend", saver)
    for cls in type(store).__mro__:
        for part, name in _BACKENDS.items():
            if part in cls.__name__.lower():
                return name
    return type(store).__name__
