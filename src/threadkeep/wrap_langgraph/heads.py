"""Cache of the newest checkpoints of another saver's threads, as bytes.

Invariants: only this process changes the store (its user has said so); a checkpoint that was loaded
while its thread changed is not cached; each reader gets objects of its own; after a change that may
or may not have been made, nothing of its thread is cached any more.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep.backends import process_forks
from threadkeep.cache.lru import (
    Cache,
    LruCache,
)
from threadkeep.wrap_langgraph.calls import (
    Frozen,
    freeze,
    thaw,
)
from threadkeep.write_behind.commit_queue import Threads

Key: TypeAlias = tuple[Any, ...]

_OVERHEAD = 500  # bytes that a checkpoint takes beside its own, about
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
