"""Apply retention to a thread, or to each thread of a store.

Each change is fenced by the thread's rows and entry, so threads may be in use, and an interrupted
collection can be repeated. Threads without new writes are not read again. A dry run reports the
same and commits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, cast

from threadkeep._core import policies
from threadkeep._core.engine import registration, thread_entry, thread_summary
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.lineage import (
    CheckpointKey,
    Lineage,
    checkpoint_key,
    needed,
    positions,
)
from threadkeep._core.engine.model import Batch, DropThread, ThreadRows
from threadkeep._core.engine.operation import Operation, Progress
from threadkeep._core.engine.registration import ALL, PAGE, ThreadSnapshot, optimistic, page_of
from threadkeep._core.engine.rows import visible
from threadkeep._core.engine.thread_entry import (
    OWN_TAGS,
    EntryUpdate,
    ThreadEntry,
    damaged,
    is_archived,
    is_there,
)
from threadkeep._core.policies import Retention, check_policy
from threadkeep._core.validation import micros
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.errors import CodecError, ConflictError
from threadkeep.threads.retention.apply import (
    Emptied,
    all_writes,
    droppable_channels,
    shortened,
    thinning,
    without_values,
    young,
)
from threadkeep.threads.retention.choose import GRACE, choose

_SETTLED = "kept"  # label with the state and policy at the last collection of a thread
_DIGEST = 8  # bytes


@dataclass(frozen=True, slots=True)
class CollectedThread:
    """Rows and bytes removed from one thread (in a dry run: to be removed).

    Args:
        thread: its id.
        checkpoints: checkpoints removed, or hidden because a DeltaChannel needs them.
        writes: rows of pending writes removed.
        segments: stored runs of values removed or shortened.
        bytes: bytes by which the thread became smaller.
        deleted: why the whole thread was deleted, "ttl" or "max_count", else None.
        skipped: the error that left the thread as it is, else None.
        channel_values: values of the policy's `channels` removed from checkpoints that stay.
        skipped_channels: DeltaChannels among the policy's `channels`, which are not touched.
    """

    thread: str
    checkpoints: int = 0
    writes: int = 0
    segments: int = 0
    bytes: int = 0
    deleted: str | None = None
    skipped: str | None = None
    channel_values: int = 0
    skipped_channels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GcReport:
    """Result of a collection, or of a dry run.

    Args:
        threads: threads from which something was removed, and skipped threads.
        examined: number of threads, without deleted ones.
        dry_run: True if nothing was changed.
    """

    threads: tuple[CollectedThread, ...]
    examined: int
    dry_run: bool

    @property
    def checkpoints(self) -> int:
        """Number of checkpoints removed."""
        return sum([one.checkpoints for one in self.threads])

    @property
    def bytes(self) -> int:
        """Number of bytes freed."""
        return sum([one.bytes for one in self.threads])

    @property
    def deleted(self) -> tuple[str, ...]:
        """The threads that were deleted."""
        return tuple([one.thread for one in self.threads if one.deleted is not None])

    @property
    def skipped(self) -> tuple[CollectedThread, ...]:
        """Threads that an error left as they are."""
        return tuple([one for one in self.threads if one.skipped is not None])


# -- a store ---------------------------------------------------------------------------


def gc(
    store: LayeredBackend,
    engine: Engine,
    policy: Retention | None,
    threads: Sequence[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Operation[GcReport]:
    own = policies.EVERYTHING if policy is None else check_policy(policy)
    run = _Collection(store, engine, own, dry_run=dry_run)
    examined = yield from registration.for_each(threads, run.visit, "threads collected", progress)
    if threads is None and own.max_count is not None:
        yield from run.delete_excess(own.max_count)
    return GcReport(tuple(run.threads.values()), examined, dry_run)


@dataclass(slots=True)
class _Collection:
    """One collection of a store."""

    store: LayeredBackend
    engine: Engine
    policy: Retention
    dry_run: bool
    threads: dict[str, CollectedThread] = field(default_factory=dict)

    def visit(self, entry: ThreadEntry) -> Operation[None]:
        """Collect one thread."""
        now = self.engine.now()

        def is_due(entry: ThreadEntry) -> bool:
            return _is_idle(entry, policy_of(entry, self.policy), now)

        try:
            if entry.damage:
                raise damaged(entry)
            if is_due(entry):
                yield from self._delete(entry.thread, "ttl", is_due)
            elif not (entry.pinned or is_archived(entry) or _is_settled(entry, self.policy, now)):
                thinning = thin(self.engine, entry.thread, self.policy, dry_run=self.dry_run)
                self._add((yield from thinning))
        except (CodecError, ConflictError) as error:
            self._add(CollectedThread(entry.thread, skipped=error.message))

    def delete_excess(self, most: int) -> Operation[None]:
        """Delete the least recently updated threads, so that at most `most` are left."""
        deleted = {one.thread for one in self.threads.values() if one.deleted is not None}
        excess = (yield from registration.count(ALL)) - most
        if self.dry_run:
            excess -= len(deleted)
        after: tuple[int | str, str] | None = None
        while excess > 0:
            page = yield from page_of("updated_at", after)
            for entry in page:
                if excess > 0 and entry.thread not in deleted and not entry.damage:
                    excess -= yield from self._delete_one(entry)
            if len(page) < PAGE:
                return
            after = page[-1].updated_at, page[-1].thread

    def _delete_one(self, entry: ThreadEntry) -> Operation[bool]:
        def is_due(now: ThreadEntry) -> bool:
            own = policy_of(now, self.policy)
            is_newer = now.updated_at > entry.updated_at + thread_summary.LAG
            return not is_newer and not _is_protected(now, own)

        try:
            return is_due(entry) and (yield from self._delete(entry.thread, "max_count", is_due))
        except (CodecError, ConflictError) as error:
            self._add(CollectedThread(entry.thread, skipped=error.message))
            return False

    def _delete(
        self, thread: str, reason: str, is_due: Callable[[ThreadEntry], bool]
    ) -> Operation[bool]:
        """Delete a thread if its rows, too, say that it is due, and return True if so."""

        def build(
            snapshot: ThreadSnapshot,
        ) -> Operation[tuple[DropThread | None, CollectedThread | None]]:
            yield from ()
            entry, rows = snapshot.entry, snapshot.rows
            if not is_there(entry) or not is_due(_as_stored(entry, rows, self.engine.now())):
                return None, None
            report = CollectedThread(
                thread,
                checkpoints=len(visible(rows.checkpoints)),
                writes=len(all_writes(rows)),
                segments=0 if rows.family else len(rows.segments),  # (others need shared ones)
                bytes=snapshot.size,
                deleted=reason,
            )
            change = DropThread(thread, self.engine.now(), rows.generation, snapshot.fences)
            return None if self.dry_run else change, report

        rolling = None if self.dry_run else self.store.rolling
        if rolling is not None:  # (a program on LangGraph's saver may use the thread)
            yield from rolling.take(self.store, self.engine, thread)
        found = yield from optimistic(self.engine, thread, build)
        self._add(found)
        if rolling is not None and found is not None:
            yield from rolling.mirror(thread, "delete_thread", thread)
        return found is not None

    def _add(self, found: CollectedThread | None) -> None:
        if found is not None:
            self.threads[found.thread] = found


def _is_idle(entry: ThreadEntry, own: Retention, now: int) -> bool:
    """Return True if its ttl is over. The thread's own ttl replaces the policy's."""
    ttl = entry.ttl
    if ttl is None and not _is_protected(entry, own):
        ttl = micros(own.ttl)
    return not entry.pinned and ttl is not None and entry.updated_at + ttl < now


def _is_protected(entry: ThreadEntry, own: Retention) -> bool:
    """Return True if the policy may not delete it."""
    tags = set(thread_entry.tags_of(entry.labels)) - OWN_TAGS
    is_tagged = own.keep_tagged and bool(tags)
    is_unfinished = entry.lease_until is not None  # (stored inputs, or a run under a guard)
    return entry.pinned or is_tagged or is_unfinished or entry.status == "waiting"


def _as_stored(entry: ThreadEntry, rows: ThreadRows, now: int) -> ThreadEntry:
    """Correct an entry's status and time by the rows, as the registry's are only hints.

    The entry of an archived thread is exact.
    """
    if is_archived(entry):
        return entry
    event = thread_summary.status_of(rows.checkpoints, rows.orphans)
    at = thread_summary.written_at(entry, rows.checkpoints, now)
    return thread_summary.with_status(entry, event)._replace(updated_at=at)


# -- a thread --------------------------------------------------------------------------


def thin(
    engine: Engine, thread: str, policy: Retention | None, *, dry_run: bool = False
) -> Operation[CollectedThread | None]:
    """Remove the checkpoints that the policy doesn't keep, or None if there are none."""

    def build(snapshot: ThreadSnapshot) -> Operation[tuple[Batch | None, CollectedThread | None]]:
        entry, rows, now = snapshot.entry, snapshot.rows, engine.now()
        if not is_there(entry) or is_archived(entry) or entry.pinned:
            return None, None
        own = policy_of(entry, policy)
        choice = choose(rows.checkpoints, own, marked(entry, own), now)
        lineage = Lineage(rows.checkpoints)
        channels, deltas = yield from droppable_channels(engine, thread, lineage, own.channels)

        def without(count: int) -> Operation[_Thinned]:
            keep = choice.without(count)
            hidden = (yield from needed(engine, thread, lineage, keep)) - keep
            hidden |= {choice.ends[key] for key in keep & choice.ends.keys()} - keep
            emptied = without_values(lineage, (keep & set(choice.spare)) | hidden, channels)
            batch = emptied.put_into(thinning(engine, snapshot, emptied.lineage, keep, hidden))
            return _Thinned(batch, emptied, keep | hidden)

        thinned = yield from _fitting(without, len(choice.spare), own.max_bytes)
        orphans = young(rows.orphans, now)
        used = positions(thinned.emptied.lineage, thinned.keep, orphans, snapshot.others)
        batch = yield from shortened(engine, snapshot, thinned.batch, used)
        report = _report(snapshot, batch, thinned.emptied.values, deltas)
        times = [choice.until, now + GRACE if rows.orphans else None]
        until = min([time for time in times if time is not None], default=None)
        return None if dry_run else _settled(snapshot, batch, entry, own, until), report

    return optimistic(engine, thread, build)


