"""Builders of records, the base class of the contract's parts, and `BlockingBackend`."""
# ruff: noqa: S101 - tests are made of asserts

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from threadkeep._core.engine.model import (
    Batch,
    CheckpointRow,
    DropThread,
    FindThreads,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
    Segment,
    Span,
    StoredCheckpoint,
    ThreadRows,
    ThreadState,
    WriteRow,
)
from threadkeep._core.engine.rule_reads import ReadHead
from threadkeep._core.engine.thread_entry import CountThreads, ReadEntry, ThreadEntry, ThreadQuery
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._stores.base import Backend
from threadkeep._stores.database import AsyncDatabase, Database
from threadkeep._stores.records import new_tip

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
    from pathlib import Path

    from threadkeep._core.engine.heads import Head, Move
    from threadkeep._core.engine.model import Change, Read
    from threadkeep._stores.base import AsyncBackend, Backend, ScrubReport
    from threadkeep.errors import ThreadkeepError


_T = TypeVar("_T")


class BlockingBackend(Backend):
    """Blocking front of an `AsyncBackend`, which runs on an event loop in a thread.

    Args:
        make: opens the backend, awaited on that loop.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, AsyncBackend]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.backend = self._run(make())

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        return self._run(self.backend.fetch(reads))

    def commit(self, change: Change) -> None:
        self._run(self.backend.commit(change))

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        return self._run(self.backend.commit_many(changes))

    def make(self, moves: Sequence[Move]) -> list[Head | None]:
        """Make moves, if the backend is a `Database`."""
        return self._run(cast("AsyncDatabase", self.backend).make(moves))

    def scrub(self, *, rewrite: bool) -> ScrubReport:
        return self._run(self.backend.scrub(rewrite=rewrite))

    def close(self) -> None:
        """The loop keeps running, so that later calls are refused."""
        self._run(self.backend.close())

    def stop(self) -> None:
        """Stop the loop. Later calls are not possible."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


THREAD = "thread-1"
NOW = 1_763_000_000_000_000  # microseconds since 1970


def linked(*base: int) -> Link:
    """A link to commits with these tips."""
    link = Link(Proof(0, 0, set(base)))
    link.tie(new_tip())  # (again where a writer sends the change)
    return link


def uid(number: int) -> str:
    """A checkpoint id as LangGraph makes it: a UUID. A greater number sorts later."""
    return str(uuid.UUID(int=number << 64))


def checkpoint(number: int, parent: int | str | None = None, **fields: Any) -> CheckpointRow:
    """A checkpoint of id `uid(number)`. Its keyframe is at log 1, position 0."""
    row: dict[str, Any] = {
        "ns": "",
        "id": uid(number),
        "parent": uid(parent) if isinstance(parent, int) else parent,
        "run": 0,
        "seen": 0,
        "flags": 0,
        "ts": NOW + number,
        "metadata": f'{{"source": "loop", "step": {number}}}',
        "exact": None,
        "key_log": 1,
        "key_pos": 0,
        "manifest": b"manifest %d" % number,
    }
    return CheckpointRow(**{**row, **fields})


def write(number: int, **fields: Any) -> WriteRow:
    """A write on the checkpoint `uid(number)`."""
    row: dict[str, Any] = {
        "ns": "",
        "checkpoint_id": uid(number),
        "run": 0,
        "seen": 0,
        "task_id": uid(1_000_000 + number),
        "task_path": "~__pregel_pull, agent",
        "body": b"body %d" % number,
    }
    return WriteRow(**{**row, **fields})


def segment(start: int, count: int = 1, *, log: int = 1, data: bytes = b"") -> Segment:
    """A segment. Its bytes name its position unless `data` is given."""
    return Segment(log, start, count, data or b"%d/%d+%d" % (log, start, count))


def _with_promise(test: Callable[..., None]) -> Callable[..., None]:
    """Return a test whose failures name the promise that the backend breaks: its docstring."""
    promise = inspect.cleandoc(test.__doc__ or "")

    @wraps(test)
    def run(*args: Any, **options: Any) -> None:
        try:
            test(*args, **options)
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"The backend breaks this promise of the contract: {promise}")
            raise

    return run


