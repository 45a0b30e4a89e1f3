"""Observation of savers, stores and caches: each operation is timed and exported."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, overload

from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.store.base import BaseStore

from threadkeep._core import validation
from threadkeep._core.engine.operation import Operation
from threadkeep._run.delegate import Delegate, behind, closing
from threadkeep._run.driver import Closing, sync_and_async
from threadkeep._stores.open import DATABASES
from threadkeep.errors import invalid
from threadkeep.monitor.exports import Exports, Logs, Observed, Sink, Timing

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry

    from threadkeep.monitor.opentelemetry import OpenTelemetryMetrics
    from threadkeep.monitor.prometheus import PrometheusMetrics

P = ParamSpec("P")
T = TypeVar("T")


def _named(options: dict[str, Any]) -> object:
    return options.get("config", options.get("thread_id"))


def _plain(name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a call with thread ids in place of configs."""
    if name in {"delete_thread", "copy_thread"}:
        return tuple(map(validation.thread_in, given))
    if name == "prune" and given:
        return (validation.threads_in(given[0]), *given[1:])
    return given


def _timed(
    method: Callable[P, T], kind: str = ""
) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a method that times the inner object's method, and its async variant.

    Args:
        method: the method of LangGraph's base class.
        kind: the prefix of the operation's name, such as "store.", or "" for savers.
    """
    name, awaited = method.__name__, f"a{method.__name__}"
    operation = f"{kind}{name}"
    base = {"": BaseCheckpointSaver, "store.": BaseStore, "cache.": BaseCache}[kind]

    @wraps(method, updated=())  # (without the mark of an abstract method)
    def timed(self: Any, *args: Any, **options: Any) -> Any:
        subject = None if kind else args[0] if args else _named(options)
        with Timing(self._exports, operation, subject):
            return getattr(self._inner, name)(*_plain(name, args), **options)

    @wraps(getattr(base, awaited), updated=())
    async def variant(self: Any, *args: Any, **options: Any) -> Any:
        subject = None if kind else args[0] if args else _named(options)
        with Timing(self._exports, operation, subject):
            return await getattr(self._inner, awaited)(*_plain(name, args), **options)

    return cast("tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]", (timed, variant))


class ObservedSaver(Observed, Delegate):
    """A saver whose operations are observed, as `observe` returns it.

    The methods of `BaseCheckpointSaver` are measured, and all others belong to the inner saver.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], backend: str) -> None:
        super().__init__(saver)
        self._exports = Exports(saver, backend)

    put, aput = _timed(BaseCheckpointSaver.put)
    put_writes, aput_writes = _timed(BaseCheckpointSaver.put_writes)
    delete_thread, adelete_thread = _timed(BaseCheckpointSaver.delete_thread)
    delete_for_runs, adelete_for_runs = _timed(BaseCheckpointSaver.delete_for_runs)
    copy_thread, acopy_thread = _timed(BaseCheckpointSaver.copy_thread)
    prune, aprune = _timed(BaseCheckpointSaver.prune)
    get_delta_channel_history, aget_delta_channel_history = _timed(
        BaseCheckpointSaver.get_delta_channel_history
    )

    def get_tuple(self, config: RunnableConfig, **options: Any) -> CheckpointTuple | None:
        """Return a checkpoint, as the inner saver does, or None if it does not exist."""
        with Timing(self._exports, "get_tuple", config):
            return super().get_tuple(config, **options)

    async def aget_tuple(self, config: RunnableConfig, **options: Any) -> CheckpointTuple | None:
        """Async variant of `get_tuple`."""
        with Timing(self._exports, "get_tuple", config):
            return await super().aget_tuple(config, **options)

    def for_tenant(self, tenant: str) -> Self:
        """Return the tenant's saver, whose operations are measured as this one's are."""
        clone = copy.copy(self)
        clone._inner = self._inner.for_tenant(tenant)  # noqa: SLF001 - a clone
        return clone

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first. Measured until the listing is exhausted or closed."""
        # (not the current span: the reader's own work is not part of it)
        with Timing(self._exports, "list", config, is_current=False):
            yield from super().list(config, **options)

    async def alist(
        self, config: RunnableConfig | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """Async variant of `list`."""
        with Timing(self._exports, "list", config, is_current=False):
            async for found in super().alist(config, **options):
                yield found


class _Front(Observed, Closing):
    """Front of a store or cache. Attributes that it lacks are the inner one's."""

    _inner: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def for_tenant(self, tenant: str) -> Self:
        """Return the view of a tenant, whose operations are measured as this one's are."""
        clone = copy.copy(self)
        clone._inner = self._inner.for_tenant(tenant)  # noqa: SLF001 - a clone
        return clone

    def _close(self) -> Operation[None]:
        """Close the inner store or cache, if it can be closed."""
        return closing(self._inner)

    close, aclose = sync_and_async(_close)


class ObservedStore(_Front, BaseStore):
    """A store whose operations are observed, as `observe` returns it.

    The methods of `BaseStore` are measured, as "store.get" and so on, and all others belong to the
    inner store.
    """

    def __init__(self, store: BaseStore, backend: str) -> None:
        self._inner, self._exports = store, Exports(store, backend)
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config

    get, aget = _timed(BaseStore.get, "store.")
    search, asearch = _timed(BaseStore.search, "store.")
    put, aput = _timed(BaseStore.put, "store.")
    delete, adelete = _timed(BaseStore.delete, "store.")
    list_namespaces, alist_namespaces = _timed(BaseStore.list_namespaces, "store.")
    batch, abatch = _timed(BaseStore.batch, "store.")


