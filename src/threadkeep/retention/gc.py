"""Retention applied: to a thread, or to a whole store, thread by thread.

A change is fenced by the thread's rows and its entry, so runs may be under way, and an
interrupted collection is simply repeated. A thread that was not written since is not read again.
A dry run commits nothing and reports the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, cast

from threadkeep import validation
from threadkeep.engine import registration, thread_entry
from threadkeep.engine.context import Engine
from threadkeep.engine.lineage import CheckpointKey, Lineage, checkpoint_key, needed, positions
from threadkeep.engine.model import Batch, DropThread
from threadkeep.engine.operation import Operation, Progress
from threadkeep.engine.optimistic import Snapshot, optimistic
from threadkeep.engine.registration import ALL, PAGE, page_of
from threadkeep.engine.rows import visible
from threadkeep.engine.thread_entry import ThreadEntry, ThreadStatus, Touch, is_there
from threadkeep.errors import CodecError, ConflictError, InvalidArgumentError, invalid
from threadkeep.registry.info import ThreadInfo, info
from threadkeep.retention import policy as policies
from threadkeep.retention.apply import (
    droppable_channels,
    shortened,
    thinning,
    without_values,
    young,
)
from threadkeep.retention.choose import GRACE, Choice, choose
from threadkeep.retention.policy import Retention

if TYPE_CHECKING:
    from threadkeep.engine.operation import Progress


_SETTLED = "kept"  # the record of the state and policy that a thread was last collected under
_DIGEST = 8  # bytes
_LEFT = (ThreadStatus.DELETED, ThreadStatus.ARCHIVED)  # nothing of these is in the store


@dataclass(frozen=True, slots=True)
class Collected:
    """The result for one thread: what was removed, or would be.

    Args:
        thread: its name.
        checkpoints: how many are no longer shown; a DeltaChannel may need some of them, hidden.
        writes: rows of pending writes that were removed.
        segments: stored runs of values that were removed.
        shortened: stored runs that were replaced by the small part of them that is needed.
        bytes: by how much the thread's size went down.
        deleted: why the whole thread was deleted, "ttl" or "max_count"; None if it was not.
        skipped: why nothing was done; None if it was.
        values: how many values of `channels` were taken out of checkpoints that stay.
        whole: which of `channels` were left as they are: DeltaChannels.
    """

    thread: str
    checkpoints: int = 0
    writes: int = 0
    segments: int = 0
    shortened: int = 0
    bytes: int = 0
    deleted: str | None = None
    skipped: str | None = None
    values: int = 0
    whole: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GcReport:
    """The result for a store: what was removed, or (`dry_run`) would be.

    Args:
        threads: the threads of which something was removed, and those that were skipped.
        looked_at: how many threads there are that were not deleted before.
        read: how many of them were read, as they had been written since the last time.
        dry_run: whether nothing was changed.
    """

    threads: tuple[Collected, ...]
    looked_at: int
    read: int
    dry_run: bool

    @property
    def checkpoints(self) -> int:
        """Number of checkpoints removed."""
        return sum([one.checkpoints for one in self.threads])

    @property
    def writes(self) -> int:
        """Number of rows of pending writes removed."""
        return sum([one.writes for one in self.threads])

    @property
    def segments(self) -> int:
        """Number of segments removed."""
        return sum([one.segments for one in self.threads])

    @property
    def bytes(self) -> int:
        """Number of bytes freed."""
        return sum([one.bytes for one in self.threads])

    @property
    def deleted(self) -> tuple[str, ...]:
        """The threads that were deleted."""
        return tuple([one.thread for one in self.threads if one.deleted is not None])

    @property
    def skipped(self) -> tuple[Collected, ...]:
        """The threads that were left as they are, each with the reason."""
        return tuple([one for one in self.threads if one.skipped is not None])


# -- a store ---------------------------------------------------------------------------


def collect(
    engine: Engine,
    policy: Retention | None = None,
    threads: Sequence[str] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Operation[GcReport]:
    """Apply retention to all threads, or some.

    Args:
        engine: the engine's parts.
        policy: for threads without a policy of their own; None for the saver's.
        threads: only these; `max_count` does not count then.
        dry_run: change nothing.
        progress: see `Progress`.

    Raises:
        ThreadNotFoundError: one of `threads` does not exist; nothing was done.
    """
    run = _Run(engine, policy or engine.retention or policies.EVERYTHING, dry_run=dry_run)
    done = yield from registration.for_each(threads, run.visit, "threads collected", progress)
    if threads is None:
        yield from run.delete_excess()
    return GcReport(tuple(run.threads), done, run.read, dry_run)


@dataclass(slots=True)
class _Run:
    """One collection of a store."""

    engine: Engine
    policy: Retention
    dry_run: bool
    threads: list[Collected] = field(default_factory=list)
    read: int = 0

    def _add(self, found: Collected | None) -> None:
        self.read += 1
        if found is not None:
            self.threads.append(found)

    def visit(self, entry: ThreadEntry) -> Operation[None]:
        """Collect one thread."""
        now = self.engine.now()
        try:
            own = policy_of(entry, self.policy)
        except CodecError as exc:
            self.threads.append(Collected(entry.thread, skipped=exc.message))
            return
        if entry.pinned or entry.state == ThreadStatus.DELETED:
            return
        if _is_idle(entry, own, now):

            def is_due(entry: ThreadEntry) -> bool:
                return not entry.pinned and _is_idle(entry, policy_of(entry, self.policy), now)

            self._add((yield from self._delete(entry.thread, "ttl", is_due)))
        elif (
            own.thins and entry.state != ThreadStatus.ARCHIVED and not _is_settled(entry, own, now)
        ):
            thinned = thin(self.engine, entry.thread, self.policy, dry_run=self.dry_run)
            self._add((yield from thinned))

    def delete_excess(self) -> Operation[None]:
        """Delete the least recently updated threads beyond `max_count`."""
        if self.policy.max_count is None:
            return
        gone = {one.thread for one in self.threads if one.deleted is not None}
        there = yield from registration.count(ALL)
        excess = there - self.policy.max_count - (len(gone) if self.dry_run else 0)
        after: tuple[int | str, str] | None = None
        while excess > 0:
            page = yield from page_of("updated_at", after)
            for entry in page:
                if excess > 0 and entry.thread not in gone:
                    excess -= yield from self._delete_one(entry)
            if len(page) < PAGE:
                return
            after = page[-1].updated_at, page[-1].thread

    def _delete_one(self, entry: ThreadEntry) -> Operation[bool]:
        def is_due(now: ThreadEntry) -> bool:
            own = policy_of(now, self.policy)
            return now.updated_at == entry.updated_at and not _is_protected(now, own)

        try:
            if not is_due(entry):
                return False
        except CodecError:
            return False  # (it was reported before)
        found = yield from self._delete(entry.thread, "max_count", is_due)
        if found is not None:
            self.threads = [one for one in self.threads if one.thread != entry.thread]
        self._add(found)
        return found is not None and found.deleted is not None

    def _delete(
        self, thread: str, reason: str, is_due: Callable[[ThreadEntry], bool]
    ) -> Operation[Collected | None]:
        """Delete a thread that is due; None if it is not, or not any more."""

        def build(snapshot: Snapshot) -> Operation[tuple[DropThread | None, Collected | None]]:
            yield from ()
            now, entry, rows = self.engine.now(), snapshot.entry, snapshot.rows
            if not is_there(entry) or not is_due(entry):
                return None, None
            report = Collected(
                thread,
                checkpoints=len(visible(rows.checkpoints)),
                writes=len(rows.orphans) + sum([len(s.writes) for s in rows.checkpoints]),
                # (shared segments stay for the others)
                segments=0 if rows.family else len(rows.segments),
                bytes=snapshot.size,
                deleted=reason,
            )
            change = DropThread(thread, now, rows.generation, snapshot.fences)
            return None if self.dry_run else change, report

        try:
            return (yield from optimistic(self.engine, thread, build))
        except ConflictError as error:
            return Collected(thread, skipped=error.message)


def _is_idle(entry: ThreadEntry, own: Retention, now: int) -> bool:
    """Return True if its ttl is over; the thread's own ttl counts before the policy's."""
    ttl = entry.ttl
    if ttl is None and not _is_protected(entry, own):
        ttl = own.rest
    return ttl is not None and entry.updated_at + ttl < now


def _is_protected(entry: ThreadEntry, own: Retention) -> bool:
    """Return True if the policy may not delete it."""
    is_tagged = own.keep_tagged and bool(thread_entry.tags_of(entry.labels))
    return entry.pinned or is_tagged or entry.state == ThreadStatus.SUSPENDED


# -- a thread --------------------------------------------------------------------------


def thin(
    engine: Engine, thread: str, policy: Retention | None, *, dry_run: bool = False
) -> Operation[Collected | None]:
    """Remove the checkpoints of a thread that need not stay; None if all have to.

    Args:
        engine: the engine's parts.
        thread: the thread's name.
        policy: for a thread without a policy of its own.
        dry_run: change nothing.
    """

    def build(snapshot: Snapshot) -> Operation[tuple[Batch | None, Collected | None]]:
        entry = snapshot.entry
        if entry is None or entry.state in _LEFT or entry.pinned:
            return None, None
        own = policy_of(entry, policy)
        thinned = yield from _thinned(engine, snapshot, entry, own)
        change = None if dry_run else _settled(snapshot, entry, own, thinned)
        return change, _report(snapshot, thinned)

    try:
        return (yield from optimistic(engine, thread, build))
    except (CodecError, ConflictError) as error:
        return Collected(thread, skipped=error.message)


class _Thinned(NamedTuple):
    """The change that removes all that may go, and when time alone may let more go."""

    batch: Batch
    lineage: Lineage
    left: set[CheckpointKey]
    until: int | None
    values: int
    whole: tuple[str, ...]
    shortened: int = 0

    @property
    def size(self) -> int:
        """Bytes of the thread afterwards."""
        return cast("Touch", self.batch.touch).size

    @property
    def removes(self) -> bool:
        """True if anything is removed."""
        batch = self.batch
        drops = (batch.drop_checkpoints, batch.drop_writes, batch.drop_segments)
        return any((*drops, batch.hide_checkpoints, batch.checkpoints, batch.writes))


def _thinned(
    engine: Engine, snapshot: Snapshot, entry: ThreadEntry, own: Retention
) -> Operation[_Thinned]:
    rows, now = snapshot.rows, engine.now()
    choice = choose(rows.checkpoints, own, marked(entry, own), now)
    lineage = Lineage(rows.checkpoints)
    channels, whole = yield from droppable_channels(engine, entry.thread, lineage, own.channels)
    untils = [] if choice.until is None else [choice.until]
    until = min([*untils, *([now + GRACE] if rows.orphans else [])], default=None)

    def without(count: int) -> Operation[_Thinned]:
        keep = choice.without(count)
        hidden = (yield from needed(engine, entry.thread, lineage, keep)) - keep
        hidden |= {choice.ends[key] for key in keep & choice.ends.keys()} - keep
        emptied = without_values(lineage, (keep & set(choice.spare)) | hidden, channels)
        batch = emptied.put_into(thinning(engine, snapshot, emptied.lineage, keep, hidden))
        return _Thinned(batch, emptied.lineage, keep | hidden, until, emptied.values, whole)

    best = yield from _fitting(without, choice, own.max_bytes)
    used = positions(best.lineage, best.left, young(rows.orphans, now), snapshot.others)
    batch = yield from shortened(engine, snapshot, best.batch, used)
    count = len(batch.drop_segments) - len(best.batch.drop_segments)
    return best._replace(batch=batch, shortened=count)


def _fitting(
    without: Callable[[int], Operation[_Thinned]], choice: Choice, most: int | None
) -> Operation[_Thinned]:
    """Drop as few of the spare checkpoints as make the thread small enough."""
    low, high = 1, len(choice.spare)
    best = yield from without(0)
    if most is None or best.size <= most or not high:
        return best
    best = yield from without(high)
    while low < high and best.size <= most:
        middle = (low + high) // 2
        candidate = yield from without(middle)
        if candidate.size <= most:
            best, high = candidate, middle
        else:
            low = middle + 1
    return best


def _report(snapshot: Snapshot, thinned: _Thinned) -> Collected | None:
    """The result; None if nothing goes, and nothing has to be said."""
    batch = thinned.batch
    if not thinned.removes and not thinned.whole:
        return None
    shown = set(map(checkpoint_key, visible(snapshot.rows.checkpoints)))
    return Collected(
        batch.thread,
        checkpoints=len(shown.intersection((*batch.drop_checkpoints, *batch.hide_checkpoints))),
        writes=len(batch.drop_writes) - len(batch.writes),
        segments=len(batch.drop_segments) - thinned.shortened,
        shortened=thinned.shortened,
        bytes=snapshot.size - thinned.size,
        values=thinned.values,
        whole=thinned.whole,
    )


# -- the policy of a thread, and whether it was applied --------------------------------


def set_retention(engine: Engine, thread: str, policy: Retention | None) -> Operation[ThreadEntry]:
    """Set the policy of one thread, in place of the store's; None for the store's.

    Raises:
        ThreadNotFoundError: there is no such thread.
    """

    def update(entry: ThreadEntry) -> ThreadEntry:
        others = thread_entry.without_record(entry.labels, policies.RECORD)
        own = (
            ()
            if policy is None
            else (thread_entry.record_label(policies.RECORD, policy.as_json()),)
        )
        return entry._replace(labels=tuple(sorted((*others, *own))))

    return registration.change(engine, thread, update)


def policy_of(entry: ThreadEntry, store: Retention | None) -> Retention:
    """Return the retention of a thread: its own, or else the store's, or else everything.

    Raises:
        NewerFormatError, CorruptionError: its own cannot be read.
    """
    own = thread_entry.find_record(entry.labels, policies.RECORD)
    return (store or policies.EVERYTHING) if own is None else policies.read(own)


def marked(entry: ThreadEntry, own: Retention) -> set[CheckpointKey]:
    """Return the checkpoints that a tag or a pin protects."""
    marks = thread_entry.marks_of(entry.labels)
    return {(m.ns, m.checkpoint) for m in marks if m.pinned or (own.keep_tagged and m.tags)}


def _is_settled(entry: ThreadEntry, own: Retention, now: int) -> bool:
    """Return True if the thread was collected as it is now, so that nothing can be removed."""
    known = thread_entry.find_record(entry.labels, _SETTLED)
    if not isinstance(known, list) or known[:3] != _state_of(entry, own, entry.size):
        return False
    (until,) = known[3:]
    return until is None or now <= until


def _settled(snapshot: Snapshot, entry: ThreadEntry, own: Retention, thinned: _Thinned) -> Batch:
    """The change, which also notes the state that the thread is collected in.

    The size is noted either way: where it was another (a checkpoint was put again, say), the
    thread would seem to have been written since, time and again.
    """
    known = [*_state_of(entry, own, thinned.size), thinned.until]
    note = thread_entry.record_label(_SETTLED, known)
    batch = thinned.batch
    if thinned.removes:
        touch = cast("Touch", batch.touch)._replace(labels=(note,))
        return batch._replace(fences=snapshot.fences, touch=touch)
    touch = Touch(size=thinned.size, whole=True, labels=(note,))
    return Batch(batch.thread, batch.now, batch.generation, fences=snapshot.fences, touch=touch)


def _state_of(entry: ThreadEntry, own: Retention, size: int) -> list[object]:
    """The policy, and what changes with every write; `updated_at` may be late, the size tells."""
    state = json.dumps([own.as_json(), sorted(marked(entry, own))])
    digest = blake2b(state.encode(errors="surrogatepass"), digest_size=_DIGEST).hexdigest()
    return [digest, size, entry.updated_at]


def gc(
    engine: Engine,
    given: Retention | None,
    threads: Iterable[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Operation[GcReport]:
    """See `Threads.gc`."""
    own = None if given is None else _checked(given)
    names = None if threads is None else validation.ids("threads", threads)
    return collect(engine, own, names, dry_run=dry_run, progress=progress)


def retain(engine: Engine, thread: str, given: Retention | None) -> Operation[ThreadInfo]:
    """See `Threads.retain`."""
    if given is not None and _checked(given).max_count is not None:
        raise InvalidArgumentError(
            "max_count is an option of a store, not of one thread.", hint="Use threads.gc(...)."
        )
    return info((yield from set_retention(engine, validation.thread_id(thread), given)))


def _checked(value: object) -> Retention:
    if not isinstance(value, Retention):
        hint = "Use a threadkeep.Retention, such as Retention(keep_last=10)."
        raise invalid("policy", value, hint)
    return value
