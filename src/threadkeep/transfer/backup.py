"""Backups of a store, and stores from backups: whichever way is the store's own.

Only the choice of the way lives here. Invariants: a backup is there whole or not at all; what
a store holds is replaced only if that was asked for.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from threadkeep.backends.base import Backend
from threadkeep.backends.open import (
    file_of,
    is_postgres,
    open_backend,
    postgres_dumps,
)
from threadkeep.backends.sqlite import (
    SqliteBackend,
    maintenance,
)
from threadkeep.errors import CorruptionError, InvalidArgumentError, OpenError
from threadkeep.progress import Progress
from threadkeep.saver import Saver
from threadkeep.store import (
    driver,
    workflows,
)
from threadkeep.store.store import LayeredStore
from threadkeep.transfer import portable
from threadkeep.transfer.files import replacing, told
from threadkeep.transfer.kinds import Kind, check_may_be_replaced, kind_of

Format = Literal["native", "bundle"]

BUNDLE_SUFFIX = ".tkb"


class Taken(NamedTuple):
    """A backup.

    Attributes:
        kind: what it is.
        size: its bytes.
        threads: how many threads it holds, where that is known.
        away: the ids of threads whose values lie in the cold store, all or some: the backup
            says where, and does not hold them.
    """

    kind: Kind
    size: int
    threads: int | None
    away: tuple[str, ...] = ()


class Restored(NamedTuple):
    """How many threads were put where that is known, and how many were there already."""

    threads: int | None
    known: int = 0


def back_up(
    store: str, file: Path, progress: Progress, *, form: Format | None = None, programs: str = ""
) -> Taken:
    """Back a store up into a file, while programs use it.

    Args:
        store: a URL as `open_saver` takes it, or the path of a SQLite file.
        file: where to. A backup that stands there is replaced, anything else is not.
        progress: see `Progress`.
        form: "bundle": threads in a file for any kind of store; "native": the store's own.
            None: a bundle where the file's name ends in `.tkb`, or the store has no own form.
        programs: the folder of PostgreSQL's programs; "" for the one that the environment's
            TK_PG_BIN names, else the PATH.

    Raises:
        InvalidArgumentError: the store has no form of its own, or is gone with its process.
        ThreadkeepError: the store cannot be read, or the file not written.
    """
    check_may_be_replaced(file)
    kind = _kind_for(store, file, form)
    _check_is_other(store, file)
    threads: int | None
    if kind is Kind.BUNDLE:
        with _readable(store, file.parent, progress) as backend:
            threads = workflows.run(portable.back_up(_store(backend), file, progress))
    else:
        with replacing(file) as beside:
            threads = _copy(store, beside, progress, programs)
    away = _away(store)
    with told(file):
        return Taken(kind, file.stat().st_size, threads, away)


def _away(store: str) -> tuple[str, ...]:
    """The threads that are archived, and those of which values were offloaded."""
    path = file_of(store)
    backend = open_backend(store) if path is None else SqliteBackend(path, read_only=True)
    with Saver(backend) as saver:
        return tuple(
            [
                one.id
                for one in saver.threads.scan()
                if one.archived_bytes is not None or one.offloaded_bytes
            ]
        )


def _copy(store: str, file: Path, progress: Progress, programs: str) -> int | None:
    """Write the store to a file in its own format; how many threads it has, if that is known."""
    path = file_of(store)
    if path is not None:
        return maintenance.back_up(path, file, partial(progress, "pages copied"))
    postgres_dumps(store, _folder(programs)).back_up(file)
    return None


def restore(
    file: Path, store: str, progress: Progress, *, replace: bool = False, programs: str = ""
) -> Restored:
    """Fill a store from a backup.

    Args:
        file: what `back_up` has written. A bundle goes into any store; another backup into
            a store of its own kind.
        store: a URL as `open_saver` takes it, or the path of a SQLite file.
        progress: see `Progress`.
        replace: whether what stands there may be removed: the whole store; for a bundle the
            threads that it has.
        programs: the folder of PostgreSQL's programs; "" for the one that the environment's
            TK_PG_BIN names, else the PATH.

    Raises:
        ThreadExistsError: threads stand there that would be lost.
        InvalidArgumentError: the backup is one of another kind of store.
        ThreadkeepError: the file cannot be read, or the store not written.
    """
    kind, path = kind_of(file), file_of(store)
    if kind is Kind.BUNDLE:
        names = workflows.run(portable.verified(file, progress))
        with closing(_opened(store)) as backend:
            return _filled(backend, file, names, progress, replace=replace)
    now = time.time_ns() // 1000
    if kind is Kind.SQLITE and path is not None:
        _check_sound(file, progress)
        return Restored(maintenance.restore(file, path, now, replace=replace))
    if kind is Kind.POSTGRES and is_postgres(store):
        postgres_dumps(store, _folder(programs)).restore(file, now, replace=replace)
        return Restored(None)
    raise InvalidArgumentError(
        f"{file} is {kind.value}, and cannot be restored into another kind of store.",
        hint="Restore it into one of its own kind; a bundle of that goes into any store:"
        " threadkeep backup STORE threads.tkb",
    )


def _filled(
    backend: Backend, file: Path, names: list[str], progress: Progress, *, replace: bool
) -> Restored:
    backend.migrate()
    # (without the cold store: what lies there stays, as what is restored may name it)
    filling = portable.fill(_store(backend), file, names, progress, replace=replace, stubs=True)
    done = workflows.run(filling)
    return Restored(len(done.put), len(done.known))


def _store(backend: Backend) -> LayeredStore:
    """A backend, with nothing in front of it, of which nothing is remembered."""
    return LayeredStore(backend)


def _check_is_other(store: str, file: Path) -> None:
    path = file_of(store)
    if path is not None and file.exists() and Path(path).exists() and file.samefile(path):
        raise InvalidArgumentError(f"{file} is the store itself.", hint="Give another file.")


def _kind_for(store: str, file: Path, form: Format | None) -> Kind:
    own = Kind.POSTGRES if is_postgres(store) else Kind.BUNDLE
    if file_of(store) is not None:
        own = Kind.SQLITE
    if form == "native" and own is Kind.BUNDLE:
        raise InvalidArgumentError(
            "This kind of store has no backup format of its own.", hint="Use --format bundle."
        )
    by_name = form is None and file.suffix == BUNDLE_SUFFIX
    return Kind.BUNDLE if form == "bundle" or by_name else own


@contextmanager
def _readable(store: str, folder: Path, progress: Progress) -> Iterator[Backend]:
    """The store, for reading. Of a SQLite file a copy, so that the file itself is left alone."""
    path = file_of(store)
    if path is None:
        with closing(_opened(store)) as backend:
            yield backend
        return
    with told(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".threadkeep-") as own:
        copy = Path(own, "copy.db")
        maintenance.back_up(path, copy, partial(progress, "pages copied"))
        with closing(SqliteBackend(copy, read_only=True)) as backend:
            yield backend


def _opened(store: str) -> Backend:
    path = file_of(store)
    return driver.blocking(SqliteBackend(path) if path is not None else open_backend(store))


def _check_sound(file: Path, progress: Progress) -> None:
    with Saver(SqliteBackend(file, read_only=True)) as saver:
        report = saver.check(progress)
    if not report.ok:
        raise CorruptionError(
            f"{file} is damaged: {report.findings[0]}",
            hint=f"See `threadkeep check {file}`, and take an older backup."
            " If there is none: it is a database itself, and can be used as far as it goes.",
        )


def _folder(programs: str) -> str:
    """The folder of PostgreSQL's programs: the one given, else the one that TK_PG_BIN names."""
    folder = programs or os.environ.get("TK_PG_BIN", "")
    if folder and not Path(folder).is_dir():
        raise OpenError(f"There is no folder {folder}.", hint="Correct --pg-bin or TK_PG_BIN.")
    return folder
