"""A backend that brings back what is archived, when it is asked for.

Only what is looked at, and when, lives here. Invariants: a thread that is in the store costs
nothing more; whoever reads one that is archived sees it whole, or an error that says why not;
an archive goes only when its thread is back, or is to be gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from threadkeep import drive
from threadkeep.backends.base import (
    AsyncBackend,
    Backend,
    DualBackend,
    GroupingAsyncBackend,
    GroupingBackend,
    MigratingAsyncBackend,
    MigratingBackend,
)
from threadkeep.backends.straight import Straight, StraightGrouping, finish
from threadkeep.engine.entries import Entry, ReadEntry
from threadkeep.engine.model import (
    Change,
    CopyThread,
    DropThread,
    ForkThread,
    Read,
    ReadCheckpoint,
    ReadPath,
    ReadThread,
    ScanCheckpoints,
)
from threadkeep.engine.operations.archiving import (
    Archive,
    archive_of,
    is_archived,
    let_go,
    reopen,
)
from threadkeep.engine.operations.bundling import WholeThread
from threadkeep.errors import (
    CorruptionError,
    ReadOnlyError,
    ThreadArchivedError,
    ThreadExistsError,
    ThreadkeepError,
)
from threadkeep.tiers.archives import unpacked
from threadkeep.tiers.cold import ColdStore

T = TypeVar("T")
Aside: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]

_log = logging.getLogger("threadkeep")


class AsyncTiered:
    """An async backend in front of which archived threads come back by themselves.

    Args:
        backend: the store.
        cold: the cold store, if there is one.
        aside: how this kind of caller does what blocks.
    """

    def __init__(self, backend: AsyncBackend, cold: ColdStore | None, aside: Aside) -> None:
        self._backend = backend
        self._cold = cold
        self._aside = aside

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `AsyncBackend.fetch`."""
        replies = await self._backend.fetch(reads)
        names = set(_missed(reads, replies))
        if names and await self._brought_back(sorted(names)):
            replies = await self._backend.fetch(reads)
        return replies

    async def commit(self, change: Change) -> None:
        """See `AsyncBackend.commit`."""
        await self._prepare(change)
        await self._backend.commit(change)

    async def _brought_back(self, names: Sequence[str]) -> bool:
        """Bring back those of the threads that are archived; whether there were any."""
        archived = [entry for entry in await self._entries(names) if is_archived(entry)]
        for entry in archived:
            await self._bring_back(entry)
        return bool(archived)

    async def _entries(self, names: Sequence[str]) -> list[Entry]:
        found = await self._backend.fetch([ReadEntry(name) for name in names])
        return [entry for entry in found if entry is not None]

    async def _bring_back(self, entry: Entry) -> None:
        archive, thread = archive_of(entry), entry.thread
        if self._cold is None or archive is None:
            raise ThreadArchivedError(
                hint="Open the store with cold=, the URL of the cold store.", thread=thread
            )
        try:
            whole = await self._aside(partial(_read, self._cold, thread, archive))
        except CorruptionError:
            if [archive_of(now) for now in await self._entries([thread])] == [archive]:
                raise
            return  # another process has brought it back meanwhile
        try:
            is_back = await drive.arun(reopen(whole, archive, _now()), self._backend)
        except ReadOnlyError as error:
            raise ThreadArchivedError(
                "The thread is archived, and the store is open for reading only.",
                hint=f"Bring it back: threadkeep restore --thread {thread!r}",
                thread=thread,
            ) from error
        if is_back:
            await self._forget(self._cold, thread, archive)

    async def _forget(self, cold: ColdStore, thread: str, archive: Archive) -> None:
        """Remove an archive whose thread is back. What fails is done with the next archive."""
        try:
            await self._aside(partial(cold.delete, archive.key))
            await drive.arun(let_go(thread, archive, _now()), self._backend)
        except ThreadkeepError as error:
            _log.warning("an archive that is not needed could not be removed: %s", error)

    async def _prepare(self, change: Change) -> None:
        """Do what must be done before a change can be right."""
        if isinstance(change, DropThread) and change.entry is None:
            await self._drop_archive(change.thread)
        elif isinstance(change, CopyThread | ForkThread):
            entries = await self._entries([change.source, change.target])
            archived = {entry.thread: entry for entry in entries if is_archived(entry)}
            if change.target in archived:
                raise ThreadExistsError("The target is archived.", thread=change.target)
            if change.source in archived:
                await self._bring_back(archived[change.source])

    async def _drop_archive(self, thread: str) -> None:
        """Remove the archive of a thread that is to go, if it has one."""
        for entry in await self._entries([thread]):
            archive = archive_of(entry)
            if archive is not None and self._cold is not None:
                await self._aside(partial(self._cold.delete, archive.key))
            elif archive is not None:
                _log.warning(
                    "%r goes; its archive stays in the cold store: %s", thread, archive.key
                )

    async def close(self) -> None:
        """See `AsyncBackend.close`."""
        await self._backend.close()

    async def migrate(self) -> None:
        """See `MigratingAsyncBackend.migrate`."""
        if isinstance(self._backend, MigratingAsyncBackend):
            await self._backend.migrate()


