"""Threads that are to leave nothing: their rows, and of shared segments what is theirs alone.

Only what is removed from the store's tables lives here. Invariants: wherever this is cut off, doing
it again completes it: a thread that shares segments is emptied before the last word that tells
whom it shares them with goes; what others need stays whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from threadkeep.cold.archive import archive_of
from threadkeep.engine import thread_summary
from threadkeep.engine.context import (
    ATTEMPTS,
    Engine,
)
from threadkeep.engine.lineage import Lineage
from threadkeep.engine.model import (
    Batch,
    CheckpointRow,
    DropThread,
    ReadThread,
    SegmentInfo,
    ThreadRows,
    WriteRow,
)
from threadkeep.engine.operation import (
    Fetch,
    Operation,
    commit,
    fetch,
)
from threadkeep.engine.refs import span_of
from threadkeep.engine.thread_entry import (
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    Touch,
    is_there,
)
from threadkeep.errors import ConflictError, CorruptionError, StaleThreadError
from threadkeep.retention.prune import (
    nothing_new,
    positions,
    read_family,
    thinning,
    touches,
)
from threadkeep.retention.shortening import shortened

Place: TypeAlias = tuple[int, int, int]  # of a segment: its log, start and count

_PAGE = 1000  # entries read at a time


@dataclass(frozen=True, slots=True)
class ErasedThread:
    """What was removed of a thread, or would be.

    Args:
        thread: its name.
        checkpoints, writes, segments: rows; writes are of one task each. Of segments that others
            share, those that went or became shorter.
        bytes: what these held, as stored.
        archived_bytes: what its archive held, in the cold store.
    """

    thread: str
    checkpoints: int = 0
    writes: int = 0
    segments: int = 0
    bytes: int = 0
    archived_bytes: int = 0


# -- which threads -------------------------------------------------------------------


def with_labels(labels: tuple[str, ...]) -> Operation[list[str]]:
    """The names of all threads that have these labels, in order."""
    return _searched(ThreadQuery(labels=labels))


def _searched(query: ThreadQuery) -> Operation[list[str]]:
    found: list[str] = []
    after: tuple[str, str] | None = None
    while True:
        reply = yield from fetch(
            SearchThreads(query, "thread", descending=False, after=after, limit=_PAGE)
        )
        page = [entry.thread for entry in cast("list[ThreadEntry]", reply)]
        found += page
        if len(page) < _PAGE:
            return found
        after = (page[-1], page[-1])


def is_known(thread: str) -> Operation[bool]:
    """Whether the thread is there, or was: a tombstone, or rows that nobody has registered."""
    entry, rows = yield from _looked_at(thread)
    return entry is not None or bool(rows.generation or rows.deleted_at) or _holds_rows(rows)


def forks_of(threads: Sequence[str]) -> Operation[list[str]]:
    """The threads that were forked from these, and from those: each behind its origin."""
    found, ahead = list[str](), list(threads)
    for name in ahead:
        new = [one for one in (yield from _forks(name)) if one not in ahead]
        ahead += new
        found += new
    return found


def _forks(thread: str) -> Operation[list[str]]:
    return _searched(ThreadQuery(origin=thread))


def sharing_with(thread: str) -> Operation[set[str]]:
    """The threads that share its segments, and those that it was forked from.

    The second is what tells where the store copies what forks have in common.
    """
    entry, rows = yield from _looked_at(thread)
    found, seen = set(rows.family), {thread}
    while entry is not None and entry.origin is not None and entry.origin[0] not in seen:
        name = entry.origin[0]
        seen.add(name)
        entry, rows = yield from _looked_at(name)
        if is_there(entry) or _holds_rows(rows):
            found.add(name)
    return found


def _looked_at(thread: str) -> Operation[tuple[ThreadEntry | None, ThreadRows]]:
    replies = yield Fetch((ReadEntry(thread), ReadThread(thread, skip=True)))
    entry, rows = replies
    return cast("ThreadEntry | None", entry), cast("ThreadRows", rows)


def _holds_rows(rows: ThreadRows) -> bool:
    own = () if rows.family else rows.segments
    return any((rows.checkpoints, rows.orphans, rows.unreadable, own))


# -- one thread ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a dry run has told so far, as if it were gone: of threads that share segments.

    `freed` is how many bytes of a segment, by a name of its family and its place.
    """

    threads: set[str] = field(default_factory=set)
    freed: dict[tuple[str, Place], int] = field(default_factory=dict)


