"""The steps that take parts of a thread that is in use into the cold store.

Only their order lives here. Invariants: an object is there, and was read back, before a stub
names it; wherever it ends, each segment is whole in the store, or in the object that its stub
names. An object that no stub names any more goes an hour after that was noticed, and not before:
what a store calls durable may not be on its disk yet.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from threadkeep.cold import (
    archive as archiving,
)
from threadkeep.cold import (
    offload as offloading,
)
from threadkeep.cold.archive import (
    Archive,
    archive_of,
)
from threadkeep.cold.archive_workflow import (
    GRACE,
    put,
)
from threadkeep.cold.offloaded import stubs_for
from threadkeep.cold.store import ColdStore
from threadkeep.engine import registration
from threadkeep.engine.context import (
    ATTEMPTS,
    Engine,
)
from threadkeep.errors import ConflictError, StaleThreadError
from threadkeep.repair.findings import SegmentKey
from threadkeep.store.workflows import (
    Plan,
    Store,
    aside,
    on,
)

_log = logging.getLogger("threadkeep")

OBJECT = ".tkp"
_LOOSE = ".loose"  # behind an object's key: nobody needs it since this was written
_SHARED = "it shares its segments with forks"


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What of a thread was offloaded, or would be.

    Args:
        thread: its name.
        segments: stored runs of values.
        bytes: what they took in the store.
        skipped: why nothing was done; None where it was.
    """

    thread: str
    segments: int = 0
    bytes: int = 0
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be offloaded: see `offloading.movable`."""

    over: int
    before: int | None = None


def offload(
    store: Store, cold: ColdStore, engine: Engine, thread: str, wish: Wish
) -> Plan[Offloaded]:
    """Move segments into the cold store, object by object; `tidy` comes first.

    Raises:
        ThreadNotFoundError: there is no such thread.
        StateError: it is archived already, or holds nothing.
        ConflictError: it is being written all the time.
        CorruptionError: it is damaged, or an object is not what was put there.
        BackendError: the cold store refused, or failed; what was moved before is moved.
    """
    segments = size = refused = 0
    left: set[SegmentKey] = set()
    while refused < ATTEMPTS:
        asked = offloading.movable(engine, thread, wish.over, wish.before, left)
        found = yield from on(store, asked)
        if not found.pieces:
            return Offloaded(thread, segments, size, _SHARED if found.shared else None)
        archive, home = archive_of(found.entry), cold.home(thread)
        if archive is None or not archive.offloaded or not archive.folder.startswith(home):
            token = secrets.token_hex(8)
            yield from on(store, archiving.announce(engine, thread, home, token, stubs=True))
            continue
        some = next(offloading.in_parts(found.pieces))
        try:
            taken = yield from on(store, offloading.take(engine, found, some, wish.over))
            left.update(taken.left)
            if taken.go:
                yield from _moved(store, cold, engine, taken, archive)
        except (ConflictError, StaleThreadError):
            refused += 1  # somebody wrote meanwhile: look again
        else:
            segments += len(taken.go)
            size += taken.bytes
    raise ConflictError(
        "This thread is being written all the time.", hint="Try again later.", thread=thread
    )


def rehearsed(store: Store, engine: Engine, thread: str, wish: Wish) -> Plan[Offloaded]:
    """What `offload` would move: it is read. Raises as that does."""
    found = yield from on(store, offloading.movable(engine, thread, wish.over, wish.before))
    segments = size = 0
    for some in offloading.in_parts(found.pieces):
        try:
            taken = yield from on(store, offloading.take(engine, found, some, wish.over))
        except StaleThreadError:
            continue  # somebody wrote meanwhile: it is told as far as it was read
        segments += len(taken.go)
        size += taken.bytes
    return Offloaded(thread, segments, size, _SHARED if found.shared else None)


def _moved(
    store: Store, cold: ColdStore, engine: Engine, taken: offloading.Taken, archive: Archive
) -> Plan[None]:
    """Move the segments into an object of their own.

    Raises:
        ConflictError, StaleThreadError: the thread has changed; the object is gone again.
    """
    thread = taken.movable.entry.thread
    key = f"{archive.folder}{secrets.token_hex(8)}{OBJECT}"
    data, stubs = stubs_for(taken.go, key)
    yield from aside(partial(put, cold, key, data))
    try:
        yield from on(store, offloading.close(engine, taken, archive, stubs))
    except (ConflictError, StaleThreadError):
        _, needed = yield from on(store, offloading.objects_of(thread))
        if key in needed:
            return  # it was done, and the answer was lost
        yield from aside(partial(cold.delete, key))
        raise


# -- objects that nobody needs any more --------------------------------------------------


def tidy(store: Store, cold: ColdStore, engine: Engine, thread: str) -> Plan[None]:
    """Remove objects of a thread that no stub names, once that is known for an hour.

    The entry says from then on how much is left. What another store put there stays.

    Raises:
        CorruptionError: an object that a stub names is not there.
    """
    entry = yield from on(store, registration.read(thread))
    archive = archive_of(entry)
    if entry is None or archive is None or not archive.offloaded:
        return
    rows, needed = yield from on(store, offloading.objects_of(thread))
    home, left = cold.home(thread), dict[str, int]()
    if archive.folder.startswith(home):
        left = yield from aside(partial(_tidy, cold, archive.folder, needed))
    elsewhere = {key: size for key, size in needed.items() if not key.startswith(home)}
    missing = needed.keys() - left.keys() - elsewhere.keys()
    if missing:
        _log.error("The cold store has nothing where %s was put.", ", ".join(sorted(missing)))
        raise offloading.lacking(thread)
    archive = archive._replace(offloaded=sum((left | elsewhere).values()))
    yield from on(store, offloading.note(engine, entry, archive, rows))


def _tidy(cold: ColdStore, folder: str, needed: Collection[str]) -> dict[str, int]:
    """Note which objects are loose, and remove those that have been for long; those left."""
    there, old = cold.objects(folder), cold.objects(folder, older_than=GRACE)
    left = {key: size for key, size in there.items() if key.endswith(OBJECT)}
    for key in tuple(left):
        mark = key + _LOOSE
        if key in needed and mark in there:
            cold.delete(mark)
        elif key not in needed and mark in old:
            cold.delete(key)  # (before its mark: else it would have to wait anew)
            cold.delete(mark)
            del left[key]
        elif key not in needed and mark not in there and key in old:
            cold.put(mark, b"")
    for mark in there:
        if mark.endswith(_LOOSE) and mark.removesuffix(_LOOSE) not in there:
            cold.delete(mark)  # (somebody else has removed the object)
    return left
