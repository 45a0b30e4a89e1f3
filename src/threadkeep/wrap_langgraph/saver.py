"""Wrapper around another LangGraph saver. A graph shows the same as on that saver alone."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from threadkeep.cache import Cache
from threadkeep.errors import InvalidArgumentError, ThreadkeepError
from threadkeep.options import check_options
from threadkeep.saver import Saver
from threadkeep.wrap_langgraph import calls
from threadkeep.wrap_langgraph.calls import (
    AnySaver,
    Call,
    CallSink,
    HeadCache,
    SaverLoop,
)
from threadkeep.write_behind import WriteBehind
from threadkeep.write_behind.commit_queue import (
    CommitQueue,
    Threads,
)


class Wrapped(BaseCheckpointSaver[Any]):
    """A LangGraph saver with write-behind or a cache in front of it, as `wrap` returns it.

    Its other attributes (`setup`, `conn`, ...) are those of the wrapped saver. A method that is not
    part of `BaseCheckpointSaver` does not see queued saves: call `flush()` first.
    """

    def __init__(
        self, saver: AnySaver, write_behind: WriteBehind | None, cache: Cache | None
    ) -> None:
        super().__init__(serde=saver.serde)
        self._inner = saver
        self._allowed: frozenset[Any] = frozenset()
        heads = self._heads = HeadCache(cache)
        self._home = SaverLoop(saver)
        self._queue: CommitQueue[Call] | None = None
        if write_behind is not None:
            sink = CallSink(self._home, lambda thread: heads.changed([thread]))
            self._queue = CommitQueue(write_behind, sink)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    # -- life ------------------------------------------------------------------------

    def flush(self) -> None:
        """Store all queued saves; durable on return, as far as the wrapped saver is.

        Raises:
            BackendError: the wrapped saver failed (its error is the cause); the saves are kept.
            InvalidArgumentError: this is the event loop that has to store them: use `aflush`.
        """
        self._settle(None)

    async def aflush(self) -> None:
        """Async variant of `flush`."""
        await self._asettle(None)

    def _settle(self, threads: Threads) -> None:
        """Store the queued saves of these threads."""
        if self._queue is not None and not self._queue.is_settled(threads):
            self._home.refuse_here()
            self._queue.flush(threads)

    async def _asettle(self, threads: Threads) -> None:
        if self._queue is not None:
            await self._queue.aflush(threads)

    def close(self) -> None:
        """Flush, and close the wrapped saver if it can be closed. Raises as `flush`."""
        try:
            self._end()
        finally:
            if hasattr(self._inner, "close"):
                self._inner.close()

    def _end(self) -> None:
        if self._queue is not None:
            if not self._queue.is_settled(None):
                self._home.refuse_here()
            self._queue.close()

    async def aclose(self) -> None:
        """Async variant of `close`."""
        try:
            await self._aend()
        finally:
            close = getattr(self._inner, "aclose", getattr(self._inner, "close", None))
            closed = None if close is None else close()
            if isawaitable(closed):
                await closed

    async def _aend(self) -> None:
        if self._queue is not None:
            await self._queue.in_turn(self._queue.close)

    def __enter__(self) -> Self:
        if hasattr(self._inner, "__enter__"):
            self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if not hasattr(self._inner, "__exit__"):
            self.close()
            return None
        try:
            self._end()
        finally:
            left: bool | None = self._inner.__exit__(kind, value, traceback)
        return left

    async def __aenter__(self) -> Self:
        if hasattr(self._inner, "__aenter__"):
            await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if not hasattr(self._inner, "__aexit__"):
            await self.aclose()
            return None
        try:
            await self._aend()
        finally:
            left: bool | None = await self._inner.__aexit__(kind, value, traceback)
        return left

    # -- reading ---------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `BaseCheckpointSaver`."""
        with self._heads.look(config, self._allowed, self.serde) as look:
            if look.found is not None:
                return look.found
            self._settle(_threads(config))
            return look.loaded(self._inner.get_tuple(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `BaseCheckpointSaver`."""
        with self._heads.look(config, self._allowed, self.serde) as look:
            if look.found is not None:
                return look.found
            await self._asettle(_threads(config))
            return look.loaded(await self._inner.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """See `BaseCheckpointSaver`."""
        self._settle(_threads(config))
        yield from self._inner.list(config, filter=filter, before=before, limit=limit)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See `BaseCheckpointSaver`."""
        await self._asettle(_threads(config))
        found = self._inner.alist(config, filter=filter, before=before, limit=limit)
        async for one in found:
            yield one

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See `BaseCheckpointSaver`."""
        self._settle(_threads(config))
        return self._inner.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See `BaseCheckpointSaver`."""
        await self._asettle(_threads(config))
        return await self._inner.aget_delta_channel_history(config=config, channels=channels)

    # -- writing ---------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `BaseCheckpointSaver`. With write-behind it returns before the checkpoint is stored.

        Raises:
            BackendError: an earlier save of the thread failed; this one is not queued.
            InvalidConfigError: with write-behind: the config has no thread_id.
        """
        if self._queue is None:
            with self._heads.changing(_threads(config)):
                return self._inner.put(config, checkpoint, metadata, new_versions)
        call, answer = calls.put(self._inner, config, checkpoint, metadata, new_versions)
        self._add(self._queue, call)
        return answer

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async variant of `put`."""
        if self._queue is None:
            with self._heads.changing(_threads(config)):
                return await self._inner.aput(config, checkpoint, metadata, new_versions)
        call, answer = calls.put(self._inner, config, checkpoint, metadata, new_versions)
        await self._aadd(self._queue, call)
        return answer

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """See `BaseCheckpointSaver` and `put`."""
        if self._queue is None:
            with self._heads.changing(_threads(config)):
                self._inner.put_writes(config, writes, task_id, task_path)
            return
        call = calls.put_writes(self._inner, config, writes, task_id, task_path)
        self._add(self._queue, call)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Async variant of `put_writes`."""
        if self._queue is None:
            with self._heads.changing(_threads(config)):
                await self._inner.aput_writes(config, writes, task_id, task_path)
            return
        call = calls.put_writes(self._inner, config, writes, task_id, task_path)
        await self._aadd(self._queue, call)

    def _add(self, queue: CommitQueue[Call], call: Call) -> None:
        if not queue.try_add(call.thread, call):
            self._home.refuse_here()
            queue.add(call.thread, call)

    async def _aadd(self, queue: CommitQueue[Call], call: Call) -> None:
        self._home.note()
        await queue.aadd(call.thread, call)

    # -- housekeeping ----------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """See `BaseCheckpointSaver`. Queued saves that cannot be stored are dropped."""
        thread = str(thread_id)
        if self._queue is not None and not self._queue.is_settled([thread]):
            self._home.refuse_here()
            self._let_go(self._queue, thread)
        with self._heads.changing([thread]):
            self._inner.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """Async variant of `delete_thread`."""
        thread = str(thread_id)
        if self._queue is not None and not self._queue.is_settled([thread]):
            await self._queue.in_turn(partial(self._let_go, self._queue, thread))
        with self._heads.changing([thread]):
            await self._inner.adelete_thread(thread_id)

    @staticmethod
    def _let_go(queue: CommitQueue[Call], thread: str) -> None:
        try:
            queue.flush([thread])
        except ThreadkeepError:
            queue.forget(thread)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `BaseCheckpointSaver`."""
        self._settle(None)
        with self._heads.changing(None):
            self._inner.delete_for_runs(run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `BaseCheckpointSaver`."""
        await self._asettle(None)
        with self._heads.changing(None):
            await self._inner.adelete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `BaseCheckpointSaver`."""
        self._settle([str(source_thread_id), str(target_thread_id)])
        with self._heads.changing([str(target_thread_id)]):
            self._inner.copy_thread(source_thread_id, target_thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `BaseCheckpointSaver`."""
        await self._asettle([str(source_thread_id), str(target_thread_id)])
        with self._heads.changing([str(target_thread_id)]):
            await self._inner.acopy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `BaseCheckpointSaver`."""
        threads = [str(thread) for thread in thread_ids]
        self._settle(threads)
        with self._heads.changing(threads):
            self._inner.prune(thread_ids, strategy=strategy)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `BaseCheckpointSaver`."""
        threads = [str(thread) for thread in thread_ids]
        await self._asettle(threads)
        with self._heads.changing(threads):
            await self._inner.aprune(thread_ids, strategy=strategy)

    def clear_cache(self, thread: str | None = None) -> None:
        """Evict a thread, or (None) all, from the cache."""
        self._heads.clear(thread)

    async def aclear_cache(self, thread: str | None = None) -> None:
        """Async variant of `clear_cache`."""
        self._heads.clear(thread)

    # -- the rest of the contract ----------------------------------------------------

    @property
    def config_specs(self) -> Any:
        """See `BaseCheckpointSaver`."""
        return self._inner.config_specs

    def get_next_version(self, current: Any, channel: None) -> Any:
        """See `BaseCheckpointSaver`."""
        return self._inner.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Wrapped:
        """Wrap the saver's clone; the queue and the cache are shared."""
        inner = self._inner.with_allowlist(extra_allowlist)
        if inner is self._inner:
            return self
        clone = copy.copy(self)
        clone._inner, clone.serde = inner, inner.serde  # noqa: SLF001 - a clone
        clone._allowed = self._allowed | frozenset(extra_allowlist)  # noqa: SLF001 - a clone
        return clone


def wrap(
    saver: BaseCheckpointSaver[Any],
    *,
    write_behind: WriteBehind | None = None,
    cache: Cache | None = None,
    sole_writer: bool = False,
) -> Wrapped:
    """Put write-behind or a cache in front of any other LangGraph saver.

    Args:
        saver: the saver; closed with the wrapper, if it can be closed.
        write_behind: saves return at once, and are made soon, one after the other. Values are
            serialized at the time of the call, by the saver's `serde`. A save that fails is
            kept, with those behind it in its thread, and the thread's next call raises why.
        cache: limits of a cache of the newest checkpoint of each thread. It needs `sole_writer`.
        sole_writer: True says that only the wrapper changes the saver's store.

    Raises:
        InvalidArgumentError: an argument is invalid or not supported.
    """
    _check_saver(saver)
    check_options({"write_behind": write_behind, "cache": cache})
    if cache is not None and sole_writer is not True:
        raise InvalidArgumentError(
            "Another saver cannot tell whether somebody else has written: its cache could be"
            " stale.",
            hint="Use sole_writer=True if nobody else writes to its store; else leave cache= out.",
        )
    return Wrapped(saver, write_behind, cache)


def _check_saver(saver: object) -> None:
    if isinstance(saver, Saver):
        raise InvalidArgumentError(
            f"{type(saver).__name__} is a saver of threadkeep, which does all this itself.",
            hint="Use write_behind= and cache= of the saver instead of wrapping it.",
        )
    if isinstance(saver, Wrapped):
        raise InvalidArgumentError(
            "The saver is wrapped already.", hint="Use write_behind= and cache= in one call."
        )
    if not isinstance(saver, BaseCheckpointSaver):
        raise InvalidArgumentError(
            f"{saver!r} is no LangGraph saver.",
            hint="Use a BaseCheckpointSaver; one from from_conn_string() is there under `with`.",
        )


def _threads(config: RunnableConfig | None) -> Threads:
    """Return the thread that a config names; all (None) if it names none."""
    thread = ((config or {}).get("configurable") or {}).get("thread_id")
    return None if thread is None else [str(thread)]
