"""The LangGraph face: every method of `BaseCheckpointSaver`, sync and async.

Each method is one line: check the arguments (`arguments`), run an operation. One object
has both APIs; nothing here decides anything.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep import (
    arguments,
    channel_versions,
    lazy,
    validation,
)
from threadkeep.backends.group_commit import GroupCommit
from threadkeep.codec import Codec, Compression, NativeCodec, SerdeCodec
from threadkeep.engine import (
    load,
    put,
)
from threadkeep.engine.committing import (
    Built,
    Failed,
    remember,
    to_commit,
)
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
)
from threadkeep.engine.put import Put
from threadkeep.errors import ThreadkeepError
from threadkeep.retention.background import (
    Collector,
    Gained,
    quietly,
)
from threadkeep.store import (
    bulk,
    driver,
    options,
)
from threadkeep.store.opened import (
    RANDOM,
    OpenStore,
)

if TYPE_CHECKING:
    from threadkeep.backends.base import AsyncBackend, Backend
    from threadkeep.cache import Cache
    from threadkeep.cold.tiering import Tiering
    from threadkeep.repair.findings import CheckReport
    from threadkeep.retention.collect import Progress
    from threadkeep.retention.policy import Retention
    from threadkeep.stats import Stats
    from threadkeep.threads import Threads

T = TypeVar("T")
PutArguments: TypeAlias = tuple[RunnableConfig, Checkpoint, CheckpointMetadata, ChannelVersions]

WORKING_SET_BYTES = 256 * 1024 * 1024
_CLONES = 16  # savers with another allowlist that are kept for the next run


class Saver(OpenStore, BaseCheckpointSaver[Any]):
    """A LangGraph checkpoint saver that stores what changed, on any backend.

    Args:
        backend: where rows live. The saver closes it. On an async one only the async
            methods work.
        conflicts: "fork" lets concurrent runs of a thread branch, as LangGraph does, and logs
            it (see `forked_runs`); "raise" refuses the later one with `ConflictError`.
        serde: a LangGraph serializer to use instead of threadkeep's own codec.
        compression: when and how segments are compressed.
        pickle_fallback: pickle what cannot be stored otherwise (and load pickles, which
            runs the code they name: only for data that is trusted).
        working_set_bytes: about how much memory to use for remembering threads.
        group_commit: how concurrent commits share a transaction; without, those that wait at
            the same time do, and none waits for others. With `ack="relaxed"` saves return before
            they are durable.
        cache: how much of the store to keep in memory, as bytes; None for nothing.
        hot: the URL of a Redis that keeps at hand, for all processes, what a PostgreSQL
            database holds.
        cold: the URL of the cold store, where archived threads lie, and old values of others:
            `file:///folder`, `s3://bucket/path`, `gs://bucket/path` or `az://container/path`.
        tiering: what is kept at hand, and what goes into the cold store where `threads.tier()` is
            not told.
        retention: what is kept where nothing was said of a thread itself; `threads.gc()` removes
            the rest.
        gc_every: seconds, or a timedelta, after which that is done in a thread of its own, and
            `threads.tier()` if `tiering` and `cold` are given, again and again until the saver is
            closed; not in the child of a fork. Failures are logged.
        gc_on_put: after how many checkpoints that this saver put into a thread its checkpoints
            are gone through by the last put itself. Failures are logged.

    Raises:
        InvalidArgumentError: an option has no meaning, or `gc_every` has no sync backend.
        OpenError: `hot` or `cold` cannot be read or opened, or its library is not installed.
    """

    def __init__(  # noqa: PLR0913 - they are given by name
        self,
        backend: Backend | AsyncBackend,
        *,
        conflicts: Literal["fork", "raise"] = "fork",
        serde: SerializerProtocol | None = None,
        compression: Compression | None = None,
        pickle_fallback: bool = False,
        working_set_bytes: int = WORKING_SET_BYTES,
        group_commit: GroupCommit | None = None,
        cache: Cache | None = None,
        hot: str | None = None,
        cold: str | None = None,
        tiering: Tiering | None = None,
        retention: Retention | None = None,
        gc_every: timedelta | float | None = None,
        gc_on_put: int | None = None,
    ) -> None:
        options.check(
            {
                "conflicts": conflicts,
                "serde": serde,
                "compression": compression,
                "pickle_fallback": pickle_fallback,
                "working_set_bytes": working_set_bytes,
                "group_commit": group_commit,
                "cache": cache,
                "hot": hot,
                "cold": cold,
                "tiering": tiering,
                "retention": retention,
                "gc_every": gc_every,
                "gc_on_put": gc_on_put,
            }
        )
        if gc_every is not None:
            driver.blocking(backend)
        OpenStore.__init__(
            self, backend, group_commit, cache, hot, cold, tiering, working_set_bytes
        )
        BaseCheckpointSaver.__init__(self, serde=serde)
        self._engine = Engine(
            codec=_codec(serde, pickle_fallback=pickle_fallback),
            compression=compression or Compression(),
            working_set=self._working_set,
            conflicts=conflicts,
            token=RANDOM.getrandbits,
            now=_now,
            forked=self._forked.note,
            retention=retention,
            holds_all=self._relaxed is not None,
        )
        self._clones: dict[frozenset[tuple[str, ...]], Saver] = {}
        self._clones_lock = threading.Lock()
        self._gained = None if gc_on_put is None else Gained(gc_on_put)
        self._collector = None if gc_every is None else Collector(self._collect, _seconds(gc_every))

    # -- reading ---------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the thread's head; None if there is none.

        Raises:
            InvalidConfigError: the config has no thread_id.
            CorruptionError, UnknownTypeError: it cannot be read back as it was.
        """
        return self.run(self._get_tuple(arguments.load(config), config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `get_tuple`."""
        call = arguments.load(config)
        # (a load that decodes much would hold up the event loop)
        run = self.arun_here if load.is_hot(self._engine, call) else self.arun
        return await run(self._get_tuple(call, config))

    def _get_tuple(
        self, call: load.Load, config: RunnableConfig
    ) -> Operation[CheckpointTuple | None]:
        loaded = yield from load.load(self._engine, call)
        return None if loaded is None else arguments.checkpoint_tuple(loaded, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first, of the config's thread or (None) of all threads.

        Args:
            config: names the thread, and may name a namespace and a checkpoint.
            filter: metadata that a checkpoint must have.
            before: only checkpoints with a smaller id than this config's.
            limit: how many at most.

        Raises:
            InvalidArgumentError: the limit is negative or no number, or an id no text.
        """
        at = lazy.listing.begin(arguments.listing(config, filter, before, limit))
        while at is not None:
            found, at = self.run(lazy.listing.page(self._engine, at))
            yield from map(arguments.checkpoint_tuple, found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See `list`."""
        at = lazy.listing.begin(arguments.listing(config, filter, before, limit))
        while at is not None:
            found, at = await self.arun(lazy.listing.page(self._engine, at))
            for loaded in found:
                yield arguments.checkpoint_tuple(loaded)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What DeltaChannels are rebuilt from; see `BaseCheckpointSaver`."""
        return self.run(self._history(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See `get_delta_channel_history`."""
        return await self.arun(self._history(config, channels))

    def _history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Operation[Mapping[str, Any]]:
        return lazy.listing.delta_history(self._engine, arguments.place(config), list(channels))

    # -- writing ---------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; durable on return. The config names its parent.

        Raises:
            InvalidConfigError: no thread_id, or the checkpoint has no id.
            InvalidArgumentError: a name, a version or the time cannot be stored.
            UnserializableError: a value cannot be stored so that it comes back exactly.
            ConflictError: with `conflicts="raise"`: another run moved the thread.
            ThreadDeletedError: the thread was deleted while this run was under way.
        """
        call = arguments.put(config, checkpoint, metadata, new_versions)
        built = put.build(self._engine, call)
        self._save(call.place, built, partial(put.put, self._engine, call))
        if self._gained is not None and self._gained.is_enough(call.place.thread):
            self.run(self._thinned(call.place.thread))
        return arguments.stored(call)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `put`."""
        call = arguments.put(config, checkpoint, metadata, new_versions)
        built = put.build(self._engine, call)
        await self._asave(call.place, built, partial(put.put, self._engine, call))
        if self._gained is not None and self._gained.is_enough(call.place.thread):
            await self.arun(self._thinned(call.place.thread))
        return arguments.stored(call)

    def _save(
        self,
        place: CheckpointRef,
        built: Built | None,
        save: Callable[[Failed | None], Operation[None]],
    ) -> None:
        """Commit a batch that could be built at once; run the whole operation where that fails."""
        if built is None:
            self.run(save(None))
            return
        try:
            self.commit(to_commit(self._engine, place, built))
        except ThreadkeepError as error:
            self.run(save((built, error)))
        except BaseException:
            built.appender.failed()
            raise
        else:
            remember(self._engine, place, built)

    async def _asave(
        self,
        place: CheckpointRef,
        built: Built | None,
        save: Callable[[Failed | None], Operation[None]],
    ) -> None:
        """See `_save`. A batch that is built at once has the values of when this was called."""
        if built is None:
            await self.arun_here(save(None))
            return
        try:
            waiting = self.submit(to_commit(self._engine, place, built))
            if waiting is not None:
                await waiting
        except ThreadkeepError as error:
            await self.arun_here(save((built, error)))
        except BaseException:
            built.appender.failed()
            raise
        else:
            remember(self._engine, place, built)

    def _thinned(self, thread: str) -> Operation[None]:
        """Remove what the thread need not keep. Failures are logged."""
        retention = lazy.thin
        ours = partial(retention.policy_of, store=self._engine.retention)
        return quietly(thread, partial(retention.thin, self._engine, thread, ours))

    def _stored(self, call: Put, engine: Engine | None = None) -> Operation[RunnableConfig]:
        yield from put.put(engine or self._engine, call)
        return arguments.stored(call)

    def put_many(self, puts: Sequence[PutArguments]) -> Sequence[RunnableConfig]:
        """Store many checkpoints at once, as `put` would one after the other.

        Arguments are checked before anything is stored. Where this fails in the middle,
        some of those before may be stored; to do all again is harmless.

        Args:
            puts: the arguments of a `put` each: config, checkpoint, metadata, new_versions.
                A config that names a checkpoint of the same call makes that its parent.

        Returns:
            The config of each, in order, with its id.

        Raises:
            ThreadkeepError: as `put`.
        """
        calls = [arguments.put(*one) for one in puts]
        done = self.run(bulk.together(self._apart(calls)))
        return done or [self.run(self._stored(call)) for call in calls]

    async def aput_many(self, puts: Sequence[PutArguments]) -> Sequence[RunnableConfig]:
        """See `put_many`."""
        calls = [arguments.put(*one) for one in puts]
        done = await self.arun(bulk.together(self._apart(calls)))
        return done or [await self.arun(self._stored(call)) for call in calls]

    def _apart(self, calls: Iterable[Put]) -> Iterator[Operation[RunnableConfig]]:
        """The operations, which remember for themselves alone what is not stored yet."""
        engine = self._engine.apart()
        return (self._stored(call, engine) for call in calls)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's pending writes on the config's checkpoint; durable on return.

        Raises:
            InvalidConfigError: no thread_id, or no checkpoint_id.
            InvalidArgumentError: a name or an id is no text.
            UnserializableError, ConflictError, ThreadDeletedError: as `put`.
        """
        call = arguments.put_writes(config, writes, task_id, task_path)
        built = put.build_writes(self._engine, call)
        self._save(call.place, built, partial(put.put_writes, self._engine, call))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """See `put_writes`."""
        call = arguments.put_writes(config, writes, task_id, task_path)
        built = put.build_writes(self._engine, call)
        await self._asave(call.place, built, partial(put.put_writes, self._engine, call))

    # -- housekeeping ----------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread. Late writes of runs under way are refused, not resurrected."""
        self.run(lazy.prune.delete_thread(self._engine, str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """See `delete_thread`."""
        await self.arun(lazy.prune.delete_thread(self._engine, str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of these runs (metadata `run_id`), in every thread.

        What DeltaChannels of other checkpoints are rebuilt through stays, hidden.

        Raises:
            InvalidArgumentError: the ids are no list.
        """
        self.run(lazy.prune.delete_for_runs(self._engine, validation.ids("run_ids", run_ids)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `delete_for_runs`."""
        await self.arun(
            lazy.prune.delete_for_runs(self._engine, validation.ids("run_ids", run_ids))
        )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread inside the store.

        Raises:
            ThreadExistsError: the target holds checkpoints.
        """
        self.run(self._copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `copy_thread`."""
        await self.arun(self._copy(source_thread_id, target_thread_id))

    def _copy(self, source: str, target: str) -> Operation[None]:
        return lazy.copy.copy_thread(self._engine, str(source), str(target))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace ("keep_latest"), or none ("delete").

        Raises:
            InvalidArgumentError: another strategy, or the ids are no list.
        """
        self.run(self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `prune`."""
        await self.arun(self._prune(thread_ids, strategy))

    def _prune(self, threads: Sequence[str], strategy: str) -> Operation[None]:
        ids = validation.ids("thread_ids", threads)
        return lazy.prune.prune(self._engine, ids, strategy)

    # -- looking into the store ------------------------------------------------------

    def stats(self) -> Stats:
        """What takes how much, by thread and by channel, beside whole copies. Reads all."""
        return self.run(lazy.stats.stats())

    async def astats(self) -> Stats:
        """See `stats`."""
        return await self.arun(lazy.stats.stats())

    def check(self, progress: Callable[[int, int], None] | None = None) -> CheckReport:
        """Verify every checksum, reference and span of every thread. Changes nothing.

        Args:
            progress: called with how many threads are done, and how many there are.
        """
        from threadkeep.repair import workflow  # noqa: PLC0415 - much, and seldom needed
        from threadkeep.store import workflows  # noqa: PLC0415 - as above

        return workflows.run(workflow.check(self, self._engine, progress))

    async def acheck(self, progress: Callable[[int, int], None] | None = None) -> CheckReport:
        """See `check`."""
        from threadkeep.repair import workflow  # noqa: PLC0415 - much, and seldom needed
        from threadkeep.store import workflows  # noqa: PLC0415 - as above

        return await workflows.arun(workflow.check(self, self._engine, progress))

    def _collect(self, progress: Progress) -> None:
        self.threads.gc(progress=progress)
        if self.tiering is not None and self.cold is not None:
            self.threads.tier(progress=progress)

    def close(self) -> None:
        """See `OpenStore.close`."""
        if self._collector is not None:
            self._collector.close()
        super().close()

    async def aclose(self) -> None:
        """See `OpenStore.aclose`."""
        if self._collector is not None:
            await driver.in_thread(self._collector.close)
        await super().aclose()

    @property
    def threads(self) -> Threads:
        """What can be done with threads beside running them."""
        from threadkeep.threads import Threads  # noqa: PLC0415 - much, and seldom needed

        return Threads(self, self._engine)

    # -- the rest of the contract ----------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version after `current`, of the same kind. Thread-safe."""
        del channel
        return channel_versions.next_version(current)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Saver:
        """A saver that also loads these (module, name) classes; all else is shared with it."""
        key = validation.classes(extra_allowlist)
        with self._clones_lock:
            clone = self._clones.get(key)
            if clone is None:
                while len(self._clones) >= _CLONES:
                    del self._clones[next(iter(self._clones))]
                clone = self._clones[key] = self._cloned(key)
        return clone

    def _cloned(self, allowed: frozenset[tuple[str, ...]]) -> Saver:
        clone = copy.copy(self)
        codec = self._engine.codec.with_allowlist(allowed)
        clone._engine = self._engine._replace(codec=codec)  # noqa: SLF001 - a clone
        clone._clones, clone._clones_lock = {}, threading.Lock()  # noqa: SLF001 - a clone
        return clone


def _codec(serde: SerializerProtocol | None, *, pickle_fallback: bool) -> Codec:
    return NativeCodec(pickle_fallback=pickle_fallback) if serde is None else SerdeCodec(serde)


def _seconds(gc_every: timedelta | float) -> float:
    from threadkeep.retention.policy import duration  # noqa: PLC0415 - seldom needed

    return duration("gc_every", gc_every).total_seconds()


def _now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
