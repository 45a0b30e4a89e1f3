"""The rules of rows, once for all databases: the move that a change comes to, or its refusal.

A rule is a generator. It yields reads of the database, and is sent their replies. Rows that it
reads need no lock, because the move names the heads that it builds on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from threadkeep._core.engine import leases, model, thread_entry
from threadkeep._core.engine.heads import (
    NO_LOGS,
    Copying,
    Head,
    Move,
    RowsKey,
)
from threadkeep._core.engine.positions import Placed, placed_carefully, placed_in
from threadkeep._core.engine.rule_reads import (
    CountRows,
    HasOthers,
    HoldsCheckpoints,
    Planning,
    ReadDamaged,
    ReadNewer,
    ask,
    family_of,
)
from threadkeep._core.engine.thread_entry import Lifecycle, ThreadEntry
from threadkeep._core.engine.tips import MOST, after, names
from threadkeep.errors import (
    ConflictError,
    LeaseLostError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadExistsError,
)

HeadOf: TypeAlias = Callable[[str], Head]


# -- changes -----------------------------------------------------------------------------


def move_of(
    change: model.Change,
    head_of: HeadOf,
    tip: int,
    *,
    careful: bool = False,
    shares_heaps: bool = True,
) -> Planning[Move | None]:
    """Return the move of a change, or None if there is nothing to change.

    Args:
        change: the change.
        head_of: returns the head of a thread.
        tip: the tip of the commit.
        careful: look at stored segments, also if the head knows where there are none.
        shares_heaps: a fork shares the segments of its origin, else it copies them.

    Raises:
        ThreadDeletedError, StaleThreadError, ConflictError, SegmentTakenError,
        ThreadExistsError: the change is refused, as its docstring says.
    """
    if isinstance(change, model.Batch):
        return (yield from _batch(change, head_of, tip, careful=careful))
    if isinstance(change, model.ForkThread):
        return (yield from _fork(change, head_of, tip, shares_heaps=shares_heaps))
    return (yield from _RULES[type(change)](change, head_of, tip))


def is_made(tip: int, stored: Head) -> bool:
    """Return True if the store has made the change of a tip already, and its answer was lost."""
    return tip in stored.tips or tip == stored.life


def is_stored(change: model.Change, head: Head) -> Planning[bool]:
    """As `is_made`, by the rows that a change adds, if the head may name later commits only."""
    if not isinstance(change, model.Batch) or not only_adds(change) or len(head.tips) < MOST:
        return False
    writes = [row._replace(seq=0) for row in change.writes]
    places = {(row.ns, row.id) for row in change.checkpoints}
    places |= {(row.ns, row.checkpoint_id) for row in writes}
    stored: set[model.CheckpointRow | model.WriteRow] = set()
    for state in (yield [model.ReadCheckpoint(change.thread, *place) for place in places]):
        if state.found is not None:
            stored.update((state.found.row, *[row._replace(seq=0) for row in state.found.writes]))
    return bool(places) and stored.issuperset((*change.checkpoints, *writes))


def mends(change: model.Change) -> model.UnreadableRow | None:
    """Return the thread's own damaged row, if the batch gives it safe values."""
    rows = change.drop_unreadable if isinstance(change, model.Batch) else ()
    return next((row for row in rows if row.table == model.THREADS), None)


def _batch(batch: model.Batch, head_of: HeadOf, tip: int, *, careful: bool) -> Planning[Move]:
    damaged = mends(batch)
    old = head = head_of(batch.thread) if damaged is None else (yield from _mended(batch, damaged))
    if damaged is not None:
        head = old._replace(tips=(), **_NO_ENTRY)
    check_state(batch, head)
    for fence in batch.fences:
        yield from _check_fence(fence, batch, head)
    move = yield from _changed(old, head, batch, tip, careful=careful)
    return move if damaged is None else move._replace(clears_labels=True)


def _mended(batch: model.Batch, row: model.UnreadableRow) -> Planning[Head]:
    found: Head | None = yield from ask(ReadDamaged(batch.thread, row.key))
    if found is None:
        raise ConflictError(thread=batch.thread)
    return found


