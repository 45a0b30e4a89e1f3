"""Rows sealed again with the current key, in small commits, while others use the store.

Each commit is fenced by the generation of the thread and by its entry, and builds on the rows that
were read, so it restores no row that was removed or lost meanwhile. After an interruption, rows
that have the current key are left alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from threadkeep._core import tenants
from threadkeep._core.codec.frame import is_sealed, key_of
from threadkeep._core.engine import model
from threadkeep._core.engine.registration import rows_fence
from threadkeep._core.engine.sealed_rows import RowSealer
from threadkeep._core.engine.thread_entry import EntryFence, ReadEntry, ThreadEntry
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.parts import parts_of
from threadkeep._stores.records import confirm, tie
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import (
    ConflictError,
    DestroyedKeyError,
    SegmentTakenError,
    StaleThreadError,
)

_ATTEMPTS = 20
_MOST_BYTES = 1 << 20  # of a commit
_OVERTAKEN = (ConflictError, SegmentTakenError, StaleThreadError)


class KeyUse(NamedTuple):
    """The bytes of sealed values by the id of their key ("" for plain ones), and a count.

    `changed` values were sealed again, or would be.
    """

    bytes: Counter[str]
    changed: int = 0


async def reseal(face: Any, thread: str, *, dry_run: bool = False) -> KeyUse:
    """Seal the rows of a thread again that lack the current key, or digests for searches.

    Raises:
        ConflictError: other writers changed the thread at every attempt.
        TamperedDataError, WrongKeyError: a row does not open.
    """
    total = KeyUse(Counter())
    for _ in range(_ATTEMPTS):
        try:
            found = await _Pass(face, thread).run(dry_run=dry_run)
        except DestroyedKeyError:  # (a program that knew it wrote late)
            return total
        changed = total.changed + found.changed
        total = KeyUse(found.bytes, changed)
        if found.is_done:
            return total
    raise ConflictError(
        "Other writers keep changing this thread.",
        hint="Run the rotation again: it continues where it ended.",
        thread=thread,
    )


class _Found(NamedTuple):
    bytes: Counter[str]
    changed: int
    is_done: bool


class _Pass:
    """One attempt for a thread."""

    def __init__(self, face: Any, thread: str) -> None:
        self._face, self._thread = face, thread
        self._bytes: Counter[str] = Counter()
        self._changed = 0
        self._shared: set[str] = set()  # keys of rows that may stay

    async def run(self, *, dry_run: bool) -> _Found:
        reads: list[model.Read] = [model.ReadThread(self._thread), ReadEntry(self._thread)]
        rows, entry = await result(self._face.below.fetch(reads))
        self._proof = Proof.of(rows)
        if not (rows.checkpoints or rows.orphans or rows.segments or (entry and entry.labels)):
            return _Found(self._bytes, self._changed, is_done=True)  # (its key may be destroyed)
        if not tenants.is_hidden(self._thread):
            await self._face.read_family(self._thread)
        sealer = await self._face.rows_to_write(self._thread)
        self._shared = sealer.shared_keys
        fence = _fence(rows, entry)
        try:
            for change in self._row_changes(sealer, rows):
                await self._commit(change, rows, fence, dry_run=dry_run)
            await self._segments(sealer, rows, fence, dry_run=dry_run)
            if entry is not None:
                await self._entry(sealer, rows, entry, dry_run=dry_run)
        except _OVERTAKEN:
            return _Found(self._bytes, self._changed, is_done=False)
        return _Found(self._bytes, self._changed, is_done=True)

    def _row_changes(self, sealer: RowSealer, rows: model.ThreadRows) -> Iterator[model.Batch]:
        empty = model.Batch(self._thread, time.time_ns() // 1000)
        points = [one.row for one in rows.checkpoints]
        for point in self._stale(points, "manifest", sealer.checkpoint, sealer.opened_checkpoint):
            yield empty._replace(checkpoints=tuple(point))
        writes = [row for one in rows.checkpoints for row in one.writes] + [*rows.orphans]
        for some in self._stale(writes, "body", sealer.write, sealer.opened_write):
            yield empty._replace(replace_writes=tuple(some))

    async def _entry(
        self, sealer: RowSealer, rows: model.ThreadRows, entry: ThreadEntry, *, dry_run: bool
    ) -> None:
        new = sealer.entry(sealer.opened_entry(entry))
        if new.labels != tuple(sorted(entry.labels)):
            self._changed += 1
            change = model.Batch(self._thread, time.time_ns() // 1000, entry=new)
            await self._commit(change, rows, EntryFence(entry.revision), dry_run=dry_run)

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
                self._bytes[key_in(data)] += len(data)
                new = seal(opened(row))
                is_same = getattr(new, "metadata", None) == getattr(row, "metadata", None)
                if not is_same or key_in(data) not in {key_in(data_of(new)), *self._shared}:
                    self._changed += 1
                    yield new

        return parts_of(changed(), lambda row: len(data_of(row)), most_bytes=_MOST_BYTES)

    async def _segments(
        self,
        sealer: RowSealer,
        rows: model.ThreadRows,
        fence: model.Fence,
        *,
        dry_run: bool,
    ) -> None:
        for infos in parts_of(rows.segments, attrgetter("size"), most_bytes=_MOST_BYTES):
            spans = tuple([model.Span(one.log, one.start, one.start + one.count) for one in infos])
            read = model.ReadSegments(self._thread, spans, rows.generation, base=rows.tips[:1])
            (found,) = await result(self._face.below.fetch([read]))
            if len(found) < len({one[:2] for one in infos}):
                raise StaleThreadError(thread=self._thread)
            for segments in self._stale(found, "data", sealer.segment, sealer.opened_segment):
                change = model.Batch(
                    self._thread,
                    time.time_ns() // 1000,
                    segments=tuple(segments),
                    drop_segments=tuple([one[:3] for one in segments]),
                )
                await self._commit(change, rows, fence, dry_run=dry_run)

    async def _commit(
        self, change: model.Batch, rows: model.ThreadRows, fence: model.Fence, *, dry_run: bool
    ) -> None:
        if not dry_run:
            fenced = change._replace(
                generation=rows.generation, fences=(fence,), link=Link(self._proof)
            )
            tie([fenced])
            await result(self._face.below.commit(fenced))
            confirm([fenced], [None])


def _fence(rows: model.ThreadRows, entry: ThreadEntry | None) -> model.Fence:
    """Return a fence that holds while no row is removed."""
    if entry is not None:
        return EntryFence(entry.revision)
    return rows_fence([rows])


def key_in(data: object) -> str:
    """Return the id of the key of a stored value, "" if it is plain."""
    return key_of(data) if isinstance(data, bytes) and is_sealed(data) else ""