class _Thinned(NamedTuple):
    """A change that removes all checkpoints except `keep`."""

    batch: Batch
    emptied: Emptied
    keep: set[CheckpointKey]


def _fitting(
    without: Callable[[int], Operation[_Thinned]], spare: int, most: int | None
) -> Operation[_Thinned]:
    """Remove as few of the spare checkpoints as needed to make the thread small enough."""
    best = yield from without(0)
    if most is None or _size(best.batch) <= most or not spare:
        return best
    low, high = 1, spare
    best = yield from without(high)
    while low < high and _size(best.batch) <= most:
        middle = (low + high) // 2
        candidate = yield from without(middle)
        if _size(candidate.batch) <= most:
            best, high = candidate, middle
        else:
            low = middle + 1
    return best


def _size(batch: Batch) -> int:
    """Bytes of the thread after the change."""
    return cast("EntryUpdate", batch.touch).size


def _removes(batch: Batch) -> bool:
    drops = (batch.drop_checkpoints, batch.drop_writes, batch.drop_segments)
    return any((*drops, batch.hide_checkpoints, batch.checkpoints, batch.writes))


def _report(
    snapshot: ThreadSnapshot, batch: Batch, values: int, deltas: tuple[str, ...]
) -> CollectedThread | None:
    """Report a change, or None if it removes nothing and skips no channel."""
    if not _removes(batch) and not deltas:
        return None
    shown = set(map(checkpoint_key, visible(snapshot.rows.checkpoints)))
    return CollectedThread(
        batch.thread,
        checkpoints=len(shown.intersection((*batch.drop_checkpoints, *batch.hide_checkpoints))),
        writes=len(batch.drop_writes) - len(batch.writes),
        segments=len(batch.drop_segments),
        bytes=snapshot.size - _size(batch),
        channel_values=values,
        skipped_channels=deltas,
    )


