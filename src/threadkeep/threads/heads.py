"""Heads of threads: recorded elsewhere, they show that somebody put back older rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from threadkeep._core.engine.model import OWN_NS, FindThreads, ReadCheckpoint, ThreadState
from threadkeep._core.engine.operation import Fetch, Operation, Progress, fetch
from threadkeep._core.engine.thread_entry import ReadEntry, is_archived
from threadkeep._core.validation import thread_id
from threadkeep.errors import invalid

_PAGE = 100


def heads(progress: Progress | None) -> Operation[dict[str, str]]:
    found: dict[str, str] = {}
    after = None
    while True:
        names = cast("list[str]", (yield from fetch(FindThreads(after, _PAGE))))
        reads = tuple([ReadCheckpoint(name, "") for name in names if not name.startswith(OWN_NS)])
        replies = cast("list[ThreadState]", (yield Fetch(reads))) if reads else []
        for read, reply in zip(reads, replies, strict=True):
            if reply.found is not None:
                found[read.thread] = reply.found.row.id
        if progress is not None:
            progress("heads", len(found), 0)
        if len(names) < _PAGE:
            return found
        after = names[-1]


def rolled_back(
    recorded: Mapping[str, str], progress: Progress | None
) -> Operation[dict[str, str | None]]:
    for name, id_ in recorded.items():
        if not isinstance(id_, str):
            raise invalid("head", id_, "Use the heads that `heads` returned.")
        thread_id(name)
    newest = yield from heads(progress)
    found: dict[str, str | None] = {}
    for name in sorted(recorded):
        head: str | None = newest.get(name)
        if head is not None and head >= recorded[name]:
            continue
        if head is None and is_archived((yield from fetch(ReadEntry(name)))):
            continue
        found[name] = head
    return found
