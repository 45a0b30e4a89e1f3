"""What kind of a backup a file is.

Only looking at the beginnings of files lives here. Invariants: nothing is written; a database
in use is not opened (see `backends.sqlite.opening`).
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from threadkeep.backends.sqlite.opening import wal_of
from threadkeep.errors import InvalidArgumentError, NotOursError, OpenError
from threadkeep.transfer.bundle_format import MAGIC
from threadkeep.transfer.files import told

_SQLITE = b"SQLite format 3\0"
_POSTGRES = b"PGDMP"
_WAL_AT = 18  # the byte of SQLite's file that tells how it is written: 2 with a WAL
_ENOUGH = 32
_IN_USE = _SQLITE.ljust(_WAL_AT, b"\0") + b"\2"  # how each that has a WAL begins


class Kind(Enum):
    """The kinds of backups, as a user is told of them."""

    SQLITE = "a SQLite database"
    POSTGRES = "an archive of pg_dump"
    BUNDLE = "a bundle"


def kind_of(file: Path) -> Kind:
    """The kind of backup that a file is.

    Raises:
        OpenError: there is no such file.
        NotOursError: it is none.
    """
    kind = _kind(_beginning(file))
    if kind is None:
        raise NotOursError(
            f"{file} is no backup.", hint="Give a file that `threadkeep backup` has written."
        )
    return kind


def check_may_be_replaced(file: Path) -> None:
    """Refuse to write a backup where something else stands.

    Raises:
        OpenError: what stands there is no backup, but a database in use, or anything else.
    """
    if not file.exists():
        return
    start = _beginning(file)
    in_use = start[_WAL_AT : _WAL_AT + 1] == b"\2" and _kind(start) is Kind.SQLITE
    if start and (in_use or _kind(start) is None):
        what = "a live database" if in_use else "no backup"
        raise OpenError(f"{file} is {what}: it is left as it is.", hint="Give another file.")


def check_is_bundle(path: Path) -> None:
    """Refuse what is no bundle.

    Raises:
        InvalidArgumentError: it is another kind of backup.
        NotOursError, OpenError: it is none, or not there.
    """
    kind = kind_of(path)
    if kind is not Kind.BUNDLE:
        raise InvalidArgumentError(
            f"{path} is {kind.value}, no bundle.",
            hint="Use a file of export_bundle(); restore others: `threadkeep restore`.",
        )


def _beginning(file: Path) -> bytes:
    if not file.exists():
        raise OpenError(f"There is no file {file}.")
    if not file.is_file():
        raise OpenError(f"{file} is not a file.", hint="Give the path of a file.")
    with told(file):
        if wal_of(file).exists():
            return _IN_USE  # not read: that would drop this process's locks on it
        with file.open("rb") as opened:
            return opened.read(_ENOUGH)


def _kind(start: bytes) -> Kind | None:
    magics = {_SQLITE: Kind.SQLITE, _POSTGRES: Kind.POSTGRES, MAGIC: Kind.BUNDLE}
    return next((kind for magic, kind in magics.items() if start.startswith(magic)), None)
