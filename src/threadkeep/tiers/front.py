"""A backend that brings back what is in the cold store, when it is asked for.

Only what is looked at, and when, lives here. Invariants: a thread that is in the store costs
nothing more; whoever reads one that is archived, or has stubs, sees it whole, or an error that
says why not; an archive goes only when its thread is gone; no thread has stubs of another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from threadkeep import drive
from threadkeep.backends.base import (
    AsyncBackend,
    Backend,
    DualBackend,
    GroupingAsyncBackend,
    GroupingBackend,
    IdentifiedAsyncBackend,
    IdentifiedBackend,
    MigratingAsyncBackend,
)
from threadkeep.backends.straight import Front, finish, identity_of, straight
from threadkeep.engine import operations
from threadkeep.engine.entries import Entry, EntryFence, ReadEntry
from threadkeep.engine.lifecycle import is_archived
from threadkeep.engine.model import (
    Batch,
    Change,
    CopyThread,
    DropThread,
    ForkThread,
    Read,
    ReadCheckpoint,
    ReadPath,
    ReadThread,
    ScanCheckpoints,
    ThreadState,
)
from threadkeep.engine.operations.context import ATTEMPTS
from threadkeep.errors import (
    BackendError,
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    ReadOnlyError,
    ThreadArchivedError,
    ThreadExistsError,
    ThreadkeepError,
)
from threadkeep.tiers.stubs import WITH_COLD, stubbed, whole

if TYPE_CHECKING:
    from threadkeep.engine.operations.archiving import Archive
    from threadkeep.engine.operations.bundling import WholeThread
    from threadkeep.tiers.cold import ColdStore

T = TypeVar("T")
Aside: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
Identity: TypeAlias = Callable[[], Awaitable[str]]

_log = logging.getLogger("threadkeep")


class AsyncTiered:
    """An async backend in front of which archived threads come back by themselves.

    Args:
        backend: the store.
        cold: the cold store, if there is one.
        identity: how to ask for the store's name.
        aside: how this kind of caller does what blocks.
    """

    def __init__(
        self, backend: AsyncBackend, cold: ColdStore | None, identity: Identity, aside: Aside
    ) -> None:
        self._backend = backend
        self._cold = cold
        self._identity = identity
        self._aside = aside

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `AsyncBackend.fetch`."""
        replies = await self._backend.fetch(reads)
        names = sorted(set(_missed(reads, replies)))
        if names:
            replies = await self._looked_for(reads, names)
        for number, thread in stubbed(reads, replies):
            call = partial(whole, self._cold, thread, replies[number])
            replies[number] = await self._aside(call)
        return replies

    async def _looked_for(self, reads: Sequence[Read], names: Sequence[str]) -> list[Any]:
        """The replies, of one state in which none of these threads is archived.

        A thread that is neither archived before the reads, nor changes its generation while they
        are answered, was not archived meanwhile: to leave and to come back both raise that.
        """
        heads: list[Read] = [ReadCheckpoint(name, "") for name in names]
        entries: list[Read] = [ReadEntry(name) for name in names]
        for _ in range(ATTEMPTS):
            found, count = await self._backend.fetch([*heads, *entries, *reads]), len(names)
            archived = [entry for entry in found[count : 2 * count] if is_archived(entry)]
            for entry in archived:
                await self._bring_back(entry)
            if archived:
                continue
            after = await self._backend.fetch(heads)  # (of one fetch, some stores answer in parts)
            if _generations(found[:count]) == _generations(after):
                return found[2 * count :]
        raise _never_there(names[0])

    async def _bring_back(self, entry: Entry) -> None:
        """Bring a thread back, if nobody else has done so meanwhile."""
        archive, thread = operations.archiving.archive_of(entry), entry.thread
        if self._cold is None or archive is None:
            raise ThreadArchivedError(hint=WITH_COLD, thread=thread)
        try:
            found = await self._aside(partial(_read, self._cold, thread, archive))
        except CorruptionError:
            (now,) = await self._backend.fetch([ReadEntry(thread)])
            if operations.archiving.is_at(now, archive.key):
                raise
            return
        try:
            await drive.arun(operations.archiving.reopen(found, archive, _now()), self._backend)
        except ReadOnlyError as error:
            raise ThreadArchivedError(
                "The thread is archived, and the store is open for reading only.",
                hint=f"Bring it back: threadkeep restore --thread {thread!r}",
                thread=thread,
            ) from error

    # -- changes ---------------------------------------------------------------------

    async def commit(self, change: Change) -> None:
        """See `AsyncBackend.commit`."""
        if isinstance(change, CopyThread):
            await self._copy(change)
        elif isinstance(change, ForkThread):
            await self._fork(change)
        elif isinstance(change, DropThread) and change.entry is None:
            await self._drop(change)
        else:
            await self._backend.commit(change)

    async def _copy(self, change: CopyThread) -> None:
        """Copy a thread, which may be archived or get stubs: now, or while it is copied."""
        for _ in range(ATTEMPTS):
            known = await self._ready(change.source, change.target)
            with suppress(ConflictError):
                await self._backend.commit(replace(change, revision=_revision(known)))
                known, copy = await self._backend.fetch(
                    [ReadEntry(change.source), ReadThread(change.target, stub=True)]
                )
                if copy.checkpoints or not is_archived(known):
                    return
                await self._bring_back(known)
        raise _never_there(change.source)

    async def _fork(self, change: ForkThread) -> None:
        """Fork a thread: what it shares has no stubs, then or later."""
        for _ in range(ATTEMPTS):
            known = await self._ready(change.source, change.target)
            with suppress(ConflictError):
                await self._backend.commit(replace(change, revision=_revision(known)))
                return
        raise operations.registration.busy(change.source)

    async def _ready(self, source: str, target: str) -> Entry | None:
        """The source's entry, once it has no stubs: what brings one changes the entry.

        Raises:
            ThreadExistsError: the target is archived.
        """
        while True:
            replies = await self._backend.fetch([ReadEntry(source), ReadEntry(target)])
            known, at = cast("list[Entry | None]", replies)
            if is_archived(at):
                raise ThreadExistsError("The target is archived.", thread=target)
            archive = operations.archiving.archive_of(known)
            if archive is None or not archive.offloaded or is_archived(known):
                return known
            if not await drive.arun(operations.offloading.bring_back(source, _now()), self):
                return known

    async def _drop(self, change: DropThread) -> None:
        """Remove a thread, and then all that this store has put of it into the cold store.

        Whoever takes something there names it in the entry. So the entry that goes must be the
        one that was read; but a deletion that expects nothing is not refused in the end.
        """
        for attempt in range(ATTEMPTS):
            (entry,) = await self._backend.fetch([ReadEntry(change.thread)])
            expecting = change
            if attempt < ATTEMPTS - 1 and not change.fences:
                expecting = replace(change, fences=(EntryFence(_revision(entry)),))
            try:
                await self._backend.commit(expecting)
            except ConflictError:
                if expecting is change:
                    raise
                continue
            archive = operations.archiving.archive_of(entry)
            left = (
                None if change.rows is None else operations.archiving.archive_of(change.rows.entry)
            )
            if archive is not None and (left is None or left.folder != archive.folder):
                await self._remove(change.thread, archive)
            return

    async def _remove(self, thread: str, archive: Archive) -> None:
        """Remove the archives of a thread that is gone: its next life has another folder."""
        if self._cold is None:
            _log.warning("a thread went; its archives stay in %s", archive.folder)
            return
        home = self._cold.of(await self._identity()).home(thread)
        if not archive.folder.startswith(home):
            return  # another store put it there, of which this one is a copy
        try:
            await self._aside(partial(self._cold.clear, archive.folder))
        except ThreadkeepError as error:
            raise BackendError(
                f"The thread is deleted, but its archive is not: {error.message}",
                hint="When the cold store can be reached: saver.threads.erase(thread).",
                thread=thread,
            ) from error

    async def close(self) -> None:
        """See `AsyncBackend.close`."""
        await self._backend.close()

    async def migrate(self) -> None:
        """See `MigratingAsyncBackend.migrate`."""
        if isinstance(self._backend, MigratingAsyncBackend):
            await self._backend.migrate()


