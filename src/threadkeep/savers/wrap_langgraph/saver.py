"""Wrapper around another LangGraph saver. A graph shows the same as on that saver alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from threadkeep._core import validation
from threadkeep._core.engine.usage import Counters
from threadkeep._core.policies.caching import ReadCache
from threadkeep._run.delegate import Delegate
from threadkeep._run.layers import driver
from threadkeep._run.layers.driver import Workflow, sync_and_async
from threadkeep._run.write_behind import WriteBehind
from threadkeep._run.write_behind.commit_queue import Threads
from threadkeep.errors import InvalidArgumentError
from threadkeep.savers.options import check_options
from threadkeep.savers.saver import Saver
from threadkeep.savers.wrap_langgraph import calls
from threadkeep.savers.wrap_langgraph.calls import AnySaver, CallQueue
from threadkeep.savers.wrap_langgraph.head_cache import HeadCache, head_key


class Wrapped(Delegate):
    """A LangGraph saver with write-behind or a cache in front of it, as `wrap` returns it.

    Its other attributes (`setup`, `conn`, ...) are those of the wrapped saver. A method that is not
    part of `BaseCheckpointSaver` does not see queued saves: call `flush()` first.
    """

    def __init__(
        self, saver: AnySaver, write_behind: WriteBehind | None, cache: ReadCache | None
    ) -> None:
        super().__init__(saver)
        self._allowed: frozenset[Any] = frozenset()
        self._heads = HeadCache(cache)
        self._queue: CallQueue | None = None
        if write_behind is not None:
            self._queue = CallQueue(write_behind, saver, self._heads.changed)

    def _change(self, threads: Threads, name: str, *args: Any, **options: Any) -> Workflow[Any]:
        """Call a method that changes these threads (None: any)."""
        with self._heads.changing(threads):
            return (yield from self._call(name, *args, **options))

    def _settle(self, threads: Threads) -> Workflow[None]:
        """Store the queued saves of these threads."""
        if self._queue is not None:
            yield from self._queue.settle(threads)

    # -- life ------------------------------------------------------------------------

    def _flush(self) -> Workflow[None]:
        """Store all queued saves; durable on return, as far as the wrapped saver is.

        Raises:
            BackendError: the wrapped saver failed (its error is the cause); the saves are kept.
            InvalidArgumentError: this is the event loop that has to store them: use `aflush`.
        """
        return self._settle(None)

    flush, aflush = sync_and_async(_flush)

    def _end(self) -> Workflow[None]:
        """Flush, where saves are queued. Raises as `flush`."""
        if self._queue is not None:
            yield from self._queue.end()

    def counters(self) -> Counters:
        """Return how much is queued. See `Saver.counters`."""
        queued, size, used = (0, 0, 0.0) if self._queue is None else self._queue.queued
        return Counters(queued=queued, queued_bytes=size, queue_used=used)

    # -- reading ---------------------------------------------------------------------

    def _get_tuple(self, config: RunnableConfig) -> Workflow[CheckpointTuple | None]:
        """See `BaseCheckpointSaver`."""
        key = head_key(config, self._allowed)
        found = self._heads.find(key, self.serde)
        if found is None:
            changes = self._heads.changes(key)
            yield from self._settle(_threads(config))
            found = yield from self._call("get_tuple", config)
            if found is not None:
                self._heads.keep(key, found, changes, self.serde)
        return found

    get_tuple, aget_tuple = sync_and_async(_get_tuple)

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """See `BaseCheckpointSaver`."""
        driver.run(self._settle(_threads(config)))
        yield from self._inner.list(config, **options)

    async def alist(
        self, config: RunnableConfig | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """See `BaseCheckpointSaver`."""
        await driver.arun(self._settle(_threads(config)))
        async for found in self._inner.alist(config, **options):
            yield found

    def _get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Workflow[Any]:
        """See `BaseCheckpointSaver`."""
        yield from self._settle(_threads(config))
        return (yield from super()._get_delta_channel_history(config=config, channels=channels))

    get_delta_channel_history, aget_delta_channel_history = sync_and_async(
        _get_delta_channel_history
    )

    # -- writing ---------------------------------------------------------------------

    def _put(
        self, config: RunnableConfig, checkpoint: Any, metadata: Any, new_versions: Any
    ) -> Workflow[Any]:
        """See `BaseCheckpointSaver`. With write-behind it returns before the checkpoint is stored.

        Raises:
            BackendError: an earlier save of the thread failed; this one is not queued.
            InvalidConfigError: with write-behind: the config has no thread_id.
        """
        given = (config, checkpoint, metadata, new_versions)
        if self._queue is None:
            return (yield from self._change(_threads(config), "put", *given))
        call, answer = calls.put(self._inner, *given)
        yield from self._queue.push(call)
        return answer

    put, aput = sync_and_async(_put)

    def _put_writes(
        self, config: RunnableConfig, writes: Any, task_id: str, task_path: str = ""
    ) -> Workflow[None]:
        """See `BaseCheckpointSaver` and `put`."""
        given = (config, writes, task_id, task_path)
        if self._queue is None:
            yield from self._change(_threads(config), "put_writes", *given)
        else:
            yield from self._queue.push(calls.put_writes(self._inner, *given))

    put_writes, aput_writes = sync_and_async(_put_writes)

    # -- housekeeping ----------------------------------------------------------------

    def _delete_thread(self, thread_id: str) -> Workflow[None]:
        """See `BaseCheckpointSaver`. Queued saves that cannot be stored are dropped."""
        thread: Any = validation.thread_in(thread_id)
        if self._queue is not None:
            yield from self._queue.delete(str(thread))
        yield from self._change([str(thread)], "delete_thread", thread)

    delete_thread, adelete_thread = sync_and_async(_delete_thread)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Workflow[None]:
        """See `BaseCheckpointSaver`."""
        yield from self._settle(None)
        yield from self._change(None, "delete_for_runs", run_ids)

    delete_for_runs, adelete_for_runs = sync_and_async(_delete_for_runs)

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> Workflow[None]:
        """See `BaseCheckpointSaver`."""
        source: Any = validation.thread_in(source_thread_id)
        target: Any = validation.thread_in(target_thread_id)
        yield from self._settle([str(source), str(target)])
        yield from self._change([str(target)], "copy_thread", source, target)

    copy_thread, acopy_thread = sync_and_async(_copy_thread)

    def _prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> Workflow[None]:
        """See `BaseCheckpointSaver`."""
        threads: Any = validation.threads_in(thread_ids)
        names = [str(thread) for thread in threads]
        yield from self._settle(names)
        yield from self._change(names, "prune", threads, strategy=strategy)

    prune, aprune = sync_and_async(_prune)

    def _forget_decoded(self) -> None:
        self.clear_cache()

    def clear_cache(self, thread: str | None = None) -> None:
        """Evict a thread, or (None) all, from the cache."""
        self._heads.changed(None if thread is None else [validation.thread_id(thread)])

    async def aclear_cache(self, thread: str | None = None) -> None:
        """Async variant of `clear_cache`."""
        self.clear_cache(thread)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Wrap the saver's clone; the queue and the cache are shared."""
        clone = super().with_allowlist(extra_allowlist)
        if clone is not self:
            clone._allowed = self._allowed | frozenset(extra_allowlist)  # noqa: SLF001 - a clone
        return clone