def _read(cold: ColdStore, thread: str, archive: Archive) -> WholeThread:
    return unpacked(thread, cold.get(archive.key), archive)


def _now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def _missed(reads: Sequence[Read], replies: Sequence[Any]) -> Iterator[str]:
    """The threads of which nothing was found, and of which something may be archived.

    A thread whose generation is 0 was never archived: that raises it.
    """
    for read, reply in zip(reads, replies, strict=True):
        match read:
            case ReadCheckpoint():
                if reply.found is None and reply.generation:
                    yield read.thread
            case ReadThread():
                is_whole = not read.skip and not read.stub
                if is_whole and not reply.checkpoints and reply.generation:
                    yield read.thread
            case ReadPath() | ScanCheckpoints():
                if not reply and read.thread is not None:
                    yield read.thread


class AsyncTieredGroups(AsyncTiered):
    """The same of a store that commits in groups."""

    _backend: GroupingAsyncBackend

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingAsyncBackend.commit_many`."""
        refused: dict[int, ThreadkeepError] = {}
        for at, change in enumerate(changes):
            try:
                await self._prepare(change)
            except ThreadExistsError as error:
                refused[at] = error
        admitted = [change for at, change in enumerate(changes) if at not in refused]
        results = iter(await self._backend.commit_many(admitted))
        return [refused[at] if at in refused else next(results) for at in range(len(changes))]


class Tiered:
    """A blocking backend in front of which archived threads come back by themselves."""

    def __init__(self, backend: Backend, cold: ColdStore | None) -> None:
        straight = (
            StraightGrouping(backend) if isinstance(backend, GroupingBackend) else Straight(backend)
        )
        self._face = _face(straight, cold, _at_once)
        self._backend = backend
        native = backend.asynchronous if isinstance(backend, DualBackend) else None
        self.asynchronous = None if native is None else _face(native, cold, drive.in_thread)

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""
        return finish(self._face.fetch(reads))

    def commit(self, change: Change) -> None:
        """See `Backend.commit`."""
        finish(self._face.commit(change))

    def close(self) -> None:
        """See `Backend.close`."""
        finish(self._face.close())

    def migrate(self) -> None:
        """See `MigratingBackend.migrate`."""
        if isinstance(self._backend, MigratingBackend):
            self._backend.migrate()


class TieredGroups(Tiered):
    """The same of a store that commits in groups."""

    _face: AsyncTieredGroups

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingBackend.commit_many`."""
        return finish(self._face.commit_many(changes))


async def _at_once(call: Callable[[], T]) -> T:
    return call()


def _face(backend: AsyncBackend, cold: ColdStore | None, aside: Aside) -> AsyncTiered:
    kind = AsyncTieredGroups if isinstance(backend, GroupingAsyncBackend) else AsyncTiered
    return kind(backend, cold, aside)


def tiered(backend: Backend | AsyncBackend, cold: ColdStore | None) -> Tiered | AsyncTiered:
    """The backend, in front of which archived threads come back by themselves."""
    if drive.is_async(backend):
        return _face(backend, cold, drive.in_thread)
    kind = TieredGroups if isinstance(backend, GroupingBackend) else Tiered
    return kind(backend, cold)
