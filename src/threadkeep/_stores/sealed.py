"""A backend in front of another one, which then holds only sealed rows (design note 0026)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from operator import call
from typing import Any, cast

from threadkeep._core import tenants
from threadkeep._core.engine import model
from threadkeep._core.engine.sealed_rows import Family, Relative, RowSealer, Seal
from threadkeep._core.engine.thread_entry import AFTER_ALL
from threadkeep._core.engine.usage import ItemUsage
from threadkeep._core.sealing import Sealer
from threadkeep._stores import destroying, resealing, resealing_items, sealed_reads
from threadkeep._stores.base import AsyncBackend, Backend, ScrubReport
from threadkeep._stores.caches import AsyncCacheBackend, ClearEntries
from threadkeep._stores.families import Families, Known, family_of_plain
from threadkeep._stores.items import AsyncItemBackend
from threadkeep._stores.items.records import SearchOptions
from threadkeep._stores.sealed_items import SealedEntries, SealedItems, no_index
from threadkeep._stores.sealed_searches import SealedSearches
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import BlockingFace, InFront, finish, result
from threadkeep.errors import (
    CodecError,
    DestroyedKeyError,
    InvalidArgumentError,
    SegmentTakenError,
    TamperedDataError,
    ThreadkeepError,
    WrongKeyError,
)

_PAGE = 500


class SealedFace(InFront):
    """The async face. Over a blocking backend it never suspends."""

    keys: StoreKeys

    def __init__(
        self,
        below: Backend | AsyncBackend,
        keys: StoreKeys,
        families: Families | None = None,
    ) -> None:
        super().__init__(below)
        self.keys = keys.for_store(below)
        self.instant = below.instant and keys.instant
        self.counts_usage = below.counts_usage
        self.families = Families() if families is None else families
        self.searches = SealedSearches(self.below, self.keys, self._opened)

    @property
    def retries(self) -> int:
        return int(self.below.retries)

    # -- reads -------------------------------------------------------------------------

    async def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        first = reads[0] if len(reads) == 1 else None
        if isinstance(first, model.ReadCheckpoint):
            (reply,) = await result(self.below.fetch(reads))
            return [self.opened_from_memory(first, reply) or await self._opened(first, reply)]
        asked = [await self.searches.to_store(read) for read in reads]
        replies = await result(self.below.fetch([read for read, _ in asked]))
        return [
            await self.searches.from_store(*pair, reply)
            for pair, reply in zip(asked, replies, strict=True)
        ]

    async def _opened(self, read: model.Read, reply: Any) -> Any:
        """Open a reply, and the children that say which of its writes count."""
        opened = await self._opened_rows(read, reply)
        unread = sealed_reads.unread_children(read, opened)
        if unread:
            states = await result(self.below.fetch([asked for asked, _ in unread]))
            for (asked, parent), state in zip(unread, states, strict=True):
                if state.found is not None:  # (else it was removed meanwhile)
                    row = state.found._replace(keyframe=None, writes=())
                    child = await self._opened_rows(asked, state._replace(found=row))
                    sealed_reads.check_child(parent, child.found.row)
        return opened

    async def _opened_rows(self, read: model.Read, reply: Any) -> Any:
        """Open the rows of a reply. Few threads have rows of others."""
        names = sealed_reads.names(read, reply)
        skip = isinstance(read, model.ReadThread) and read.skip
        if isinstance(read, model.ReadCheckpoint) and (known := self.families.get(read.thread)):
            known.note(reply.tips)
        for name in names:
            try:
                await self.keys.of(name, is_thread=True)
            except DestroyedKeyError:
                if not skip:
                    raise
                return sealed_reads.opened(read, reply, cache(self._rows), sealed_reads.damaged)
        try:
            return sealed_reads.opened(read, reply, cache(self._rows))
        except (TamperedDataError, WrongKeyError):
            named = getattr(reply, "tips", ())
            families = [await self.read_family(name, named) for name in names]
            if not any(family.relatives for family in families) and not skip:
                raise
        each = sealed_reads.or_damaged if skip else call
        return sealed_reads.opened(read, reply, cache(self._rows), each)

    def opened_from_memory(
        self, read: model.ReadCheckpoint, reply: model.ThreadState
    ) -> model.ThreadState | None:
        """Return the opened reply to a read if no other read is needed, else None."""
        if reply.found is None:
            return reply
        if sealed_reads.depends_on_child(read, reply.found):
            return None
        ready = self.families.ready(read.thread) if self.keys.is_known else None
        if ready is None:
            return None
        rows, known = ready
        known.note(reply.tips)
        try:
            return reply._replace(found=rows.opened(reply.found))
        except CodecError:
            return None

    def sealed_from_memory(self, change: model.Change) -> model.Batch | None:
        """Return the sealed rows of a batch if no read is needed, else None."""
        if type(change) is not model.Batch or not self.keys.is_prepared:
            return None
        if change.drop_segments or change.hide_checkpoints or self.keys.allow_plaintext:
            return None
        ready, link = self.families.ready(change.thread), change.link
        if ready is None or link is None or not link.base:
            return None
        rows, known = ready
        return rows.batch(change) if known.proves(link.base, link.tip) else None

    # -- rows --------------------------------------------------------------------------

    def _rows(self, thread: str) -> RowSealer:
        """Return the opener of a thread's rows, with the keys and families that are in memory."""
        known = self.families.get(thread) or Known(thread)
        return self._row_sealer(
            thread, self.keys.remembered(thread) or self.keys.none, known.family
        )

    def _row_sealer(
        self, thread: str, sealer: Sealer, family: Family, root: Sealer | None = None
    ) -> RowSealer:
        found = [(self.keys.remembered(one.thread), one) for one in family.relatives]
        return RowSealer(
            thread,
            Seal(sealer, sealer.group(thread)),
            None if root is None else Seal(root, root.group(family.root)),
            [(Seal(one, one.group(at.thread)), at.last) for one, at in found if one is not None],
            self.keys.searchable,
            plain=self.keys.allow_plaintext,
        )

    async def rows_to_write(self, thread: str, known: Known | None = None) -> RowSealer:
        """Return the sealer of a thread, with the family that is in memory unless it is given."""
        sealer = await self.keys.writing(thread, is_thread=True)
        known = known or self.families.get(thread) or Known(thread)
        root = None
        if not known.is_own:
            root = await self.keys.of(known.family.root, is_thread=True)
        rows = self._row_sealer(thread, sealer, known.family, root)
        if self.keys.are_derived:  # (others may be destroyed)
            self.families.keep(thread, rows, known)
        return rows

    async def _rows_for(self, batch: model.Batch) -> RowSealer:
        """Return the sealer of a batch: for a root only if the store proves it with the commit."""
        thread, known = batch.thread, self.families.get(batch.thread)
        if batch.generation == 0:  # (a fork's is greater)
            known = Known(thread)
        elif known is None:
            if batch.drop_segments or self.keys.allow_plaintext:  # (others may share the new ones)
                await self.read_family(thread, batch.base)
        elif not known.proves(batch.base, batch.tip):
            await self.read_family(thread, batch.base)
            known = None
        return await self.rows_to_write(thread, known)

    async def read_family(self, thread: str, named: tuple[int, ...] = ()) -> Family:
        """Read the family of a thread, which few have, and remember it.

        Args:
            thread: its name.
            named: tips that its row is known to have named before.
        """
        own = tenants.family_thread(thread)
        (rows,) = await result(self.below.fetch([model.ReadThread(own)]))
        await self.keys.of(own, is_thread=True)
        found = [self._rows(own).family_of(row) for row in rows.orphans]
        if not found and self.keys.allow_plaintext:
            found = [await family_of_plain(self, thread)]
        relatives = dict.fromkeys([one for family in found for one in family.relatives])
        family = Family(found[-1].root if found else thread, tuple(relatives))
        for one in relatives:
            with suppress(WrongKeyError):  # (destroyed: its values do not open)
                await self.keys.of(one.thread, is_thread=True)
        self.families.put(thread, Known(thread, family, named))
        return family

    # -- changes -----------------------------------------------------------------------

    async def commit(self, change: model.Change) -> None:
        await self._prepare([change])
        if isinstance(change, model.CopyThread | model.ForkThread):
            family = await self._family_of_copy(change)
            first = model.FindThreads(None, 1, prefix=change.target)
            (found,) = await result(self.below.fetch([first]))
            if found != [change.target]:  # (else it is refused, and would keep the family)
                await self._add_family(change.target, family, change.now)
            await result(self.below.commit(await self._sealed(change)))
            # (the store may have lost the family, but not the source)
            await self._add_family(change.target, family, change.now)
            if isinstance(change, model.CopyThread) and self.keys.has_thread_keys:
                await self.reseal(change.target, dry_run=False)
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
        if isinstance(change, model.CopyThread):
            return change
        if isinstance(change, model.Batch):
            return (await self._rows_for(change)).batch(await self._with_hidden(change))
        if isinstance(change, model.DropThread) and change.rows is not None:
            rows = await self._rows_for(change.expected)
            change = change._replace(rows=rows.batch(change.rows))
        if change.entry is not None:
            rows = await self.rows_to_write(change.thread)
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

    async def _family_of_copy(self, change: model.CopyThread | model.ForkThread) -> Family:
        """Return the family of rows that are to be copied."""
        if tenants.tenant_of(change.source) != tenants.tenant_of(change.target):
            raise InvalidArgumentError(
                "Encrypted rows cannot be copied to another tenant: they would keep its key.",
                hint="Mirror the thread: the saver of one tenant to that of the other.",
            )
        source = await self.read_family(change.source)
        root, last = change.target, AFTER_ALL
        if isinstance(change, model.ForkThread):
            copied = [id for _, id in change.checkpoints] + [id for _, id, _ in change.writes]
            root, last = source.root, max(copied, default="")
        return Family(root, (Relative(change.source, last), *source.relatives))

    async def _add_family(self, thread: str, family: Family, now: int) -> None:
        """Add to a thread's family, for rows that are copied. Without the copy it does no harm.

        Families only grow: the thread may exist already, or another program copies to it.
        """
        known = await self.read_family(thread)
        if family.root == known.root and {*family.relatives} <= {*known.relatives}:
            return
        own = tenants.family_thread(thread)
        row = (await self.rows_to_write(own)).family_row(family)
        await result(self.below.commit(model.Batch(own, now, writes=(row,))))
        await self.read_family(thread)

    # -- rotation ----------------------------------------------------------------------

    async def stored_names(self, after: str | None, prefix: str = "") -> list[str]:
        """Return the next names of threads that a rotation has to read, hidden ones included."""
        read = model.FindThreads(after, _PAGE, empty=True, prefix=prefix)
        (found,) = await result(self.below.fetch([read]))
        return [name for name in found if name != tenants.STORE]

    async def reseal(self, thread: str, *, dry_run: bool) -> resealing.KeyUse:
        return await resealing.reseal(self, thread, dry_run=dry_run)

    async def reseal_items(
        self, after: resealing_items.After, *, dry_run: bool
    ) -> tuple[resealing.KeyUse, resealing_items.After]:
        """See `resealing_items.reseal_items`. A store without items gets no tables for them."""
        if after is None:
            usage = await self.item_usage(0)
            if not (usage.items or usage.item_bytes or usage.items_sampled):
                return resealing.KeyUse(Counter()), None
        items = SealedItems(self.below.items(SearchOptions()), self.keys)
        return await resealing_items.reseal_items(items, after, dry_run=dry_run)

    async def finish_rotation(self) -> None:
        """See `StoreKeys.finish_rotation`. Cached results that may be plain are removed."""
        if self.keys.allow_plaintext and (await self.item_usage(0)).cache_entries:
            entries: Any = self.below.cache()
            await result(entries.commit_many([ClearEntries(None)]))
        await self.keys.finish_rotation()

    async def destroy_key(self, kind: str, name: str) -> tuple[tuple[str, ...], ScrubReport]:
        return await destroying.destroy(self, kind, name)

    # -- the rest ----------------------------------------------------------------------

    async def close(self) -> None:
        await result(self.below.close())
        await self.keys.close()

    async def migrate(self) -> None:
        await super().migrate()
        await self.keys.migrate()

    def items(self, options: SearchOptions) -> AsyncItemBackend:
        """See `Backend.items`. An index is refused: it reveals the texts."""
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
        awaited = None if beside is None else SealedFace(beside, keys, face.families)
        super().__init__(face, awaited)
        self.below = below

    # The three hot calls skip the coroutines of the face if all that they need is in memory.

    def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        first = reads[0] if len(reads) == 1 else None
        if isinstance(first, model.ReadCheckpoint):
            (reply,) = self.below.fetch(reads)
            opened = self.face.opened_from_memory(first, reply)
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

    def stored_names(self, after: str | None) -> list[str]:
        return finish(self.face.stored_names(after))

    def reseal_items(
        self, after: resealing_items.After, *, dry_run: bool
    ) -> tuple[resealing.KeyUse, resealing_items.After]:
        return finish(self.face.reseal_items(after, dry_run=dry_run))

    def reseal(self, thread: str, *, dry_run: bool) -> resealing.KeyUse:
        return finish(self.face.reseal(thread, dry_run=dry_run))

    def finish_rotation(self) -> None:
        finish(self.face.finish_rotation())

    def destroy_key(self, kind: str, name: str) -> tuple[tuple[str, ...], ScrubReport]:
        return finish(self.face.destroy_key(kind, name))
