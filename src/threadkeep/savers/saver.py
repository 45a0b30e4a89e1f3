"""Saver: LangGraph's `BaseCheckpointSaver`, sync and async, on any backend."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack
from weakref import WeakSet

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods

from threadkeep._core import arguments, validation, versions
from threadkeep._core.codec import Compression, Migrations, check_migrations, codec_of, with_serde
from threadkeep._core.codec.codecs import PlainCodec
from threadkeep._core.engine import listing, load, put
from threadkeep._core.engine.calls import SaveCall
from threadkeep._core.engine.context import Engine, remember
from threadkeep._core.engine.operation import Operation
from threadkeep._core.engine.shapes import AS_STORED, ChannelShapes
from threadkeep._core.langgraph_internals import NO_VERSION, follow_ids
from threadkeep._run.driver import arun, each_and_aeach, on, run, sync_and_async
from threadkeep._run.layered_backend import RANDOM, LayeredBackend
from threadkeep._run.lazy_values import each_lazily, is_lazy, one_lazily
from threadkeep._run.together import together
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.options import complete, listed
from threadkeep.errors import ThreadkeepError
from threadkeep.keys import sealed
from threadkeep.savers.drop_in import SaverAttributes
from threadkeep.savers.maintenance import Maintenance
from threadkeep.savers.options import SaverOptions, check_options
from threadkeep.savers.tenants import ForkedRuns
from threadkeep.threads import lazy
from threadkeep.threads.archives.layer import TierLayer
from threadkeep.threads.facade import Threads
from threadkeep.threads.retention.background import Collector, Gained, quietly
from threadkeep.threads.retention.lease import JobLease

if TYPE_CHECKING:
    from threadkeep._core.engine.operation import Progress
    from threadkeep._core.engine.usage import Counters
    from threadkeep._stores.store_keys import StoreKeys
    from threadkeep.runs.runs import Runs
    from threadkeep.threads.stream import Stream
    from threadkeep.threads.transfer.rolling import Rolling


class Serializing:
    """A saver with a serializer, shared by its clones and its `threads`."""

    _engine: Engine
    _migrations: Migrations | None
    _clones: dict[Any, Any]  # made by `with_allowlist`

    def _begin_serde(self, serde: SerializerProtocol | None) -> None:
        default = BaseCheckpointSaver.serde
        self._serde = default if serde is None else maybe_add_typed_methods(serde)
        self._family: WeakSet[Serializing | Threads] = WeakSet([self])

    @property
    def serde(self) -> SerializerProtocol:
        """The serializer. If you assign another one, it stores all values from then on.

        Values already stored by threadkeep's codec stay readable. Assigning an object that is no
        serializer raises `InvalidArgumentError`.
        """
        return self._serde

    @serde.setter
    def serde(self, serde: SerializerProtocol) -> None:
        if serde is self._serde:
            return
        check_migrations({"migrations": self._migrations, "serde": serde})
        for one in [*self._family]:
            codec = with_serde(one._engine.codec, serde)  # noqa: SLF001 - one of this saver
            one._engine = one._engine._replace(codec=codec)  # noqa: SLF001 - likewise
            if isinstance(one, Serializing):
                one._serde = codec.serde  # noqa: SLF001 - a clone
                one._clones.clear()  # noqa: SLF001 - a clone


PutArguments: TypeAlias = (
    tuple[RunnableConfig, Checkpoint, CheckpointMetadata, ChannelVersions]
    | tuple[RunnableConfig, Checkpoint, CheckpointMetadata]
)

_CLONES = 16  # savers with another allowlist that are kept for the next run


class Saver(Serializing, SaverAttributes, Maintenance, BaseCheckpointSaver[Any]):
    """A LangGraph checkpoint saver that stores only changes, on any backend.

    Args:
        backend: stores the rows, closed with the saver. With an async backend, don't call sync
            methods in the thread of its event loop.
        **options: see `help(Saver.__init__)`.

    Raises:
        InvalidArgumentError: an option is unknown or invalid, or `gc_every` is set with an async
            backend.
        OpenError: `cold` cannot be opened, or its library is not installed.
    """

    @listed(SaverOptions)
    def __init__(self, backend: Backend | AsyncBackend, **options: Unpack[SaverOptions]) -> None:
        check_options(options)
        given = complete("Saver", SaverOptions, options)
        serde, gc_every, gc_on_put = given["serde"], given["gc_every"], given["gc_on_put"]
        backend = sealed(backend, given)
        if gc_every is not None:
            LayeredBackend(backend).blocking  # noqa: B018 - raises if there is none
        self._begin_serde(serde)
        self._migrations = given["migrations"]
        fallback = given["pickle_fallback"]
        gets_keys = given["keys"] is not None and given["allow_plaintext"] is not None
        codec = codec_of(given["migrations"], serde, pickle_fallback=fallback, gets_keys=gets_keys)
        self._store = LayeredBackend(
            backend,
            _tier(given["cold"], getattr(backend, "keys", None)),
            tiering=given["tiering"],
            working_set_bytes=given["working_set_bytes"],
        )
        self._store.retention = given["retention"]
        words = None
        if given["search"]:
            from threadkeep.threads.finding import check_index, words_of  # noqa: PLC0415 - seldom needed

            check_index(self._store)
            words = words_of
        self._forked = ForkedRuns()
        self._engine = Engine(
            codec=codec,
            compression=given["compression"] or Compression(),
            working_set=self._store.working_set,
            conflicts=given["conflicts"],
            token=RANDOM.getrandbits,
            now=_now,
            forked=self._forked.note,
            shapes=ChannelShapes.of(given["migrations"]),
            words=words,
        )
        self._clones: dict[frozenset[tuple[str, ...]], Saver] = {}
        self._views = {}
        self._gained = None if gc_on_put is None else Gained(gc_on_put)
        self._rolling: Rolling | None = None
        if given["migrate_from"] is not None:
            from threadkeep.threads.transfer.rolling import Rolling  # noqa: PLC0415 - seldom needed

            ring = None if (keys := getattr(backend, "keys", None)) is None else keys.ring
            flags = {"mirrors": given["mirror_back"], "deletes": given["migrate_deletions"]}
            self._rolling = Rolling(given["migrate_from"], codec, ring, **flags)
            self._store.rolling = self._rolling
        self._collector: Collector | None = None
        if gc_every is not None:
            every = validation.duration("gc_every", gc_every)
            lease = JobLease(self._store, "gc", every.total_seconds())
            self._collector = Collector(self._collect, every.total_seconds(), lease)

    @property
    def backend(self) -> Backend | AsyncBackend:
        """The backend that stores the rows."""
        return self._store.backend

    @property
    def threads(self) -> Threads:
        """Methods on threads: search, fork, archive and so on."""
        threads = Threads(self._store, self._engine)
        self._family.add(threads)
        return threads

    @property
    def runs(self) -> Runs:
        """Methods that store inputs before they run, and resume unfinished runs."""
        from threadkeep.runs.runs import Runs  # noqa: PLC0415 - seldom needed

        return Runs(self, self._engine)

    @property
    def forked_runs(self) -> int:
        """Number of times since opening that concurrent runs forked a thread.

        Counts runs of this saver, and runs of other processes if this saver had loaded their
        checkpoint. Each fork is logged as a warning.
        """
        return self._forked.count

    def counters(self) -> Counters:
        """Return the counters of this saver since it was opened, in this process.

        Reads only memory. A closed saver keeps its counters.
        """
        return self._store.counters(self._forked.count)

    # -- reading ---------------------------------------------------------------------

    def get_tuple(
        self,
        config: RunnableConfig,
        *,
        channels: Sequence[str] | None = None,
        values: Literal["eager", "lazy"] = "eager",
    ) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the thread's head. None if it has none.

        Args:
            config: names the thread, and may name a namespace and a checkpoint.
            channels: read only the values and pending writes of these channels, to show them, or
                None for all. A channel that is empty or unknown is absent from `channel_values`.
                Versions and metadata are complete. Runs need all channels.
            values: "lazy" reads values when they are first used, as in `list`, if `channels` is
                None. `aget_tuple` never blocks: load them by `await channel_values.aload("name")`.

        Raises:
            InvalidConfigError: the config has no thread_id.
            InvalidArgumentError: `channels` is no list of names, or `values` is invalid.
            CorruptionError, UnknownTypeError: the checkpoint, or any of these channels, cannot be
                read back exactly.
        """
        if values != "eager" and is_lazy(values) and channels is None:
            return run(one_lazily(self, config))
        call = arguments.load(config)
        if self._rolling is not None:
            run(self._rolling.take(self._store, self._engine, call.place.thread))
        return self._store.run(self._get_tuple(call, config, channels))

    async def aget_tuple(
        self,
        config: RunnableConfig,
        *,
        channels: Sequence[str] | None = None,
        values: Literal["eager", "lazy"] = "eager",
    ) -> CheckpointTuple | None:
        """Async variant of `get_tuple`."""
        if values != "eager" and is_lazy(values) and channels is None:
            return await arun(one_lazily(self, config))
        call = arguments.load(config)
        if self._rolling is not None:
            await arun(self._rolling.take(self._store, self._engine, call.place.thread))
        # (decoding many values would block the event loop)
        is_quick = channels is None and load.is_hot(self._engine, call)
        run = self._store.arun_here if is_quick else self._store.arun
        return await run(self._get_tuple(call, config, channels))

    def _get_tuple(
        self, call: load.Load, config: RunnableConfig, channels: Sequence[str] | None = None
    ) -> Operation[CheckpointTuple | None]:
        if channels is None:
            loaded = yield from load.load(self._engine, call)
        else:
            names = validation.channels(channels)
            loaded = yield from load.part(self._engine, call, names)
        if loaded is None:
            return None
        if arguments.GUARD in config["configurable"]:
            follow_ids(loaded.id)
        return arguments.checkpoint_tuple(loaded, config)

    def _raw(self, config: RunnableConfig) -> Operation[CheckpointTuple | None]:
        """Return a checkpoint as it is stored, without your classes and migrations.

        In place of a value of your classes is a dict-like object with its stored fields,
        its class as `__class__`, and its shape as `__shape__` if it is not 1. Your code does not
        run, so this reads values that `get_tuple` cannot load. Otherwise as `get_tuple`.
        """
        call = arguments.load(config)
        engine = self._engine._replace(codec=PlainCodec(), shapes=AS_STORED)
        loaded = yield from on(self._store, load.part(engine, call))
        return None if loaded is None else arguments.checkpoint_tuple(loaded, config)

    raw, araw = sync_and_async(_raw)

    def _list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
        values: Literal["eager", "lazy"] = "eager",
    ) -> Iterator[Operation[Iterable[CheckpointTuple]]]:
        """Yield checkpoints, newest first, of the config's thread or (None) of all threads.

        Args:
            config: names the thread, and may name a namespace and a checkpoint.
            filter: metadata that a checkpoint must have.
            before: a config. Only checkpoints with a smaller id than its checkpoint are yielded.
            limit: the maximum number of checkpoints.
            values: "lazy" reads channel values and pending writes when they are first used:
                `channel_values` is a `threadkeep.threads.LazyValues`, `pending_writes` a
                `LazyWrites`. Those of `alist` never block: load them by
                `await channel_values.aload("name")` first.

        Raises:
            InvalidArgumentError: the limit, an id or `values` is invalid.
            CorruptionError: a checkpoint is damaged, and never skipped silently.
        """
        first = arguments.listing(config, filter, before, limit)
        at: listing.Listing | None = first._replace(lazy=is_lazy(values))

        def page(start: listing.Listing) -> Operation[Iterable[CheckpointTuple]]:
            nonlocal at
            if self._rolling is not None and start.thread is not None and start.after is None:
                yield from self._rolling.take(self._store, self._engine, start.thread)
            loaded, at = yield from on(self._store, listing.page(self._engine, start))
            found = map(arguments.checkpoint_tuple, loaded)
            return (yield from each_lazily(self, found)) if start.lazy else found

        while at is not None:
            yield page(at)

    list, alist = each_and_aeach(_list)

    def _get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Operation[Mapping[str, DeltaChannelHistory]]:
        """Return the writes that DeltaChannels are rebuilt from (see `BaseCheckpointSaver`)."""
        place, names = arguments.place(config), [*channels]
        if self._rolling is not None:
            yield from self._rolling.take(self._store, self._engine, place.thread)
        history: Operation[Any] = load.delta_history(self._engine, place, names)
        found: Mapping[str, DeltaChannelHistory] = yield from on(self._store, history)
        return found

    get_delta_channel_history, aget_delta_channel_history = sync_and_async(
        _get_delta_channel_history
    )

    # -- writing ---------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, durable on return. The config names its parent.

        Raises:
            InvalidConfigError: the config has no thread_id, or the checkpoint no id.
            InvalidArgumentError: a name, a version or the time cannot be stored.
            UnserializableError: a value could not be read back exactly.
            ConflictError: with `conflicts="raise"`, if another run advanced the thread.
            ThreadDeletedError: the thread was deleted while this run was under way.
        """
        call = arguments.put(config, checkpoint, metadata, new_versions)
        self._save(call)
        if self._rolling is not None:
            given = (config, checkpoint, metadata, new_versions)
            run(self._rolling.put(self._store, self._engine, call.place, *given))
        if self._gained is not None and self._gained.is_enough(call.place.thread):
            self._store.run(self._thinned(call.place.thread))
        return arguments.stored(call)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async variant of `put`."""
        call = arguments.put(config, checkpoint, metadata, new_versions)
        await self._asave(call)
        if self._rolling is not None:
            given = (config, checkpoint, metadata, new_versions)
            await arun(self._rolling.put(self._store, self._engine, call.place, *given))
        if self._gained is not None and self._gained.is_enough(call.place.thread):
            await self._store.arun(self._thinned(call.place.thread))
        return arguments.stored(call)

    def _save(self, call: SaveCall) -> None:
        """Commit a batch that can be built without reading. If that fails, run the operation."""
        place, built = call.place, put.build(self._engine, call)
        if built is None:
            self._store.run(put.save(self._engine, call))
            return
        try:
            self._store.commit(built.batch)
        except ThreadkeepError as error:
            self._store.run(put.save(self._engine, call, (built, error)))
        except BaseException:
            built.draft.failed()
            raise
        else:
            remember(self._engine, place, built)

    async def _asave(self, call: SaveCall) -> None:
        """Async variant of `_save`. Builds the batch before values can change."""
        place, built = call.place, put.build(self._engine, call)
        if built is None:
            await self._store.arun_here(put.save(self._engine, call))
            return
        try:
            waiting = self._store.submit(built.batch)
            if waiting is not None:
                await waiting
        except ThreadkeepError as error:
            await self._store.arun_here(put.save(self._engine, call, (built, error)))
        except BaseException:
            built.draft.failed()
            raise
        else:
            remember(self._engine, place, built)

    def _thinned(self, thread: str) -> Operation[None]:
        """Apply the retention to a thread. Failures are logged."""
        thin = partial(lazy.gc.thin, self._engine, thread, self._store.retention)
        return quietly(thread, thin)

    def _put_many(self, puts: Sequence[PutArguments]) -> Operation[Sequence[RunnableConfig]]:
        """Store many checkpoints at once, with the result of one `put` after the other.

        All arguments are checked before anything is stored. After a failure, some checkpoints may
        be stored. You can repeat the call.

        Args:
            puts: for each checkpoint the arguments of `put`: config, checkpoint, metadata,
                new_versions (or without new_versions: the checkpoint's own versions decide). A
                config may name an earlier checkpoint of this call as the parent.

        Returns:
            The config of each checkpoint, in order, with its id.

        Raises:
            ThreadkeepError: as `put`.
        """
        calls = arguments.puts(puts)
        apart = self._engine.apart()  # unstored states stay out of the working set
        lanes: dict[str, list[Operation[None]]] = {}
        for call in calls:
            lanes.setdefault(call.place.thread, []).append(put.save(apart, call))
        if (yield from on(self._store, together([*lanes.values()]))) is None:
            for call in calls:
                yield from on(self._store, put.save(self._engine, call))
        return [arguments.stored(call) for call in calls]

    put_many, aput_many = sync_and_async(_put_many)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's pending writes on the config's checkpoint, durable on return.

        Raises:
            InvalidConfigError: the config has no thread_id or no checkpoint_id.
            InvalidArgumentError: a name or an id is no text.
            UnserializableError, ConflictError, ThreadDeletedError: as `put`.
        """
        call = arguments.put_writes(config, writes, task_id, task_path)
        self._save(call)
        if self._rolling is not None:
            given = (config, writes, task_id, task_path)
            run(self._rolling.mirror(call.place.thread, "put_writes", *given))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Async variant of `put_writes`."""
        call = arguments.put_writes(config, writes, task_id, task_path)
        await self._asave(call)
        if self._rolling is not None:
            given = (config, writes, task_id, task_path)
            await arun(self._rolling.mirror(call.place.thread, "put_writes", *given))

    def streaming(
        self,
        config: RunnableConfig | str,
        *,
        interval: float = 3.0,
        max_pending: int = 5,
        max_bytes: int = 65536,
    ) -> Stream:
        """Return a stream of a thread, which saves the output that you pass to its `update`.

        Start and stop it by `with` or `async with`. Read saved output by `partial`. For streams of
        graphs use `threadkeep.streaming.astream_saved`.

        Args:
            config: the thread's id, or a config that names it.
            interval: seconds within which output is saved.
            max_pending: the number of saves to keep. The newest has all output.
            max_bytes: approximate size of output that is saved before the interval ends. Up to
                four times as much may wait for the store.

        Raises:
            InvalidArgumentError: an option is invalid.
            InvalidConfigError: the config has no thread_id.
        """
        from threadkeep.threads.stream import Stream  # noqa: PLC0415 - seldom needed

        return Stream(self, config, interval=interval, max_pending=max_pending, max_bytes=max_bytes)

    def _collect(self, progress: Progress) -> None:
        self.threads.gc(progress=progress)
        if self._store.tiering is not None and self._store.cold is not None:
            self.threads.tier(progress=progress)

    # -- the rest of the contract ----------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the version after `current`, of the same type. Thread-safe."""
        del channel
        if current is None and self._rolling is not None:
            current = NO_VERSION  # (LangGraph's savers cannot compare theirs with numbers)
        return versions.next_version(current)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Saver:
        """Return a saver that also loads these (module, name) classes, and shares all else."""
        allowed = validation.classes(extra_allowlist)
        clone = self._clones.get(allowed)
        if clone is None:
            clone = copy.copy(self)
            codec = self._engine.codec.with_allowlist(allowed)
            clone._engine = self._engine._replace(codec=codec)  # noqa: SLF001 - a clone
            clone._clones, clone._views = {}, {}  # noqa: SLF001 - a clone
            self._family.add(clone)
            if len(self._clones) >= _CLONES:
                self._clones.clear()
            self._clones[allowed] = clone
        return clone


def _tier(cold: str | None, keys: StoreKeys | None) -> TierLayer:
    if cold is None:
        return TierLayer()
    from threadkeep._stores.cold_store import ColdStore  # noqa: PLC0415 - seldom needed

    return TierLayer(ColdStore(cold, keys))


def _now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