def _changed(
    old: Head, head: Head, batch: model.Batch, tip: int, *, careful: bool
) -> Planning[Move]:
    """Return the move of a batch that is allowed."""
    placed = None if careful and batch.segments else placed_in(head, batch)
    if placed is None:
        placed = yield from placed_carefully(head, batch)
    if only_adds(batch):
        return addition(old, head, batch, placed, tip)
    if batch.removes:
        batch = batch._replace(checkpoints=_left(batch))
        if head.state is not None:
            head = head._replace(revision=head.revision + 1)
    if batch.entry is not None:
        head = with_entry(head, batch.entry)
    beside: tuple[tuple[Head, Head], ...] = ()
    if batch.bump_generation:
        head, beside = yield from _raised(head, tip)
        foreign = {one.log for one in placed.segments} - placed.logs.keys()
        beside = tuple([(was, _without(will, foreign)) for was, will in beside])
    move = addition(old, head, batch, placed, tip)
    if batch.entry is not None:
        labels = (*batch.entry.labels, *move.labels)
        move = move._replace(labels=labels, clears_labels=True)
    return move._replace(
        drop_checkpoints=batch.drop_checkpoints,
        drop_writes=batch.drop_writes,
        replace_writes=batch.replace_writes,
        hide_checkpoints=batch.hide_checkpoints,
        drop_unreadable=batch.drop_unreadable,
        beside=beside,
    )


def _left(batch: model.Batch) -> tuple[model.CheckpointRow, ...]:
    """Return the checkpoints that a batch adds and does not drop, flagged if it hides them."""
    drops, hidden = set(batch.drop_checkpoints), set(batch.hide_checkpoints)
    rows = [row for row in batch.checkpoints if (row.ns, row.id) not in drops]
    return tuple(
        [
            row._replace(flags=row.flags | model.HIDDEN) if (row.ns, row.id) in hidden else row
            for row in rows
        ]
    )


def _without(head: Head, logs: Collection[int]) -> Head:
    """Return a head that does not list some logs, because another thread has added to them."""
    return head._replace(logs={log: end for log, end in head.logs.items() if log not in logs})


def only_adds(batch: model.Batch) -> bool:
    """Return True for a batch that only adds rows and replaces segments by larger ones."""
    return not (
        batch.drop_checkpoints
        or batch.drop_writes
        or batch.replace_writes
        or batch.hide_checkpoints
        or batch.drop_unreadable
        or batch.entry
        or batch.bump_generation
    )


def addition(old: Head, head: Head, batch: model.Batch, placed: Placed, tip: int) -> Move:
    """Return the move of a batch that adds rows to `head`, and builds on `old`."""
    segments, drops, logs, gaps, lists_all = placed
    seq, newest, touch = head.seq, head.newest, batch.touch
    writes, labels, entry = batch.writes, _NO_LABELS, head[12:17]
    rest: Any = head[17:]
    if writes and batch.numbered:
        seq = max(seq, *[row.seq for row in writes])
    elif writes:
        writes = tuple([model.WriteRow(*row[:-1], seq + n) for n, row in enumerate(writes, 1)])
        seq += len(writes)
    for row in batch.checkpoints:
        if not row.ns and (newest is None or row.id > newest):
            newest = row.id
        elif row.ns == model.INPUTS_NS:
            rest = (*rest[:6], *leases.asked(head))
    if touch is not None:
        entry, labels = _touched(entry, touch, batch.now)
        event = touch.event
        if event is not None and (
            head.status != event.status
            or head.status_at is not None
            or thread_entry.is_of_a_task(event.status)  # (its checkpoint may be unknown)
        ):
            rest = (*rest[:3], *_status(head, entry[2], touch, event), *rest[6:])
    if batch.asks:
        rest = (*rest[:6], *leases.asked(head))
    elif head.attempts and any(not row.ns.startswith(model.OWN_NS) for row in batch.checkpoints):
        rest = (*rest[:-1], 0)
    new = Head(
        *(head.thread, after(head.tips, tip), *head[2:7], seq, newest, logs, lists_all, gaps),
        *(*entry, *rest),
    )
    move = Move(old, new, segments, batch.checkpoints, writes, labels, drops)
    return move if batch.words is None else move._replace(words=_reaching(batch, old, newest))


