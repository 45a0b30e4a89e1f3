"""Reads the header of a WAL's index from shared memory, to see whether anybody has committed.

The connections of a system share the index of a WAL in the file `-shm`. It begins with a header,
which each commit changes and which readers compare to notice commits (sqlite.org/walformat.html).
We do the same: reading memory waits for nothing, unlike a statement.

Closing any descriptor of a file drops all locks that this process holds on it (POSIX), and SQLite
holds locks on `-shm` while it is connected. So a descriptor stays open until SQLite has removed
the file, when its last connection closes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from threadkeep._stores.process_forks import ResetInChild

if TYPE_CHECKING:
    import sqlite3

_SIZE = 96  # bytes: the header, twice


class WalIndex:
    """The index of one WAL."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._memory = mmap.mmap(self._descriptor, _SIZE, prot=mmap.PROT_READ)
        # (mmap holds a descriptor too, and would close it at the end of the program, at which
        # another thread may still commit)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))

    def header(self) -> bytes:
        """Return the header: equal bytes mean that nobody has committed in between.

        Empty if the file was removed while it was in use, which no connection does.
        """
        with suppress(ValueError):  # (closed)
            return self._memory[:]
        return b""

    @property
    def is_removed(self) -> bool:
        """True if no connection uses the file any more."""
        return os.fstat(self._descriptor).st_nlink == 0

    def close(self) -> None:
        """Close the descriptors of a removed file."""
        self._memory.close()
        os.close(self._descriptor)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._memory))


class _Open(ResetInChild):
    """The indexes that this process has opened, by device and inode: each once."""

    def __init__(self) -> None:
        self._indexes: dict[tuple[int, int], WalIndex] = {}
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()

    def get(self, path: str) -> WalIndex | None:
        """Return the index in a file; None if it cannot be read."""
        with self._lock:
            self._sweep()
            try:
                status = Path(path).stat()
                key = (status.st_dev, status.st_ino)
                if status.st_size >= _SIZE and key not in self._indexes:
                    self._indexes[key] = WalIndex(path)
            except OSError:
                return None
            return self._indexes.get(key)

    def sweep(self) -> None:
        """Close the indexes that nobody uses any more."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        for key, index in tuple(self._indexes.items()):
            if index.is_removed:
                del self._indexes[key]
                index.close()


_open = _Open()
sweep = _open.sweep


def find(db: sqlite3.Connection, path: str) -> WalIndex | None:
    """Return the index of a file's WAL, for a connection that has just committed to it.

    None if there is none (in memory, or with a rollback journal), or if it cannot be read.
    """
    if os.name != "posix" or db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        return None
    return _open.get(os.path.realpath(path) + "-shm")
