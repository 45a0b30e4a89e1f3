"""Sealers of threads' rows, with the keys of their families of forks (design note 0026)."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Lock
from typing import Any

from threadkeep._core import tenants
from threadkeep._core.engine.model import Batch, CopyThread, ForkThread, ReadThread
from threadkeep._core.engine.sealed_rows import Family, Relative, RowSealer, Seal
from threadkeep._core.engine.thread_entry import AFTER_ALL, ReadEntry
from threadkeep._core.engine.tips import after
from threadkeep._core.lru import Lru
from threadkeep._core.sealing import Sealer
from threadkeep._core.tenants import family_thread
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import InvalidArgumentError, WrongKeyError

_MOST = 4096  # threads


class Known:
    """A thread's family, if it was read, and tips of the thread that prove its root.

    Families only grow, and a fork's family is stored before the fork. So a store that still names a
    tip of the fork has the family, too. After a loss of the fork, its row names no tip that was
    read with the family. To open rows, a family needs no proof.
    """

    __slots__ = ("family", "is_own", "is_read", "rows", "tips")

    def __init__(
        self, thread: str, family: Family | None = None, named: tuple[int, ...] = ()
    ) -> None:
        self.is_read = family is not None
        self.family = family or Family(thread)
        self.is_own = self.family.root == thread
        self.tips = named
        self.rows: RowSealer | None = None  # made with the family

    def proves(self, base: tuple[int, ...], tip: int) -> bool:
        """Return True if rows that build on `base` can be sealed for the root.

        Then later rows that build on their tip can be, too.
        """
        if self.is_own:
            return True
        if {*base}.isdisjoint(self.tips):
            return False
        self.tips = after(self.tips, tip)
        return True

    def note(self, named: tuple[int, ...]) -> None:
        """Note the tips that the thread's row names."""
        if not (self.is_own or {*named}.isdisjoint(self.tips)):
            self.tips = named


class KnownFamilies(ResetInChild):
    """Families of threads in memory."""

    def _reset(self) -> None:
        self._known: Lru[str, Known] = Lru(_MOST)
        self._lock = Lock()

    def get(self, thread: str) -> Known | None:
        """Return the facts of a thread that are in memory."""
        with self._lock:
            return self._known.get(thread)

    def put(self, thread: str, known: Known, *, was_read: bool) -> None:
        """Remember a thread. Replace a family that was read only if it `was_read` again."""
        with self._lock:
            last = self._known.get(thread)
            if was_read or last is None or not last.is_read:
                self._known.put(thread, known)


