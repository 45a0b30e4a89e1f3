"""Erasing threads: their rows, what is cached of them, and the bytes in the store's files.

Rows go first, then the places that may hold copies of them. Each place is cleared whether or not
rows were found, so that an erasure that was cut off is completed by repeating it: a thread that
shares segments is emptied before the last row goes that tells whom it shares them with.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from threadkeep._core import validation
from threadkeep._core.engine import registration, thread_summary
from threadkeep._core.engine.cold_references import archive_of
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.lineage import (
    Lineage,
    SegmentKey,
    checkpoint_key,
    positions,
    segment_key,
    touches,
    write_key,
)
from threadkeep._core.engine.model import (
    Batch,
    CheckpointRow,
    DropThread,
    ReadThread,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import Fetch, Operation, Progress, commit, no_progress
from threadkeep._core.engine.refs import span_of
from threadkeep._core.engine.registration import Build, T, ThreadSnapshot, optimistic
from threadkeep._core.engine.thread_entry import (
    EntryUpdate,
    ReadEntry,
    ThreadEntry,
    ThreadQuery,
    is_there,
    sound,
)
from threadkeep._run.layered_store import LayeredStore
from threadkeep._run.layers.driver import Runner, Workflow, external, on
from threadkeep._stores.base import ScrubReport
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    ThreadArchivedError,
    ThreadkeepError,
    ThreadNotFoundError,
    UnfinishedErasureError,
    invalid,
)
from threadkeep.threads.registry import metadata_labels
from threadkeep.threads.retention.apply import shortened, thinning

if TYPE_CHECKING:
    from threadkeep._stores.cold_store import ColdStore

ALWAYS = (
    "Files that were written before (backups, bundles, quarantine files): remove them.",
    "Copies under other names and in other stores (copy_thread, mirror, import): erase them too.",
    "What other programs and savers remember of a thread until they load it again: restart them.",
    "The thread's name and the time: a tombstone, so that no late save brings it back.",
)
"""Remains that no store can erase."""

_VERSIONS = "Former versions of archives, if the cold store keeps such: remove them."
_ELSEWHERE = (
    "{} in the cold store belongs to another store, from which this one was copied or moved: erase"
    " the thread in that store. If that store is gone, remove the folder."
)


@dataclass(frozen=True, slots=True)
class ErasedThread:
    """The result for one thread: what was removed, or would be.

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


@dataclass(frozen=True, slots=True)
class EraseReport:
    """The result of an erasure: what was removed where, or would be, and what is left to do.

    Args:
        threads: what was removed, thread by thread.
        forks: threads that were forked from an erased one, and theirs, and hold what they took.
            Empty where they were erased too.
        shared_with: other threads that hold a part of what an erased one held: its origin, and
            that one's forks. What it said itself is not among it.
        cleared: the places in which nothing is left of the threads.
        remains: what this cannot promise, each with what to do.
        unfinished: why a thread was not removed or a place not cleared, and what to do before
            trying again.
        dry_run: whether nothing was done.
    """

    threads: tuple[ErasedThread, ...]
    forks: tuple[str, ...] = ()
    shared_with: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """True if everything was erased."""
        return not self.unfinished

    def as_json(self) -> dict[str, Any]:
        """Return the same as JSON values."""
        return {**asdict(self), "ok": self.ok}


# -- the whole of it -------------------------------------------------------------------


