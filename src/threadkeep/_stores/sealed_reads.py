"""Replies of a store that holds only sealed rows, opened (design note 0026)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import call
from typing import Any

from threadkeep._core.engine import model
from threadkeep._core.engine.sealed_rows import RowSealer
from threadkeep._core.engine.thread_entry import ReadEntry
from threadkeep._core.sealing import OVERHEAD
from threadkeep.errors import CorruptionError, TamperedDataError


def names(read: model.Read, reply: Any) -> set[str]:
    """Return the threads of the rows that a reply has."""
    if isinstance(read, model.ReadPath | model.ScanCheckpoints):
        return {one.thread for one in reply}
    if isinstance(read, model.ReadSegments):
        return {read.thread} if reply else set()
    rows = [getattr(reply, name, None) for name in ("found", "checkpoints", "orphans", "labels")]
    return {str(getattr(read, "thread", ""))} if any(rows) else set()


def opened(
    read: model.Read, reply: Any, rows: Callable[[str], RowSealer], each: Callable[..., Any] = call
) -> Any:
    """Return a reply with opened rows. `each` calls a function to open a row with the row."""
    if isinstance(read, model.ReadPath | model.ScanCheckpoints):
        return [rows(one.thread).opened(one) for one in reply]
    if isinstance(read, model.ReadCheckpoint) and reply.found is not None:
        return reply._replace(found=rows(read.thread).opened(reply.found))
    if isinstance(read, model.ReadSegments):
        return [*map(rows(read.thread).opened_segment, reply)]
    if isinstance(read, ReadEntry):
        return rows(read.thread).opened_entry(reply)
    if isinstance(read, model.ReadThread):
        own = rows(read.thread)
        return reply._replace(
            checkpoints=tuple([own.opened(one, each) for one in reply.checkpoints]),
            orphans=tuple([each(own.opened_write, one) for one in reply.orphans]),
            segments=tuple(
                [one._replace(size=max(one.size - OVERHEAD, 0)) for one in reply.segments]
            ),
        )
    return reply


def or_damaged(opened: Callable[[Any], Any], row: Any) -> Any:
    """Open a row, or return it as damage."""
    try:
        return opened(row)
    except CorruptionError:
        return damaged(opened, row)


def damaged(_: Callable[[Any], Any], row: Any) -> Any:
    """Return a row that does not begin as an encrypted one any more."""
    name = next(name for name in ("manifest", "body", "data") if hasattr(row, name))
    return row._replace(**{name: b"\0" + getattr(row, name)[1:]})


# -- first children ----------------------------------------------------------------------
#
# A checkpoint is read with the `run` and `seen` of its first child, which say which of its writes
# count. They are authenticated with the child's row alone, so that row is opened too.


def depends_on_child(read: model.Read, stored: model.StoredCheckpoint) -> bool:
    """Return True if the first child decides a reply's meaning.

    The child of a head is hidden: a changed flag would make an older checkpoint the head.
    """
    is_head = isinstance(read, model.ReadCheckpoint) and read.id is None
    return stored.child is not None and (is_head or bool(stored.writes))


def unread_children(
    read: model.Read, reply: Any
) -> list[tuple[model.ReadCheckpoint, model.StoredCheckpoint]]:
    """Return reads of children that are not in an opened reply, each with the parent.

    Raises TamperedDataError if a child in the reply is not as its parent was read.
    """
    found = [*_checkpoints(read, reply)]
    rows = {(one.thread, one.row.ns, one.row.id): one.row for one in found}
    unread = []
    for one in found:
        if one.child is not None and depends_on_child(read, one):
            child = model.ReadCheckpoint(one.thread, one.row.ns, one.child.id)
            if child in rows:
                check_child(one, rows[child])
            else:
                unread.append((child, one))
    return unread


def check_child(parent: model.StoredCheckpoint, row: model.CheckpointRow) -> None:
    """Raise TamperedDataError if a parent was read with another child than this one."""
    if parent.child != (row.id, row.run, row.seen) or row.parent != parent.row.id:
        raise TamperedDataError(thread=parent.thread, namespace=row.ns, checkpoint=row.id)


def _checkpoints(read: model.Read, reply: Any) -> Iterator[model.StoredCheckpoint]:
    if isinstance(read, model.ReadPath | model.ScanCheckpoints):
        yield from reply
    elif isinstance(read, model.ReadCheckpoint) and reply.found is not None:
        yield reply.found
    elif isinstance(read, model.ReadThread) and not read.skip:
        yield from reply.checkpoints
