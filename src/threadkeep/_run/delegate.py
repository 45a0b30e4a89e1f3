"""Base class of savers that wrap another saver and change some of its methods."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from functools import partial
from inspect import isawaitable
from itertools import islice
from typing import Any, Literal, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from threadkeep._core import validation
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.operation import External, Operation
from threadkeep._run import driver
from threadkeep._run.driver import sync_and_async
from threadkeep._run.lazy_values import is_lazy, loaded, one_lazily
from threadkeep.errors import InvalidArgumentError

_BASE: Any = BaseCheckpointSaver


class Delegate(BaseCheckpointSaver[Any]):
    """A saver that passes each call to a wrapped saver.

    All other attributes (`setup`, `threads`, `serde`, ...) come from the wrapped saver. Subclasses
    override the methods that they change, and `_end`.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._inner: Any = saver  # no super().__init__(): it would set a serde
        self.__class__ = _offering(type(self), _lacking(saver))

    @property
    def serde(self) -> Any:
        """The serializer of the wrapped saver."""
        return self._inner.serde

    @serde.setter
    def serde(self, serde: Any) -> None:
        self._inner.serde = serde

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def _call(self, name: str, *args: Any, **options: Any) -> Operation[Any]:
        """Call a method of the wrapped saver, or its async variant."""
        return call_of(self._inner, name, *args, **options)

    # -- life ------------------------------------------------------------------------

    def _end(self) -> Operation[None]:
        """Finish running work before the wrapped saver is closed."""
        yield from ()

    def close(self) -> None:
        """Close the wrapped saver, if it can be closed."""
        try:
            driver.run(self._end())
        finally:
            driver.run(closing(self._inner))

    async def aclose(self) -> None:
        """Async variant of `close`."""
        try:
            await driver.arun(self._end())
        finally:
            await driver.arun(closing(self._inner))

    def __enter__(self) -> Self:
        if hasattr(self._inner, "__enter__"):
            self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> bool | None:
        if not hasattr(self._inner, "__exit__"):
            self.close()
            return None
        try:
            driver.run(self._end())
        finally:
            left: bool | None = self._inner.__exit__(*error)
        return left

    async def __aenter__(self) -> Self:
        if hasattr(self._inner, "__aenter__"):
            await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        if not hasattr(self._inner, "__aexit__"):
            await self.aclose()
            return None
        try:
            await driver.arun(self._end())
        finally:
            left: bool | None = await self._inner.__aexit__(*error)
        return left

    # -- reading ---------------------------------------------------------------------

    def _get_tuple(
        self,
        config: RunnableConfig,
        *,
        channels: Sequence[str] | None = None,
        values: Literal["eager", "lazy"] = "eager",
    ) -> Operation[CheckpointTuple | None]:
        """Other savers than threadkeep's read all channels."""
        if is_lazy(values) and channels is None:
            return (yield from one_lazily(self, config))
        return (yield from self._inner_tuple(config, channels))

    def _inner_tuple(
        self, config: RunnableConfig, channels: Iterable[str] | None
    ) -> Operation[CheckpointTuple | None]:
        found: CheckpointTuple | None
        if channels is None:
            found = yield from self._call("get_tuple", config)
            return found
        names = [*validation.channels(channels)]
        if self._is_over_ours:
            found = yield from self._call("get_tuple", config, channels=names)
            return found
        found = yield from self._call("get_tuple", config)
        return found and _only(found, names)

    def _makes_lazy(self, options: dict[str, Any]) -> bool:
        """Take `values` out of a listing's options if the wrapped saver does not know it."""
        return not self._is_over_ours and is_lazy(options.pop("values", "eager"))

    @property
    def _is_over_ours(self) -> bool:
        return hasattr(self._inner, "delete_checkpoints")

    get_tuple, aget_tuple = sync_and_async(_get_tuple)

    def list(
        self, config: RunnableConfig | None, *, limit: int | None = None, **options: Any
    ) -> Iterator[CheckpointTuple]:
        """Internal namespaces of threadkeep are listed only by name.

        Other savers list internal namespaces together with others. This method filters them.
        """
        lazy = self._makes_lazy(options)
        if _names_namespace(config) or self._is_over_ours:
            found = self._inner.list(config, limit=limit, **options)
        else:
            every = self._inner.list(config, **options)
            found = islice((one for one in every if not _is_own(one)), limit)
        yield from (loaded(self, one, awaited=False) for one in found) if lazy else found

    async def alist(
        self, config: RunnableConfig | None, *, limit: int | None = None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """Async variant of `list`."""
        lazy, left = self._makes_lazy(options), limit
        named = _names_namespace(config) or self._is_over_ours
        if left == 0:
            return
        async for one in self._inner.alist(config, limit=limit if named else None, **options):
            if named or not _is_own(one):
                yield loaded(self, one, awaited=True) if lazy else one
                left = None if left is None else left - 1
                if left == 0:
                    return

    def _get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Operation[Any]:
        name = "get_delta_channel_history"
        return (yield from self._call(name, config=config, channels=channels))

    get_delta_channel_history, aget_delta_channel_history = sync_and_async(
        _get_delta_channel_history
    )

    # -- writing ---------------------------------------------------------------------

    def _put(
        self, config: RunnableConfig, checkpoint: Any, metadata: Any, new_versions: Any
    ) -> Operation[Any]:
        return (yield from self._call("put", config, checkpoint, metadata, new_versions))

    put, aput = sync_and_async(_put)

    def _put_writes(
        self, config: RunnableConfig, writes: Any, task_id: str, task_path: str = ""
    ) -> Operation[None]:
        yield from self._call("put_writes", config, writes, task_id, task_path)

    put_writes, aput_writes = sync_and_async(_put_writes)

    # -- housekeeping ----------------------------------------------------------------

    def _delete_thread(self, thread_id: str) -> Operation[None]:
        yield from self._call("delete_thread", validation.thread_in(thread_id))

    delete_thread, adelete_thread = sync_and_async(_delete_thread)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Operation[None]:
        yield from self._call("delete_for_runs", run_ids)

    delete_for_runs, adelete_for_runs = sync_and_async(_delete_for_runs)

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> Operation[None]:
        threads = map(validation.thread_in, (source_thread_id, target_thread_id))
        yield from self._call("copy_thread", *threads)

    copy_thread, acopy_thread = sync_and_async(_copy_thread)

    def _prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest"
    ) -> Operation[None]:
        threads = validation.threads_in(thread_ids)
        yield from self._call("prune", threads, strategy=strategy)

    prune, aprune = sync_and_async(_prune)

    # -- the rest of the contract ----------------------------------------------------

    @property
    def config_specs(self) -> Any:
        return self._inner.config_specs

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._inner.get_next_version(current, channel)

    def for_tenant(self, tenant: str) -> Self:
        """Refuse: this wrapper's own memory of threads would be shared by all tenants.

        Raises:
            InvalidArgumentError: always.
        """
        name = type(self).__name__
        raise InvalidArgumentError(
            f"{name} keeps data of threads in memory, under their ids.",
            hint=f"Wrap the tenant's saver: {name}(saver.for_tenant({tenant!r}), ...).",
        )

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return the same wrapper around the saver's clone."""
        inner = self._inner.with_allowlist(extra_allowlist)
        if inner is self._inner:
            return self
        clone = copy.copy(self)
        clone._inner = inner  # noqa: SLF001 - a clone
        return clone