def erase(
    engine: Engine, thread: str, rehearsal: Rehearsal | None = None
) -> Operation[ErasedThread]:
    """Remove a thread, and whatever it alone needs of segments that others share.

    Args:
        engine: the engine's parts.
        thread: its name. One that is a tombstone already stays as it is.
        rehearsal: change nothing, and tell what would go: after what was told before.

    Raises:
        CorruptionError: what others need of its segments cannot be told, as rows are damaged.
        ConflictError: somebody of those who share them writes all the time.
    """
    entry, rows = yield from _looked_at(thread)
    gone = _told(thread, rows, {_place(s): s.size for s in rows.segments})
    if rows.family:
        gone = yield from _emptied(engine, thread, rehearsal)
    archive = archive_of(entry)
    if archive is not None:
        gone = replace(gone, archived_bytes=archive.size)
    if rehearsal is not None:
        return gone
    if is_there(entry) or not rows.deleted_at or _holds_rows(rows) or rows.family:
        yield from commit(DropThread(thread, engine.now()))
    # (Something may have been saved, or forked, between the two.)
    yield from _sweep(engine, {*rows.family, *(yield from forks_of([thread]))})
    engine.working_set.forget(thread)
    return gone


def _emptied(engine: Engine, thread: str, rehearsal: Rehearsal | None) -> Operation[ErasedThread]:
    """Take out what the thread holds and nobody else needs."""
    for _ in range(ATTEMPTS):
        rows, others = yield from _whole_family(thread)
        if rehearsal is not None:
            named = zip(rows.family, others, strict=True)
            others = [one for name, one in named if name not in rehearsal.threads]
        try:
            batch = yield from _emptying(engine, thread, rows, others)
            if rehearsal is None:
                yield from commit(batch)
        except (StaleThreadError, ConflictError):
            continue  # somebody wrote meanwhile: look again
        freed = _freed(rows, batch)
        if rehearsal is not None:
            freed = _rehearsed(rehearsal, thread, rows, freed)
        return _told(thread, rows, freed)
    raise _busy(thread)


def _whole_family(thread: str) -> Operation[tuple[ThreadRows, list[ThreadRows]]]:
    try:
        return (yield from read_family(thread, stub=True))
    except CorruptionError as exc:
        raise _damaged(thread, exc) from exc


def _damaged(thread: str, error: CorruptionError) -> CorruptionError:
    return CorruptionError(
        f"Which of its segments others need cannot be told: {error.message}",
        hint="Repair the threads that share them first: threads.repair, or `threadkeep repair`.",
        thread=error.thread or thread,
    )


def _emptying(
    engine: Engine, thread: str, rows: ThreadRows, others: Sequence[ThreadRows]
) -> Operation[Batch]:
    try:
        used = positions(Lineage(()), (), (), others)
    except CorruptionError as exc:
        raise _damaged(thread, exc) from exc
    batch = Batch(
        thread,
        engine.now(),
        rows.generation,
        fences=(nothing_new((rows, *others)),),
        drop_checkpoints=tuple([(s.row.ns, s.row.id) for s in rows.checkpoints]),
        drop_writes=tuple([(row.ns, row.checkpoint_id, row.seq) for row in _writes(rows)]),
        drop_segments=tuple(
            [(s.log, s.start, s.count) for s in rows.segments if not touches(used, span_of(s))]
        ),
        bump=True,
        touch=Touch(whole=True),
    )
    batch = yield from shortened(engine, rows, batch, used, wholly=True)
    return batch._replace(touch=Touch(whole=True))


