"""The steps that take a thread into the cold store.

Only their order lives here. Invariant: wherever it ends, the thread is whole in the store, or
whole in an archive that its entry names; and an entry names every archive that there is.
"""

from __future__ import annotations

from functools import partial

from threadkeep.engine.entries import Entry
from threadkeep.engine.operations import archiving, registration
from threadkeep.engine.operations.archiving import Archive
from threadkeep.engine.operations.context import ATTEMPTS, Engine
from threadkeep.errors import ConflictError, CorruptionError, StaleThreadError, ThreadkeepError
from threadkeep.plans import Plan, Store, aside, on
from threadkeep.tiers.archives import new_key, packed
from threadkeep.tiers.cold import ColdStore


def archive(store: Store, cold: ColdStore, engine: Engine, thread: str) -> Plan[Entry]:
    """Write a thread to an archive, and leave its entry alone in the store.

    Raises:
        ThreadNotFoundError: there is no such thread, or it holds no checkpoints.
        StateError: it is archived already.
        ConflictError: it is being written all the time.
        CorruptionError: it is damaged, or the archive is not what was put there.
        BackendError: the cold store refused, or failed; the thread is as it was.
    """
    for _ in range(ATTEMPTS):
        key = new_key(thread)
        before = yield from on(store, archiving.announce(engine, thread, key))
        if before is not None:
            # (what a try before has put there; it cannot come to anything any more)
            yield from aside(partial(cold.delete, before))
        try:
            return (yield from _moved(store, cold, engine, thread, key))
        except ThreadkeepError as error:
            found = yield from on(store, registration.read(thread))
            if found is not None and archiving.is_at(found, key):
                return found  # it was done, and the answer was lost
            named = archiving.archive_of(found)
            is_mine = named is not None and named.key == key
            if is_mine and not isinstance(error, ConflictError | StaleThreadError):
                raise
            continue  # somebody wrote meanwhile, or archives it as well: take it as it is now
    raise ConflictError(
        "This thread is being written all the time.", hint="Try again later.", thread=thread
    )


def _moved(store: Store, cold: ColdStore, engine: Engine, thread: str, key: str) -> Plan[Entry]:
    """Take the thread there under this key.

    What is there after a failure stays: nobody knows whether the thread has gone. The entry
    names it, so that the next try, or the thread's deletion, removes it.
    """
    taken = yield from on(store, archiving.take(thread))
    data, described = yield from aside(partial(packed, taken.whole, key, taken.entry.state))
    yield from aside(partial(_put, cold, data, described))
    return (yield from on(store, archiving.close(engine, taken, described)))


def _put(cold: ColdStore, data: bytes, described: Archive) -> None:
    """Put the archive there, and read it back: it will be the only copy."""
    cold.put(described.key, data)
    if cold.get(described.key) != data:
        raise CorruptionError(
            f"The cold store does not give back what was put there: {described.key}.",
            hint="Look after it. The thread is still in the store.",
        )
