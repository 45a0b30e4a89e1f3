"""The steps that take a thread into the cold store.

Only their order lives here. Invariants: wherever it ends, the thread is whole in the store, or
whole in an archive that its entry names. An archive that was the thread's only copy stays until
the thread has been archived twice since: what a store calls durable may not be on its disk yet.
What another store put there, of which this one is a copy, is never touched.
"""

from __future__ import annotations

import secrets
from functools import partial

from threadkeep.cold import archive as archiving
from threadkeep.cold.archives import (
    ARCHIVE,
    packed,
)
from threadkeep.cold.store import ColdStore
from threadkeep.engine import registration
from threadkeep.engine.context import (
    ATTEMPTS,
    Engine,
)
from threadkeep.engine.thread_entry import ThreadEntry
from threadkeep.errors import ConflictError, CorruptionError, StaleThreadError
from threadkeep.store.workflows import (
    Plan,
    Store,
    aside,
    on,
)

GRACE = 3600  # seconds for which what nobody names stays: another process may be about to


def archive(store: Store, cold: ColdStore, engine: Engine, thread: str) -> Plan[ThreadEntry]:
    """Write a thread to an archive, and leave its entry alone in the store.

    Raises:
        ThreadNotFoundError: there is no such thread, or it holds no checkpoints.
        StateError: it is archived already.
        ConflictError: it is being written all the time.
        CorruptionError: it is damaged, or the archive is not what was put there.
        BackendError: the cold store refused, or failed; the thread is as it was.
    """
    for _ in range(ATTEMPTS):
        home, token = cold.home(thread), secrets.token_hex(8)
        announced = yield from on(store, archiving.announce(engine, thread, home, token))
        taken = yield from on(store, archiving.take(thread))
        state = taken.entry.state
        data, new = yield from aside(partial(packed, taken.whole, announced, state))
        yield from aside(partial(put, cold, new.key, data))
        try:
            entry = yield from on(store, archiving.close(engine, taken, new))
        except (ConflictError, StaleThreadError):
            found = yield from on(store, registration.read(thread))
            if not archiving.is_at(found, new.key):
                # Refused, and nothing of this try is under way any more.
                yield from aside(partial(cold.delete, new.key))
                continue  # somebody wrote meanwhile: take it as it is now
            entry = found  # it was done, and the answer was lost
        yield from aside(partial(_tidy, cold, {new.key, announced.key}, new.folder))
        return entry
    raise ConflictError(
        "This thread is being written all the time.", hint="Try again later.", thread=thread
    )


def put(cold: ColdStore, key: str, data: bytes) -> None:
    """Put an object there, and read it back: it will be the only copy.

    Raises:
        CorruptionError: the cold store has something else then.
        OpenError, BackendError: it refused, or failed.
    """
    cold.put(key, data)
    if cold.get(key) != data:
        raise CorruptionError(
            f"The cold store does not give back what was put there: {key}.",
            hint="Check the cold store, and try again. The thread is still in the store.",
        )


def _tidy(cold: ColdStore, stay: set[str], folder: str) -> None:
    """Remove what earlier archives, and tries that were cut off, have left in the folder."""
    for key in cold.objects(folder, older_than=GRACE):
        if key.endswith(ARCHIVE) and key not in stay:
            cold.delete(key)
