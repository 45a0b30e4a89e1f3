"""Erase threads: their rows, cached copies, and the bytes in the store's files.

Rows are removed first, then copies of them in other places. Every place is cleared even if no rows
were found, so repeating an interrupted erasure completes it. A thread that shares segments is
emptied before its entry is removed, which names the threads that share them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from threadkeep._core.engine.registration import (
    Build,
    T,
    ThreadSnapshot,
    optimistic,
)
from threadkeep._core.engine.thread_entry import (
    EntryUpdate,
    ReadEntry,
    ThreadEntry,
    is_there,
    sound,
)
from threadkeep._run.driver import Runner, external, on
from threadkeep._run.layered_backend import LayeredBackend
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
from threadkeep.threads import last_statistics
from threadkeep.threads.archives.seals import names_of
from threadkeep.threads.erasure_plan import ErasurePlan
from threadkeep.threads.erasure_report import ErasedThread, EraseReport
from threadkeep.threads.registry import metadata_labels
from threadkeep.threads.retention.apply import all_writes, shortened, thinning

if TYPE_CHECKING:
    from threadkeep._stores.cold_store import ColdStore

ALWAYS = (
    "Files written earlier (backups, bundles, quarantine files): remove them.",
    "Copies under other ids and in other stores (copy_thread, mirror, import): erase them too.",
    "Copies in the memory of other programs, until they load the thread again: restart them.",
    "The thread's id and the time of the erasure, in a tombstone that refuses late saves.",
)
"""Remains that no store can erase."""

_VERSIONS = "Earlier versions of archives, if the cold store keeps versions: remove them."
_UNLABELLED = (
    "Threads that lie in LangGraph's tables alone are not found by metadata: copy them with"
    " threads.adopt, and erase again."
)
_ELSEWHERE = (
    "{} in the cold store belongs to the store that this one is a copy of: erase the thread"
    " in that store. If that store doesn't exist any more, remove the folder."
)


# -- the whole of it -------------------------------------------------------------------


def erase(
    store: LayeredBackend,
    engine: Engine,
    thread: str | None,
    metadata: Mapping[str, Any] | None,
    progress: Progress | None,
    *,
    forks: bool,
    rewrite: bool,
    dry_run: bool,
) -> Operation[EraseReport]:
    for flag, value in (("forks", forks), ("rewrite", rewrite), ("dry_run", dry_run)):
        validation.flag(flag, value)
    if (thread is None) == (metadata is None):
        raise InvalidArgumentError(
            "Name the threads to erase in one way.",
            hint='Use a thread id, or metadata={"user_id": ...}.',
        )
    plan = None if metadata is None else plan_of(store, engine, metadata, forks=forks)
    names = [] if thread is None else (yield from named(store, thread))
    return (
        yield from erase_all(
            store, engine, names, progress, forks=forks, rewrite=rewrite, dry_run=dry_run, plan=plan
        )
    )


def plan_of(
    store: LayeredBackend,
    engine: Engine,
    metadata: Mapping[str, Any],
    threads: Sequence[str] = (),
    *,
    forks: bool,
) -> ErasurePlan:
    """Return the plan to erase all threads with this metadata, and some more threads."""
    hint = 'Use a dict such as {"user_id": "u1"}.'
    if not isinstance(metadata, Mapping):
        raise invalid("metadata", metadata, hint)
    if not metadata:
        raise InvalidArgumentError("Invalid metadata: it is empty.", hint=hint)
    return ErasurePlan(store, engine, metadata_labels(metadata), tuple(threads), forks)


def erase_all(
    store: LayeredBackend,
    engine: Engine,
    names: Sequence[str],
    progress: Progress | None,
    *,
    forks: bool,
    rewrite: bool,
    dry_run: bool,
    plan: ErasurePlan | None = None,
) -> Operation[EraseReport]:
    """Erase these threads, and the plan's (see `Threads.erase`)."""
    progress = progress or no_progress
    if plan is not None:
        found = [*names, *(yield from plan.recorded()), *(yield from plan.found())]
        names = list(dict.fromkeys(found))
    cold = yield from store.own_cold()
    run = _Erasing(store, engine, cold, progress, dry_run=dry_run)
    yield from run.look(names, forks=forks)
    if plan is not None and run.names and not dry_run:
        yield from plan.record(run.names)
    yield from run.remove(run.names)
    if plan is not None and not dry_run:  # (runs under way may have made more)
        failed = {*run.names} - {one.thread for one in run.done}
        late = [one for one in (yield from plan.found()) if one not in failed]
        if late:
            yield from run.remove((yield from run.look(late, forks=forks)))
    left = () if forks else tuple(sorted(run.forks - {*run.names}))
    report = EraseReport(tuple(run.done), left, tuple(sorted(run.shared)), dry_run=dry_run)
    if dry_run:
        return replace(report, unfinished=_lines(run.failures))
    # (Without rows this may complete an interrupted erasure, so all caches are cleared.)
    is_new = any(one.checkpoints or one.writes or one.segments for one in run.done)
    cached = sorted({*run.names, *run.forks, *run.shared}) if is_new else (None,)
    places = (
        *(() if plan is None else plan.others),
        *_elsewhere_too(store, run.names, plan),
        _clear_caches(store, cached),
        _clear_archives(cold, run.names, run.elsewhere.values()),
        on(store, store.scrub(rewrite=rewrite)),
    )
    report = yield from _clear(places, report, run.failures, progress)
    if plan is not None and run.names:
        yield from plan.end()
    return report


