"""Summary of a thread for the registry: the updates that saves cause, and its status.

The update of a save cannot be refused, and saves may arrive in any order. The update from all rows
replaces the saves' updates, so its change is fenced by these rows and by the entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.model import (
    CONTINUES,
    INPUT_KEY,
    CheckpointRow,
    Segment,
    SegmentInfo,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.rows import counting, of_the_graph, time_of, unpack_writes
from threadkeep._core.engine.thread_entry import (
    EntryUpdate,
    Lifecycle,
    StatusEvent,
    ThreadEntry,
)
from threadkeep._core.langgraph_internals import (
    BRANCH,
    DELTA_COUNTERS,
    ERROR_SOURCE,
    JOIN,
    NO_TASK,
    PULL,
    START,
    TASKS,
    is_internal,
)

LAG = 1_000_000
"""Microseconds that `updated_at` may be late, so that it is written once a second."""

_OWN_KEYS = frozenset(
    {
        *("source", "step", "parents", "writes", "run_id", DELTA_COUNTERS),
        *("thread_id", "run_attempt"),  # (of LangGraph's server)
        *("merged_from", "merged_checkpoint", "threadkeep_memory", INPUT_KEY),
    }
)
_OWN_BEGINNINGS = ("langgraph_", "checkpoint_", "__", "ls_", "lc_")  # (LangSmith's, LangChain's)
_SCALARS = (str, int, bool, float)
_LONGEST_NAME = 255  # characters of a failed node


class Reported(NamedTuple):
    """The time and metadata of a thread that this process has reported."""

    at: int
    metadata: Mapping[str, Any]


NOTHING_REPORTED = Reported(0, {})


def of_checkpoint(
    row: CheckpointRow, metadata: Mapping[str, Any], size: int, now: int, reported: Reported
) -> EntryUpdate:
    """Return the update of a checkpoint: its time, and the metadata of its run."""
    at = now if now - reported.at >= LAG or now < reported.at else None
    size += row_size(row)
    said = () if row.ns else _said(metadata, reported.metadata)
    status = "unfinished" if row.flags & CONTINUES else None
    event = None if row.ns else StatusEvent(status, row.id)
    return EntryUpdate(size, at=at, labels=said, saves=True, event=event)


def of_writes(row: WriteRow, size: int, now: int, status: str | None, error: object) -> EntryUpdate:
    """Return the update of pending writes, which may show a question or an `error` of a task."""
    size += len(row.body)
    if status is None:
        return EntryUpdate(size)
    event = StatusEvent(status, row.checkpoint_id, _node_of(row, error) if error else None)
    return EntryUpdate(size, at=now, saves=True, event=event)


def _node_of(row: WriteRow, error: object) -> str | None:
    """Return the node of a task that failed, or None if that is unknown.

    The path of a task that a `Send` made does not name it, but LangGraph adds a note to the error.
    A task that was cancelled because another one failed has none.
    """
    note = re.compile(f"During task with name '(.*)' and id '{re.escape(row.task_id)}'")
    found = [match[1] for one in getattr(error, "__notes__", ()) if (match := note.fullmatch(one))]
    if type(error).__name__ == "CancelledError":
        return None
    return found[-1][:_LONGEST_NAME] if found else _named(row.task_path)


def _named(path: str) -> str | None:
    """Return the node that a task's path names."""
    return path.removeprefix(PULL)[:_LONGEST_NAME] if path.startswith(PULL) else None


def report_of(reported: Reported, touch: EntryUpdate, metadata: Mapping[str, Any]) -> Reported:
    """Return the state of the reports once this update is stored."""
    if touch.at is None and not touch.labels:
        return reported
    known = reported.metadata if not touch.labels else {**reported.metadata, **of_run(metadata)}
    return Reported(touch.at or reported.at, known)