def erase(
    store: LayeredStore,
    engine: Engine,
    thread: str | None,
    metadata: Mapping[str, Any] | None,
    progress: Progress | None,
    *,
    forks: bool,
    rewrite: bool,
    dry_run: bool,
) -> Workflow[EraseReport]:
    """See `Threads.erase`."""
    for flag, value in (("forks", forks), ("rewrite", rewrite), ("dry_run", dry_run)):
        validation.flag(flag, value)
    if (thread is None) == (metadata is None):
        raise InvalidArgumentError(
            "Threads to erase are not named, or named twice.",
            hint='Use a thread\'s name, or metadata={"user_id": ...}.',
        )
    beneath, progress = store.beneath(), progress or no_progress
    names = yield from on(beneath, _names(thread, metadata))
    found = yield from on(beneath, forks_of(names))
    # Origins last: as long as they are there, it is known what was forked from them.
    all_names = [*reversed(found), *names] if forks else names
    cold = yield from store.own_cold()
    elsewhere = yield from _elsewhere(beneath, cold, all_names)
    shared = set[str]()
    for name in all_names:
        shared |= yield from on(beneath, sharing_with(name))
    shared -= {*found, *names}
    done, failures = yield from _erase_each(
        beneath, engine, all_names, elsewhere, progress, dry_run=dry_run
    )
    left = () if forks else tuple(sorted(found))
    report = EraseReport(tuple(done), left, tuple(sorted(shared)), dry_run=dry_run)
    if dry_run:
        return replace(report, unfinished=_lines(failures))
    # (Where no rows were found, this may complete an erasure of other threads.)
    is_new = any(one.checkpoints or one.writes or one.segments for one in done)
    places = (
        _clear_caches(store, sorted({*names, *found, *shared}) if is_new else (None,)),
        _clear_archives(cold, all_names, elsewhere.values()),
        # (no layer in front holds anything that files are made of)
        on(store, store.scrub(rewrite=rewrite)),
    )
    return (yield from _clear(places, report, failures, progress))


def _lines(failures: Sequence[ThreadkeepError]) -> tuple[str, ...]:
    return tuple([" ".join(str(error).split()) for error in failures])


def _erase_each(
    store: Runner,
    engine: Engine,
    names: Sequence[str],
    elsewhere: Mapping[str, str],
    progress: Progress,
    *,
    dry_run: bool,
) -> Workflow[tuple[list[ErasedThread], list[ThreadkeepError]]]:
    """Remove each thread; raise only where none could be removed."""
    done, failures = list[ErasedThread](), list[ThreadkeepError]()
    rehearsal = _Rehearsal(set(), {}) if dry_run else None
    for number, name in enumerate(names, 1):
        try:
            gone = yield from on(store, _erase_thread(engine, name, rehearsal))
            done.append(replace(gone, archived_bytes=0) if name in elsewhere else gone)
        except (ConflictError, CorruptionError) as error:  # (of this thread alone)
            failures.append(error)
        progress("threads erased", number, len(names))
    if failures and not done:
        raise failures[0]
    return done, failures


def _names(thread: str | None, metadata: Mapping[str, Any] | None) -> Operation[list[str]]:
    if thread is None:
        if not metadata or not isinstance(metadata, Mapping):
            raise invalid("metadata", metadata, 'Name the threads: {"user_id": "u1"}.')
        return (yield from registration.all_names(ThreadQuery(labels=metadata_labels(metadata))))
    name = validation.thread_id(thread)
    entry, rows = yield from _look_at(name)
    # (a tombstone is enough, and so are rows without an entry)
    if entry is None and not (rows.generation or rows.deleted_at) and not _holds_rows(rows):
        raise ThreadNotFoundError(hint="Nothing was erased.", thread=name)
    return [name]


def _elsewhere(
    store: Runner, cold: ColdStore | None, names: Sequence[str]
) -> Workflow[dict[str, str]]:
    """The folders of another store that entries of threads name, by thread."""
    found: dict[str, str] = {}
    for name in names:
        archive = archive_of((yield from on(store, registration.read(name))))
        if archive is not None and cold is None:
            hint = "Open the store with cold=, the URL of the cold store. Nothing was erased."
            raise ThreadArchivedError(hint=hint, thread=name)
        if archive and cold and not archive.folder.startswith(cold.home(name)):
            found[name] = archive.folder
    return found


# -- places that may hold copies -------------------------------------------------------

# Each is idempotent, and finds what is a thread's by its name, as its rows are gone by then.


def _clear_caches(store: LayeredStore, threads: Iterable[str | None]) -> Workflow[ScrubReport]:
    for name in threads:
        yield from on(store, store.clear_cache(name))
    here = ScrubReport(("what this program remembered, and its cache",))
    return here + (yield from on(store, store.scrub_hot()))


