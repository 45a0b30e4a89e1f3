"""Families of forks: in memory, with what proves them, and of older forks (design note 0026)."""

from __future__ import annotations

import time
from threading import Lock
from typing import Any

from threadkeep._core.engine.model import Batch, ReadThread
from threadkeep._core.engine.sealed_rows import Family, Relative, RowSealer
from threadkeep._core.engine.thread_entry import ReadEntry
from threadkeep._core.engine.tips import after
from threadkeep._core.lru import Lru
from threadkeep._core.tenants import family_thread
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.sync_bridge import result

_MOST = 4096  # threads


class Known:
    """A thread's family as read, and tips of the thread that prove its root.

    Families only grow, and a fork's family is stored before the fork. So a store that still names a
    tip of the fork has the family, too. After a loss of the fork, its row names no tip that was
    read with the family. To open rows, a family needs no proof.
    """

    __slots__ = ("family", "is_own", "tips")

    def __init__(
        self, thread: str, family: Family | None = None, named: tuple[int, ...] = ()
    ) -> None:
        self.family = family or Family(thread)
        self.is_own = self.family.root == thread
        self.tips = named

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


class Families(ResetInChild):
    """Families of threads, and sealers of rows that were made with them."""

    def _reset(self) -> None:
        self._known: Lru[str, Known] = Lru(_MOST)
        self._ready: Lru[str, tuple[RowSealer, Known]] = Lru(_MOST)
        self._lock = Lock()

    def get(self, thread: str) -> Known | None:
        """Return the family of a thread if it was read."""
        with self._lock:
            return self._known.get(thread)

    def put(self, thread: str, known: Known) -> None:
        """Remember the family of a thread."""
        with self._lock:
            self._ready.drop(thread)
            self._known.put(thread, known)

    def ready(self, thread: str) -> tuple[RowSealer, Known] | None:
        """Return the sealer of a thread, and the family that it was made with."""
        with self._lock:
            return self._ready.get(thread)

    def keep(self, thread: str, rows: RowSealer, known: Known) -> None:
        """Remember the sealer of a thread."""
        with self._lock:
            self._ready.put(thread, (rows, known))


async def family_of_plain(face: Any, thread: str) -> Family:
    """Return the family of a thread that was plain, and store it for all that share its segments.

    All of them seal these segments for the same thread, so it is stored before the first seal.
    """
    (rows,) = await result(face.below.fetch([ReadThread(thread)]))
    if not rows.family:
        return Family(thread)
    group = sorted({thread, *rows.family})
    replies = await result(face.below.fetch([ReadThread(family_thread(one)) for one in group]))
    with_family = {one for one, reply in zip(group, replies, strict=True) if reply.orphans}
    if with_family:
        root = (await face.read_family(min(with_family))).root
    else:
        entries = await result(face.below.fetch([*map(ReadEntry, group)]))
        origins = [entry and entry.origin and entry.origin[0] for entry in entries]
        first = [one for one, origin in zip(group, origins, strict=True) if origin not in group]
        root = [*first, *group][0]
    families = {one: Family(root, () if one == root else (Relative(root, ""),)) for one in group}
    for one in {*group} - with_family:
        own, now = family_thread(one), time.time_ns() // 1000
        row = (await face.rows_to_write(own)).family_row(families[one])
        await result(face.below.commit(Batch(own, now, writes=(row,))))
    return families[thread]
