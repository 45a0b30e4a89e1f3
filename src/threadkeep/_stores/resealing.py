"""Stored values sealed again with the current key, while others use the store; the end of a key.

Rows of a thread are sealed again in small commits. Each is fenced by the generation of the thread
and by its entry, and builds on the rows that were read, so it restores no row that was removed or
lost meanwhile. An item is put again with its own times, so it gets a new version. Cached results
are left alone: a result whose key is gone is a miss. After an interruption, values that have the
current key are left alone.

All functions take a `SealedFace` and read the store below it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core import tenants
from threadkeep._core.codec.frame import is_sealed, key_of
from threadkeep._core.engine import model
from threadkeep._core.engine.registration import rows_fence
from threadkeep._core.engine.sealed_rows import RowSealer
from threadkeep._core.engine.thread_entry import EntryFence, ReadEntry, is_there
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.parts import parts_of
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.caches import ClearEntries
from threadkeep._stores.items import records
from threadkeep._stores.records import confirm, tie
from threadkeep._stores.sealed_items import SealedItems
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import (
    CodecError,
    ConflictError,
    DestroyedKeyError,
    SegmentTakenError,
    StaleThreadError,
    StateError,
)

_ATTEMPTS = 20
_MOST_BYTES = 1 << 20  # of a commit
_OVERTAKEN = (ConflictError, SegmentTakenError, StaleThreadError)
_THREADS, _ITEMS = 500, 100  # of a page


class KeyUse(NamedTuple):
    """The bytes of sealed values by the id of their key ("" for plain ones), and a count.

    `changed` values were sealed again, or would be.
    """

    bytes: Counter[str]
    changed: int = 0


def key_in(data: object) -> str:
    """Return the id of the key of a stored value, "" if it is plain."""
    return key_of(data) if isinstance(data, bytes) and is_sealed(data) else ""


# -- threads ---------------------------------------------------------------------------


async def stored_names(face: Any, after: str | None, prefix: str = "") -> list[str]:
    """Return the next names of threads that a rotation has to read, hidden ones included."""
    read = model.FindThreads(after, _THREADS, empty=True, prefix=prefix)
    (found,) = await result(face.below.fetch([read]))
    return [name for name in found if name != tenants.STORE]


async def reseal(face: Any, thread: str, *, dry_run: bool = False) -> KeyUse:
    """Seal the rows of a thread again that lack the current key, or digests for searches.

    Raises:
        ConflictError: other writers changed the thread at every attempt.
        TamperedDataError, WrongKeyError: a row does not open.
    """
    rows = _RowsOfThread(face, thread, dry_run=dry_run)
    for _ in range(_ATTEMPTS):
        with suppress(*_OVERTAKEN):
            with suppress(DestroyedKeyError):  # (a program that knew it wrote late)
                await rows.seal()
            return KeyUse(rows.bytes, rows.changed)
    raise ConflictError(
        "Other writers keep changing this thread.",
        hint="Run the rotation again: it continues where it ended.",
        thread=thread,
    )


class _RowsOfThread:
    """The rows of a thread."""

    def __init__(self, face: Any, thread: str, *, dry_run: bool) -> None:
        self._face, self._thread, self._dry_run = face, thread, dry_run
        self.bytes: Counter[str] = Counter()
        self.changed = 0

    async def seal(self) -> None:
        """Make one attempt."""
        self.bytes.clear()
        reads: list[model.Read] = [model.ReadThread(self._thread), ReadEntry(self._thread)]
        rows, entry = await result(self._face.below.fetch(reads))
        self._generation, self._proof = rows.generation, Proof.of(rows)
        if not (rows.checkpoints or rows.orphans or rows.segments or (entry and entry.labels)):
            return  # (its key may be destroyed)
        if not tenants.is_hidden(self._thread):
            await self._face.families.read(self._thread)
        sealer: RowSealer = await self._face.families.writing(self._thread)
        self._shared = sealer.shared_keys  # of rows that may stay
        # (holds while no row is removed)
        self._fence = rows_fence([rows]) if entry is None else EntryFence(entry.revision)
        points = [one.row for one in rows.checkpoints]
        for some in self._stale(points, "manifest", sealer.checkpoint, sealer.opened_checkpoint):
            await self._commit(checkpoints=tuple(some))
        writes = [row for one in rows.checkpoints for row in one.writes] + [*rows.orphans]
        for some in self._stale(writes, "body", sealer.write, sealer.opened_write):
            await self._commit(replace_writes=tuple(some))
        await self._segments(sealer, rows)
        if entry is not None:
            new = sealer.entry(sealer.opened_entry(entry))
            if new.labels != tuple(sorted(entry.labels)):
                self.changed += 1
                await self._commit(entry=new)

    async def _segments(self, sealer: RowSealer, rows: model.ThreadRows) -> None:
        for infos in parts_of(rows.segments, attrgetter("size"), most_bytes=_MOST_BYTES):
            spans = tuple([model.Span(one.log, one.start, one.start + one.count) for one in infos])
            read = model.ReadSegments(self._thread, spans, rows.generation, base=rows.tips[:1])
            (found,) = await result(self._face.below.fetch([read]))
            if len(found) < len({one[:2] for one in infos}):
                raise StaleThreadError(thread=self._thread)
            for some in self._stale(found, "data", sealer.segment, sealer.opened_segment):
                await self._commit(
                    segments=tuple(some), drop_segments=tuple([one[:3] for one in some])
                )

    def _stale(
        self,
        rows: Iterable[Any],
        field: str,
        seal: Callable[[Any], Any],
        opened: Callable[[Any], Any],
    ) -> Iterator[list[Any]]:
        """Return rows sealed again, some at a time, without rows that stay the same.

        A row that was copied from another thread keeps its seal if that has the current key.
        """
        data_of: Callable[[Any], bytes] = attrgetter(field)

        def changed() -> Iterator[Any]:
            for row in rows:
                data = data_of(row)
                self.bytes[key_in(data)] += len(data)
                new = seal(opened(row))
                is_same = getattr(new, "metadata", None) == getattr(row, "metadata", None)
                if not is_same or key_in(data) not in {key_in(data_of(new)), *self._shared}:
                    self.changed += 1
                    yield new

        return parts_of(changed(), lambda row: len(data_of(row)), most_bytes=_MOST_BYTES)

    async def _commit(self, **rows: Any) -> None:
        if not self._dry_run:
            change = model.Batch(
                self._thread,
                time.time_ns() // 1000,
                self._generation,
                fences=(self._fence,),
                link=Link(self._proof),
                **rows,
            )
            tie([change])
            await result(self._face.below.commit(change))
            confirm([change], [None])


# -- items -----------------------------------------------------------------------------

After: TypeAlias = tuple[bool, Any] | None
"""True while items are read, False for their earlier versions, and the last place."""


async def reseal_page(face: Any, after: After, *, dry_run: bool) -> tuple[KeyUse, After]:
    """A store without items gets no tables for them."""
    if after is None:
        usage = await face.item_usage(0)
        if not (usage.items or usage.item_bytes or usage.items_sampled):
            return KeyUse(Counter()), None
    items = SealedItems(face.below.items(records.SearchOptions()), face.keys)
    return await reseal_items(items, after, dry_run=dry_run)


async def reseal_items(items: SealedItems, after: After, *, dry_run: bool) -> tuple[KeyUse, After]:
    """Seal a page of items or versions again; return where the next page begins.

    Raises:
        TamperedDataError, WrongKeyError: a row does not open.
    """
    is_items, place = after or (True, None)
    read: Any = records.FindItems((), _ITEMS, after=place)
    if not is_items:
        read = records.FindVersions(_ITEMS, after=place)
    (rows,) = await result(items.below.fetch([read]))
    use = await _reseal_items(items, rows, dry_run=dry_run)
    if len(rows) == _ITEMS:
        return use, (is_items, rows[-1].place if is_items else rows[-1])
    return use, (False, None) if is_items else None


async def _reseal_items(items: SealedItems, rows: Sequence[Any], *, dry_run: bool) -> KeyUse:
    """Seal items, or earlier versions, again, without those whose key was destroyed."""
    old = await items.sealers([row.namespace for row in rows])
    kept = [namespace for namespace, sealer in old.items() if sealer.lost is None]
    new = await items.sealers(kept, to_write=True)
    use, now = KeyUse(Counter()), time.time_ns() // 1000
    puts: list[Any] = []
    patches: list[Any] = []
    change: Any
    for row in rows:
        if row.namespace not in new:
            continue
        opener, sealer = old[row.namespace], new[row.namespace]
        if isinstance(row, records.ItemRow):
            stored = row.value
            put = records.ItemPut(
                *(row.namespace, row.key, _value(row, opener.opened_item(row).value), row.ttl),
                expects=row.version,
                times=(row.created_at, row.updated_at, row.expires_at),
            )
            put = sealer.put(put, now)
            sealed, change, changes = put.value, records.PutItems((put,), now), puts
        else:
            stored, opened = row.row.patch, opener.opened_version(row).row
            _value(row, opened.patch)
            sealed = sealer.version(row.namespace, row.key, opened).patch
            change, changes = (row, sealed), patches
        use.bytes[key_in(stored)] += len(stored)
        if key_in(sealed) != key_in(stored):
            changes.append(change)
    if puts and not dry_run:
        with suppress(ConflictError):  # (an item that was put meanwhile is left alone)
            await result(items.below.commit_many(puts))
    if patches and not dry_run:
        await result(items.below.commit(records.ReplacePatches(tuple(patches))))
    return use._replace(changed=len(puts) + len(patches))


def _value(row: Any, value: records.Packed) -> records.Packed:
    try:
        return records.opened(value)
    except CodecError as error:
        error.message = f"Item {row.key!r} in {row.namespace} cannot be read: {error.message}"
        raise


async def finish(face: Any) -> None:
    """Cached results that may be plain are removed."""
    if face.keys.allow_plaintext and (await face.item_usage(0)).cache_entries:
        await result(face.below.cache().commit_many([ClearEntries(None)]))
    await face.keys.finish_rotation()


# -- the end of a key ------------------------------------------------------------------


async def destroy(face: Any, kind: str, name: str) -> tuple[tuple[str, ...], ScrubReport]:
    """Destroy the key of a "tenant" or "thread", and data that late writers sealed with it.

    The keys of a thread's forks end, too: archives of these hold its values.

    Raises:
        StateError: a fork still has rows.
    """
    forks = await _removed_forks(face, name) if kind == "thread" else []
    destroyed: tuple[tuple[str, ...], ScrubReport] = await face.keys.destroy(kind, name, forks)
    late = [name, tenants.family_thread(name)]
    if kind == "tenant":
        late = await _threads_of(face, tenants.prefix(name))
        late += await _threads_of(face, tenants.family_thread(tenants.prefix(name)))
    for thread in late:
        await result(face.below.commit(model.DropThread(thread, time.time_ns() // 1000)))
    return destroyed


async def _removed_forks(face: Any, thread: str) -> list[str]:
    """Return the forks of a thread, if all of them were removed.

    A copy that a crash kept from its own key gets it here.
    """
    if await face.reads.is_gone(thread):
        return []  # (their keys were destroyed before its own)
    forks = []
    root = (await face.families.read(thread)).root
    for family_thread in await _threads_of(face, tenants.family_thread("")):
        other = tenants.owner_of(family_thread)
        if await face.reads.is_gone(other):
            continue
        family = await face.families.read(other)
        if thread not in {one.thread for one in family.relatives}:
            continue
        if family.root == other:
            await reseal(face, other)
        elif family.root == root:  # (else the fork of a copy)
            reads = [model.ReadThread(other), ReadEntry(other)]
            rows, entry = await result(face.below.fetch(reads))
            if rows.checkpoints or rows.orphans or is_there(entry):
                raise forks_left([other], thread)
            forks.append(other)
    return forks


def forks_left(forks: Sequence[str], thread: str) -> StateError:
    """Return the error for a thread whose key its forks need."""
    return StateError(
        f"Forks of it are encrypted with its key: {', '.join(forks[:5])}.",
        hint="Shred them, too: forks=True.",
        thread=thread,
    )


async def _threads_of(face: Any, prefix: str) -> list[str]:
    found: list[str] = []
    while page := await stored_names(face, found[-1] if found else None, prefix):
        found += page
    return found
