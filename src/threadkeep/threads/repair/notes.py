"""Findings of a check that are not damage."""

from __future__ import annotations

from collections.abc import Iterator

from threadkeep._core.engine import thread_summary
from threadkeep._core.engine.cold_references import says_active
from threadkeep._core.engine.lineage import CheckpointKey, Lineage
from threadkeep._core.engine.model import LAYERS_KEY, LAYERS_NS, ThreadRows
from threadkeep._core.engine.thread_entry import UNSAVED, ThreadEntry


def registry_problem(rows: ThreadRows, entry: ThreadEntry | None, *, is_padded: bool) -> str:
    """Say how the entry of a sound thread differs from its rows. Empty if it does not.

    Sizes of forks and of threads that share segments are not compared: a shared segment counts
    for only one thread, and padding only from the first collection on (`is_padded`).
    """
    if not rows.checkpoints:
        problem = "its rows are archived, but its state is not 'archived'"
        return problem if says_active(entry) else ""
    if entry is None or not entry.state:
        return "it is not in the registry"
    size = thread_summary.of_thread(rows).size
    if entry.state in UNSAVED:
        return f"its state in the registry is {entry.state!r}, but it has checkpoints"
    event = thread_summary.status_of(rows.checkpoints, rows.orphans)
    found = thread_summary.with_status(entry, event)
    if (found.status, found.status_at) != (entry.status, entry.status_at):
        shown, real = (one.status or "done" for one in (entry, found))
        at = f" at {found.status_at!r}" if found.status_at else ""
        return f"its status in the registry is {shown}, but its rows show {real}{at}"
    is_counted = not (rows.family or is_padded) and entry.origin is None
    if is_counted and entry.size != size:
        return f"its size in the registry is {entry.size} bytes, but its rows hold {size}"
    return ""


def lost_records(rows: ThreadRows, lineage: Lineage) -> Iterator[tuple[CheckpointKey, str]]:
    """Find checkpoints whose archived messages of layered memory are missing."""
    there = {stored.row.id for stored in rows.checkpoints if stored.row.ns == LAYERS_NS}
    for (ns, id), stored in lineage.stored.items():
        row, record = stored.row, None
        if ns == LAYERS_NS:
            record = row.parent
        elif not ns and LAYERS_KEY in row.metadata:
            record = thread_summary.shown(row).get(LAYERS_KEY)
        if record and record not in there:
            yield (ns, id), f"archived messages are missing: record {record} does not exist"