def _said(metadata: Mapping[str, Any], reported: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    for key, value in metadata.items():  # (as `of_run`, in half the time, for every save)
        if key in _OWN_KEYS or type(value) not in _SCALARS:
            continue
        if type(key) is not str or key.startswith(_OWN_BEGINNINGS):
            continue
        if key not in reported or reported[key] != value or type(reported[key]) is not type(value):
            try:
                found.append(thread_entry.metadata_label(key, value))
            except ValueError:
                continue  # it remains metadata of the checkpoint only
    return tuple(found)


def of_run(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata given by the run's config, without keys of LangGraph and LangChain."""
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
    """Return the update from all rows of a thread: its size, and its status.

    The change that carries it must be fenced by the rows.
    """
    rows: list[CheckpointRow | WriteRow] = [stored.row for stored in checkpoints]
    rows += [write for stored in checkpoints for write in stored.writes]
    size = segments + sum(map(row_size, (*rows, *orphans)))
    event = status_of(checkpoints, orphans)
    saves = event.status is not None or bool(of_the_graph(checkpoints))
    return EntryUpdate(size, whole=True, saves=saves, event=event)


def status_of(
    checkpoints: Sequence[StoredCheckpoint], orphans: Sequence[WriteRow] = ()
) -> StatusEvent:
    """Return the status of a thread by its rows.

    A failure or a question of the newest checkpoint of the root namespace counts, or of a newer
    one, as LangGraph may store writes before their checkpoint. As in `get_state`, they count until
    a checkpoint follows, even if the task has ended.
    """
    own = of_the_graph(checkpoints)
    at: dict[str, Sequence[WriteRow]] = {own[-1].row.id: own[-1].writes} if own else {}
    newest = max(at, default="")
    for row in orphans:
        if not row.ns and row.checkpoint_id > newest:
            at[row.checkpoint_id] = (*at.get(row.checkpoint_id, ()), row)
    for id in sorted(at, reverse=True):
        for row in reversed(at[id]):  # (the last one counts)
            channels = {write.channel for write in unpack_writes(row)}
            if ERROR in channels and ERROR_SOURCE not in channels:
                return StatusEvent("failed", id, _named(row.task_path))
            if INTERRUPT in channels:
                return StatusEvent("waiting", id)
    is_next = bool(own) and own[-1].row.flags & CONTINUES
    return StatusEvent("unfinished" if is_next else None, max(at, default=""))


def with_status(entry: ThreadEntry, event: StatusEvent) -> ThreadEntry:
    """Return an entry with the status of an event from all rows.

    Rows do not name the node of a sent task, so the node of the same failure stays.
    """
    at = event.at if thread_entry.is_of_a_task(event.status) else None
    is_same = event.status == "failed" and (event.status, at) == (entry.status, entry.status_at)
    node = event.node or (entry.failed_node if is_same else None)
    return entry._replace(status=event.status, status_at=at, failed_node=node)


def written_at(entry: ThreadEntry, checkpoints: Iterable[StoredCheckpoint], now: int) -> int:
    """Return when a thread was last written: its entry may be late, and clocks of rows ahead."""
    times = [time_of(stored.row) or 0 for stored in checkpoints]
    return max([entry.updated_at, *[time for time in times if time <= now]])


def of_thread(rows: ThreadRows) -> EntryUpdate:
    """Return the update from a thread's rows if all of its segments count for it."""
    return of_rows(rows.checkpoints, rows.orphans, bytes_of(rows.segments))


def entry_of(
    thread: str, checkpoints: Sequence[StoredCheckpoint], orphans: Sequence[WriteRow], now: int
) -> ThreadEntry:
    """Return the entry of a thread from its rows, at `now` if they have no time."""
    times = [s.row.ts for s in checkpoints if isinstance(s.row.ts, int)]
    own = of_the_graph(checkpoints)
    new = ThreadEntry(
        thread,
        Lifecycle.ACTIVE,
        min(times, default=now),
        max(times, default=now),
        labels=tuple(sorted(_said(shown(own[-1].row), {}))) if own else (),
    )
    return with_status(new, status_of(checkpoints, orphans))


def shown(row: CheckpointRow) -> dict[str, Any]:
    """Return the metadata as people see it, which is exact enough for labels."""
    try:
        found = json.loads(row.metadata)
    except (ValueError, RecursionError):
        return {}  # damage, which `check` reports
    return found if isinstance(found, dict) else {}


def waits(stored: StoredCheckpoint) -> bool:
    """Return True if an unfinished task waits at a checkpoint without children."""
    return bool(_tasks_of(stored.writes).waiting)


def row_size(row: CheckpointRow | WriteRow) -> int:
    """Return the bytes of a row's contents."""
    if isinstance(row, CheckpointRow):
        return len(row.manifest) + len(row.metadata) + len(row.exact or b"")
    return len(row.body)


def bytes_of(segments: Iterable[SegmentInfo | Segment]) -> int:
    return sum([segment.size for segment in segments])


CONTROL = frozenset({ERROR, ERROR_SOURCE, INTERRUPT, RESUME})
"""Channels of writes about a task, which are not part of the state."""


class Tasks(NamedTuple):
    """The tasks of a step with their writes, in order of the first write."""

    asked: tuple[str, ...] = ()  # called `interrupt()`
    waiting: tuple[str, ...] = ()  # of these, the unfinished ones
    failed: tuple[str, ...] = ()  # left an error


def tasks(writes: Iterable[tuple[str, str]]) -> Tasks:
    """Return the status of a step's tasks, by the task and channel of each write that counts.

    As in LangGraph's `_task_status`, a task has ended if it wrote to any channel except control
    channels. A resume value alone ends nothing, as the task may ask again.
    """
    channels: dict[str, set[str]] = {}
    for task, channel in writes:
        if task != NO_TASK:
            channels.setdefault(task, set()).add(channel)
    asked = [task for task, wrote in channels.items() if INTERRUPT in wrote]
    return Tasks(
        asked=tuple(asked),
        waiting=tuple([task for task in asked if channels[task] <= CONTROL]),
        failed=tuple([task for task, wrote in channels.items() if ERROR in wrote]),
    )


def _tasks_of(rows: Sequence[WriteRow]) -> Tasks:
    return tasks([(write.task_id, write.channel) for write in counting(rows, None)])


def state_channels(channels: Iterable[str]) -> list[str]:
    """Return the channels of the state, without LangGraph's own that say which nodes run next."""
    return [name for name in channels if not is_internal(name)]


def following(channels: Iterable[str]) -> list[str]:
    """Return the nodes that run next, by the channels that hold a value, without sends."""
    held = list(channels)
    nodes = [name.removeprefix(BRANCH) for name in held if name.startswith(BRANCH)]
    return [START, *nodes] if START in held else nodes


def continues(values: Mapping[str, Any]) -> bool:
    """Return True if nodes run next, by the values of a checkpoint's channels.

    These are the channels of graphs and of entrypoints. Channels of a hand-made `Pregel` may have
    any names.
    """
    for name, value in values.items():
        if name.startswith(BRANCH) or name == START or (name == TASKS and value):
            return True
        if name.startswith(JOIN) and _is_complete(name, value):
            return True
    return False


def _is_complete(name: str, value: Any) -> bool:
    """Return True if all nodes have ended that a channel such as "join:a+b:c" waits for."""
    seen = value[0] if isinstance(value, tuple) else value  # (of a deferred node)
    if not isinstance(seen, set):
        return False
    return sum([len(str(one)) + 1 for one in seen]) == len(name[len(JOIN) : name.rindex(":") + 1])
