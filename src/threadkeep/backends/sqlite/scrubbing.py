"""Leaving nothing of removed rows in the files of a database.

Only that lives here. Invariants: a file that is said to be clean was written anew after the rows
were removed, and the WAL in which they stood is empty; while somebody keeps it from that, it is
an error.

A row that is removed stays where it was: in pages that are free, in the free part of pages that
are used, and in the WAL. `secure_delete` overwrites what is removed from then on, not what was
removed before: so all is written anew.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from threadkeep.backends.scrubbed import Scrubbed
from threadkeep.backends.sqlite.failures import named
from threadkeep.errors import LockedError

if TYPE_CHECKING:
    import sqlite3

    from threadkeep.backends.sqlite.connections import Connections

_RETRY_SECONDS = 0.005
_COPIES = (
    "Copies of the SQLite file (backups, snapshots of the disk, what the file system keeps of"
    " freed blocks): remove them, or let them expire."
)


def scrub(connections: Connections) -> Scrubbed:
    """Write the database anew, and empty its WAL. See `ScrubbingBackend.scrub`.

    Needs as much free space as the file takes, twice for a while. Others may read meanwhile,
    and wait to write.

    Raises:
        LockedError: another connection writes, or reads what was there before.
        DiskFullError, ReadOnlyError, CorruptionError, BackendError: the file is as it was.
    """
    if connections.in_memory:
        return Scrubbed()
    with connections.write_lock, named(connections.path):
        db = connections.writer()
        db.execute("VACUUM")
        is_empty = _emptied(db, connections.busy_timeout)
    if not is_empty:
        raise LockedError(
            f"{connections.path} was written anew, but still holds the old pages: another"
            " connection is reading a state from before.",
            hint="End its transaction (a long read, a backup).",
        )
    return Scrubbed(("the SQLite file and its WAL, written anew",), (_COPIES,))


def _emptied(db: sqlite3.Connection, seconds: float) -> bool:
    """Whether the file has taken all that the WAL had, and the WAL is empty.

    SQLite's busy timeout covers readers and writers, but not who does the same, so we wait.
    """
    deadline = time.monotonic() + seconds
    while True:
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy or time.monotonic() > deadline:
            return not busy
        time.sleep(_RETRY_SECONDS)
