"""The end of a tenant's or a thread's key in a sealed store (design note 0026)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from threadkeep._core import tenants
from threadkeep._core.engine.model import DropThread, ReadThread
from threadkeep._core.engine.thread_entry import ReadEntry, is_there
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import StateError


async def destroy(face: Any, kind: str, name: str) -> tuple[tuple[str, ...], ScrubReport]:
    """Destroy the key of a "tenant" or "thread", and data that late writers sealed with it.

    The keys of a thread's forks end, too: archives of these hold its values.

    Raises:
        StateError: a fork still has rows.
    """
    forks = await _removed_forks(face, name) if kind == "thread" else []
    destroyed: tuple[tuple[str, ...], ScrubReport] = await face.keys.destroy(kind, name, forks)
    late = [name, tenants.family_thread(name)]
    if kind == "tenant":
        late = await _threads_of(face, tenants.prefix(name))
        late += await _threads_of(face, tenants.family_thread(tenants.prefix(name)))
    for thread in late:
        await result(face.below.commit(DropThread(thread, time.time_ns() // 1000)))
    return destroyed


async def _removed_forks(face: Any, thread: str) -> list[str]:
    """Return the forks of a thread, if all of them were removed.

    A copy that a crash kept from its own key gets it here.
    """
    if await face.searches.is_gone(thread):
        return []  # (their keys were destroyed before its own)
    forks = []
    root = (await face.read_family(thread)).root
    for family_thread in await _threads_of(face, tenants.family_thread("")):
        other = tenants.owner_of(family_thread)
        if await face.searches.is_gone(other):
            continue
        family = await face.read_family(other)
        if thread not in {one.thread for one in family.relatives}:
            continue
        if family.root == other:
            await face.reseal(other, dry_run=False)
        elif family.root == root:  # (else the fork of a copy)
            reads = [ReadThread(other), ReadEntry(other)]
            rows, entry = await result(face.below.fetch(reads))
            if rows.checkpoints or rows.orphans or is_there(entry):
                raise forks_left([other], thread)
            forks.append(other)
    return forks


def forks_left(forks: Sequence[str], thread: str) -> StateError:
    """Return the error for a thread whose key its forks need."""
    return StateError(
        f"Forks of it are encrypted with its key: {', '.join(forks[:5])}.",
        hint="Shred them, too: forks=True.",
        thread=thread,
    )


async def _threads_of(face: Any, prefix: str) -> list[str]:
    found: list[str] = []
    while page := await face.stored_names(found[-1] if found else None, prefix):
        found += page
    return found