def _reaching(batch: model.Batch, head: Head, newest: str | None) -> model.Words | None:
    """Return the words of a batch if the thread is indexed with them, else None.

    The batch's checkpoint must be the newest one, and come with all words, or follow the one that
    was the newest: another run may have stored it meanwhile.
    """
    rows = {one.id: one for one in batch.checkpoints if not one.ns}
    if not rows or batch.words is None:
        return batch.words
    row = rows.get(str(newest))
    follows = row and (batch.words.whole or head.newest in (row.parent, row.id))
    return batch.words if follows else None


_EntryFields: TypeAlias = tuple[int, int, str | None, int | None, int | None]
"""Fields 12 to 16 of a head: from `size` to `updated_at`."""
_Status: TypeAlias = tuple[str | None, str | None, str | None]
"""Fields 20 to 22 of a head: from `status` to `failed_node`."""


def _touched(
    entry: _EntryFields, touch: thread_entry.EntryUpdate, now: int
) -> tuple[_EntryFields, tuple[str, ...]]:
    """Return an entry after an update, and its new labels."""
    size, revision, state, created_at, updated_at = entry
    labels = _NO_LABELS
    size = touch.size if touch.whole else size + touch.size
    at = now if touch.at is None else touch.at
    if touch.saves and state in _BECOME_ACTIVE:
        if state is None or state == Lifecycle.DELETED:
            created_at = updated_at = at
        if state != Lifecycle.FORKED or not (touch.whole or touch.event is None):
            state, revision = "active", revision + 1
    if state is not None and state != Lifecycle.DELETED:
        if touch.at is not None and (updated_at is None or updated_at < touch.at):
            updated_at = touch.at
        if touch.labels:
            labels, revision = touch.labels, revision + len(touch.labels)
    return (size, revision, state, created_at, updated_at), labels


def _status(
    head: Head, state: str | None, touch: thread_entry.EntryUpdate, event: thread_entry.StatusEvent
) -> _Status:
    """Return the status of a thread after an event. `head` is the one before."""
    status, at, node = known = head[20:23]
    if head.state in thread_entry.UNSAVED:
        status = at = node = None  # (of an earlier life)
    new, where = event.status, event.at
    last = at or head.newest or ""
    is_of_a_task = thread_entry.is_of_a_task(new)
    is_new = where > last or (where == last and (at is None or is_of_a_task))
    if state == Lifecycle.ARCHIVED or not (is_new or touch.whole):
        return known
    if not is_of_a_task:
        return new, None, None
    is_same = (new, where) == (status, at)
    return new, where, event.node or (node if is_same else None)


def _raised(head: Head, tip: int) -> Planning[tuple[Head, tuple[tuple[Head, Head], ...]]]:
    """Raise the generation of all threads that share a heap (see `Move.beside`)."""
    _, *others = yield from family_of(head)
    beside = [
        (one, one._replace(generation=one.generation + 1, tips=after(one.tips, tip)))
        for one in others
    ]
    return head._replace(generation=head.generation + 1), tuple(beside)


# -- whole threads -----------------------------------------------------------------------


def _drop(change: model.DropThread, head_of: HeadOf, tip: int) -> Planning[Move]:
    old = head_of(change.thread)
    expected = change.expected
    check_state(expected, old)
    for fence in expected.fences:
        yield from _check_fence(fence, expected, old)
    _, beside = yield from _raised(old, tip)
    now = change.now
    new = Head(
        change.thread,
        (tip,),
        old.number,
        _new_heap(old, tip) if beside else old.heap,
        old.generation + 1,
        tip if change.ends else old.life,
        now,
        revision=old.revision + 1,
    )
    if now:
        new = new._replace(state=Lifecycle.DELETED.value, created_at=now, updated_at=now)
    labels: tuple[str, ...] = ()
    if change.entry is not None:
        new, labels = with_entry(new, change.entry), change.entry.labels
    if not change.ends:
        new = new._replace(**{name: getattr(old, name) for name in _LEASE})
    move = Move(old, new, labels=labels)
    if change.rows is not None:
        rows = yield from _changed(old, new, change.rows, tip, careful=False)
        move = rows._replace(labels=(*labels, *rows.labels))
    return move._replace(clears=True, clears_heap=not beside, clears_labels=True, beside=beside)