class ObservedCache(_Front, BaseCache[Any]):
    """A cache of node results whose operations are observed, as `observe` returns it.

    The methods of `BaseCache` are measured, as "cache.get" and so on, and all others belong to the
    inner cache.
    """

    def __init__(self, cache: BaseCache[Any], backend: str) -> None:
        self._inner, self._exports = cache, Exports(cache, backend)
        super().__init__(serde=cache.serde)

    get, aget = _timed(BaseCache[Any].get, "cache.")
    set, aset = _timed(BaseCache[Any].set, "cache.")
    clear, aclear = _timed(BaseCache[Any].clear, "cache.")


class _Options(TypedDict, total=False):
    registry: CollectorRegistry | None
    opentelemetry: bool
    tracer: Tracer | None
    meter: Meter | None
    logger: Any
    sinks: Iterable[Sink]
    backend: str | None


@overload
def observe(saver: BaseCheckpointSaver[Any], **options: Unpack[_Options]) -> ObservedSaver: ...


@overload
def observe(saver: BaseStore, **options: Unpack[_Options]) -> ObservedStore: ...


@overload
def observe(saver: BaseCache[Any], **options: Unpack[_Options]) -> ObservedCache: ...


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
    """Return the same saver, store or cache with metrics, spans and logs of its operations.

    Exports counts, errors and durations of the methods of `BaseCheckpointSaver`, `BaseStore` or
    `BaseCache`, sync and async, only to the receivers named here. No content is exported.

    Args:
        saver: any LangGraph saver, store or cache, closed with this one.
        registry: a registry of `prometheus_client` for the metrics `threadkeep_*`. Several savers,
            stores and caches may share it.
        opentelemetry: use the program's own tracer and meter providers if `tracer` or `meter` is
            None.
        tracer: a tracer of OpenTelemetry, for spans that are children of the current span.
        meter: a meter of OpenTelemetry, for the metric `db.client.operation.duration`.
        logger: a logger of `logging` or `structlog`: one event per operation, at level debug, or
            warning if it failed.
        sinks: further receivers of measurements (see `Sink`).
        backend: the database's exported name. None derives it from the class ("sqlite",
            "postgresql", "redis", "memory" and so on).

    Raises:
        InvalidArgumentError: an argument is invalid.
        OpenError: a library is not installed.
    """
    if not isinstance(sinks, Iterable):
        raise invalid("sinks", sinks, "Use a list of objects with record().")
    if backend is not None and not validation.text("backend", backend):
        raise invalid("backend", backend, "Use the store's name, or None.")
    observed = _observed(saver, backend)
    exports = observed._exports  # noqa: SLF001 - created here
    if registry is not None:
        from threadkeep.monitor import prometheus  # noqa: PLC0415 - of an extra

        _export(exports, prometheus.metrics_of(registry))
    if validation.flag("opentelemetry", opentelemetry) or tracer is not None or meter is not None:
        from threadkeep.monitor import opentelemetry as telemetry  # noqa: PLC0415 - of an extra

        if opentelemetry:
            own_tracer, own_meter = telemetry.tracer_and_meter()
            tracer, meter = tracer or own_tracer, meter or own_meter
        if meter is not None:
            _export(exports, telemetry.metrics_of(meter))
        if tracer is not None:
            exports.start_span = telemetry.Spans(tracer, exports.backend).start
    for sink in sinks:
        observed.add_sink(sink)
    if logger is not None:
        exports.logs = Logs(logger, exports.backend)
    return observed


def _export(exports: Exports, metrics: PrometheusMetrics | OpenTelemetryMetrics) -> None:
    metrics.totals.add(exports.observed, exports.backend, exports)
    exports.totals += (metrics.totals,)
    exports.sinks += (metrics.sink(exports.backend),)


def _observed(saver: object, backend: str | None) -> ObservedSaver | ObservedStore | ObservedCache:
    name = backend or backend_of(saver)
    if isinstance(saver, BaseStore):
        return ObservedStore(saver, name)
    if isinstance(saver, BaseCache):
        return ObservedCache(saver, name)
    if isinstance(saver, BaseCheckpointSaver):
        return ObservedSaver(saver, name)
    raise invalid("saver", saver, "Use a LangGraph saver, store or cache.")


# -- names of databases ----------------------------------------------------------------

_BACKENDS = {  # part of a class name: OpenTelemetry's name of the database
    **{name: database.schemes[0] for name, database in DATABASES.items()},
    "valkey": "redis",
    "mongo": "mongodb",
    "mysql": "mysql",
    "dynamo": "aws.dynamodb",
    "cosmos": "azure.cosmosdb",
}


def backend_of(saver: object) -> str:
    """Return the database of a saver, store or cache, by the name of its class."""
    saver = behind(saver)
    store = getattr(saver, "backend", saver)
    while hasattr(store, "below"):  # (a tenant's, or with keys)
        store = store.below
    for cls in type(store).__mro__:
        for part, name in _BACKENDS.items():
            if part in cls.__name__.lower():
                return name
    return type(store).__name__
