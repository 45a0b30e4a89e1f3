"""Queued calls to another saver, and a cache of its newest checkpoints, with values as bytes.

Each value is serialized by itself: LangGraph's serializer keeps a `bytearray` alone, and not
within another value. Calls of a thread are made in order; one that fails keeps those behind it
queued.

Of the cache: only this process changes the store (its user has said so); a checkpoint that was
loaded while its thread changed is not cached; each reader gets objects of its own; after a change
that may or may not have been made, nothing of its thread is cached any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep import arguments
from threadkeep.backends import process_forks
from threadkeep.cache.lru import (
    Cache,
    LruCache,
)
from threadkeep.errors import BackendError, InvalidArgumentError, ThreadkeepError
from threadkeep.write_behind.commit_queue import Outcome, Threads

Typed: TypeAlias = tuple[str, bytes]


class Frozen(NamedTuple):
    """A value, and the values that belong into it, as bytes."""

    rest: Typed
    values: tuple[Typed, ...]

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(len(data) for _, data in (self.rest, *self.values))


def freeze(serde: SerializerProtocol, rest: Any, values: Sequence[Any]) -> Frozen:
    """Serialize. Raises what the serializer raises."""
    return Frozen(serde.dumps_typed(rest), tuple(serde.dumps_typed(value) for value in values))


def thaw(serde: SerializerProtocol, frozen: Frozen) -> tuple[Any, list[Any]]:
    """Load fresh objects."""
    return serde.loads_typed(frozen.rest), [serde.loads_typed(value) for value in frozen.values]


AnySaver: TypeAlias = BaseCheckpointSaver[Any]

_OVERHEAD = 500  # bytes that a call takes beside its values, about
_LOOK = 0.5  # seconds after which it is looked whether a loop still runs


class SaverLoop:
    """The event loop that a saver's calls must be made in, if there is one."""

    def __init__(self, saver: AnySaver) -> None:
        loop = getattr(saver, "loop", None)  # as LangGraph's own async savers call it
        self._loop = loop if isinstance(loop, asyncio.AbstractEventLoop) else None
        self._is_async = type(saver).put is BaseCheckpointSaver.put

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop; None if blocking methods can be called, in any thread."""
        return self._loop

    def note(self) -> None:
        """Note the running loop, if the saver can only be awaited."""
        if self._is_async:
            self._loop = asyncio.get_running_loop()

    def refuse_here(self) -> None:
        """Refuse to block the loop that has to make the calls.

        Raises:
            InvalidArgumentError: this is that thread.
        """
        if self._loop is not None and _running() is self._loop:
            raise InvalidArgumentError(
                "Queued saves are stored by the event loop that this call would block.",
                hint="Use the async methods there: await aflush(), aget_tuple(), aclose(), ...",
            )


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@dataclass(frozen=True, slots=True)
class Call:
    """One `put` or `put_writes`, whose values are bytes."""

    saver: AnySaver
    name: str
    config: RunnableConfig
    data: Frozen
    rest: tuple[Any, ...]

    @property
    def thread(self) -> str:
        """The thread of the call."""
        return str(self.config["configurable"]["thread_id"])

    @property
    def size(self) -> int:
        """About how many bytes the call takes."""
        return self.data.size + _OVERHEAD

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments, as fresh objects."""
        given, values = thaw(self.saver.serde, self.data)
        channels, *rest = self.rest
        named = list(zip(channels, values, strict=True))
        if self.name == "put_writes":
            return (self.config, named, *rest)
        checkpoint, metadata = given
        return (self.config, {**checkpoint, "channel_values": dict(named)}, metadata, *rest)


