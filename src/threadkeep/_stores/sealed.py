"""A backend in front of another one, which then holds only sealed rows (design note 0026)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from operator import call
from threading import Lock
from typing import Any, TypeVar, cast

from threadkeep._core import tenants
from threadkeep._core.engine import model
from threadkeep._core.engine.sealed_rows import Family, Relative, RowSealer, Seal
from threadkeep._core.engine.thread_entry import AFTER_ALL
from threadkeep._core.engine.usage import ItemUsage
from threadkeep._core.lru import Lru
from threadkeep._core.sealing import Sealer
from threadkeep._stores import destroying, plain_forks, resealing, resealing_items, sealed_reads
from threadkeep._stores.base import AsyncBackend, Backend, ScrubReport
from threadkeep._stores.caches import AsyncCacheBackend, ClearEntries
from threadkeep._stores.items import AsyncItemBackend
from threadkeep._stores.items.records import SearchOptions
from threadkeep._stores.sealed_items import SealedEntries, SealedItems, no_index
from threadkeep._stores.sealed_searches import SealedSearches
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import BlockingFace, finish, result
from threadkeep.errors import (
    CodecError,
    DestroyedKeyError,
    InvalidArgumentError,
    SegmentTakenError,
    TamperedDataError,
    ThreadkeepError,
    WrongKeyError,
)

T = TypeVar("T")
_FAMILIES = 4096  # threads whose families are remembered
_PAGE = 500


class SealedFace(AsyncBackend):
    """The async face; over a blocking backend it never suspends."""

    keys: StoreKeys

    def __init__(self, below: Backend | AsyncBackend, keys: StoreKeys) -> None:
        self.below = below
        self.keys = keys.beside(below)
        self.instant = below.instant and keys.instant
        self.commits_groups = below.commits_groups
        self.has_identity = below.has_identity
        self.counts_for_all = below.counts_for_all
        self.counts_usage = below.counts_usage
        self._families: Lru[str, Family] = Lru(_FAMILIES)
        self._ready: Lru[str, RowSealer] = Lru(_FAMILIES)
        self._lock = Lock()
        self.searches = SealedSearches(self.below, self.keys, self._opened)

    @property
    def retries(self) -> int:
        """See `Backend.retries`."""
        return self.below.retries

    # -- reads -------------------------------------------------------------------------

    async def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        """See `Backend.fetch`."""
        first = reads[0] if len(reads) == 1 else None
        if isinstance(first, model.ReadCheckpoint) and not self.keys.checks_reads:
            (reply,) = await result(self.below.fetch(reads))
            return [self.at_hand(first, reply) or await self._opened(first, reply)]
        asked = [await self.searches.asked(read) for read in reads]
        replies = await result(self.below.fetch([read for read, _ in asked]))
        if self.keys.checks_reads:
            await self.keys.refresh()
        return [
            await self.searches.told(*pair, reply)
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
            families = [await self.read_family(name) for name in names]
            if not any(family.relatives for family in families) and not skip:
                raise
        each = sealed_reads.or_damaged if skip else call
        return sealed_reads.opened(read, reply, cache(self._rows), each)

    def at_hand(
        self, read: model.ReadCheckpoint, reply: model.ThreadState
    ) -> model.ThreadState | None:
        """Return the opened reply to a read if no other read is needed, else None."""
        if reply.found is None:
            return reply
        if sealed_reads.depends_on_child(read, reply.found):
            return None
        rows = self._ready_rows(read.thread) if self.keys.is_known else None
        if rows is None:
            return None
        try:
            return reply._replace(found=rows.opened(reply.found))
        except CodecError:
            return None

    def sealed_at_hand(self, change: model.Change) -> model.Batch | None:
        """Return the sealed rows of a batch if no read is needed, else None."""
        if type(change) is not model.Batch or not self.keys.is_prepared:
            return None
        if change.drop_segments or change.hide_checkpoints:
            return None
        rows = self._ready_rows(change.thread)
        return None if rows is None else rows.batch(change)

    def _ready_rows(self, thread: str) -> RowSealer | None:
        with self._lock:
            return self._ready.get(thread)

    # -- rows --------------------------------------------------------------------------

    def _rows(self, thread: str) -> RowSealer:
        """Return the opener of a thread's rows, with the keys and families that are in memory."""
        with self._lock:
            family = self._families.get(thread) or Family(thread)
        return self._row_sealer(thread, self.keys.at_hand(thread) or self.keys.none, family)

    def _row_sealer(
        self, thread: str, sealer: Sealer, family: Family, root: Sealer | None = None
    ) -> RowSealer:
        found = [(self.keys.at_hand(one.thread), one) for one in family.relatives]
        return RowSealer(
            thread,
            Seal(sealer, sealer.group(thread)),
            None if root is None else Seal(root, root.group(family.root)),
            [(Seal(one, one.group(at.thread)), at.last) for one, at in found if one is not None],
            self.keys.searchable,
            plain=self.keys.allow_plaintext,
        )

    async def rows_to_write(self, thread: str, *, of_all: bool = False) -> RowSealer:
        """Return the sealer of a thread.

        Args:
            thread: its name.
            of_all: read the thread's family first: others may share the new rows.
        """
        sealer = await self.keys.writing(thread, is_thread=True)
        if (of_all or self.keys.allow_plaintext) and not tenants.is_hidden(thread):
            family = await self._family(thread)
        else:
            with self._lock:
                family = self._families.get(thread) or Family(thread)
        root = None
        if family.root != thread:
            root = await self.keys.of(family.root, is_thread=True)
        rows = self._row_sealer(thread, sealer, family, root)
        if self.keys.are_derived:  # (others may be destroyed)
            with self._lock:
                self._ready.put(thread, rows)
        return rows

    async def _family(self, thread: str) -> Family:
        with self._lock:
            known = self._families.get(thread)
        return known or await self.read_family(thread)

    async def read_family(self, thread: str) -> Family:
        """Read the family of a thread, which few have, and remember it."""
        own = tenants.family_thread(thread)
        (rows,) = await result(self.below.fetch([model.ReadThread(own)]))
        await self.keys.of(own, is_thread=True)
        found = [self._rows(own).family_of(row) for row in rows.orphans]
        if not found and self.keys.allow_plaintext:
            found = [await plain_forks.family_of(self, thread)]
        relatives = dict.fromkeys([one for family in found for one in family.relatives])
        family = Family(found[-1].root if found else thread, tuple(relatives))
        for one in relatives:
            with suppress(WrongKeyError):  # (destroyed: what it sealed does not open)
                await self.keys.of(one.thread, is_thread=True)
        with self._lock:
            self._ready.drop(thread)
            return self._families.put(thread, family)

    # -- changes -----------------------------------------------------------------------

    async def commit(self, change: model.Change) -> None:
        """See `Backend.commit`."""
        await self.keys.prepare()
        await self._before(change)
        if isinstance(change, model.CopyThread):
            await result(self.below.commit(change))
            if self.keys.has_thread_keys:
                await self.reseal(change.target, dry_run=False)
            return
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
        if isinstance(change, model.DropThread) and change.entry is None and change.rows is None:
            await self.keys.prepare()
            return change
        of_all = isinstance(change, model.Batch) and bool(change.drop_segments)
        rows = await self.rows_to_write(change.thread, of_all=of_all)
        if isinstance(change, model.Batch):
            return rows.batch(await self._with_hidden(change))
        if change.entry is not None:
            change = change._replace(entry=rows.entry(change.entry))
        if isinstance(change, model.DropThread) and change.rows is not None:
            change = change._replace(rows=rows.batch(change.rows))
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

    async def _before(self, change: model.Change) -> None:
        """Add to the target's family, for rows to be copied; without the copy it does no harm.

        Families only grow: the target may exist already, or another program copies to it.
        """
        if not isinstance(change, model.CopyThread | model.ForkThread):
            return
        if tenants.tenant_of(change.source) != tenants.tenant_of(change.target):
            raise InvalidArgumentError(
                "Encrypted rows cannot be copied to another tenant: they would keep its key.",
                hint="Mirror the thread: the saver of one tenant to that of the other.",
            )
        source = await self.read_family(change.source)
        known = await self.read_family(change.target)
        root, last = change.target, AFTER_ALL
        if isinstance(change, model.ForkThread):
            copied = [id for _, id in change.checkpoints] + [id for _, id, _ in change.writes]
            root, last = source.root, max(copied, default="")
        relatives = (Relative(change.source, last), *source.relatives)
        if root == known.root and {*relatives} <= {*known.relatives}:
            return
        own = tenants.family_thread(change.target)
        row = (await self.rows_to_write(own)).family_row(Family(root, relatives))
        await result(self.below.commit(model.Batch(own, change.now, writes=(row,))))
        await self.read_family(change.target)

    # -- rotation ----------------------------------------------------------------------

    async def stored_names(self, after: str | None, prefix: str = "") -> list[str]:
        """Return the next names of threads that a rotation has to read, hidden ones included."""
        read = model.FindThreads(after, _PAGE, empty=True, prefix=prefix)
        (found,) = await result(self.below.fetch([read]))
        return [name for name in found if name != tenants.STORE]

    async def reseal(self, thread: str, *, dry_run: bool) -> resealing.KeyUse:
        """See `resealing.reseal`."""
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
        """See `destroying.destroy`."""
        return await destroying.destroy(self, kind, name)

    # -- the rest ----------------------------------------------------------------------

    async def close(self) -> None:
        """See `Backend.close`."""
        await result(self.below.close())
        await self.keys.close()

    async def migrate(self) -> None:
        """See `Backend.migrate`."""
        await result(self.below.migrate())
        await self.keys.migrate()

    async def identity(self) -> str:
        """See `Backend.identity`."""
        return cast("str", await result(self.below.identity()))

    def items(self, options: SearchOptions) -> AsyncItemBackend:
        """See `Backend.items`. An index is refused: it reveals the texts."""
        if options.dims or options.text:
            raise no_index()
        return SealedItems(self.below.items(options), self.keys)

    def cache(self) -> AsyncCacheBackend:
        """See `Backend.cache`."""
        return SealedEntries(self.below.cache(), self.keys)

    async def notes(self) -> Sequence[str]:
        """See `Backend.notes`."""
        return cast("Sequence[str]", await result(self.below.notes()))

    async def item_usage(self, now: int) -> ItemUsage:
        """See `Backend.item_usage`."""
        return cast("ItemUsage", await result(self.below.item_usage(now)))

    async def scrub(self, *, rewrite: bool) -> ScrubReport:
        """See `Backend.scrub`."""
        return cast("ScrubReport", await result(self.below.scrub(rewrite=rewrite)))


class SealedBackend(BlockingFace[SealedFace]):
    """The blocking face of a sealed store."""

    def __init__(self, below: Backend, keys: StoreKeys) -> None:
        beside = below.asynchronous
        super().__init__(
            SealedFace(below, keys), None if beside is None else SealedFace(beside, keys)
        )
        self.below = below
        self.instant = below.instant and keys.instant

    def open(self) -> None:
        self.below.open()

    # The three hot calls skip the coroutines of the face if all that they need is in memory.

    def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        first = reads[0] if len(reads) == 1 else None
        if isinstance(first, model.ReadCheckpoint) and not self.face.keys.checks_reads:
            (reply,) = self.below.fetch(reads)
            opened = self.face.at_hand(first, reply)
            if opened is not None:
                return [opened]
        return super().fetch(reads)

    def commit(self, change: model.Change) -> None:
        sealed = self.face.sealed_at_hand(change)
        if sealed is not None:
            with suppress(SegmentTakenError):
                self.below.commit(sealed)
                return
        super().commit(change)

    def commit_many(self, changes: Sequence[model.Change]) -> list[ThreadkeepError | None]:
        sealed = [*map(self.face.sealed_at_hand, changes)]
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
