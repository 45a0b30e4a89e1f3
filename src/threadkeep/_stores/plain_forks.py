"""Families of threads that were forked before their store had keys (design note 0026)."""

from __future__ import annotations

import time
from typing import Any

from threadkeep._core.engine.model import Batch, ReadThread
from threadkeep._core.engine.sealed_rows import Family, Relative
from threadkeep._core.engine.thread_entry import ReadEntry
from threadkeep._core.tenants import family_thread
from threadkeep._stores.sync_bridge import result


async def family_of(face: Any, thread: str) -> Family:
    """Return the family of a thread that has none, and store it for all that share its segments.

    All of them seal these segments for the same thread, so it is stored before the first seal.
    """
    (rows,) = await result(face.below.fetch([ReadThread(thread)]))
    if not rows.family:
        return Family(thread)
    group = sorted({thread, *rows.family})
    replies = await result(face.below.fetch([ReadThread(family_thread(one)) for one in group]))
    with_family = {one for one, reply in zip(group, replies, strict=True) if reply.orphans}
    if with_family:
        root = (await face.read_family(min(with_family))).root
    else:
        entries = await result(face.below.fetch([*map(ReadEntry, group)]))
        origins = [entry and entry.origin and entry.origin[0] for entry in entries]
        first = [one for one, origin in zip(group, origins, strict=True) if origin not in group]
        root = [*first, *group][0]
    families = {one: Family(root, () if one == root else (Relative(root, ""),)) for one in group}
    for one in {*group} - with_family:
        own, now = family_thread(one), time.time_ns() // 1000
        row = (await face.rows_to_write(own)).family_row(families[one])
        await result(face.below.commit(Batch(own, now, writes=(row,))))
    return families[thread]