def _sweep(engine: Engine, threads: Iterable[str]) -> Operation[None]:
    """Take out of the segments of these threads what nobody needs."""
    left = set(threads)
    while left:
        thread = min(left)
        left -= {thread, *(yield from swept(engine, thread))}
        engine.working_set.forget(thread)


def swept(engine: Engine, thread: str, *, alone: bool = False) -> Operation[tuple[str, ...]]:
    """Take out of a thread's segments what nobody needs; with whom it shares them.

    With `alone` nothing is done where it does. One that is archived holds no such thing.

    Raises:
        CorruptionError: what is needed cannot be told, as rows are damaged.
        ConflictError: somebody of those who share them writes all the time.
    """
    for _ in range(ATTEMPTS):
        rows, others = yield from _whole_family(thread)
        if alone and others:
            return rows.family
        lineage = Lineage(rows.checkpoints)
        keep = set(lineage.stored)
        try:
            batch = thinning(engine, thread, rows, lineage, keep, set(), others)
            used = positions(lineage, keep, rows.orphans, others)
            batch = yield from shortened(engine, rows, batch, used, wholly=True)
            if batch.drop_segments:
                yield from commit(batch)
        except (StaleThreadError, ConflictError):
            continue
        except CorruptionError as exc:
            raise _damaged(thread, exc) from exc
        return rows.family
    raise _busy(thread)


def _busy(thread: str) -> ConflictError:
    return ConflictError(
        "This thread, or one that shares its segments, is being written all the time.",
        hint="End its runs, and erase again: what was removed so far stays so.",
        thread=thread,
    )


# -- what is told --------------------------------------------------------------------


def _writes(rows: ThreadRows) -> list[WriteRow]:
    return [*rows.orphans, *[row for s in rows.checkpoints for row in s.writes]]


def _place(segment: SegmentInfo) -> Place:
    return segment.log, segment.start, segment.count


def _freed(rows: ThreadRows, batch: Batch) -> dict[Place, int]:
    """By how much each segment gets smaller that the batch drops, or writes anew as less."""
    sizes = {_place(s): s.size for s in rows.segments}
    freed = {place: sizes[place] for place in batch.drop_segments}
    places = sorted(freed)
    for part in batch.segments:  # (each is a part of one of these, which never overlap)
        of = places[bisect_right(places, (part.log, part.start), key=lambda at: at[:2]) - 1]
        freed[of] -= len(part.data)
    return freed


def _rehearsed(
    rehearsal: Rehearsal, thread: str, rows: ThreadRows, freed: Mapping[Place, int]
) -> dict[Place, int]:
    """What of it was not told yet; from now on it is."""
    rehearsal.threads.add(thread)
    family, new = min(thread, *rows.family), dict[Place, int]()
    for place, size in freed.items():
        told = rehearsal.freed.get((family, place), 0)
        if size > told:
            new[place] = size - told
            rehearsal.freed[family, place] = size
    return new


def _told(thread: str, rows: ThreadRows, freed: Mapping[Place, int]) -> ErasedThread:
    """What goes: the rows, and so many bytes of segments."""
    writes, broken = _writes(rows), [row.table for row in rows.unreadable]
    own: list[CheckpointRow | WriteRow] = [*[s.row for s in rows.checkpoints], *writes]
    size = sum(map(thread_summary.row_size, own)) + sum([len(row.data) for row in rows.unreadable])
    return ErasedThread(
        thread,
        checkpoints=len(rows.checkpoints) + broken.count("checkpoints"),
        writes=len(writes) + broken.count("writes"),
        segments=len(freed) + broken.count("segments"),
        bytes=size + sum(freed.values()),
    )
