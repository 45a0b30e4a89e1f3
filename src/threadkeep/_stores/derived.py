"""Replies to rare reads, from the replies to other reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from threadkeep._core.engine import model, rule_reads, thread_entry
from threadkeep._stores.records import first_entries, matches

_ALL = 2**62


def derived(read: Any, answer: Callable[[Any], Any]) -> Any:  # noqa: C901 - one case a read
    """Answer a read that only maintenance, copies and forks need, or `ReadPath`, by other reads.

    Answers `ReadDamaged`, `ReadDamage`, `ReadClock`, `ReadFamily`, `CountRows`, `HoldsCheckpoints`,
    `ReadSizes`, `SearchThreads` and `CountThreads`, for stores whose rows cannot be
    damaged. It reads whole threads, or all entries.

    Args:
        read: the read.
        answer: answers one other read, from the same view of the store.

    Raises:
        NotImplementedError: the database must answer this read itself.
    """
    match read:
        case rule_reads.ReadDamaged(thread):
            return answer(rule_reads.ReadHead(thread))
        case model.ReadDamage():
            return []
        case thread_entry.ReadClock():
            return time.time_ns() // 1000
        case rule_reads.ReadFamily(heap):
            names = answer(model.FindThreads(None, _ALL, empty=True))
            heads = [answer(rule_reads.ReadHead(name)) for name in names]
            return [head for head in heads if head.heap == heap]
        case rule_reads.CountRows(heads):
            sizes = [_size(head.thread, answer) for head in heads]
            return sum([one.checkpoints for one in sizes]), sum([one.writes for one in sizes])
        case rule_reads.HoldsCheckpoints(head, any_row):
            rows = answer(model.ReadThread(head.thread))
            return bool(rows.checkpoints or (any_row and (rows.orphans or rows.segments)))
        case model.ReadSizes(after, limit, prefix):
            names = answer(model.FindThreads(after, _ALL, empty=True, prefix=prefix))
            found = (one for one in (_size(name, answer) for name in names) if any(one[1:]))
            page = tuple(islice(found, limit))
            rest = () if prefix or after is not None else found
            return model.Sizes(sum([sum(one[4:]) for one in (*page, *rest)]), page)
        case thread_entry.SearchThreads(query):
            names = answer(model.FindThreads(None, _ALL, empty=True, prefix=query.prefix))
            entries = [answer(thread_entry.ReadEntry(name)) for name in names]
            return first_entries(read, [one for one in entries if one and matches(one, query)])
        case model.ReadPath():
            return _path(read, answer)
        case thread_entry.CountThreads(query):
            search = thread_entry.SearchThreads(query, "thread", False, None, _ALL)  # noqa: FBT003
            return len(answer(search))
    raise NotImplementedError(f"The database must answer {type(read).__name__} itself.")


def _path(read: model.ReadPath, answer: Callable[[Any], Any]) -> list[model.StoredCheckpoint]:
    path: list[model.StoredCheckpoint] = []
    id: str | None = read.id
    while id is not None and len(path) < read.limit:
        found = answer(model.ReadCheckpoint(read.thread, read.ns, id)).found
        if found is None:
            break
        path.append(found)
        id = found.row.parent
    return path


def _size(thread: str, answer: Callable[[Any], Any]) -> model.StoredThreadSize:
    found: model.ThreadRows = answer(model.ReadThread(thread))
    rows = [one.row for one in found.checkpoints]
    writes = [*found.orphans, *(write for one in found.checkpoints for write in one.writes)]
    segments = found.segments if thread <= min(found.family, default=thread) else ()
    row_bytes = sum([len(r.metadata) + len(r.exact or b"") + len(r.manifest) for r in rows])
    row_bytes += sum([len(write.body) for write in writes])
    counts = (len(rows), len(writes), len(segments), row_bytes)
    return model.StoredThreadSize(thread, *counts, sum([one.size for one in segments]))
