"""A backend in front of another one, which then holds only sealed rows (design note 0026)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, call, methodcaller
from typing import Any, TypeVar, cast

from threadkeep._core.engine import model
from threadkeep._core.engine.sealed_rows import (
    Family,
    Relative,
    RowSealer,
    clue,
    family_thread,
)
from threadkeep._core.engine.thread_entry import AFTER_ALL
from threadkeep._core.engine.usage import ItemUsage
from threadkeep._core.tenants import FAMILY
from threadkeep._stores.base import AsyncBackend, Backend, ScrubReport
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import BlockingFace, result
from threadkeep.errors import CodecError, SegmentTakenError, TamperedDataError, ThreadkeepError

T = TypeVar("T")


class SealedFace(AsyncBackend):
    """The async face; over a blocking backend it never suspends."""

    keys: StoreKeys

    def __init__(self, below: Backend | AsyncBackend, keys: StoreKeys) -> None:
        self.below = below
        self.keys = keys
        self.commits_groups = below.commits_groups
        self.has_identity = below.has_identity
        self.counts_for_all = below.counts_for_all
        self.counts_usage = below.counts_usage

    # -- reads -------------------------------------------------------------------------

    async def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        """See `Backend.fetch`."""
        asked = [await self._read(read) for read in reads]
        replies = await result(self.below.fetch(asked))
        return [await self._reply(*pair) for pair in zip(asked, replies, strict=True)]

    async def _read(self, read: model.Read) -> model.Read:
        if isinstance(read, model.ScanCheckpoints):
            return read._replace(filter={})
        if isinstance(read, model.FindThreads) and read.run_ids:
            sealer = await self.keys.of()
            return read._replace(run_ids=tuple([clue(sealer, one) for one in read.run_ids]))
        return read

    async def _reply(self, read: model.Read, reply: Any) -> Any:
        if isinstance(read, model.ReadCheckpoint):
            if reply.found is None:
                return reply
            (found,) = await self._opened([reply.found])
            return reply._replace(found=found)
        if isinstance(read, model.ReadPath | model.ScanCheckpoints):
            return await self._opened(reply)
        if isinstance(read, model.ReadSegments):
            return await self._open(read.thread, lambda rows: [*map(rows.opened_segment, reply)])
        if isinstance(read, model.ReadThread):
            return await self._whole(read, reply)
        if isinstance(read, model.FindThreads):
            return await self._without_families(read, reply, str)
        if isinstance(read, model.ReadSizes):
            threads = await self._without_families(read, reply.threads, attrgetter("thread"))
            return reply._replace(threads=tuple(threads))
        return reply

    async def _without_families(
        self,
        read: model.FindThreads | model.ReadSizes,
        page: Sequence[Any],
        name: Callable[[Any], str],
    ) -> list[Any]:
        """Leave out the threads that hold families, with the next ones in their place."""
        found: list[Any] = []
        while True:
            found += [one for one in page if not name(one).startswith(FAMILY)]
            if len(page) < read.limit or len(found) >= read.limit:
                return found[: read.limit]
            (reply,) = await result(self.below.fetch([read._replace(after=name(page[-1]))]))
            page = reply.threads if isinstance(reply, model.Sizes) else reply

    async def _opened(
        self, found: Sequence[model.StoredCheckpoint]
    ) -> list[model.StoredCheckpoint]:
        return [await self._open(one.thread, methodcaller("opened", one)) for one in found]

    async def _whole(self, read: model.ReadThread, reply: model.ThreadRows) -> model.ThreadRows:
        def opened(rows: RowSealer, open_one: Callable[..., Any] = call) -> model.ThreadRows:
            return reply._replace(
                checkpoints=tuple([open_one(rows.opened, one) for one in reply.checkpoints]),
                orphans=tuple([open_one(rows.opened_write, one) for one in reply.orphans]),
            )

        try:
            return await self._open(read.thread, opened)
        except CodecError:
            if not read.skip:
                raise
        # A row that does not open is damage, which the engine finds.
        family = await self._family(read.thread)
        return opened(await self._rows(read.thread, family), _or_same)

    async def _open(self, thread: str, opened: Callable[[RowSealer], T]) -> T:
        """Open rows of a thread, which few threads have from others."""
        try:
            return opened(await self._rows(thread))
        except TamperedDataError:
            family = await self._family(thread)
            if not family:
                raise
        return opened(await self._rows(thread, family))

    async def _rows(self, thread: str, family: Family = ()) -> RowSealer:
        return RowSealer(await self.keys.of(thread), thread, family)

    async def _family(self, thread: str) -> Family:
        own = family_thread(thread)
        (rows,) = await result(self.below.fetch([model.ReadThread(own)]))
        sealer = await self._rows(own)
        return tuple([one for row in rows.orphans for one in sealer.family_of(row)])

    # -- changes -----------------------------------------------------------------------

    async def commit(self, change: model.Change) -> None:
        """See `Backend.commit`."""
        await self._before(change)
        try:
            await result(self.below.commit(await self._sealed(change)))
        except SegmentTakenError:
            left = await self._sealed(await self._without_stored(change))
            await result(self.below.commit(left))

    async def commit_many(self, changes: Sequence[model.Change]) -> list[ThreadkeepError | None]:
        """See `Backend.commit_many`."""
        if not all(isinstance(change, model.Batch) for change in changes):
            return await super().commit_many(changes)
        sealed = [await self._sealed(change) for change in changes]
        refusals: list[ThreadkeepError | None] = await result(self.below.commit_many(sealed))
        for number, refusal in enumerate(refusals):
            if isinstance(refusal, SegmentTakenError):
                (refusals[number],) = await super().commit_many(changes[number : number + 1])
        return refusals

    async def _without_stored(self, change: model.Change) -> model.Change:
        """Return a batch without segments that are stored with the same plain bytes.

        They are sealed in another way if another thread of the family stored them, or before the
        current key was given. Raises SegmentTakenError if there are none.
        """
        if not isinstance(change, model.Batch):
            return change
        spans = tuple([one.span for one in change.segments])
        (stored,) = await self.fetch([model.ReadSegments(change.thread, spans)])
        left = tuple([one for one in change.segments if one not in stored])
        if len(left) == len(change.segments):
            raise SegmentTakenError(thread=change.thread)
        return change._replace(segments=left)

    async def _sealed(self, change: model.Change) -> model.Change:
        if isinstance(change, model.Batch):
            return (await self._rows(change.thread)).batch(change)
        if isinstance(change, model.DropThread) and change.rows is not None:
            return change._replace(rows=(await self._rows(change.thread)).batch(change.rows))
        return change

    async def _before(self, change: model.Change) -> None:
        """Add to the target's family, for rows to be copied; without the copy it does no harm.

        Families only grow: the target may exist already, or another program copies to it.
        """
        if not isinstance(change, model.CopyThread | model.ForkThread):
            return
        last = AFTER_ALL
        if isinstance(change, model.ForkThread):
            copied = [id for _, id in change.checkpoints] + [id for _, id, _ in change.writes]
            last = max(copied, default="")
        source = Relative((await self.keys.of(change.source)).group(change.source), last)
        known = await self._family(change.target)
        family = tuple(
            [one for one in (source, *await self._family(change.source)) if one not in known]
        )
        if family:
            own = family_thread(change.target)
            row = (await self._rows(own)).family_row(family)
            await result(self.below.commit(model.Batch(own, change.now, writes=(row,))))

    # -- the rest ----------------------------------------------------------------------

    async def close(self) -> None:
        """See `Backend.close`."""
        await result(self.below.close())

    async def migrate(self) -> None:
        """See `Backend.migrate`."""
        await result(self.below.migrate())

    async def identity(self) -> str:
        """See `Backend.identity`."""
        return cast("str", await result(self.below.identity()))

    async def item_usage(self, now: int) -> ItemUsage:
        """See `Backend.item_usage`."""
        return cast("ItemUsage", await result(self.below.item_usage(now)))

    async def scrub(self, *, rewrite: bool) -> ScrubReport:
        """See `Backend.scrub`."""
        return cast("ScrubReport", await result(self.below.scrub(rewrite=rewrite)))


def _or_same(opened: Callable[[T], T], record: T) -> T:
    try:
        return opened(record)
    except CodecError:
        return record


class SealedBackend(BlockingFace[SealedFace]):
    """The blocking face of a sealed store."""

    def __init__(self, below: Backend, keys: StoreKeys) -> None:
        beside = below.asynchronous
        super().__init__(
            SealedFace(below, keys), None if beside is None else SealedFace(beside, keys)
        )
