"""Threads of LangGraph's own saver that are taken over when they are used.

Programs on LangGraph's saver and on threadkeep may run at the same time. A read of a thread first
asks LangGraph's tables whether the thread has changed there, and copies the checkpoints that are
missing here. Each process asks for itself: if one is killed while it copies, the next one completes
the copy before it reads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver

from threadkeep._core.codec import Codec
from threadkeep._core.codec.format import describe
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.operation import CheckpointRef, Operation, fetch
from threadkeep._core.engine.thread_entry import ReadEntry, ThreadEntry, is_taken, is_there
from threadkeep._core.langgraph_internals import DELTA_COUNTERS
from threadkeep._core.lru import Lru
from threadkeep._run.driver import external, on, sync_or_async
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.process_forks import WatchedMethods, running_loop, watch
from threadkeep.errors import (
    BackendError,
    ClosedError,
    InvalidArgumentError,
    ThreadkeepError,
)
from threadkeep.keys import KeyRing
from threadkeep.threads import lazy
from threadkeep.threads.retention.apply import delete_thread
from threadkeep.threads.transfer.opening import SharedSource, open_source, open_writer
from threadkeep.threads.transfer.sources import LangGraphSource, SourceState
from threadkeep.threads.transfer.target import is_left

_UNKNOWN = SourceState(-1, -1, None)
_MOST = 10_000  # threads whose state there is remembered
_PATIENCE = 300.0  # seconds for another caller's copy, which may have been abandoned
_REMAINS = "LangGraph's tables, which migrate_from= names, hold {}: delete them there, too."
_FILES = (
    "Free space in the files of LangGraph's database: VACUUM it. A run that is under way may store"
    " its thread there again: then erase it again."
)
_VANISHED = (
    "Thread %r was deleted in LangGraph's tables after it was copied from there. It stays here:"
    " delete it here, too, or use migrate_deletions=True."
)
_DELETED = "Thread %r was deleted in LangGraph's tables: it is deleted here, too."
_log = logging.getLogger("threadkeep")


@dataclass(slots=True)
class _Level:
    """A thread's state there as of the last look, and the writes of this process since.

    `heads` are the newest checkpoints that are known to be there, by namespace.
    """

    state: SourceState
    heads: dict[str, str]
    checkpoints: int = 0
    writes: int = 0

    def explains(self, now: SourceState) -> bool:
        """True if no other process has changed the thread there."""
        checkpoints, writes, replaced = self.state
        return now == (checkpoints + self.checkpoints, writes + self.writes, replaced)


class Rolling(WatchedMethods):
    """Takes threads over from a store of LangGraph's (see the option `migrate_from`).

    With `mirrors`, LangGraph's own saver also writes each save there. With `deletes`, threads that
    were deleted there are deleted here.

    Raises:
        InvalidArgumentError: it would write plain values of an encrypted store.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BaseCheckpointSaver[Any],
        codec: Codec,
        ring: KeyRing | None,
        *,
        mirrors: bool = False,
        deletes: bool = False,
    ) -> None:
        if mirrors and ring is not None and not isinstance(source, BaseCheckpointSaver):
            raise InvalidArgumentError(
                "mirror_back= would write plain values into LangGraph's tables.",
                hint="Give the saver in migrate_from=, with its EncryptedSerializer, or with none.",
            )
        self._source, self._codec, self._ring, self._mirrors = source, codec, ring, mirrors
        self._deletes = deletes
        self._memory = threading.Lock()  # of `_known`, never held for long
        self._asked = self._shared()  # (its lock is held while a connection is used)
        self._writer: BaseCheckpointSaver[Any] | None = None
        self._opened = ExitStack()
        self._known: Lru[str, _Level] = Lru(_MOST)
        self._own: Lru[tuple[str, str], str] = Lru(_MOST)  # written last, by thread and namespace
        self._copying: dict[str, Future[None]] = {}  # by thread
        self._is_closed = False
        self._parents: list[Any] = []  # connections of this process' parent
        watch(self)

    def open(self) -> None:
        """Connect to LangGraph's store, else its first use does.

        Raises:
            OpenError: it cannot be opened, or has no tables of LangGraph's.
        """
        self._asked.read(lambda _: None)

    def take(self, store: LayeredBackend, engine: Engine, thread: str) -> Operation[None]:
        """Copy the checkpoints of a thread that only LangGraph's store has.

        A thread that both have continued stays as it is here. A warning names it.

        Raises:
            ThreadkeepError: a value there cannot be read, or a store failed.
        """
        while True:
            state, heads = yield from external(partial(self._look, thread))
            if state is None:
                return
            own: Future[None] = Future()
            other = self._copying.setdefault(thread, own)
            if other is own:
                break
            # (a long thread is copied once, however many ask for it)
            yield from sync_or_async(partial(_wait, other), partial(_await, other))
            if not other.done():
                self._copying.pop(thread, None)
        try:
            yield from self._copy(store, engine, thread, state, heads)
        finally:
            self._copying.pop(thread, None)
            own.set_result(None)

    def _copy(
        self,
        store: LayeredBackend,
        engine: Engine,
        thread: str,
        state: SourceState,
        heads: dict[str, str],
    ) -> Operation[None]:
        if not state.checkpoints:
            yield from self._vanished(store, engine, thread, was_there=bool(heads))
            heads = {}
        else:
            source = yield from external(partial(self._open, engine.codec))
            with closing(source):
                reason, heads = yield from lazy.adopt.take(
                    store, engine, source, thread, heads, merges=self._mirrors
                )
            if reason is not None:
                _log.warning(
                    "Thread %r was continued here and by LangGraph's saver. It stays as it is here;"
                    " to resolve it, use threads.adopt with as_fork= or replace=.",
                    thread,
                )
        with self._memory:
            self._known.put(thread, _Level(state, heads))

    def _vanished(
        self, store: LayeredBackend, engine: Engine, thread: str, *, was_there: bool
    ) -> Operation[None]:
        """Report a thread that was there and is here alone, or delete it here, too."""
        entry: ThreadEntry | None = yield from on(store, fetch(ReadEntry(thread)))
        if not is_there(entry):
            return
        place = yield from external(partial(self._asked.read, lambda source: source.place))
        deletes = self._deletes and (was_there or is_taken(entry.labels, thread, place, exact=True))
        if deletes:
            yield from on(store, delete_thread(engine, thread))
        if deletes or was_there or is_taken(entry.labels, thread, place, exact=False):
            _log.warning(_DELETED if deletes else _VANISHED, thread)

    def mirror(self, thread: str, method: str, *given: Any) -> Operation[None]:
        """Call a method of LangGraph's saver on its store, if saves are written there, too.

        A failure is logged, as the save is durable here.
        """
        ns = given[0]["configurable"].get("checkpoint_ns", "") if method != "delete_thread" else ""
        if self._mirrors and is_left(ns):
            write = external(partial(self._write, thread, method, given))
            yield from self._logged(thread, write)

    def put(
        self, store: LayeredBackend, engine: Engine, place: CheckpointRef, *given: Any
    ) -> Operation[None]:
        """Write a checkpoint into LangGraph's store, too, as `mirror` does.

        LangGraph stores values apart from checkpoints, unchanged ones and those of DeltaChannels
        with ancestors alone. If the parent may be missing there, as in a fork, all ancestors that
        are missing are written, too.
        """
        if not (self._mirrors and is_left(place.ns)):
            return
        config, checkpoint, metadata, _ = given
        if self._has_parent(place, config, metadata):
            write = external(partial(self._write, place.thread, "put", given))
        else:
            write = self._bring(store, engine, place)
        yield from self._logged(place.thread, _unless_numeric(checkpoint, write))

    def _has_parent(self, place: CheckpointRef, config: Any, metadata: Any) -> bool:
        parent = config["configurable"].get("checkpoint_id")
        with self._memory:
            known = self._known.get(place.thread)
            own = self._own.get((place.thread, place.ns))
        if parent is None:
            return True
        if known is None or known.heads.get(place.ns) != parent:
            return False
        # (another process may have been killed before it wrote the parent's writes there)
        return own == parent or DELTA_COUNTERS not in metadata

    def _bring(
        self, store: LayeredBackend, engine: Engine, place: CheckpointRef
    ) -> Operation[None]:
        writer = yield from external(self._writing)
        source = yield from external(partial(self._open, engine.codec))
        with closing(source):
            yield from lazy.leave.bring(store, engine, source, writer, place)
        with self._memory:
            known = self._known.get(place.thread)
            heads = {**({} if known is None else known.heads), place.ns: str(place.id)}
            self._known.put(place.thread, _Level(_UNKNOWN, heads))
            self._own.put((place.thread, place.ns), str(place.id))

    def _logged(self, thread: str, write: Operation[None]) -> Operation[None]:
        try:
            yield from write
        except Exception:  # noqa: BLE001 - whatever that saver raises
            with self._memory:
                if (known := self._known.get(thread)) is not None:
                    known.heads.clear()  # (so the next save also writes this one)
            _log.exception(
                "Thread %r could not be written into LangGraph's tables. threads.leave writes the"
                " checkpoints that they lack.",
                thread,
            )

    def holds(self, thread: str) -> Operation[bool]:
        """Return True if LangGraph's store has anything of a thread."""
        state = yield from external(partial(self._state, thread))
        return any(state)

    def erase(self, threads: Sequence[str]) -> Operation[ScrubReport]:
        """Delete threads in LangGraph's store, if saves are written there, too, else report them.

        Raises:
            BackendError: LangGraph's saver failed.
        """
        left = []
        for name in threads:
            left += [name] if (yield from self.holds(name)) else []
        if left and not self._mirrors:
            return ScrubReport(remains=(_REMAINS.format(", ".join(left)),))
        for name in left:
            try:
                yield from external(partial(self._write, name, "delete_thread", (name,)))
            except ThreadkeepError:
                raise
            except Exception as error:
                raise BackendError(f"LangGraph's saver failed: {describe(error)}.") from error
        return ScrubReport(("LangGraph's tables",), (_FILES,) if left else ())

    def _state(self, thread: str) -> SourceState:
        return self._asked.read(lambda source: source.state(thread))

    def _look(self, thread: str) -> tuple[SourceState | None, dict[str, str]]:
        """Return the state of a thread there, or None if this process knows all of it.

        Also its heads as of the last look.
        """
        state = self._state(thread)
        with self._memory:
            known = self._known.get(thread)
            heads = {} if known is None else known.heads
            if known is None or not known.explains(state):
                return state, heads
            self._known.put(thread, _Level(state, heads))
            return None, heads

    def _writing(self) -> BaseCheckpointSaver[Any]:
        with self._asked.lock:
            if self._writer is None:
                serde = getattr(self._source, "serde", None)
                self._writer = open_writer(self._source, serde, self._opened, shared=True)
            return self._writer

    def _write(self, thread: str, method: str, given: Sequence[Any]) -> None:
        writer = self._writing()
        with self._memory:
            known = self._known.get(thread)
        getattr(writer, method)(*given)
        if known is None:
            return
        plain, now = 0, None
        if method == "put_writes":
            plain = sum([name not in WRITES_IDX_MAP for name, _ in given[1]])
            now = self._state(thread) if plain < len(given[1]) else None
        with self._memory:
            known.writes += plain
            if now is not None:
                known.state = known.state._replace(replaced=now.replaced)
            if method == "put":
                ns = given[0]["configurable"].get("checkpoint_ns", "")
                known.checkpoints += 1
                known.heads[ns] = given[1]["id"]
                self._own.put((thread, ns), given[1]["id"])

    def _open(self, codec: Codec) -> LangGraphSource:
        if self._is_closed:
            raise ClosedError(hint="Open another saver.")
        return open_source(self._source, codec, None, self._ring)

    def _shared(self) -> SharedSource[LangGraphSource]:
        # (a server that has restarted may answer with any error)
        return SharedSource(lambda: self._open(self._codec), BackendError)

    def before_fork(self) -> None:
        self._asked.lock.acquire()
        self._memory.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """The child opens connections of its own."""
        lock = self._asked.lock
        if in_child:
            self._parents.append((self._asked, self._opened))  # (collecting them would close them)
            self._asked, self._writer, self._opened = self._shared(), None, ExitStack()
            self._copying = {}
        self._memory.release()
        lock.release()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        with self._asked.lock:
            self._is_closed = True
            self._asked.forget()
            self._writer = None
            self._opened.close()


def _wait(other: Future[None]) -> None:
    if running_loop() is None:  # (else the other caller may need this thread)
        wait([other], _PATIENCE)


async def _await(other: Future[None]) -> None:
    await asyncio.wait([asyncio.wrap_future(other)], timeout=_PATIENCE)


def _unless_numeric(checkpoint: Any, write: Operation[None]) -> Operation[None]:
    if not all(isinstance(one, str) for one in checkpoint["channel_versions"].values()):
        hint = "Only threads that were begun with migrate_from= can be continued there."
        raise InvalidArgumentError("LangGraph's savers do not compare numeric versions.", hint=hint)
    yield from write