def _clear_archives(
    cold: ColdStore | None, threads: Iterable[str], elsewhere: Iterable[str]
) -> Workflow[ScrubReport]:
    """Remove what this store has put into the cold store, whichever process left it there."""
    if cold is None:
        return ScrubReport()
    for name in threads:
        yield from external(partial(cold.clear, cold.home(name)))
    others = [_ELSEWHERE.format(folder) for folder in elsewhere]
    return ScrubReport(("archives in the cold store",), (_VERSIONS, *others))


def _clear(
    places: Sequence[Workflow[ScrubReport]],
    report: EraseReport,
    failures: list[ThreadkeepError],
    progress: Progress,
) -> Workflow[EraseReport]:
    """Clear all places; return the full report, or raise where anything has failed."""
    found = ScrubReport(("rows, entries and labels",))
    for number, place in enumerate(places):
        progress("places cleared", number, len(places))
        try:
            found += yield from place
        except ThreadkeepError as error:
            failures.append(error)
    progress("places cleared", len(places), len(places))
    remains, unfinished = (*found.remains, *ALWAYS), _lines(failures)
    report = replace(report, cleared=found.cleared, remains=remains, unfinished=unfinished)
    if failures:
        raise UnfinishedErasureError(
            f"Not every byte of the threads is gone yet: {'; '.join(unfinished)}",
            hint="Then erase again, in the same way: what was done is not done twice.",
            report=report,
        ) from failures[0]
    return report


# -- other threads with parts of the same ----------------------------------------------


def forks_of(threads: Sequence[str]) -> Operation[list[str]]:
    """Return the threads that were forked from these, and from those: each behind its origin."""
    found, ahead = list[str](), list(threads)
    for name in ahead:
        forks = yield from registration.all_names(ThreadQuery(origin=name))
        new = [one for one in forks if one not in ahead]
        ahead += new
        found += new
    return found


def sharing_with(thread: str) -> Operation[set[str]]:
    """Return the threads that share its segments, and those that it was forked from.

    The latter tell it where the store copies what forks have in common.
    """
    entry, rows = yield from _look_at(thread)
    found, seen = set(rows.family), {thread}
    while entry is not None and entry.origin is not None and entry.origin[0] not in seen:
        name = entry.origin[0]
        seen.add(name)
        entry, rows = yield from _look_at(name)
        if is_there(entry) or _holds_rows(rows):
            found.add(name)
    return found


def _look_at(thread: str) -> Operation[tuple[ThreadEntry | None, ThreadRows]]:
    entry, rows = yield Fetch((ReadEntry(thread), ReadThread(thread, skip=True)))
    return sound(entry), cast("ThreadRows", rows)


def _holds_rows(rows: ThreadRows) -> bool:
    own = () if rows.family else rows.segments
    return any((rows.checkpoints, rows.orphans, rows.unreadable, own))


# -- one thread ------------------------------------------------------------------------


class _Rehearsal(NamedTuple):
    """The threads that would be gone in a dry run, and the bytes that they would have freed.

    These are by a name of the segment's family, and its key.
    """

    threads: set[str]
    freed: dict[tuple[str, SegmentKey], int]


def _erase_thread(
    engine: Engine, thread: str, rehearsal: _Rehearsal | None
) -> Operation[ErasedThread]:
    """Remove a thread, and the parts of shared segments that it alone needs.

    One that is a tombstone already stays as it is.
    """
    entry, rows = yield from _look_at(thread)
    gone = _report(thread, rows, {segment_key(s): s.size for s in rows.segments})
    if rows.family:
        gone = yield from _empty(engine, thread, rehearsal)
    archive = archive_of(entry)
    if archive is not None:
        gone = replace(gone, archived_bytes=archive.size)
    if rehearsal is not None:
        rehearsal.threads.add(thread)
        return gone
    if is_there(entry) or not rows.deleted_at or _holds_rows(rows) or rows.family:
        yield from commit(DropThread(thread, engine.now()))
    # (Something may have been saved, or forked, between the two.)
    left = {*rows.family, *(yield from forks_of([thread]))}
    while left:
        name = min(left)
        left -= {name, *(yield from sweep(engine, name))}
        engine.working_set.forget(name)
    engine.working_set.forget(thread)
    return gone


