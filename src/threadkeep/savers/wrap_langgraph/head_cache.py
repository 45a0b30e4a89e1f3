"""LRU cache of the newest checkpoints of another saver.

Invariants: only this process changes the store (its user has said so); a checkpoint that was loaded
while its thread changed is not cached; each reader gets objects of its own; after a change that may
or may not have been made, nothing of its thread is cached any more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core.lru import Lru
from threadkeep._core.policies.caching import ReadCache
from threadkeep._run.write_behind.commit_queue import Threads
from threadkeep._stores.process_forks import ResetInChild
from threadkeep.savers.wrap_langgraph.calls import Frozen, freeze, thaw

_MAX_DOUBTS = 10_000  # threads that are not cached any more, before none is
_COUNTERS = 1024  # of changes; threads share them
_OWN = {"thread_id", "checkpoint_ns", "checkpoint_id"}


class HeadKey(NamedTuple):
    """Key of a cached head: its thread, and what else decides what is loaded."""

    thread: str
    id_type: type
    ns: str
    allowed: frozenset[Any]


def head_key(config: RunnableConfig, allowed: frozenset[Any]) -> HeadKey | None:
    """Return the key of the head that a config names; None for any other checkpoint."""
    configurable = config.get("configurable") or {}
    thread = configurable.get("thread_id")
    if thread is None or configurable.get("checkpoint_id"):
        return None
    ns = str(configurable.get("checkpoint_ns") or "")
    return HeadKey(str(thread), type(thread), ns, allowed)


class HeadCache(ResetInChild):
    """Cache of heads by thread, as bytes; without limits (None), nothing is cached."""

    def __init__(self, how: ReadCache | None) -> None:
        self._how = how
        self._off = how is None
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()  # held for moments only
        how = self._how or ReadCache()
        self._threads: Lru[str, dict[HeadKey, Frozen]] = Lru(how.threads, how.bytes, how.ttl)
        self._changes = [0] * _COUNTERS
        self._doubts: set[str] = set()

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: a child is another process, whose writes nobody here sees."""
        super().after_fork(in_child=in_child)
        self._off = self._off or in_child

    def find(self, key: HeadKey | None, serde: SerializerProtocol) -> CheckpointTuple | None:
        """Return a head, in fresh objects; None if it has to be loaded."""
        if key is None or self._off:
            return None
        with self._lock:
            data = (self._threads.get(key.thread) or {}).get(key)
        return None if data is None else _loaded(serde, data)

    def changes(self, key: HeadKey | None) -> int:
        """Return a number that is another one after each change of the thread."""
        return 0 if key is None else self._changes[hash(key.thread) % _COUNTERS]

    def keep(
        self, key: HeadKey | None, found: CheckpointTuple, changes: int, serde: SerializerProtocol
    ) -> None:
        """Cache a loaded head, if the thread has not changed since `changes` was read."""
        if key is None or self._off or not _is_plain(found.config):
            return
        data = _dumped(serde, found)
        with self._lock:
            if data is None or changes != self.changes(key) or key.thread in self._doubts:
                return
            heads = self._threads.get(key.thread)
            if heads is None:
                heads = self._threads.put(key.thread, {})
            before = heads.get(key)
            heads[key] = data
            self._threads.weigh(key.thread, data.size - (before.size if before else 0))

    @contextmanager
    def changing(self, threads: Threads) -> Iterator[None]:
        """Evict these threads (None: all), which are about to change, when they have."""
        try:
            yield
        except NotImplementedError:  # nothing was begun
            raise
        except BaseException:  # also a cancelled call: it may still be made
            with self._lock:
                self._doubts |= set(threads or ())
                self._off = self._off or threads is None or len(self._doubts) > _MAX_DOUBTS
            raise
        finally:
            self.changed(threads)

    def changed(self, threads: Threads) -> None:
        """Evict these threads (None: all)."""
        with self._lock:
            for thread in [None] if threads is None else threads:
                self._threads.drop(thread)
                for at in range(_COUNTERS) if thread is None else [hash(thread) % _COUNTERS]:
                    self._changes[at] += 1

    @property
    def size(self) -> int:
        """About how many bytes are cached."""
        return self._threads.size


def _is_plain(config: RunnableConfig) -> bool:
    """Return True if the config names the checkpoint and holds nothing else."""
    return set(config) == {"configurable"} and set(config["configurable"]) <= _OWN


def _dumped(serde: SerializerProtocol, found: CheckpointTuple) -> Frozen | None:
    config, checkpoint, metadata, parent, writes = found
    values = checkpoint["channel_values"]
    names = None if writes is None else [(task, channel) for task, channel, _ in writes]
    rest = [config, {**checkpoint, "channel_values": {}}, metadata, parent, list(values), names]
    try:
        return freeze(serde, rest, [*values.values(), *(value for *_, value in writes or ())])
    except Exception:  # noqa: BLE001 - what cannot be serialized is loaded each time
        return None


def _loaded(serde: SerializerProtocol, data: Frozen) -> CheckpointTuple | None:
    try:
        rest, values = thaw(serde, data)
    except Exception:  # noqa: BLE001 - see above
        return None
    config, checkpoint, metadata, parent, channels, names = rest
    checkpoint["channel_values"] = dict(zip(channels, values, strict=False))
    writes = None
    if names is not None:
        written = zip(names, values[len(channels) :], strict=True)
        writes = [(task, channel, value) for (task, channel), value in written]
    return CheckpointTuple(config, checkpoint, metadata, parent, writes)