def wrap(
    saver: BaseCheckpointSaver[Any],
    *,
    write_behind: WriteBehind | None = None,
    cache: ReadCache | None = None,
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
        InvalidArgumentError: an argument is invalid or not supported; or the saver is one of ours.
    """
    if isinstance(saver, Saver | Wrapped):
        raise InvalidArgumentError(
            f"{type(saver).__name__} has write-behind and a cache of its own.",
            hint="Use write_behind= and cache= of it instead of wrapping it.",
        )
    if not isinstance(saver, BaseCheckpointSaver):
        raise InvalidArgumentError(
            f"{saver!r} is no LangGraph saver.",
            hint="Use a BaseCheckpointSaver; one from from_conn_string() is there under `with`.",
        )
    if isinstance(saver, Delegate):
        name = type(saver).__name__
        raise InvalidArgumentError(
            f"{name} reads and changes the store by methods of its own, which would not see saves"
            " that are queued or cached.",
            hint=f"Wrap the saver inside it: {name}(wrap(saver, write_behind=WriteBehind())).",
        )
    check_options({"write_behind": write_behind, "cache": cache})
    if cache is not None and sole_writer is not True:
        raise InvalidArgumentError(
            "Another saver cannot tell whether another process has written: its cache could be"
            " stale.",
            hint="Use sole_writer=True if nobody else writes to its store; else leave cache= out.",
        )
    return Wrapped(saver, write_behind, cache)


def _threads(config: RunnableConfig | None) -> Threads:
    """Return the thread that a config names; all (None) if it names none."""
    thread = ((config or {}).get("configurable") or {}).get("thread_id")
    return None if thread is None else [str(thread)]
