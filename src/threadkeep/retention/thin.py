"""One thread as its `Retention` says: checkpoints that go, or the whole thread.

Invariants: what is removed was looked at as it is: every change is fenced by the number of
rows and by the entry's revision, and made anew where somebody was faster. So it may be
interrupted anywhere, and done again, and goes on beside runs. A dry run commits nothing and
tells the very same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, cast

from threadkeep.engine import (
    thread_entry,
    thread_summary,
)
from threadkeep.engine.context import (
    ATTEMPTS,
    Engine,
)
from threadkeep.engine.lineage import (
    Lineage,
    needed,
)
from threadkeep.engine.model import (
    Batch,
    DropThread,
    ReadThread,
    RowsFence,
    ThreadRows,
)
from threadkeep.engine.operation import (
    Fetch,
    Operation,
    commit,
)
from threadkeep.engine.rows import visible
from threadkeep.engine.thread_entry import (
    EntryFence,
    ReadEntry,
    ThreadEntry,
    ThreadStatus,
    Touch,
    is_there,
)
from threadkeep.errors import CodecError, ConflictError, StaleThreadError
from threadkeep.retention import policy
from threadkeep.retention.emptying import (
    Emptied,
    bare_channels,
    without_values,
)
from threadkeep.retention.policy import Retention
from threadkeep.retention.prune import (
    is_old,
    nothing_new,
    own_bytes,
    positions,
    read_family,
    thinning,
)
from threadkeep.retention.selection import (
    GRACE,
    Kept,
    Key,
    kept,
)
from threadkeep.retention.shortening import shortened

_SETTLED = "kept"  # the record of what a thread was last gone through under
_DIGEST = 8  # bytes
_LEFT = (ThreadStatus.DELETED, ThreadStatus.ARCHIVED)  # nothing of these is in the store
_BUSY = "it is being written all the time"


@dataclass(frozen=True, slots=True)
class Collected:
    """What went of one thread, or would go.

    Args:
        thread: its name.
        checkpoints: how many are not shown any more; a DeltaChannel may need some of them, hidden.
        writes: rows of pending writes that were removed.
        segments: stored runs of values that were removed.
        shortened: such runs of which little is needed, and only that was left.
        bytes: by how much the thread's size went down.
        deleted: why the whole thread went, "ttl" or "max_count"; None if it is there.
        skipped: why nothing was done; None where it was.
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


class Found(NamedTuple):
    """A thread as it was read: its entry before its rows, and who shares its segments."""

    thread: str
    entry: ThreadEntry | None
    rows: ThreadRows
    others: Sequence[ThreadRows]

    @property
    def fences(self) -> tuple[RowsFence, EntryFence]:
        """What holds for as long as nothing was added and nothing else was said of it."""
        revision = 0 if self.entry is None else self.entry.revision
        return nothing_new((self.rows, *self.others)), EntryFence(revision)

    @property
    def size(self) -> int:
        """How many bytes it holds, as the registry counts."""
        rows = self.rows
        stored = own_bytes(self.thread, rows)
        return thread_summary.of_rows(rows.checkpoints, rows.orphans, stored).size


def is_settled(entry: ThreadEntry, own: Retention, now: int) -> bool:
    """Whether the thread was gone through as it is now, so that nothing can have to go."""
    known = thread_entry.find_record(entry.labels, _SETTLED)
    if not isinstance(known, list) or known[:3] != _state_of(entry, own, entry.size):
        return False
    (until,) = known[3:]
    return until is None or now <= until


def thin(
    engine: Engine, thread: str, ours: Callable[[ThreadEntry], Retention], *, dry_run: bool = False
) -> Operation[Collected | None]:
    """Remove the checkpoints that have to go; None where none has.

    Args:
        engine: the engine's parts.
        thread: the thread's name.
        ours: what is kept of a thread with this entry.
        dry_run: only tell.
    """
    for _ in range(ATTEMPTS):
        found = yield from _read(thread)
        if found.entry is None or found.entry.state in _LEFT or found.entry.pinned:
            return None
        try:
            own = ours(found.entry)
            thinned = yield from _thinned(engine, found, found.entry, own)
            gone = _told(found, thinned)
            if not dry_run:
                size = _size(thinned.batch)
                known = [*_state_of(found.entry, own, size), thinned.until]
                yield from commit(_settled(thinned, known, found.fences))
        except CodecError as exc:
            return Collected(thread, skipped=exc.message)
        except (StaleThreadError, ConflictError):
            continue  # somebody wrote meanwhile: look again
        if gone is not None and not dry_run:
            engine.working_set.forget(thread)
        return gone
    return Collected(thread, skipped=_BUSY)


def delete(
    engine: Engine, thread: str, why: str, is_due: Callable[[ThreadEntry], bool], *, dry_run: bool
) -> Operation[Collected | None]:
    """Remove a thread that is due; None if it is not, or not any more.

    It goes under fences, so that nothing goes that came meanwhile.
    """
    for _ in range(ATTEMPTS):
        now, found = engine.now(), (yield from _read(thread))
        if not is_there(found.entry) or not is_due(found.entry):
            return None
        gone = _all_told(found, thread, why)
        if dry_run:
            return gone
        try:
            yield from commit(DropThread(thread, now, found.rows.generation, found.fences))
        except (StaleThreadError, ConflictError):
            continue
        engine.working_set.forget(thread)
        return gone
    return Collected(thread, skipped=_BUSY)


def _read(thread: str) -> Operation[Found]:
    entry, rows = yield Fetch([ReadEntry(thread), ReadThread(thread, stub=True)])
    others: Sequence[ThreadRows] = ()
    if rows.family:
        rows, others = yield from read_family(thread, stub=True)
    return Found(thread, entry, rows, others)