@dataclass(slots=True)
class _Erasing:
    """The threads of one erasure."""

    store: LayeredBackend
    engine: Engine
    cold: ColdStore | None
    progress: Progress
    dry_run: bool
    names: list[str] = field(default_factory=list)
    forks: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    elsewhere: dict[str, str] = field(default_factory=dict)
    done: list[ErasedThread] = field(default_factory=list)
    failures: list[ThreadkeepError] = field(default_factory=list)

    def look(self, names: Sequence[str], *, forks: bool) -> Operation[list[str]]:
        """Look at threads before they are removed, and return their names, with their forks."""
        found = yield from on(self.store, registration.forks_of(names))
        # Origins come last: an interrupted erasure finds the forks by them.
        new = [*reversed(found), *names] if forks else [*names]
        self.elsewhere |= yield from _elsewhere(self.store, self.cold, new)
        self.names += [one for one in new if one not in self.names]
        self.forks |= {*found}
        return new

    def remove(self, names: Sequence[str]) -> Operation[None]:
        """Remove each thread, and raise only if none could be removed."""
        rehearsal = _Rehearsal(set(), {}) if self.dry_run else None
        for number, name in enumerate(names, 1):
            try:
                erasing = _erase_thread(self.engine, name, rehearsal, self.shared)
                gone = yield from on(self.store, erasing)
                gone = replace(gone, archived_bytes=0) if name in self.elsewhere else gone
                self.done.append(gone)
            except (ConflictError, CorruptionError) as error:
                self.failures.append(error)
            self.progress("threads erased", number, len(names))
        if self.failures and not self.done:
            raise self.failures[0]
        self.shared -= {*self.forks, *self.names}
        if not self.dry_run:  # (programs may have forked the threads meanwhile)
            done = [one.thread for one in self.done if one.thread in names]
            forks = yield from on(self.store, registration.forks_of(done))
            yield from on(self.store, _sweep_all(self.engine, forks, self.failures))


def _lines(failures: Sequence[ThreadkeepError]) -> tuple[str, ...]:
    return tuple([" ".join(str(error).split()) for error in failures])


def named(store: LayeredBackend, thread: str) -> Operation[list[str]]:
    """Return the name of a thread as a list, or raise if it never existed."""
    name = validation.thread_id(thread)
    if not (yield from is_known(store, name)):
        raise ThreadNotFoundError(hint="Nothing was erased.", thread=name)
    return [name]


def is_known(store: LayeredBackend, thread: str) -> Operation[bool]:
    """Return True if a thread exists, also in LangGraph's tables, or anything is left of one."""
    entry, rows = yield from on(store, _look_at(thread))
    # (a tombstone or rows without an entry may be left of an interrupted erasure)
    if entry or rows.generation or rows.deleted_at or _holds_rows(rows):
        return True
    return store.rolling is not None and (yield from store.rolling.holds(thread))


def _elsewhere(
    store: Runner, cold: ColdStore | None, names: Sequence[str]
) -> Operation[dict[str, str]]:
    """Find archive folders that belong to another store, by thread."""
    found: dict[str, str] = {}
    entries = yield from on(store, registration.read_all(names))
    for name, entry in zip(names, entries, strict=True):
        archive = archive_of(entry)
        if archive is not None and cold is None:
            hint = "Nothing was erased. Open the store with cold=, the URL of the cold store."
            raise ThreadArchivedError(hint=hint, thread=name)
        if archive and cold and not archive.folder.startswith(cold.home()):
            found[name] = archive.folder
    return found


# -- places that may hold copies -------------------------------------------------------

# Clearing a place is idempotent and takes only thread ids, as the rows are removed by then.


def _clear_caches(store: LayeredBackend, threads: Iterable[str | None]) -> Operation[ScrubReport]:
    for name in threads:
        store.clear_cache(name)
    yield from on(store, last_statistics.forget())
    return ScrubReport(("this program's memory",))


def _elsewhere_too(
    store: LayeredBackend, threads: Sequence[str], plan: ErasurePlan | None
) -> Iterator[Operation[ScrubReport]]:
    """Yield the operations that clear LangGraph's tables, with `migrate_from`."""
    if store.rolling is not None:
        yield store.rolling.erase(threads)
        if plan is not None and plan.labels:
            yield _unlabelled()