def _read(cold: ColdStore, thread: str, archive: Archive) -> WholeThread:
    from threadkeep.tiers.archives import unpacked  # noqa: PLC0415 - much, and seldom needed

    return unpacked(thread, cold.get(archive.key), archive)


def _revision(entry: Entry | None) -> int:
    return 0 if entry is None else entry.revision


def _now() -> int:
    return time.time_ns() // 1000


def _never_there(thread: str) -> ConflictError:
    return ConflictError(
        "This thread is being archived whenever it is read.", hint="Try again later.", thread=thread
    )


def _generations(states: Sequence[ThreadState]) -> list[int]:
    return [state.generation for state in states]


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
            case ReadPath() if not reply:
                yield read.thread
            case ScanCheckpoints() if not reply and read.thread is not None and read.after is None:
                yield read.thread


class AsyncTieredGroups(AsyncTiered):
    """The same of a store that commits in groups."""

    _backend: GroupingAsyncBackend

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingAsyncBackend.commit_many`. What is not a batch goes by itself."""
        results: list[ThreadkeepError | None] = []
        group: list[Change] = []
        for change in changes:
            if isinstance(change, Batch):
                group.append(change)
                continue
            results += await self._grouped(group)
            results.append(await self._alone(change))
            group = []
        return results + await self._grouped(group)

    async def _grouped(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        return await self._backend.commit_many(changes) if changes else []

    async def _alone(self, change: Change) -> ThreadkeepError | None:
        try:
            await self.commit(change)
        except ThreadkeepError as error:
            return error
        return None


class Tiered(Front[AsyncTiered]):
    """A blocking backend in front of which archived threads come back by themselves."""

    def __init__(self, backend: Backend, store: Backend, cold: ColdStore | None) -> None:
        native = backend.asynchronous if isinstance(backend, DualBackend) else None
        own = store.asynchronous if isinstance(store, DualBackend) else None
        awaiting = None
        if native is not None and own is not None:
            awaiting = _face(native, cold, _awaited_identity(own, cold), drive.in_thread)
        face = _face(straight(backend), cold, _identity(store, cold), _at_once)
        super().__init__(backend, face, awaiting)


class TieredGroups(Tiered):
    """The same of a store that commits in groups."""

    _face: AsyncTieredGroups

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingBackend.commit_many`."""
        return finish(self._face.commit_many(changes))


async def _at_once(call: Callable[[], T]) -> T:
    return call()


def _face(
    backend: AsyncBackend, cold: ColdStore | None, identity: Identity, aside: Aside
) -> AsyncTiered:
    kind = AsyncTieredGroups if isinstance(backend, GroupingAsyncBackend) else AsyncTiered
    return kind(backend, cold, identity, aside)


def _identity(store: Backend, cold: ColdStore | None) -> Identity:
    if isinstance(store, IdentifiedBackend):
        return identity_of(store)
    return _nameless(store, cold)


def _awaited_identity(store: AsyncBackend, cold: ColdStore | None) -> Identity:
    if isinstance(store, IdentifiedAsyncBackend):
        return store.identity
    return _nameless(store, cold)


def _nameless(store: object, cold: ColdStore | None) -> Identity:
    """Refuse a cold store to a backend without a name; without one it is never asked."""
    if cold is not None:
        raise InvalidArgumentError(
            f"cold= cannot be used with {type(store).__name__}, which has no name of its own:"
            " stores that share a cold store are told apart by that.",
            hint="Let the backend have `identity` (threadkeep.backends.base.IdentifiedBackend).",
        )

    async def unknown() -> str:
        return ""

    return unknown


def tiered(
    backend: Backend | AsyncBackend, store: Backend | AsyncBackend, cold: ColdStore | None
) -> Tiered | AsyncTiered:
    """The backend, in front of which archived threads come back by themselves.

    Args:
        backend: the store, with whatever stands in front of it already.
        store: the store itself.
        cold: the cold store, if there is one.

    Raises:
        InvalidArgumentError: the store cannot be told from others that use the cold store.
    """
    if drive.is_async(backend) or drive.is_async(store):
        innermost = cast("AsyncBackend", store)
        identity = _awaited_identity(innermost, cold)
        return _face(cast("AsyncBackend", backend), cold, identity, drive.in_thread)
    kind = TieredGroups if isinstance(backend, GroupingBackend) else Tiered
    return kind(backend, store, cold)
