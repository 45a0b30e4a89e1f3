"""The newest checkpoints of another saver's threads, kept at hand as bytes.

Only what is kept lives here, and when it must not be. Invariants: only this process changes the
store (its user has said so); what was loaded while something of its thread changed is not kept;
each reader gets objects of its own; where nobody knows whether a change was made, nothing of
its thread is kept any more.
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
_MOST_DOUBTS = 10_000  # threads that are left alone, before all are
_OWN = {"thread_id", "checkpoint_ns", "checkpoint_id"}


class Look:
    """One read of a head: what is kept, or what was loaded."""

    __slots__ = ("_serde", "data", "found", "is_valid")

    def __init__(self, serde: SerializerProtocol, data: Frozen | None = None) -> None:
        self._serde = serde
        self.found = None if data is None else _load(serde, data)
        """What is kept; None where it has to be loaded."""
        self.data: Frozen | None = None
        """What is to be kept."""
        self.is_valid = True
        """Whether nothing has changed since this began."""

    def loaded(self, found: CheckpointTuple | None) -> CheckpointTuple | None:
        """Keep what was loaded, if it can be given back as it is; return it."""
        if found is not None and self.is_valid and _is_plain(found.config):
            self.data = _dump(self._serde, found)
        return found


class Heads:
    """Heads by thread, within the limits of a `Cache`; with none, nothing is kept."""

    def __init__(self, how: Cache | None) -> None:
        self._how = how
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()  # held for moments only
        self._off = self._how is None
        self._shelf: LruCache[dict[Key, Frozen]] = LruCache(self._how or Cache())
        self._looks: dict[str, set[Look]] = {}
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
    ) -> Iterator[Look]:
        """Read the head that a config names, or (if it names something else) only load.

        Args:
            config: names a thread.
            view: what else decides how a checkpoint is loaded.
            serde: turns checkpoints into bytes and back.
        """
        named = None if self._off else _named(config)
        if named is None:
            nothing = Look(serde)
            nothing.is_valid = False
            yield nothing
            return
        thread, key = named[0], (*named[1:], view)
        look = Look(serde, self._find(thread, key))
        with self._lock:
            self._looks.setdefault(thread, set()).add(look)
        try:
            yield look
        finally:
            self._end(thread, key, look)

    def _find(self, thread: str, key: Key) -> Frozen | None:
        with self._lock:
            self._shelf.trim()
            kept = self._shelf.get(thread)
            if kept is None or key not in kept:
                return None
            self._shelf.use(thread)
            return kept[key]

    def _end(self, thread: str, key: Key, look: Look) -> None:
        with self._lock:
            looks = self._looks.get(thread, set())
            looks.discard(look)
            if not looks:
                self._looks.pop(thread, None)
            if look.data is not None and look.is_valid and not self._is_doubted(thread):
                self._keep(thread, key, look.data)

    def _keep(self, thread: str, key: Key, data: Frozen) -> None:
        kept = self._shelf.get(thread)
        if kept is None:
            kept = self._shelf.put(thread, {})
        before = kept.get(key)
        kept[key] = data
        self._shelf.weigh(thread, data.size + _OVERHEAD)
        if before is not None:
            self._shelf.weigh(thread, -before.size - _OVERHEAD)
        self._shelf.use(thread)
        self._shelf.trim()

    def _is_doubted(self, thread: str) -> bool:
        return self._off or thread in self._doubts

    # -- what changes --------------------------------------------------------------------

    @contextmanager
    def changing(self, threads: Threads) -> Iterator[None]:
        """Something changes these threads (None: any): what was kept before is let go of."""
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
            if threads is None or len(self._doubts) > _MOST_DOUBTS:
                self._doubts.clear()
                self._off = True

    def changed(self, threads: Threads) -> None:
        """Let go of these threads, and of what is being loaded of them."""
        with self._lock:
            for thread in [None] if threads is None else threads:
                self._shelf.drop(thread)
            for thread in [*self._looks] if threads is None else threads:
                self._void(self._looks.get(thread, ()))

    @staticmethod
    def _void(looks: Collection[Look]) -> None:
        for look in looks:
            look.is_valid = False

    def clear(self, thread: str | None) -> None:
        """Let go of exactly this thread, or (None) of all."""
        self.changed(None if thread is None else [thread])

    @property
    def size(self) -> int:
        """About how many bytes are kept."""
        return self._shelf.size


def _named(config: RunnableConfig) -> tuple[str, type, str] | None:
    """The thread whose head a config names, the kind of its id, and the namespace."""
    configurable = config.get("configurable") or {}
    thread = configurable.get("thread_id")
    if thread is None or configurable.get("checkpoint_id"):
        return None
    return str(thread), type(thread), str(configurable.get("checkpoint_ns") or "")


def _is_plain(config: RunnableConfig) -> bool:
    """Whether it names the checkpoint and holds nothing of who asked."""
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