def call_of(saver: Any, name: str, *args: Any, **options: Any) -> Operation[Any]:
    """Call a method of any saver, or its async variant."""
    method, variant = getattr(saver, name), getattr(saver, f"a{name}")
    return (yield External(partial(method, *args, **options), partial(variant, *args, **options)))


def closing(inner: Any) -> Operation[None]:
    """Close a saver, store or cache, if it can be closed."""
    close = getattr(inner, "close", lambda: None)
    aclose = getattr(inner, "aclose", close)

    async def closed() -> None:
        found = aclose()
        if isawaitable(found):
            await found

    yield External(close, closed)


_OPTIONAL = [
    f"{variant}{name}"
    for name in ("delete_thread", "delete_for_runs", "copy_thread", "prune")
    for variant in ("", "a")
]


_offerings: dict[tuple[type[Delegate], tuple[str, ...]], type[Delegate]] = {}


def _lacking(saver: BaseCheckpointSaver[Any]) -> tuple[str, ...]:
    """Return the optional `BaseCheckpointSaver` methods that a saver does not override."""
    own = type(saver)
    return tuple([name for name in _OPTIONAL if getattr(own, name) is getattr(_BASE, name)])


def _offering(kind: type[Delegate], lacking: tuple[str, ...]) -> type[Delegate]:
    """Return a variant of the delegate class that does not override these methods either.

    LangGraph's server inspects the class, and has fallbacks for methods that are not overridden.
    """
    if lacking and (kind, lacking) not in _offerings:
        own = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
        base = {name: getattr(_BASE, name) for name in lacking if _is_ours(kind, name)}
        _offerings[kind, lacking] = type(kind.__name__, (kind,), own | base)
    return _offerings.get((kind, lacking), kind)


def _is_ours(kind: type, name: str) -> bool:
    """Return True if the method is threadkeep's, not overridden by an application's subclass."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    return owner.__module__.startswith("threadkeep.")


def behind(saver: Any) -> Any:
    """Return the innermost saver, which wraps no other."""
    while isinstance(saver, Delegate):
        saver = saver._inner  # noqa: SLF001 - a delegate's own
    return saver


def _only(found: CheckpointTuple, channels: Collection[str]) -> CheckpointTuple:
    """Return a checkpoint with the values and pending writes of these channels alone."""
    values = found.checkpoint["channel_values"]
    few = {name: value for name, value in values.items() if name in channels}
    checkpoint: Any = {**found.checkpoint, "channel_values": few}
    writes = [write for write in found.pending_writes or () if write[1] in channels]
    return found._replace(checkpoint=checkpoint, pending_writes=writes)


def _names_namespace(config: RunnableConfig | None) -> bool:
    return "checkpoint_ns" in ((config or {}).get("configurable") or {})


def _is_own(found: CheckpointTuple) -> bool:
    return str(found.config["configurable"].get("checkpoint_ns") or "").startswith(OWN_NS)