class Families:
    """The sealers of a store's threads.

    Args:
        below: the store.
        keys: its keys.
        memory: families in memory, which both faces of a store share.
    """

    def __init__(self, below: Any, keys: StoreKeys, memory: KnownFamilies) -> None:
        self._below, self._keys, self.memory = below, keys, memory

    def get(self, thread: str) -> Known | None:
        """Return the family of a thread if it was read."""
        known = self.memory.get(thread)
        return known if known is not None and known.is_read else None

    def rows(self, thread: str) -> RowSealer:
        """Return the opener of a thread's rows, with the keys and families that are in memory."""
        known = self.get(thread) or Known(thread)
        return self._made(thread, self._keys.remembered(thread) or self._keys.none, known.family)

    def _made(
        self, thread: str, sealer: Sealer, family: Family, root: Sealer | None = None
    ) -> RowSealer:
        found = [(self._keys.remembered(one.thread), one) for one in family.relatives]
        return RowSealer(
            thread,
            Seal(sealer, sealer.group(thread)),
            None if root is None else Seal(root, root.group(family.root)),
            [(Seal(one, one.group(at.thread)), at.last) for one, at in found if one is not None],
            self._keys.searchable,
            plain=self._keys.allow_plaintext,
        )

    async def writing(self, thread: str, known: Known | None = None) -> RowSealer:
        """Return the sealer of a thread, with the family that is in memory unless it is given."""
        sealer = await self._keys.writing(thread, is_thread=True)
        known = known or self.get(thread) or Known(thread)
        root = None
        if not known.is_own:
            root = await self._keys.of(known.family.root, is_thread=True)
        rows = self._made(thread, sealer, known.family, root)
        if self._keys.are_derived:  # (others may be destroyed)
            known.rows = rows
            self.memory.put(thread, known, was_read=False)
        return rows

    async def for_batch(self, batch: Batch) -> RowSealer:
        """Return the sealer of a batch: for a root only if the store proves it with the commit."""
        thread, known = batch.thread, self.get(batch.thread)
        if batch.generation == 0:  # (a fork's is greater)
            known = Known(thread)
        elif known is None:
            if batch.drop_segments or self._keys.allow_plaintext:  # (others may share the new ones)
                await self.read(thread, batch.base)
        elif not known.proves(batch.base, batch.tip):
            await self.read(thread, batch.base)
            known = None
        return await self.writing(thread, known)

    async def read(self, thread: str, named: tuple[int, ...] = ()) -> Family:
        """Read the family of a thread, which few have, and remember it.

        Args:
            thread: its name.
            named: tips that its row is known to have named before.
        """
        own = family_thread(thread)
        (rows,) = await result(self._below.fetch([ReadThread(own)]))
        await self._keys.of(own, is_thread=True)
        found = [self.rows(own).family_of(row) for row in rows.orphans]
        if not found and self._keys.allow_plaintext:
            found = [await self._of_plain(thread)]
        relatives = dict.fromkeys([one for family in found for one in family.relatives])
        family = Family(found[-1].root if found else thread, tuple(relatives))
        for one in relatives:
            with suppress(WrongKeyError):  # (destroyed: its values do not open)
                await self._keys.of(one.thread, is_thread=True)
        self.memory.put(thread, Known(thread, family, named), was_read=True)
        return family

    async def of_copy(self, change: CopyThread | ForkThread) -> Family:
        """Return the family of rows that are to be copied."""
        if tenants.tenant_of(change.source) != tenants.tenant_of(change.target):
            raise InvalidArgumentError(
                "Encrypted rows cannot be copied to another tenant: they would keep its key.",
                hint="Mirror the thread: the saver of one tenant to that of the other.",
            )
        source = await self.read(change.source)
        root, last = change.target, AFTER_ALL
        if isinstance(change, ForkThread):
            copied = [id for _, id in change.checkpoints] + [id for _, id, _ in change.writes]
            root, last = source.root, max(copied, default="")
        return Family(root, (Relative(change.source, last), *source.relatives))

    async def add(self, thread: str, family: Family, now: int) -> None:
        """Add to a thread's family, for rows that are copied. Without the copy it does no harm.

        Families only grow: the thread may exist already, or another program copies to it.
        """
        known = await self.read(thread)
        if family.root != known.root or not {*family.relatives} <= {*known.relatives}:
            await self._store(thread, family, now)
            await self.read(thread)

    async def _store(self, thread: str, family: Family, now: int) -> None:
        own = family_thread(thread)
        row = (await self.writing(own)).family_row(family)
        await result(self._below.commit(Batch(own, now, writes=(row,))))

    async def _of_plain(self, thread: str) -> Family:
        """Return the family of a thread that was plain, and store it for all that share segments.

        All of them seal these segments for the same thread, so it is stored before the first seal.
        """
        (rows,) = await result(self._below.fetch([ReadThread(thread)]))
        if not rows.family:
            return Family(thread)
        group = sorted({thread, *rows.family})
        replies = await result(self._below.fetch([ReadThread(family_thread(one)) for one in group]))
        stored = [one for one, reply in zip(group, replies, strict=True) if reply.orphans]
        if stored:
            root = (await self.read(stored[0])).root
        else:
            entries = await result(self._below.fetch([*map(ReadEntry, group)]))
            origins = [entry and entry.origin and entry.origin[0] for entry in entries]
            first = [one for one, origin in zip(group, origins, strict=True) if origin not in group]
            root = [*first, *group][0]
        shared = Family(root, (Relative(root, ""),))
        families = dict.fromkeys(group, shared) | {root: Family(root)}
        for one in {*group} - {*stored}:
            await self._store(one, families[one], time.time_ns() // 1000)
        return families[thread]