def _unlabelled() -> Operation[ScrubReport]:
    yield from ()
    return ScrubReport(remains=(_UNLABELLED,))


def _clear_archives(
    cold: ColdStore | None, threads: Iterable[str], elsewhere: Iterable[str]
) -> Operation[ScrubReport]:
    """Remove all objects of the threads that processes of this store wrote to the cold store."""
    if cold is None:
        return ScrubReport()
    for name in threads:
        for one in (yield from names_of(cold, name)):
            yield from external(partial(cold.clear, cold.home(one)))
    others = [_ELSEWHERE.format(folder) for folder in elsewhere]
    return ScrubReport(("archives in the cold store",), (_VERSIONS, *others))


def _clear(
    places: Sequence[Operation[ScrubReport]],
    report: EraseReport,
    failures: list[ThreadkeepError],
    progress: Progress,
) -> Operation[EraseReport]:
    """Clear all places, and return the full report, or raise if anything has failed."""
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
            f"The erasure is not complete: {'; '.join(unfinished)}",
            hint="Then run the same erasure again. It continues where this one stopped.",
            report=report,
        ) from failures[0]
    return report


# -- other threads with parts of the same ----------------------------------------------


def _sharing_with(thread: str, entry: ThreadEntry | None, rows: ThreadRows) -> Operation[set[str]]:
    """List the threads that share a thread's segments, and those that it was forked from.

    Some stores copy segments for a fork, and only the entry's origin tells.
    """
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
    """Threads that a dry run counts as removed, and the bytes counted for each segment.

    A segment's key here is the first thread of the family that shares it, and its own key.
    """

    threads: set[str]
    freed: dict[tuple[str, SegmentKey], int]


def _erase_thread(
    engine: Engine, thread: str, rehearsal: _Rehearsal | None, shared: set[str]
) -> Operation[ErasedThread]:
    """Remove a thread, and the parts of shared segments that only it needs.

    A thread that is only a tombstone is not changed. The threads that share its segments, and its
    origins, are added to `shared`.
    """
    entry, rows = yield from _look_at(thread)
    shared |= yield from _sharing_with(thread, entry, rows)
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
    yield from _sweep_all(engine, rows.family)  # (programs may have saved meanwhile)
    engine.working_set.forget(thread)
    return gone


def _sweep_all(
    engine: Engine, threads: Iterable[str], failures: list[ThreadkeepError] | None = None
) -> Operation[None]:
    """Sweep threads, each family once. Append errors to `failures`, or raise them."""
    left = {*threads}
    while left:
        name = min(left)
        left.discard(name)
        try:
            left -= {*(yield from sweep(engine, name))}
        except (ConflictError, CorruptionError) as error:
            if failures is None:
                raise
            failures.append(error)
        engine.working_set.forget(name)


def _empty(engine: Engine, thread: str, rehearsal: _Rehearsal | None) -> Operation[ErasedThread]:
    """Remove all rows of a thread, and the elements of its segments that no other needs."""

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
            drop_writes=tuple(map(write_key, all_writes(rows))),
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
    """Remove elements without a reference from a thread's segments. Return who shares them.

    With `alone`, shared segments are not changed.
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
            f"A damaged thread may need these segments: {error.message}",
            hint="Repair the threads that share them: threads.repair, or `threadkeep repair`.",
            thread=error.thread or thread,
        ) from error


def _freed(rows: ThreadRows, batch: Batch) -> dict[SegmentKey, int]:
    """Count the bytes freed in each segment that the batch drops or shortens."""
    sizes = {segment_key(s): s.size for s in rows.segments}
    freed = {key: sizes[key] for key in batch.drop_segments}
    keys = sorted(freed)
    for part in batch.segments:  # (each is a part of one of these, which never overlap)
        of = keys[bisect_right(keys, (part.log, part.start), key=lambda at: at[:2]) - 1]
        freed[of] -= len(part.data)
    return freed


def _report(thread: str, rows: ThreadRows, freed: Mapping[SegmentKey, int]) -> ErasedThread:
    """Report the removal of all rows, and of the bytes `freed` in segments."""
    writes, broken = all_writes(rows), [row.table for row in rows.unreadable]
    own: list[CheckpointRow | WriteRow] = [*[s.row for s in rows.checkpoints], *writes]
    size = sum(map(thread_summary.row_size, own)) + sum([len(row.data) for row in rows.unreadable])
    return ErasedThread(
        thread,
        checkpoints=len(rows.checkpoints) + broken.count("checkpoints"),
        writes=len(writes) + broken.count("writes"),
        segments=len(freed) + broken.count("segments"),
        bytes=size + sum(freed.values()),
    )