class Contract:
    """Base class of the contract: an empty backend, and shortcuts for reads and changes."""

    backend: Backend

    def __init_subclass__(cls) -> None:
        """Let failures of the contract's own tests name the promise."""
        super().__init_subclass__()
        if cls.__module__.startswith("threadkeep.testing."):
            for name, test in list(vars(cls).items()):
                if name.startswith("test_"):
                    setattr(cls, name, _with_promise(test))

    overhead = 0
    """Bytes that the store adds to each segment, as its sizes count them."""

    own_writes = 0
    """Writes that the store keeps for itself, and that `ReadUsage` may count."""

    def new_backend(self, folder: Path) -> Backend:
        """Open a new, empty store. `folder` is an empty folder of this test's own."""
        raise NotImplementedError

    def reopen(self, folder: Path) -> Backend | None:
        """Open the store of `new_backend(folder)` again, or None if `close` discards it."""
        del folder
        return None

    @pytest.fixture(autouse=True)
    def _backend(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        self.backend = self.new_backend(tmp_path)
        yield
        self.backend.close()
        if isinstance(self.backend, BlockingBackend):
            self.backend.stop()

    def start_again(self) -> None:
        """Close the backend and open its store again. Skip the test if `close` discards it."""
        self.backend.close()
        again = self.reopen(self.folder)
        if again is None:
            pytest.skip("this backend stores nothing beyond `close`")
        self.backend = again

    # -- changes ---------------------------------------------------------------------

    def commit(self, change: Change) -> None:
        """Commit a change."""
        self.backend.commit(change)

    def put(self, *, thread: str = THREAD, now: int = NOW, **rows: Any) -> None:
        """Commit a batch of these rows."""
        self.commit(Batch(thread, now, **rows))

    def drop(self, thread: str = THREAD, now: int = NOW, **fields: Any) -> None:
        """Drop a thread."""
        self.commit(DropThread(thread, now, **fields))

    def refuses(self, change: Change, error: type[Exception], *, thread: str = THREAD) -> None:
        """Check that the change raises this error and leaves the thread unchanged."""
        before, data = self.rows(thread), self.everything(thread)
        try:
            self.commit(change)
        except error:
            pass
        else:
            pytest.fail(f"This change must raise {error.__name__}, but was made: {change}")
        told = "The backend refused a change and made a part of it; undo all of it"
        assert self.rows(thread) == before, told
        assert self.everything(thread) == data, told

    @property
    def database(self) -> Database:
        """The backend, skips the test if it makes no moves."""
        front = self.backend
        below = front.backend if isinstance(front, BlockingBackend) else front
        if not isinstance(below, Database | AsyncDatabase):
            pytest.skip("this backend is no database")
        return cast("Database", front)

    def make(self, *moves: Move) -> list[Head | None]:
        """Make moves."""
        return self.database.make(moves)

    # -- reads -----------------------------------------------------------------------

    def one(self, read: Any) -> Any:
        """The reply to a single read."""
        replies = self.backend.fetch([read])
        told = f"`fetch` must return a list of one reply for each read, not {replies!r}"
        assert isinstance(replies, list), told
        assert len(replies) == 1, told
        return replies[0]

    def state(
        self, number: int | None = None, *, thread: str = THREAD, ns: str = ""
    ) -> ThreadState:
        """The thread's state with the checkpoint `uid(number)`, or its head."""
        found: ThreadState = self.one(
            ReadCheckpoint(thread, ns, None if number is None else uid(number))
        )
        return found

    def stored(self, number: int, *, thread: str = THREAD, ns: str = "") -> StoredCheckpoint:
        """The checkpoint `uid(number)`, which must be there."""
        found = self.state(number, thread=thread, ns=ns).found
        assert found is not None, f"The backend must find the checkpoint {uid(number)!r}"
        return found

    def head(self, *, thread: str = THREAD, ns: str = "") -> str | None:
        """The id of the head."""
        found = self.state(thread=thread, ns=ns).found
        return found.row.id if found else None

    def row(self, thread: str = THREAD) -> Head:
        """The thread's own row."""
        found: list[Head] = self.database.fetch([ReadHead(thread)])
        return found[0]

    def rows(self, thread: str = THREAD) -> ThreadRows:
        """All rows of the thread."""
        found: ThreadRows = self.one(ReadThread(thread))
        return found

    def segments(self, *spans: tuple[int, int, int], thread: str = THREAD) -> list[Segment]:
        """The segments that overlap these spans."""
        found: list[Segment] = self.one(ReadSegments(thread, tuple(Span(*span) for span in spans)))
        return found

    def everything(self, thread: str = THREAD) -> list[Segment]:
        """The segments of logs 0 to 9, up to position 1000."""
        return self.segments(*((log, 0, 1000) for log in range(10)), thread=thread)

    def threads(self, after: str | None = None, limit: int = 10, **fields: Any) -> list[str]:
        """The ids that `FindThreads` finds."""
        found: list[str] = self.one(FindThreads(after, limit, **fields))
        return found

    def entry(self, thread: str = THREAD) -> ThreadEntry | None:
        """The thread's entry."""
        found: ThreadEntry | None = self.one(ReadEntry(thread))
        return found

    def known(self, thread: str = THREAD) -> ThreadEntry:
        """The thread's entry, which must exist."""
        found = self.entry(thread)
        assert found is not None, f"The backend must return an entry of {thread!r}"
        return found

    def count(self, **query: Any) -> int:
        """The number of entries that match."""
        found: int = self.one(CountThreads(ThreadQuery(**query)))
        return found


def after(head: Head, **fields: Any) -> Head:
    """The head after one more commit."""
    return head._replace(tips=(new_tip(), *head.tips), **fields)


def bodies(writes: Iterable[WriteRow]) -> list[bytes]:
    """The bodies of write rows."""
    return [row.body for row in writes]


def places(rows: Iterable[StoredCheckpoint]) -> list[tuple[str, str]]:
    """Namespace and id of checkpoints."""
    return [(stored.row.ns, stored.row.id) for stored in rows]


def ids(rows: Iterable[StoredCheckpoint]) -> list[str]:
    """The ids of checkpoints."""
    return [stored.row.id for stored in rows]
