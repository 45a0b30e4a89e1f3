"""Summary of a thread for the registry: the touches of saves, and the tasks that wait.

The touch of a save cannot be refused, and is right in whatever order saves arrive. The touch of all
rows replaces what they said, so its change is fenced by these rows and by the entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.model import (
    CheckpointRow,
    SegmentInfo,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.rows import counting, of_the_graph, time_of
from threadkeep._core.engine.thread_entry import (
    Cause,
    EntryUpdate,
    StateTransition,
    ThreadEntry,
    ThreadStatus,
    move,
)
from threadkeep._core.langgraph_internals import (
    BRANCH,
    DELTA_COUNTERS,
    ERROR_SOURCE,
    NO_TASK,
    START,
    is_internal,
)

LAG = 1_000_000
"""Microseconds by which an entry's `updated_at` may be late: so it is written once a second."""

_OWN_KEYS = frozenset(
    {
        *("source", "step", "parents", "writes", "run_id", DELTA_COUNTERS),
        *("merged_from", "merged_checkpoint", "threadkeep_memory"),
    }
)
_OWN_BEGINNINGS = ("langgraph_", "checkpoint_", "__")
_SCALARS = (str, int, bool, float)


class Reported(NamedTuple):
    """The time and metadata that this process has reported of a thread."""

    at: int
    metadata: Mapping[str, Any]


NOTHING_REPORTED = Reported(0, {})


def of_checkpoint(
    row: CheckpointRow, metadata: Mapping[str, Any], size: int, now: int, reported: Reported
) -> EntryUpdate:
    """Return the touch of a checkpoint: its time, and what its run says of itself."""
    at = now if now - reported.at >= LAG or now < reported.at else None
    size += row_size(row)
    said = () if row.ns else _said(metadata, reported.metadata)
    moves = (move(Cause.SAVE_INSIDE if row.ns else Cause.SAVE, row.id),)
    return EntryUpdate(size, at=at, labels=said, moves=moves)


def of_writes(row: WriteRow, size: int, now: int, *, waits: bool) -> EntryUpdate:
    """Return the touch of pending writes; those that interrupt a task of the head begin a wait."""
    size += len(row.body)
    if not waits:
        return EntryUpdate(size)
    return EntryUpdate(size, at=now, moves=(move(Cause.INTERRUPT, row.checkpoint_id),))


def report_of(reported: Reported, touch: EntryUpdate, metadata: Mapping[str, Any]) -> Reported:
    """Return what was reported, once this has been stored too."""
    if touch.at is None and not touch.labels:
        return reported
    known = reported.metadata if not touch.labels else {**reported.metadata, **of_run(metadata)}
    return Reported(touch.at or reported.at, known)