# -- the policy of a thread, and whether it was applied --------------------------------


def policy_of(entry: ThreadEntry, store: Retention | None) -> Retention:
    """Find the retention of a thread: its own, else the store's, else to keep everything."""
    own = thread_entry.find_record(entry.labels, policies.RECORD)
    return (store or policies.EVERYTHING) if own is None else policies.read(own)


def marked(entry: ThreadEntry, own: Retention) -> set[CheckpointKey]:
    """List the checkpoints that a tag or a pin protects."""
    marks = thread_entry.marks_of(entry.labels)
    return {
        (m.checkpoint_ns, m.checkpoint) for m in marks if m.pinned or (own.keep_tagged and m.tags)
    }


def _is_settled(entry: ThreadEntry, policy: Retention, now: int) -> bool:
    """Return True if the policy keeps all, or nothing has changed since the last collection."""
    own = policy_of(entry, policy)
    limits = (own.keep_last, own.max_age, own.channels or None, own.max_bytes)
    if own.keep == "all" and all(limit is None for limit in limits):
        return True
    known = thread_entry.find_record(entry.labels, _SETTLED)
    if not isinstance(known, list) or known[:3] != _state_of(entry, own, entry.size):
        return False
    (until,) = known[3:]
    return until is None or now <= until


def _settled(
    snapshot: ThreadSnapshot, batch: Batch, entry: ThreadEntry, own: Retention, until: int | None
) -> Batch:
    """Record in the change the thread's state after it, so that `gc` can skip the thread.

    The size is corrected even if nothing is removed. Otherwise a wrong one would look like a
    new write each time.
    """
    size = _size(batch)
    note = thread_entry.record_label(_SETTLED, [*_state_of(entry, own, size), until])
    if _removes(batch):
        touch = cast("EntryUpdate", batch.touch)._replace(labels=(note,))
        return batch._replace(touch=touch)
    touch = EntryUpdate(size=size, whole=True, labels=(note,))
    return Batch(batch.thread, batch.now, batch.generation, fences=snapshot.fences, touch=touch)


def _state_of(entry: ThreadEntry, own: Retention, size: int) -> list[object]:
    """The policy, and values that change with every write (`updated_at` alone may be late)."""
    state = json.dumps([own.as_json(), sorted(marked(entry, own))])
    digest = blake2b(state.encode(errors="surrogatepass"), digest_size=_DIGEST).hexdigest()
    return [digest, size, entry.updated_at]