def put(
    saver: AnySaver,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> tuple[Call, RunnableConfig]:
    """Return a `put` to be queued, and its result.

    Raises:
        InvalidConfigError: the config has no thread_id.
        Exception: whatever the saver's `serde` raises for a value that it cannot take.
    """
    place = arguments.place(config)
    thread = config["configurable"]["thread_id"]
    ids = {"thread_id": thread, "checkpoint_ns": place.ns, "checkpoint_id": checkpoint["id"]}
    values = dict(checkpoint["channel_values"])
    rest = [{**checkpoint, "channel_values": {}}, dict(metadata)]
    data = freeze(saver.serde, rest, list(values.values()))
    more = (list(values), dict(new_versions or {}))
    return Call(saver, "put", _snapshot(config), data, more), {"configurable": ids}


def put_writes(
    saver: AnySaver,
    config: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> Call:
    """Return a `put_writes` to be queued. Raises as `put`.

    Raises:
        InvalidConfigError: the config names no checkpoint.
        InvalidArgumentError: the task's id or a channel's name is no text.
    """
    given = arguments.put_writes(config, writes, task_id, task_path)
    data = freeze(saver.serde, None, [value for _, value in given.writes])
    channels = [channel for channel, _ in given.writes]
    return Call(saver, "put_writes", _snapshot(config), data, (channels, task_id, task_path))


def _snapshot(config: RunnableConfig) -> RunnableConfig:
    """Return the config with copies of the containers that savers read."""
    configurable = {"checkpoint_ns": "", **config["configurable"]}
    copied: RunnableConfig = {**config, "configurable": configurable}
    if copied.get("metadata"):
        copied["metadata"] = dict(copied["metadata"])
    return copied


class CallSink:
    """Makes queued calls. See `Sink`.

    Args:
        home: the event loop to make them in.
        changed: called with the thread just before a call is queued.
    """

    together = False

    def __init__(self, home: SaverLoop, changed: Callable[[str], None]) -> None:
        self._home = home
        self._changed = changed

    def size(self, call: Call) -> int:
        """See `Sink.size`."""
        return call.size

    def admit(self, call: Call) -> Call:
        """See `Sink.admit`."""
        self._changed(call.thread)
        return call

    def lost(self, thread: str, items: Sequence[Call], *, deleted: bool) -> None:
        """See `Sink.lost`."""

    def store(self, items: Mapping[str, Sequence[Call]]) -> Mapping[str, Outcome]:
        """See `Sink.store`."""
        return {thread: self._each(thread, calls) for thread, calls in items.items()}

    def _each(self, thread: str, calls: Sequence[Call]) -> Outcome:
        for done, call in enumerate(calls):
            try:
                self._carry_out(call)
            except Exception as error:  # noqa: BLE001 - whatever another saver raises, it is told
                return Outcome(done, _failure(thread, call, error))
        return Outcome(len(calls))

    def _carry_out(self, call: Call) -> None:
        loop, arguments = self._home.loop, call.arguments()
        if loop is None:
            getattr(call.saver, call.name)(*arguments)
        else:
            awaiting = getattr(call.saver, f"a{call.name}")
            _in_loop(loop, lambda: awaiting(*arguments))


def _in_loop(
    loop: asyncio.AbstractEventLoop, begin: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    """Run a coroutine in a loop that another thread runs."""
    if not loop.is_running():
        raise _ended()
    future = asyncio.run_coroutine_threadsafe(begin(), loop)
    while not wait([future], _LOOK).done:
        if not loop.is_running():
            raise _ended()
    future.result()


def _ended() -> BackendError:
    return BackendError(
        "The event loop of the saver is not running.",
        hint="Call aclose() or aflush() before it ends: queued saves cannot be stored now.",
    )


def _failure(thread: str, call: Call, cause: Exception) -> ThreadkeepError:
    """Return the error of a failed call, to be raised at the next one."""
    if isinstance(cause, ThreadkeepError):
        return cause.at(thread=thread)
    what = f"{type(call.saver).__name__}.{call.name} failed: {type(cause).__name__}: {cause}"
    error = BackendError(
        what,
        hint="The save is kept, and retried with those behind it; delete_thread drops it.",
        thread=thread,
    )
    error.__cause__ = cause
    return error


Key: TypeAlias = tuple[Any, ...]

_MAX_DOUBTS = 10_000  # threads that are not cached any more, before none is
_OWN = {"thread_id", "checkpoint_ns", "checkpoint_id"}


class Lookup:
    """One read of a head: from the cache, or loaded."""

    __slots__ = ("_serde", "data", "found", "is_valid")

    def __init__(self, serde: SerializerProtocol, data: Frozen | None = None) -> None:
        self._serde = serde
        self.found = None if data is None else _load(serde, data)
        """The cached checkpoint; None if it has to be loaded."""
        self.data: Frozen | None = None
        """The checkpoint to cache."""
        self.is_valid = True
        """False once the thread has changed since this began."""

    def loaded(self, found: CheckpointTuple | None) -> CheckpointTuple | None:
        """Cache a loaded checkpoint, if it can be returned again as it is; return it."""
        if found is not None and self.is_valid and _is_plain(found.config):
            self.data = _dump(self._serde, found)
        return found


class HeadCache:
    """Cache of heads by thread; without limits (None), nothing is cached."""

    def __init__(self, how: Cache | None) -> None:
        self._how = how
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()  # held for moments only
        self._off = self._how is None
        self._threads: LruCache[dict[Key, Frozen]] = LruCache(self._how or Cache())
        self._lookups: dict[str, set[Lookup]] = {}
        self._doubts: set[str] = set()

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: a child is another process, whose writes nobody here sees."""
        if in_child:
            self._start()
            self._off = True

    @contextmanager
    def look(
        self, config: RunnableConfig, view: object, serde: SerializerProtocol
    ) -> Iterator[Lookup]:
        """Look up the head that a config names; anything else is loaded.

        Args:
            config: names a thread.
            view: further key of the cached checkpoint: what else decides how it is loaded.
            serde: turns checkpoints into bytes and back.
        """
        named = None if self._off else _named(config)
        if named is None:
            nothing = Lookup(serde)
            nothing.is_valid = False
            yield nothing
            return
        thread, key = named[0], (*named[1:], view)
        look = Lookup(serde, self._find(thread, key))
        with self._lock:
            self._lookups.setdefault(thread, set()).add(look)
        try:
            yield look
        finally:
            self._end(thread, key, look)

    def _find(self, thread: str, key: Key) -> Frozen | None:
        with self._lock:
            self._threads.trim()
            kept = self._threads.get(thread)
            if kept is None or key not in kept:
                return None
            self._threads.use(thread)
            return kept[key]

    def _end(self, thread: str, key: Key, look: Lookup) -> None:
        with self._lock:
            looks = self._lookups.get(thread, set())
            looks.discard(look)
            if not looks:
                self._lookups.pop(thread, None)
            if look.data is not None and look.is_valid and not self._is_doubted(thread):
                self._keep(thread, key, look.data)

    def _keep(self, thread: str, key: Key, data: Frozen) -> None:
        kept = self._threads.get(thread)
        if kept is None:
            kept = self._threads.put(thread, {})
        before = kept.get(key)
        kept[key] = data
        self._threads.weigh(thread, data.size + _OVERHEAD)
        if before is not None:
            self._threads.weigh(thread, -before.size - _OVERHEAD)
        self._threads.use(thread)
        self._threads.trim()

    def _is_doubted(self, thread: str) -> bool:
        return self._off or thread in self._doubts

    # -- what changes --------------------------------------------------------------------

    @contextmanager
    def changing(self, threads: Threads) -> Iterator[None]:
        """Evict these threads (None: all), which are about to change, when they have."""
        try:
            yield
        except NotImplementedError:  # nothing was begun
            raise
        except BaseException:  # also a cancelled call: it may still be carried out
            self._doubt(threads)
            raise
        finally:
            self.changed(threads)

    def _doubt(self, threads: Threads) -> None:
        with self._lock:
            self._doubts |= set(threads or ())
            if threads is None or len(self._doubts) > _MAX_DOUBTS:
                self._doubts.clear()
                self._off = True

    def changed(self, threads: Threads) -> None:
        """Evict these threads; lookups under way will not be cached."""
        with self._lock:
            for thread in [None] if threads is None else threads:
                self._threads.drop(thread)
            for thread in [*self._lookups] if threads is None else threads:
                self._void(self._lookups.get(thread, ()))

    @staticmethod
    def _void(looks: Collection[Lookup]) -> None:
        for look in looks:
            look.is_valid = False

    def clear(self, thread: str | None) -> None:
        """Evict a thread, or (None) all."""
        self.changed(None if thread is None else [thread])

    @property
    def size(self) -> int:
        """About how many bytes are cached."""
        return self._threads.size


def _named(config: RunnableConfig) -> tuple[str, type, str] | None:
    """Return the thread whose head a config names, the type of its id, and the namespace."""
    configurable = config.get("configurable") or {}
    thread = configurable.get("thread_id")
    if thread is None or configurable.get("checkpoint_id"):
        return None
    return str(thread), type(thread), str(configurable.get("checkpoint_ns") or "")


def _is_plain(config: RunnableConfig) -> bool:
    """Return True if the config names the checkpoint and holds nothing else."""
    return set(config) == {"configurable"} and set(config["configurable"]) <= _OWN


def _dump(serde: SerializerProtocol, found: CheckpointTuple) -> Frozen | None:
    config, checkpoint, metadata, parent, writes = found
    values = checkpoint["channel_values"]
    names = None if writes is None else [(task, channel) for task, channel, _ in writes]
    rest = [config, {**checkpoint, "channel_values": {}}, metadata, parent, list(values), names]
    try:
        return freeze(serde, rest, [*values.values(), *(value for *_, value in writes or ())])
    except Exception:  # noqa: BLE001 - what cannot be kept is loaded each time
        return None


def _load(serde: SerializerProtocol, data: Frozen) -> CheckpointTuple | None:
    try:
        rest, values = thaw(serde, data)
    except Exception:  # noqa: BLE001 - what cannot be kept is loaded each time
        return None
    config, checkpoint, metadata, parent, channels, names = rest
    checkpoint["channel_values"] = dict(zip(channels, values, strict=False))
    pending = None
    if names is not None:
        wrote = zip(names, values[len(channels) :], strict=True)
        pending = [(task, channel, value) for (task, channel), value in wrote]
    return CheckpointTuple(config, checkpoint, metadata, parent, pending)