def _empty(engine: Engine, thread: str, rehearsal: _Rehearsal | None) -> Operation[ErasedThread]:
    """Remove all of a thread's rows, and what no other thread needs of its segments."""

    def build(snapshot: ThreadSnapshot) -> Operation[tuple[Batch | None, ErasedThread]]:
        rows, gone = snapshot.rows, rehearsal.threads if rehearsal is not None else ()
        named = zip(rows.family, snapshot.others, strict=True)
        used = positions(Lineage(()), (), (), [one for name, one in named if name not in gone])
        batch = Batch(
            thread,
            engine.now(),
            rows.generation,
            fences=snapshot.fences,
            drop_checkpoints=tuple(map(checkpoint_key, rows.checkpoints)),
            drop_writes=tuple(map(write_key, _writes(rows))),
            drop_segments=tuple(
                [segment_key(s) for s in rows.segments if not touches(used, span_of(s))]
            ),
            bump_generation=True,
            touch=EntryUpdate(whole=True),
        )
        batch = yield from shortened(engine, snapshot, batch, used, wholly=True)
        freed = _freed(rows, batch)
        if rehearsal is None:
            return batch._replace(touch=EntryUpdate(whole=True)), _report(thread, rows, freed)
        heap = min(thread, *rows.family)
        new = {key: size - rehearsal.freed.get((heap, key), 0) for key, size in freed.items()}
        rehearsal.freed.update({(heap, key): size for key, size in freed.items()})
        return None, _report(thread, rows, {key: size for key, size in new.items() if size})

    return _with_family(engine, thread, build)


def sweep(engine: Engine, thread: str, *, alone: bool = False) -> Operation[tuple[str, ...]]:
    """Take out of a thread's segments what no row needs; return with whom it shares them.

    With `alone` nothing is done where it shares them. An archived thread holds no such thing.
    """

    def build(snapshot: ThreadSnapshot) -> Operation[tuple[Batch | None, tuple[str, ...]]]:
        rows = snapshot.rows
        if alone and snapshot.others:
            return None, rows.family
        lineage = Lineage(rows.checkpoints)
        keep = set(lineage.stored)
        batch = thinning(engine, snapshot, lineage, keep, set())
        used = positions(lineage, keep, rows.orphans, snapshot.others)
        batch = yield from shortened(engine, snapshot, batch, used, wholly=True)
        return batch if batch.drop_segments else None, rows.family

    return _with_family(engine, thread, build)


def _with_family(engine: Engine, thread: str, build: Build[T]) -> Operation[T]:
    """Change a thread that may share segments."""
    try:
        return (yield from optimistic(engine, thread, build))
    except CorruptionError as error:
        raise CorruptionError(
            f"The segments that other threads need are unknown: {error.message}",
            hint="Repair the threads that share them: threads.repair, or `threadkeep repair`.",
            thread=error.thread or thread,
        ) from error


def _writes(rows: ThreadRows) -> list[WriteRow]:
    return [*rows.orphans, *[row for s in rows.checkpoints for row in s.writes]]


def _freed(rows: ThreadRows, batch: Batch) -> dict[SegmentKey, int]:
    """By how much each segment gets smaller that the batch drops, or rewrites as less."""
    sizes = {segment_key(s): s.size for s in rows.segments}
    freed = {key: sizes[key] for key in batch.drop_segments}
    keys = sorted(freed)
    for part in batch.segments:  # (each is a part of one of these, which never overlap)
        of = keys[bisect_right(keys, (part.log, part.start), key=lambda at: at[:2]) - 1]
        freed[of] -= len(part.data)
    return freed


def _report(thread: str, rows: ThreadRows, freed: Mapping[SegmentKey, int]) -> ErasedThread:
    """The result: the rows, and so many bytes of segments."""
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