_MOST_INPUTS = 1000  # of a thread that is copied


def _copy(change: model.CopyThread, head_of: HeadOf, tip: int) -> Planning[Move | None]:
    source, target = head_of(change.source), head_of(change.target)
    if not (yield from ask(HoldsCheckpoints(source, any_row=True))):
        return None
    yield from _check_ends(change, source, target)
    _, beside = yield from _raised(target, tip)
    reads = thread_entry.ReadEntry(change.source), thread_entry.ReadEntry(change.target)
    entry, own = yield reads
    new = _begun(source, target, tip)._replace(
        heap=_new_heap(target, tip) if beside else target.heap,
        lists_all=source.lists_all and not source.heap,
        size=source.size,
        revision=target.revision + 1,
    )
    labels: tuple[str, ...] = ()
    if entry is not None:
        new = new._replace(
            state=source.state,
            created_at=change.now,
            updated_at=change.now,
            status=source.status,
            status_at=source.status_at,
            failed_node=source.failed_node,
            pinned=target.pinned,
            ttl=source.ttl if target.ttl is None else target.ttl,
            origin=target.origin,
        )
        labels = (*entry.labels, *(own.labels if own is not None else ()))
    inputs = yield from ask(ReadNewer(source, model.INPUTS_NS, None, _MOST_INPUTS))
    return Move(
        target,
        new,
        labels=labels,
        clears=True,
        clears_heap=not beside,
        clears_labels=True,
        copies=Copying(source),
        drop_checkpoints=tuple([(model.INPUTS_NS, one) for one in inputs]),
        beside=_other_heads(target, (source, source), *beside),
    )


def _fork(
    change: model.ForkThread, head_of: HeadOf, tip: int, *, shares_heaps: bool
) -> Planning[Move]:
    source, target = head_of(change.source), head_of(change.target)
    if not source.tips:
        raise StaleThreadError(thread=change.source)
    yield from _check_ends(change, source, target)
    _, beside = yield from _raised(target, tip)
    new = _begun(source, target, tip)._replace(size=change.entry.size)
    named = source
    others: tuple[tuple[Head, Head], ...] = ()
    if shares_heaps:
        heap = source.heap or source.number
        new = new._replace(heap=heap, logs=NO_LOGS, lists_all=False)
        named = source._replace(heap=heap, tips=after(source.tips, tip), lists_all=False)
        named, others = yield from _raised(named, tip)
    return Move(
        target,
        with_entry(new, change.entry),
        labels=change.entry.labels,
        clears=True,
        clears_heap=not beside,
        clears_labels=True,
        copies=Copying(source, change.checkpoints, change.writes, segments=not shares_heaps),
        beside=_other_heads(target, (source, source), *beside, (source, named), *others),
    )


def _begun(source: Head, target: Head, tip: int) -> Head:
    """Return the head of a thread that begins with rows of another one, without an entry."""
    new = Head(target.thread, (tip,), target.number, 0, target.generation + 1, target.life)
    fields = ("seq", "newest", "logs", "lists_all")
    return new._replace(
        revision=target.revision, **{name: getattr(source, name) for name in fields}
    )


def _other_heads(target: Head, *moved: tuple[Head, Head]) -> tuple[tuple[Head, Head], ...]:
    """Return of each other thread the old head that was read first, and the last new one."""
    found: dict[str, tuple[Head, Head]] = {}
    for old, new in moved:
        first = found[old.thread][0] if old.thread in found else old
        found[old.thread] = (first, new)
    found.pop(target.thread, None)
    return tuple(found.values())


def _new_heap(head: Head, tip: int) -> RowsKey:
    """Return the key of a heap that no thread has.

    A text begins with the thread's id, as a tenant's database role may add only such rows (see
    `postgres.roles`), and is no escaped id (see `pack_text`).
    """
    return -tip if isinstance(head.number, int) else f"{head.number}\x01\x03{tip}"