def _said(metadata: Mapping[str, Any], reported: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    for key, value in metadata.items():  # (as `of_run`, for every save)
        if key in _OWN_KEYS or type(value) not in _SCALARS:
            continue
        if type(key) is not str or key.startswith(_OWN_BEGINNINGS):
            continue
        if key not in reported or reported[key] != value or type(reported[key]) is not type(value):
            try:
                found.append(thread_entry.metadata_label(key, value))
            except ValueError:
                continue  # it stays what it is: metadata of the checkpoint
    return tuple(found)


def of_run(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that a run's config gives, without LangGraph's own."""
    return {
        key: value
        for key, value in metadata.items()
        if type(value) in _SCALARS
        and key not in _OWN_KEYS
        and type(key) is str
        and not key.startswith(_OWN_BEGINNINGS)
    }


def of_rows(
    checkpoints: Sequence[StoredCheckpoint], orphans: Sequence[WriteRow], segments: int
) -> EntryUpdate:
    """Return the touch of all rows of a thread: its size, and where it waits.

    The rows say all there is to know. So the change that brings the touch is fenced by them.
    """
    rows: list[CheckpointRow | WriteRow] = [stored.row for stored in checkpoints]
    rows += [write for stored in checkpoints for write in stored.writes]
    size = segments + sum(map(row_size, (*rows, *orphans)))
    own = of_the_graph(checkpoints)
    return EntryUpdate(
        size,
        whole=True,
        moves=thread_entry.settle(own[-1].row.id if own else None, waits_at(checkpoints, orphans)),
    )


def waits_at(
    checkpoints: Sequence[StoredCheckpoint], orphans: Sequence[WriteRow] = ()
) -> str | None:
    """Return the checkpoint of the root namespace where an interrupt waits; None if none does.

    It is the newest one. LangGraph may store the interrupt before its checkpoint: then it is newer
    than all that are there. An interrupt waits until a checkpoint follows, as in `get_state`; so it
    does not matter here whether its task has ended.
    """
    own = of_the_graph(checkpoints)
    at: dict[str, Sequence[WriteRow]] = {own[-1].row.id: own[-1].writes} if own else {}
    newest = max(at, default="")
    for row in orphans:
        if not row.ns and row.checkpoint_id > newest:
            at[row.checkpoint_id] = (*at.get(row.checkpoint_id, ()), row)
    return max([id for id, writes in at.items() if _asked(writes)], default=None)


def written_at(entry: ThreadEntry, checkpoints: Iterable[StoredCheckpoint], now: int) -> int:
    """Return when a thread was last written: its entry may be late, and a row's clock ahead."""
    times = [time_of(stored.row) or 0 for stored in checkpoints]
    return max([entry.updated_at, *[time for time in times if time <= now]])


def _asked(rows: Sequence[WriteRow]) -> bool:
    return bool(tasks([(write.task_id, write.channel) for write in counting(rows, None)]).asked)


def of_thread(rows: ThreadRows) -> EntryUpdate:
    """Return the touch of a thread's rows if all of its segments count for it, shared ones too."""
    return of_rows(rows.checkpoints, rows.orphans, bytes_of(rows.segments))


def entry_of(
    thread: str, checkpoints: Sequence[StoredCheckpoint], orphans: Sequence[WriteRow], now: int
) -> ThreadEntry:
    """Return the entry of a thread that is known by its rows alone; `now` if they tell no time."""
    times = [s.row.ts for s in checkpoints if isinstance(s.row.ts, int)]
    own, at = of_the_graph(checkpoints), waits_at(checkpoints, orphans)
    return ThreadEntry(
        thread,
        ThreadStatus.ACTIVE if at is None else ThreadStatus.SUSPENDED,
        min(times, default=now),
        max(times, default=now),
        labels=tuple(sorted(_said(shown(own[-1].row), {}))) if own else (),
        waits_at=at,
    )


def fits(entry: ThreadEntry, at: str | None) -> bool:
    """Return True if an entry is one of a thread with checkpoints that waits there, or nowhere."""
    if entry.waits_at != at or entry.state in (ThreadStatus.CREATED, ThreadStatus.DELETED):
        return False
    return entry.state == ThreadStatus.FORKED or (entry.state == ThreadStatus.SUSPENDED) == bool(at)


def shown(row: CheckpointRow) -> dict[str, Any]:
    """Return the metadata as people see it, which is exact enough for labels."""
    try:
        found = json.loads(row.metadata)
    except ValueError:
        return {}  # damage, which others tell of
    return found if isinstance(found, dict) else {}


def waits(stored: StoredCheckpoint) -> bool:
    """Return True if a task that has not ended waits at a checkpoint that nothing came after."""
    writes = counting(stored.writes, None)
    return bool(tasks([(write.task_id, write.channel) for write in writes]).waiting)


def row_size(row: CheckpointRow | WriteRow) -> int:
    """Return the bytes of a row's contents."""
    if isinstance(row, CheckpointRow):
        return len(row.manifest) + len(row.metadata) + len(row.exact or b"")
    return len(row.body)


def bytes_of(segments: Iterable[SegmentInfo]) -> int:
    """Return the bytes of segments."""
    return sum([segment.size for segment in segments])


def merged(touches: tuple[EntryUpdate, ...]) -> EntryUpdate:
    """Return the touch that does what these do, one after the other."""
    last_whole = max((i for i, one in enumerate(touches) if one.whole), default=0)
    times = [one.at for one in touches if one.at is not None]
    said: dict[str, str] = {}
    moves: list[StateTransition] = []
    for one in touches:
        said |= {thread_entry.label_prefix(label): label for label in one.labels}
        for step in one.moves:
            last = moves[-1] if moves else step
            if last.checkpoint <= step.checkpoint and step == last._replace(
                checkpoint=step.checkpoint
            ):
                del moves[-1:]  # this one does all that it does
            moves.append(step)
    return EntryUpdate(
        sum([one.size for one in touches[last_whole:]]),
        whole=touches[last_whole].whole if touches else False,
        at=max(times, default=None),
        labels=tuple(said.values()),
        moves=tuple(moves),
    )


_CONTROL = frozenset({ERROR, ERROR_SOURCE, INTERRUPT, RESUME})


class Tasks(NamedTuple):
    """The tasks of a step by what they wrote, in the order of their first write."""

    asked: tuple[str, ...] = ()  # called `interrupt()`
    waiting: tuple[str, ...] = ()  # those of them that have not ended since
    failed: tuple[str, ...] = ()  # left an error


def tasks(writes: Iterable[tuple[str, str]]) -> Tasks:
    """Return the status of a step's tasks, by the task and channel of each write that counts.

    As in LangGraph's `_task_status`, a task has ended if it wrote anything but what says how it
    fares. An answer alone ends nothing, as the task may ask again.
    """
    channels: dict[str, set[str]] = {}
    for task, channel in writes:
        if task != NO_TASK:
            channels.setdefault(task, set()).add(channel)
    asked = [task for task, wrote in channels.items() if INTERRUPT in wrote]
    return Tasks(
        asked=tuple(asked),
        waiting=tuple([task for task in asked if channels[task] <= _CONTROL]),
        failed=tuple([task for task, wrote in channels.items() if ERROR in wrote]),
    )


def own(channels: Iterable[str]) -> list[str]:
    """Return the channels of the state; the others are LangGraph's, and say what runs next."""
    return [name for name in channels if not is_internal(name)]


def following(channels: Iterable[str]) -> list[str]:
    """Return the nodes that run next, by the channels that hold something; without sends."""
    held = list(channels)
    nodes = [name.removeprefix(BRANCH) for name in held if name.startswith(BRANCH)]
    return [START, *nodes] if START in held else nodes
