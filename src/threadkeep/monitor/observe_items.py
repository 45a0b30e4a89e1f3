"""Observation of stores and caches, as that of savers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import isawaitable
from typing import Any, ParamSpec, TypeVar, cast

from langgraph.cache.base import BaseCache
from langgraph.store.base import BaseStore

from threadkeep._run.layers.driver import Closing
from threadkeep.monitor.exports import Exports, Observed, Operation

P = ParamSpec("P")
T = TypeVar("T")


class _Front(Observed, Closing):
    """Front of a store or cache. Attributes that it does not have are those of the one inside."""

    _inner: Any
    _kind: str

    def _stand_before(self, inner: Any, backend: str) -> None:
        self._inner = inner
        self._exports = Exports(inner, backend)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def close(self) -> None:
        """Close the one inside, if it can be closed."""
        if hasattr(self._inner, "close"):
            self._inner.close()

    async def aclose(self) -> None:
        """Async variant of `close`."""
        close = getattr(self._inner, "aclose", getattr(self._inner, "close", None))
        closed = None if close is None else close()
        if isawaitable(closed):
            await closed


def _timed(
    method: Callable[P, T], variant: Callable[P, Coroutine[Any, Any, T]]
) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a method that times the one of the same name inside, and its async variant."""
    name, awaited = method.__name__, variant.__name__

    @wraps(method, updated=())  # (it is not abstract)
    def timed(self: Any, *args: Any, **options: Any) -> Any:
        with Operation(self._exports, f"{self._kind}.{name}", None):
            return getattr(self._inner, name)(*args, **options)

    @wraps(variant, updated=())
    async def timed_variant(self: Any, *args: Any, **options: Any) -> Any:
        with Operation(self._exports, f"{self._kind}.{name}", None):
            return await getattr(self._inner, awaited)(*args, **options)

    both = (timed, timed_variant)
    return cast("tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]", both)


class ObservedStore(_Front, BaseStore):
    """A store whose operations are observed, as `observe` returns it.

    The methods of `BaseStore` are measured, as "store.get" and so on; all others are those of the
    store inside.
    """

    _kind = "store"

    def __init__(self, store: BaseStore, backend: str) -> None:
        self._stand_before(store, backend)
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config

    get, aget = _timed(BaseStore.get, BaseStore.aget)
    search, asearch = _timed(BaseStore.search, BaseStore.asearch)
    put, aput = _timed(BaseStore.put, BaseStore.aput)
    delete, adelete = _timed(BaseStore.delete, BaseStore.adelete)
    list_namespaces, alist_namespaces = _timed(
        BaseStore.list_namespaces, BaseStore.alist_namespaces
    )
    batch, abatch = _timed(BaseStore.batch, BaseStore.abatch)


class ObservedCache(_Front, BaseCache[Any]):
    """A cache of node results whose operations are observed, as `observe` returns it.

    The methods of `BaseCache` are measured, as "cache.get" and so on; all others are those of the
    cache inside.
    """

    _kind = "cache"

    def __init__(self, cache: BaseCache[Any], backend: str) -> None:
        self._stand_before(cache, backend)
        super().__init__(serde=cache.serde)

    get, aget = _timed(BaseCache[Any].get, BaseCache[Any].aget)
    set, aset = _timed(BaseCache[Any].set, BaseCache[Any].aset)
    clear, aclear = _timed(BaseCache[Any].clear, BaseCache[Any].aclear)