def _check_ends(
    change: model.CopyThread | model.ForkThread, source: Head, target: Head
) -> Planning[None]:
    """Refuse a source that has changed, and a target that is the source or holds checkpoints."""
    if isinstance(change, model.ForkThread) and change.generation != source.generation:
        raise StaleThreadError(thread=change.source)
    if change.revision not in (None, source.entry_revision):
        raise ConflictError(thread=change.source)
    if change.source == change.target or (yield from ask(HoldsCheckpoints(target))):
        raise ThreadExistsError(thread=change.target)


# -- refusals ----------------------------------------------------------------------------


def check_state(batch: model.Batch, head: Head) -> None:
    """Refuse a batch whose thread was deleted, lost its guard, or went back."""
    if batch.life is not None and batch.life != head.life:
        raise ThreadDeletedError(thread=batch.thread)
    if batch.guard is not None and batch.guard != head.holder:
        raise LeaseLostError(thread=batch.thread)
    if batch.generation is not None and batch.generation != head.generation:
        raise StaleThreadError(thread=batch.thread)
    if batch.link is not None and not names(head.tips, batch.link.base):
        raise StaleThreadError(thread=batch.thread)


def holds_surely(fence: model.Fence, head: Head) -> bool:
    """Return True if a fence holds, as far as the head alone tells."""
    match fence:
        case model.HeadFence("", expected):
            newest = head.newest
            return newest is None or (expected is not None and newest <= expected)
        case model.WritesFence(seen=seen):
            return head.seq <= seen
        case thread_entry.EntryFence(revision):
            return head.entry_revision == revision
    return False


def _check_fence(fence: model.Fence, batch: model.Batch, head: Head) -> Planning[None]:
    if holds_surely(fence, head):
        return
    at: dict[str, str] = {}
    holds = False
    match fence:
        case model.HeadFence(ns, expected):
            found = yield from _newer(head, ns, expected, batch)
            holds = found is None
            at = {} if found is None else {"namespace": ns, "checkpoint": found}
        case model.WritesFence(ns, key, run, seen):
            holds = not (yield from ask(HasOthers(head, ns, key, run, seen)))
            at = {"namespace": ns, "checkpoint": key}
        case model.RowsFence():
            family = yield from family_of(head)
            holds = fence == (yield from ask(CountRows(tuple(family))))
    if not holds:
        raise ConflictError(thread=batch.thread, **at)


def _newer(head: Head, ns: str, expected: str | None, batch: model.Batch) -> Planning[str | None]:
    """Return a checkpoint after the expected one that is not the batch's own."""
    own = {row.id for row in batch.checkpoints if row.ns == ns}
    # (one more than the batch's own, which may be stored already)
    found = yield from ask(ReadNewer(head, ns, expected, len(own) + 1))
    return next((id for id in found if id not in own), None)


# -- the registry ------------------------------------------------------------------------

_NO_LABELS: tuple[str, ...] = ()
_LEASE = ("holder", "lease_until", "attempts")
_OWN = {"thread", "size", "deleted_at", "revision", *_LEASE}  # (of a head, whatever its entry)
_ENTRY = [name for name in ThreadEntry._fields if name in {*Head._fields} - _OWN]
_OF_A_NEW_ONE = ("created_at", "updated_at", "status", "status_at", "failed_node")
_BECOME_ACTIVE = {*thread_entry.UNSAVED, Lifecycle.FORKED}
_NO_ENTRY = {name: Head._field_defaults[name] for name in (*_ENTRY, "size") if name != "revision"}


def with_entry(head: Head, entry: ThreadEntry) -> Head:
    """Return the head with an entry, without its labels (see `Batch`)."""
    kept = _OF_A_NEW_ONE if _is_there(head) else ()
    fields = {name: getattr(entry, name) for name in _ENTRY if name not in kept}
    fields.update(state=str(entry.state), revision=head.revision + 1)
    return head._replace(**fields)


def _is_there(head: Head) -> bool:
    return head.state is not None and head.state != Lifecycle.DELETED


_RULES: Mapping[type[model.Change], Callable[..., Planning[Move | None]]] = {
    model.DropThread: _drop,
    model.CopyThread: _copy,
    model.LeaseThread: leases.move_of,
}
