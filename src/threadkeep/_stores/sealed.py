"""A backend in front of another one, which then holds only sealed rows (design note 0026)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from threadkeep._core.engine import model
from threadkeep._core.engine.usage import ItemUsage
from threadkeep._stores import resealing
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.caches import AsyncCacheBackend
from threadkeep._stores.families import Families, KnownFamilies
from threadkeep._stores.items import AsyncItemBackend
from threadkeep._stores.items.records import SearchOptions
from threadkeep._stores.sealed_items import SealedEntries, SealedItems, no_index
from threadkeep._stores.sealed_reads import SealedReads
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import BlockingFace, Face, finish, result
from threadkeep.errors import SegmentTakenError, ThreadkeepError

T = TypeVar("T")


class SealedFace(Face):
    """The async face. Over a blocking backend it never suspends."""

    keys: StoreKeys

    def __init__(
        self, below: Backend | AsyncBackend, keys: StoreKeys, memory: KnownFamilies | None = None
    ) -> None:
        super().__init__(below)
        self.keys = keys.for_store(below)
        self.instant = below.instant and keys.instant
        self.counts_usage = below.counts_usage
        self.families = Families(below, self.keys, memory or KnownFamilies())
        self.reads = SealedReads(below, self.keys, self.families)

    @property
    def retries(self) -> int:
        return int(self.below.retries)

    async def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        return await self.reads.fetch(reads)

    # -- changes -----------------------------------------------------------------------

    def sealed_from_memory(self, change: model.Change) -> model.Batch | None:
        """Return the sealed rows of a batch if no read is needed, else None."""
        if type(change) is not model.Batch or not self.keys.is_prepared:
            return None
        if change.drop_segments or change.hide_checkpoints or self.keys.allow_plaintext:
            return None
        known, link = self.families.memory.get(change.thread), change.link
        if known is None or known.rows is None or link is None or not link.base:
            return None
        return known.rows.batch(change) if known.proves(link.base, link.tip) else None

    async def commit(self, change: model.Change) -> None:
        await self._prepare([change])
        if isinstance(change, model.CopyThread | model.ForkThread):
            family = await self.families.of_copy(change)
            first = model.FindThreads(None, 1, prefix=change.target)
            (found,) = await result(self.below.fetch([first]))
            if found != [change.target]:  # (else it is refused, and would keep the family)
                await self.families.add(change.target, family, change.now)
            await result(self.below.commit(await self._sealed(change)))
            # (the store may have lost the family, but not the source)
            await self.families.add(change.target, family, change.now)
            if isinstance(change, model.CopyThread) and self.keys.has_thread_keys:
                await resealing.reseal(self, change.target)
            return
        try:
            await result(self.below.commit(await self._sealed(change)))
        except SegmentTakenError:
            left = await self._sealed(await self._without_stored(change))
            await result(self.below.commit(left))

    async def _prepare(self, changes: Sequence[model.Change]) -> None:
        """Make the record. Confirm it for changes that prove no sealed commit: a younger one."""
        links = [getattr(change, "link", None) for change in changes]
        if self.keys.allow_plaintext or not all(link and link.base for link in links):
            await self.keys.confirm()
        await self.keys.prepare()

    async def commit_many(self, changes: Sequence[model.Change]) -> list[ThreadkeepError | None]:
        if not all(isinstance(change, model.Batch) for change in changes):
            return await super().commit_many(changes)
        await self._prepare(changes)
        sealed = [await self._sealed(change) for change in changes]
        return await self.retried(changes, await result(self.below.commit_many(sealed)))

    async def retried(
        self, changes: Sequence[model.Change], refusals: list[ThreadkeepError | None]
    ) -> list[ThreadkeepError | None]:
        """Make the changes again whose segments are stored, maybe sealed in another way."""
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

    async def _sealed(self, change: model.Change) -> Any:
        if isinstance(change, model.CopyThread | model.LeaseThread):
            return change
        if isinstance(change, model.Batch):
            rows = await self.families.for_batch(change)
            return rows.batch(await self._with_hidden(change))
        if isinstance(change, model.DropThread) and change.rows is not None:
            rows = await self.families.for_batch(change.expected)
            change = change._replace(rows=rows.batch(change.rows))
        if change.entry is not None:
            rows = await self.families.writing(change.thread)
            change = change._replace(entry=rows.entry(change.entry))
        return change

    async def _with_hidden(self, batch: model.Batch) -> model.Batch:
        """Add the rows of the checkpoints that a batch hides: the flag is authenticated."""
        given = {(row.ns, row.id) for row in batch.checkpoints}
        hidden = [key for key in dict.fromkeys(batch.hide_checkpoints) if key not in given]
        if not hidden:
            return batch
        states = await self.fetch([model.ReadCheckpoint(batch.thread, *key) for key in hidden])
        rows = [state.found.row for state in states if state.found is not None]
        return batch._replace(checkpoints=(*batch.checkpoints, *rows))

    async def work(self, function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """Do work of `resealing` on the rows of the store."""
        return await function(self, *args, **options)

    # -- the rest ----------------------------------------------------------------------

    async def close(self) -> None:
        await result(self.below.close())
        if self.keys.random is not None:
            await self.keys.random.close()

    async def migrate(self) -> None:
        await super().migrate()
        if self.keys.random is not None:
            await self.keys.random.migrate()

    def items(self, options: SearchOptions) -> AsyncItemBackend:
        """An index is refused: it reveals the texts."""
        if options.dims or options.text:
            raise no_index()
        return SealedItems(self.below.items(options), self.keys)

    def cache(self) -> AsyncCacheBackend:
        return SealedEntries(self.below.cache(), self.keys)

    async def notes(self) -> Sequence[str]:
        return cast("Sequence[str]", await result(self.below.notes()))

    async def item_usage(self, now: int) -> ItemUsage:
        return cast("ItemUsage", await result(self.below.item_usage(now)))


class SealedBackend(BlockingFace[SealedFace]):
    """The blocking face of a sealed store."""

    def __init__(self, below: Backend, keys: StoreKeys) -> None:
        beside = below.asynchronous
        face = SealedFace(below, keys)
        awaited = None if beside is None else SealedFace(beside, keys, face.families.memory)
        super().__init__(face, awaited)
        self.below = below

    # The three hot calls skip the coroutines of the face if all that they need is in memory.

    def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        first = reads[0] if len(reads) == 1 else None
        if isinstance(first, model.ReadCheckpoint):
            (reply,) = self.below.fetch(reads)
            opened = self.face.reads.opened_from_memory(first, reply)
            if opened is not None:
                return [opened]
        return super().fetch(reads)

    def commit(self, change: model.Change) -> None:
        sealed = self.face.sealed_from_memory(change)
        if sealed is not None:
            with suppress(SegmentTakenError):
                self.below.commit(sealed)
                return
        super().commit(change)

    def commit_many(self, changes: Sequence[model.Change]) -> list[ThreadkeepError | None]:
        sealed = [*map(self.face.sealed_from_memory, changes)]
        if None in sealed:
            return super().commit_many(changes)
        refusals = self.below.commit_many([one for one in sealed if one is not None])
        return finish(self.face.retried(changes, refusals))

    def work(self, function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        return finish(self.face.work(function, *args, **options))
