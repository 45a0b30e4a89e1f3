"""One-way copies of threads between stores: what is missing in the other one.

Cut off anywhere, the other store shows whole threads, in this or an earlier state, and a repeated
call goes on. What is added refers to nothing that is not there yet; what only the other store has
stays, unless options say otherwise. A thread that is archived or deleted here meanwhile is compared
again: nothing gives way there to what is not here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from threadkeep import validation
from threadkeep.engine import thread_summary
from threadkeep.engine.model import Batch, DropThread, RowsFence, Segment, SegmentInfo, ThreadRows
from threadkeep.engine.operation import (
    Operation,
    Progress,
    commit,
    no_progress,
)
from threadkeep.engine.optimistic import read_snapshot, retry, rows_fence
from threadkeep.engine.refs import covering, span_of
from threadkeep.engine.rows import created_at
from threadkeep.engine.thread_entry import EntryFence, is_archived, is_there
from threadkeep.errors import ConflictError, InvalidArgumentError, ThreadNotFoundError
from threadkeep.layers.driver import (
    Runner,
    Workflow,
    aside,
    on,
)
from threadkeep.saver import Saver, store_of
from threadkeep.store import LayeredStore
from threadkeep.transfer import digest, whole_thread
from threadkeep.transfer.bundles import compare
from threadkeep.transfer.whole_thread import (
    Row,
    WholeThread,
    parts_of,
    read_rows,
    row_batches,
    whole_of,
)


@dataclass(slots=True)
class Mirrored:
    """Result of a mirror, or of its dry run: the ids of threads.

    Attributes:
        added: threads that were missing.
        extended: threads in an earlier state.
        replaced: threads in another state, with `replace`.
        deleted: threads that were deleted here, with `delete`.
        newer: threads that have more there, and nothing less; left alone.
        conflicts: reasons why others were left alone, by thread.
        archived: threads that are archived here, and were not named; left where they are.
        unchanged: how many were the same.
    """

    added: list[str] = field(default_factory=list)
    extended: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    newer: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    archived: list[str] = field(default_factory=list)
    unchanged: int = 0


class MirrorOptions(NamedTuple):
    """Options of `Threads.mirror`."""

    replace: bool = False
    delete: bool = False
    dry_run: bool = False


class _GoneError(Exception):
    """The thread was archived or deleted here since its rows were read."""


def mirror(
    store: LayeredStore,
    other: Saver,
    threads: str | Iterable[str] | None,
    options: MirrorOptions,
    progress: Progress | None,
) -> Workflow[Mirrored]:
    """Copy threads to another store; see `Threads.mirror`."""
    if not isinstance(other, Saver):
        raise InvalidArgumentError(
            f"{type(other).__name__} is no saver of threadkeep.",
            hint="Open the other store: threadkeep.open_saver(url).",
        )
    there = store_of(other)
    if there.backend is store.backend:
        raise InvalidArgumentError("The other store is this one.", hint="Use another saver.")
    names = validation.thread_ids(threads)
    run = _Mirror(store.beneath(), there.beneath(), options, is_named=names is not None)
    return run.threads(names, progress or no_progress)


@dataclass(slots=True)
class _Mirror:
    """One call of `mirror`."""

    here: Runner
    there: Runner
    options: MirrorOptions
    is_named: bool
    result: Mirrored = field(default_factory=Mirrored)

    def threads(self, names: Sequence[str] | None, progress: Progress) -> Workflow[Mirrored]:
        known = yield from on(self.here, whole_thread.all_threads())
        for name in set(names or ()).difference(known):
            raise ThreadNotFoundError(hint="Correct the ids of threads.", thread=name)
        names = known if names is None else names
        for done, name in enumerate(names, 1):
            yield from retry(name, partial(self._thread, name), _GoneError)
            progress("threads compared", done, len(names))
        return self.result

    def _thread(self, name: str) -> Workflow[None]:
        result, changes = self.result, not self.options.dry_run
        own = yield from on(self.here, rows_of(name, stub=not self.is_named))
        if is_archived(own.entry):
            result.archived.append(name)
            return
        other = yield from on(self.there, rows_of(name))
        relation = relation_of(own, other)
        if relation is Relation.DIVERGED and (yield from self._are_equal(own)):
            relation = Relation.SAME
        if relation is Relation.SAME:
            result.unchanged += 1
        elif relation is Relation.AHEAD:
            result.newer.append(name)
        elif relation is Relation.GONE:
            yield from self._delete(own, other)
        elif relation in (Relation.ABSENT, Relation.BEHIND):
            if changes:
                yield from self._copy(own)
            (result.added if relation is Relation.ABSENT else result.extended).append(name)
        elif self.options.replace:
            if changes:
                yield from self._copy(own, replace=True)
            result.replaced.append(name)
        else:
            result.conflicts[name] = f"It {relation.value}."

    def _read(self, own: WholeThread) -> Workflow[WholeThread]:
        """Read all of a thread here.

        Raises:
            _GoneError: it was archived or deleted since its rows were read.
        """
        whole = yield from on(self.here, whole_thread.read_thread(own.thread))
        if is_archived(whole.entry) or (own.checkpoints and not whole.checkpoints):
            raise _GoneError
        return whole

    def _digests_there(self, name: str) -> Workflow[dict[whole_thread.CheckpointKey, bytes]]:
        whole = yield from on(self.there, whole_thread.read_thread(name, stub=False))
        return (yield from aside(partial(digest.of_checkpoints, whole)))

    def _are_equal(self, own: WholeThread) -> Workflow[bool]:
        """Compare the digests of threads whose rows differ."""
        whole = yield from self._read(own)
        digests = yield from aside(partial(digest.of_checkpoints, whole))
        return digests == (yield from self._digests_there(own.thread))

    def _delete(self, own: WholeThread, other: WholeThread) -> Workflow[None]:
        """Delete a thread there that was deleted here, if the options say so."""
        times = [created_at(row.id) or own.deleted_at for row in other.checkpoints]
        if max(times, default=0) > own.deleted_at and not self.options.replace:
            reason = "It was deleted here, and has gone on there since."
            self.result.conflicts[own.thread] = reason
        elif not self.options.delete:
            self.result.newer.append(own.thread)
        else:
            self.result.deleted.append(own.thread)
            if not self.options.dry_run:
                yield from on(self.there, commit(DropThread(own.thread, own.deleted_at)))

    def _copy(self, own: WholeThread, *, replace: bool = False) -> Workflow[None]:
        """Copy a thread as it is now, all of it or what is missing, and compare the digests."""
        whole = yield from self._read(own)
        expected = yield from aside(partial(digest.of_checkpoints, whole))
        now = time.time_ns() // 1000
        if not replace:
            replace = not (yield from self._completed(whole, now))
        if replace:
            yield from on(self.there, whole_thread.put_thread(whole, now, replace=True))
        compare(own.thread, expected, (yield from self._digests_there(own.thread)))

    def _completed(self, whole: WholeThread, now: int) -> Workflow[bool]:
        """Add what is missing; return False if that does not fit, and nothing would be lost."""
        try:
            yield from on(self.there, complete(whole, now))
        except ConflictError:
            other = yield from on(self.there, rows_of(whole.thread))
            if relation_of(whole, other) in (Relation.AHEAD, Relation.DIVERGED):
                raise
            return False
        return True


# -- relation of two states ------------------------------------------------------------


class Relation(Enum):
    """ThreadStatus of a thread in another store, beside the one here."""

    SAME = "is the same"
    ABSENT = "is not there"
    BEHIND = "lacks what came since"
    AHEAD = "has more, and nothing less"
    DIVERGED = "has other checkpoints or pending writes"
    DELETED = "was deleted there"
    GONE = "was deleted here"


def rows_of(thread: str, *, stub: bool = False) -> Operation[WholeThread]:
    """Read a thread without its segments; with `stub` an archived one stays archived."""
    rows, entry = yield from read_rows(thread, stub=stub)
    return whole_of(thread, rows, (), entry)


def relation_of(here: WholeThread, there: WholeThread) -> Relation:
    """Compare two states of a thread by their rows, which are the same bytes in a copy."""
    own, other = _rows(here), _rows(there)
    only_created = not own and is_there(here.entry) and not is_there(there.entry)
    if own == other and not only_created:
        return Relation.SAME if _marks(here) <= _marks(there) else Relation.BEHIND
    if not own and other:
        return Relation.GONE if here.deleted_at else Relation.AHEAD
    if not other:
        return Relation.DELETED if there.deleted_at > here.deleted_at else Relation.ABSENT
    if other < own:
        return Relation.BEHIND
    return Relation.AHEAD if own < other else Relation.DIVERGED


def _marks(whole: WholeThread) -> set[Any]:
    """Return the labels, pin and time to live of a thread."""
    entry = whole.entry
    if not is_there(entry):
        return set()
    marks = {("pinned", True)} if entry.pinned else set()
    return {*entry.labels, *marks, *([] if entry.ttl is None else [("ttl", entry.ttl)])}


def _rows(whole: WholeThread) -> set[Row]:
    return {*whole.checkpoints, *whole.writes}


# -- completion ------------------------------------------------------------------------


def complete(whole: WholeThread, now: int) -> Operation[None]:
    """Add what a thread lacks; small segments give way to a larger one, as in sealing.

    Args:
        whole: the thread as it is in its own store.
        now: microseconds since 1970.

    Raises:
        ConflictError: the thread there is no earlier state of it, or is written all the time.
    """

    def attempt() -> Operation[None]:
        snapshot = yield from read_snapshot(whole.thread, stub=False)
        others = rows_fence(snapshot.others)
        for batch in list(_batches(whole, snapshot.rows, others, now)):
            yield from commit(batch)
        yield from _merge_entry(whole, now)

    try:
        yield from retry(whole.thread, attempt)
    except ConflictError:
        raise _no_earlier_state(whole) from None


def _no_earlier_state(whole: WholeThread) -> ConflictError:
    return ConflictError(
        "The thread there is no earlier state of this one, or is being written.",
        hint="Try again. To replace it with this one: mirror(..., replace=True), or --replace.",
        thread=whole.thread,
    )


def _batches(whole: WholeThread, rows: ThreadRows, others: RowsFence, now: int) -> Iterator[Batch]:
    there = whole_of(whole.thread, rows)
    if not _rows(there) <= _rows(whole) or not _counts_alike(rows, there):
        raise _no_earlier_state(whole)
    done = RowsFence(others.checkpoints + len(there.checkpoints), others.writes + len(there.writes))
    plain = Batch(whole.thread, now, rows.generation, fences=(done,))
    missing = [segment for segment in whole.segments if not _is_covered(segment, rows.segments)]
    for part in parts_of(missing, lambda segment: len(segment.data)):
        drops = [key for segment in part for key in _replaced(whole, segment, rows.segments)]
        yield plain._replace(segments=tuple(part), drop_segments=tuple(drops))
    yield from row_batches(plain, done, _rows(whole) - _rows(there))


def _merge_entry(whole: WholeThread, now: int) -> Operation[None]:
    """Add the marks of a thread's entry to those of the entry there."""
    rows, entry = yield from read_rows(whole.thread)
    touch = thread_summary.of_thread(rows)
    own = whole.entry
    batch = Batch(whole.thread, now, fences=(EntryFence(entry.revision if entry else 0),))
    if not is_there(own):
        yield from commit(batch._replace(touch=touch))
        return
    touch = touch._replace(at=own.updated_at, labels=own.labels)
    if not is_there(entry):
        entry = own
    entry = entry._replace(pinned=own.pinned or entry.pinned, ttl=own.ttl or entry.ttl)
    yield from commit(batch._replace(entry=entry, touch=touch))


def _counts_alike(rows: ThreadRows, numbered: WholeThread) -> bool:
    """Return True if the store's own numbers of writes have no gaps: then the next ones fit."""
    stored = [row for one in rows.checkpoints for row in one.writes]
    return {*stored, *rows.orphans} == set(numbered.writes)


def _is_covered(segment: Segment, existing: Sequence[SegmentInfo]) -> bool:
    """Return True if all its positions are there (the elements are the same, as the rows are)."""
    spans = covering([span_of(one) for one in existing if one.log == segment.log])
    return any(s.start <= segment.start and segment.stop <= s.stop for s in spans)


def _replaced(
    whole: WholeThread, segment: Segment, existing: Sequence[SegmentInfo]
) -> Iterator[tuple[int, int, int]]:
    """Return the keys of smaller segments where this one goes.

    Raises:
        ConflictError: one of them overlaps it only in part.
    """
    for one in existing:
        span = span_of(one)
        if span.log == segment.log and span.start < segment.stop and segment.start < span.stop:
            if span.start < segment.start or segment.stop < span.stop:
                raise _no_earlier_state(whole)
            yield one.log, one.start, one.count
