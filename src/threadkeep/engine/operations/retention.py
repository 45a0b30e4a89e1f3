"""One thread as its `Retention` says: checkpoints that go, or the whole thread.

Invariants: what is removed was looked at as it is: every change is fenced by the number of
rows and by the entry's revision, and made anew where somebody was faster. So it may be
interrupted anywhere, and done again, and goes on beside runs. A dry run commits nothing and
tells the very same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, cast

from threadkeep.engine import labels, policy, registry
from threadkeep.engine.calls import Operation, commit, fetch_all
from threadkeep.engine.entries import Entry, EntryFence, ReadEntry, Touch
from threadkeep.engine.keeping import GRACE, Kept, Key, kept
from threadkeep.engine.lifecycle import State
from threadkeep.engine.model import (
    HIDDEN,
    Batch,
    DropThread,
    ReadThread,
    RowsFence,
    ThreadRows,
)
from threadkeep.engine.operations.context import ATTEMPTS, Engine
from threadkeep.engine.operations.housekeeping import thinning
from threadkeep.engine.operations.lineage import Lineage, needed
from threadkeep.engine.policy import Retention
from threadkeep.errors import CodecError, ConflictError, StaleThreadError

_SETTLED = "kept"  # the record of what a thread was last gone through under
_DIGEST = 8  # bytes
_BUSY = "it is being written all the time"


@dataclass(frozen=True, slots=True)
class Collected:
    """What went of one thread, or would go.

    Args:
        thread: its name.
        checkpoints: how many are not shown any more; a DeltaChannel may need some of them, hidden.
        writes: rows of pending writes that were removed.
        segments: stored runs of values that were removed.
        bytes: by how much the thread's size went down.
        deleted: why the whole thread went, "ttl" or "max_count"; None if it is there.
        skipped: why nothing was done; None where it was.
    """

    thread: str
    checkpoints: int = 0
    writes: int = 0
    segments: int = 0
    bytes: int = 0
    deleted: str | None = None
    skipped: str | None = None


class Found(NamedTuple):
    """A thread as it was read: its entry before its rows."""

    entry: Entry | None
    rows: ThreadRows

    @property
    def fences(self) -> tuple[RowsFence, EntryFence]:
        """What holds for as long as nothing was added and nothing else was said of it."""
        rows = self.rows
        writes = sum([len(s.writes) for s in rows.checkpoints]) + len(rows.orphans)
        revision = 0 if self.entry is None else self.entry.revision
        return RowsFence(len(rows.checkpoints), writes), EntryFence(revision)

    @property
    def size(self) -> int:
        """How many bytes it holds, as the registry counts."""
        rows = self.rows
        stored = sum([segment.size for segment in rows.segments])
        return registry.of_rows(rows.checkpoints, rows.orphans, stored).size


def is_settled(entry: Entry, own: Retention, now: int) -> bool:
    """Whether the thread was gone through as it is now, so that nothing can have to go."""
    known = labels.record(entry.labels, _SETTLED)
    if not isinstance(known, list) or known[:3] != _state_of(entry, own, entry.size):
        return False
    until = known[3]
    return until is None or now <= until


def thin(
    engine: Engine, thread: str, ours: Callable[[Entry], Retention], *, dry_run: bool = False
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
        if found.entry is None or found.entry.state == State.DELETED or found.entry.pinned:
            return None
        try:
            own = ours(found.entry)
            batch, until = yield from _thinned(engine, found, found.entry, own)
            gone = _told(found, batch)
            if not dry_run:
                known = [*_state_of(found.entry, own, _size(batch)), until]
                yield from commit(_settled(batch, known, found.fences, is_new=gone is not None))
        except CodecError as exc:
            return Collected(thread, skipped=exc.message)
        except (StaleThreadError, ConflictError):
            continue  # somebody wrote meanwhile: look again
        if gone is not None and not dry_run:
            engine.working_set.forget(thread)
        return gone
    return Collected(thread, skipped=_BUSY)


def delete(
    engine: Engine, thread: str, why: str, is_due: Callable[[Entry], bool], *, dry_run: bool
) -> Operation[Collected | None]:
    """Remove a thread that is due; None if it is not, or not any more.

    Its rows go under a fence, so that nothing goes that came meanwhile; then its tombstone is
    set, as of before: a run that begins in between is not refused.
    """
    for _ in range(ATTEMPTS):
        now, found = engine.now(), (yield from _read(thread))
        if found.entry is None or found.entry.state == State.DELETED or not is_due(found.entry):
            return None
        batch = _emptying(found, thread, now)
        gone = _all_told(found, batch, thread, why)
        if dry_run:
            return gone
        try:
            yield from commit(batch)
        except (StaleThreadError, ConflictError):
            continue
        yield from commit(DropThread(thread, now))
        engine.working_set.forget(thread)
        return gone
    return Collected(thread, skipped=_BUSY)


def _read(thread: str) -> Operation[Found]:
    entry, rows = yield from fetch_all((ReadEntry(thread), ReadThread(thread)))
    return Found(cast("Entry | None", entry), cast("ThreadRows", rows))


# -- checkpoints ---------------------------------------------------------------------


def _thinned(
    engine: Engine, found: Found, entry: Entry, own: Retention
) -> Operation[tuple[Batch, int | None]]:
    """What removes all that has to go, and when time alone may let more go."""
    rows, now = found.rows, engine.now()
    choice = kept(rows.checkpoints, own, marked(entry, own), now)
    lineage = Lineage(rows.checkpoints)

    def without(count: int) -> Operation[Batch]:
        keep = choice.without(count)
        hidden = (yield from needed(engine, entry.thread, lineage, keep)) - keep
        hidden |= {choice.ends[key] for key in keep & choice.ends.keys()} - keep
        return thinning(engine, entry.thread, rows, lineage, keep, hidden)

    batch = yield from _fitting(without, choice, own.max_bytes)
    untils = [] if choice.until is None else [choice.until]
    return batch, min([*untils, *([now + GRACE] if rows.orphans else [])], default=None)


def _fitting(
    without: Callable[[int], Operation[Batch]], choice: Kept, most: int | None
) -> Operation[Batch]:
    """The batch that removes as few of the spare checkpoints as make the thread small enough."""
    low, high = 0, len(choice.spare)
    batch = yield from without(0)
    if most is None or _size(batch) <= most or not high:
        return batch
    batch, low = (yield from without(high)), 1
    while low < high and _size(batch) <= most:
        middle = (low + high) // 2
        tried = yield from without(middle)
        if _size(tried) <= most:
            batch, high = tried, middle
        else:
            low = middle + 1
    return batch


def _size(batch: Batch) -> int:
    return cast("Touch", batch.touch).size


def _settled(
    batch: Batch, known: object, fences: Iterable[RowsFence | EntryFence], *, is_new: bool
) -> Batch:
    """The batch, which also says what the thread was gone through under; else it may do nothing."""
    note = labels.of_record(_SETTLED, known)
    if is_new:
        touch = cast("Touch", batch.touch)._replace(labels=(note,))
        return batch._replace(fences=tuple(fences), touch=touch)
    touch = Touch(labels=(note,))
    return Batch(batch.thread, batch.now, batch.generation, fences=tuple(fences), touch=touch)


def _told(found: Found, batch: Batch) -> Collected | None:
    """What the batch removes; None if nothing."""
    drops = (batch.drop_checkpoints, batch.drop_writes, batch.drop_segments)
    if not any((*drops, batch.hide_checkpoints)):
        return None
    shown = {(s.row.ns, s.row.id) for s in found.rows.checkpoints if not s.row.flags & HIDDEN}
    return Collected(
        batch.thread,
        checkpoints=len(shown.intersection((*batch.drop_checkpoints, *batch.hide_checkpoints))),
        writes=len(batch.drop_writes),
        segments=len(batch.drop_segments),
        bytes=found.size - _size(batch),
    )


# -- the whole thread ----------------------------------------------------------------


def _emptying(found: Found, thread: str, now: int) -> Batch:
    rows = found.rows
    writes = [*rows.orphans, *[row for s in rows.checkpoints for row in s.writes]]
    return Batch(
        thread,
        now,
        rows.generation,
        fences=found.fences,
        drop_checkpoints=tuple([(s.row.ns, s.row.id) for s in rows.checkpoints]),
        drop_writes=tuple([(row.ns, row.checkpoint_id, row.seq) for row in writes]),
        drop_segments=tuple([(s.log, s.start, s.count) for s in rows.segments]),
        bump=True,
        touch=Touch(whole=True),
    )


def _all_told(found: Found, batch: Batch, thread: str, why: str) -> Collected:
    return Collected(
        thread,
        checkpoints=len([s for s in found.rows.checkpoints if not s.row.flags & HIDDEN]),
        writes=len(batch.drop_writes),
        segments=len(batch.drop_segments),
        bytes=found.size,
        deleted=why,
    )


# -- what is known of it -------------------------------------------------------------


def marked(entry: Entry, own: Retention) -> set[Key]:
    """The checkpoints that are protected by a tag or a pin."""
    marks = labels.marks(entry.labels)
    return {(m.ns, m.checkpoint) for m in marks if m.pinned or (own.keep_tagged and m.tags)}


def _state_of(entry: Entry, own: Retention, size: int) -> list[object]:
    """What tells whether something is another than it was: the policy, and all that was written.

    The size tells of each write; `updated_at` may be late.
    """
    said = json.dumps([own.as_json(), sorted(marked(entry, own))])
    digest = blake2b(said.encode(errors="surrogatepass"), digest_size=_DIGEST).hexdigest()
    return [digest, size, entry.updated_at]


def policy_of(entry: Entry, store: Retention) -> Retention:
    """What is kept of a thread: as was said of it, or else of the store.

    Raises:
        NewerFormatError, CorruptionError: what was said cannot be read.
    """
    said = labels.record(entry.labels, policy.RECORD)
    return store if said is None else policy.read(said)