# -- checkpoints ---------------------------------------------------------------------


class _Thinned(NamedTuple):
    """What removes all that has to go, and when time alone may let more go."""

    batch: Batch
    emptied: Emptied
    left: set[Key]
    until: int | None
    shortened: int = 0

    @property
    def does(self) -> bool:
        """Whether anything has to go."""
        batch = self.batch
        drops = (batch.drop_checkpoints, batch.drop_writes, batch.drop_segments)
        return any((*drops, batch.hide_checkpoints, batch.checkpoints, batch.writes))


def _thinned(
    engine: Engine, found: Found, entry: ThreadEntry, own: Retention
) -> Operation[_Thinned]:
    rows, now = found.rows, engine.now()
    choice = kept(rows.checkpoints, own, marked(entry, own), now)
    lineage = Lineage(rows.checkpoints)
    bare, whole = yield from bare_channels(engine, entry.thread, lineage, own.channels)

    def without(count: int) -> Operation[_Thinned]:
        keep = choice.without(count)
        hidden = (yield from needed(engine, entry.thread, lineage, keep)) - keep
        hidden |= {choice.ends[key] for key in keep & choice.ends.keys()} - keep
        emptied = without_values(lineage, (keep & set(choice.spare)) | hidden, bare, whole)
        batch = thinning(engine, entry.thread, rows, emptied.lineage, keep, hidden, found.others)
        return _Thinned(emptied.put_into(batch), emptied, keep | hidden, until)

    untils = [] if choice.until is None else [choice.until]
    until = min([*untils, *([now + GRACE] if rows.orphans else [])], default=None)
    best = yield from _fitting(without, choice, own.max_bytes)
    orphans = [row for row in rows.orphans if not is_old(row, now)]
    used = positions(best.emptied.lineage, best.left, orphans, found.others)
    batch = yield from shortened(engine, rows, best.batch, used)
    count = len(batch.drop_segments) - len(best.batch.drop_segments)
    return best._replace(batch=batch, shortened=count)


def _fitting(
    without: Callable[[int], Operation[_Thinned]], choice: Kept, most: int | None
) -> Operation[_Thinned]:
    """As few of the spare checkpoints less as make the thread small enough."""
    low, high = 1, len(choice.spare)
    best = yield from without(0)
    if most is None or _size(best.batch) <= most or not high:
        return best
    best = yield from without(high)
    while low < high and _size(best.batch) <= most:
        middle = (low + high) // 2
        tried = yield from without(middle)
        if _size(tried.batch) <= most:
            best, high = tried, middle
        else:
            low = middle + 1
    return best


def _size(batch: Batch) -> int:
    return cast("Touch", batch.touch).size


def _settled(thinned: _Thinned, known: object, fences: Iterable[RowsFence | EntryFence]) -> Batch:
    """The batch, which also says what the thread was gone through under; else it may do nothing.

    The size is said either way: where it was another (a checkpoint was put again, say), the
    thread would seem to have been written since, time and again.
    """
    batch, note = thinned.batch, thread_entry.record_label(_SETTLED, known)
    if thinned.does:
        touch = cast("Touch", batch.touch)._replace(labels=(note,))
        return batch._replace(fences=tuple(fences), touch=touch)
    touch = Touch(size=_size(batch), whole=True, labels=(note,))
    return Batch(batch.thread, batch.now, batch.generation, fences=tuple(fences), touch=touch)


def _told(found: Found, thinned: _Thinned) -> Collected | None:
    """What goes; None if nothing does, and nothing has to be said."""
    batch, emptied = thinned.batch, thinned.emptied
    if not thinned.does and not emptied.whole:
        return None
    shown = {(s.row.ns, s.row.id) for s in visible(found.rows.checkpoints)}
    return Collected(
        batch.thread,
        checkpoints=len(shown.intersection((*batch.drop_checkpoints, *batch.hide_checkpoints))),
        writes=len(batch.drop_writes) - len(batch.writes),
        segments=len(batch.drop_segments) - thinned.shortened,
        shortened=thinned.shortened,
        bytes=found.size - _size(batch),
        values=emptied.values,
        whole=emptied.whole,
    )


# -- the whole thread ----------------------------------------------------------------


def _all_told(found: Found, thread: str, why: str) -> Collected:
    rows = found.rows
    return Collected(
        thread,
        checkpoints=len(visible(rows.checkpoints)),
        writes=len(rows.orphans) + sum([len(s.writes) for s in rows.checkpoints]),
        # (what others share is theirs from now on)
        segments=0 if rows.family else len(rows.segments),
        bytes=found.size,
        deleted=why,
    )


# -- what is known of it -------------------------------------------------------------


def marked(entry: ThreadEntry, own: Retention) -> set[Key]:
    """The checkpoints that are protected by what was said of them: by a tag or a pin."""
    marks = thread_entry.marks_of(entry.labels)
    return {(m.ns, m.checkpoint) for m in marks if m.pinned or (own.keep_tagged and m.tags)}


def _state_of(entry: ThreadEntry, own: Retention, size: int) -> list[object]:
    """What tells whether something is another than it was: the policy, and all that was written.

    The size tells of each write; `updated_at` may be late.
    """
    said = json.dumps([own.as_json(), sorted(marked(entry, own))])
    digest = blake2b(said.encode(errors="surrogatepass"), digest_size=_DIGEST).hexdigest()
    return [digest, size, entry.updated_at]


def policy_of(entry: ThreadEntry, store: Retention | None) -> Retention:
    """Return the retention of a thread: its own, or else the store's, or else everything.

    Raises:
        NewerFormatError, CorruptionError: what was said cannot be read.
    """
    said = thread_entry.find_record(entry.labels, policy.RECORD)
    return (store or policy.EVERYTHING) if said is None else policy.read(said)
