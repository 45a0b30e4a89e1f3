"""Back up a store, and restore a backup.

A backup is complete or absent. Data in a store is replaced only with `replace=True`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from threadkeep._core.engine.operation import Progress
from threadkeep._run import driver
from threadkeep._run.first_change import check_is_plain
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.sealers import asked, portable
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.external import file_errors, replacing
from threadkeep._stores.open import (
    DATABASES,
    BackupFormat,
    as_url,
    file_of,
    maintenance,
    named,
    open_backend,
    open_to_read,
)
from threadkeep._stores.options import complete
from threadkeep.errors import CorruptionError, InvalidArgumentError
from threadkeep.keys import KeyOptions, sealed
from threadkeep.savers.saver import Saver
from threadkeep.threads.archives.layer import TierLayer
from threadkeep.threads.transfer import bundles
from threadkeep.threads.transfer.bundles import (
    BUNDLE,
    BundleSource,
    check_may_be_replaced,
    kind_of,
)

Format = Literal["native", "bundle"]

BUNDLE_SUFFIX = ".tkb"


class BackupReport(NamedTuple):
    """Result of a backup.

    Attributes:
        kind: the format of the file.
        size: its size in bytes.
        threads: the number of threads in it, if known.
        away: threads with values in the cold store, which the backup does not include.
        skipped: damaged threads that a bundle does not include, each with the reason.
    """

    kind: BackupFormat
    size: int
    threads: int | None
    away: tuple[str, ...]
    skipped: dict[str, str]


class RestoreReport(NamedTuple):
    """Number of threads written, if known, and of threads that the store already had."""

    threads: int | None
    unchanged: int = 0


def back_up(
    store: str,
    file: Path,
    progress: Progress,
    *,
    form: Format | None = None,
    programs: str = "",
    keys: KeyOptions | None = None,
    plain: bool = False,
) -> BackupReport:
    """Back up a store to a file, while programs use it. An older backup is replaced.

    Without a `form`, the backup is a bundle if the file's name ends in `.tkb`, or if the store has
    no format of its own. `programs` is the folder of PostgreSQL's programs. "" takes it from
    THREADKEEP_PG_BIN, or else searches the PATH. `keys` belong to an encrypted store: they
    encrypt a bundle, unless it is `plain`. A native backup is as encrypted as the store.
    """
    check_may_be_replaced(file)
    kind, path = _kind_for(store, file, form), file_of(store)
    if path is not None and file.exists() and Path(path).exists() and file.samefile(path):
        raise InvalidArgumentError(f"{file} is the store itself.", hint="Use another file.")
    threads, skipped = None, dict[str, str]()
    if kind is BUNDLE:
        with _readable(store, file.parent, progress, keys) as backend:
            source = LayeredBackend(backend, TierLayer())
            threads = driver.run(bundles.back_up(source, file, progress, skipped, plain=plain))
    elif plain:
        raise InvalidArgumentError("Only a bundle can be plain.", hint="Use --format bundle.")
    else:
        with replacing(file) as beside:
            copied = partial(progress, "pages copied")
            threads = maintenance(kind.name).back_up(path or store, beside, copied, programs)
    away = _away(store, keys)
    with file_errors(file):
        return BackupReport(kind, file.stat().st_size, threads, away, skipped)


def _away(store: str, keys: KeyOptions | None) -> tuple[str, ...]:
    """Return the ids of archived threads, and of threads with offloaded values."""
    with Saver(open_to_read(store), **(keys or {})) as saver:
        found = saver.threads.scan()
        return tuple([t.id for t in found if t.archived_bytes is not None or t.offloaded_bytes])


def restore(
    file: Path,
    store: str,
    progress: Progress,
    *,
    replace: bool = False,
    programs: str = "",
    keys: KeyOptions | None = None,
) -> RestoreReport:
    """Restore a backup to a store of its own kind, or a bundle to any store.

    `replace` replaces the whole store, or, with a bundle, only the threads in the bundle. `keys`
    open an encrypted bundle, and encrypt the threads.

    Raises:
        ThreadExistsError: threads in the store would be lost.
        InvalidArgumentError: the backup is of another kind of store.
    """
    kind, path = kind_of(file), file_of(store)
    if kind is BUNDLE:
        ring = (keys or {}).get("keys")
        source = BundleSource(file, None if ring is None else portable(ring))
        count = len(driver.run(source.verify(progress)))
        opened = _sealed(open_backend(as_url(store)), keys)
        with closing(LayeredBackend(opened).blocking) as backend:
            backend.migrate()
            # (without the cold store: restored threads may name objects there)
            target = LayeredBackend(backend, TierLayer())
            done = driver.run(bundles.fill(target, source, count, progress, replace=replace))
        return RestoreReport(len(done.added), len(done.unchanged))
    now = time.time_ns() // 1000
    if kind is _own_format(store):
        if path is not None:
            _check_sound(file, progress, keys)
        restored = maintenance(kind.name).restore
        return RestoreReport(restored(file, path or store, now, replace=replace, programs=programs))
    raise InvalidArgumentError(
        f"{file} is {kind.title}, and cannot be restored into another kind of store.",
        hint="Restore it into a store of its own kind, and copy the threads with a bundle:"
        " threadkeep backup STORE threads.tkb",
    )


def _own_format(store: str) -> BackupFormat | None:
    name = named(store)
    return None if name is None else DATABASES[name].backup


def _kind_for(store: str, file: Path, form: Format | None) -> BackupFormat:
    own = _own_format(store)
    if form == "native" and own is None:
        raise InvalidArgumentError(
            "This kind of store has no backup format of its own.", hint="Use --format bundle."
        )
    is_bundle = form == "bundle" or (form is None and file.suffix == BUNDLE_SUFFIX)
    return BUNDLE if is_bundle or own is None else own


def _sealed(backend: Backend | AsyncBackend, keys: KeyOptions | None) -> Backend | AsyncBackend:
    found: Backend | AsyncBackend = sealed(backend, complete("", KeyOptions, keys or {}))
    return found


@contextmanager
def _readable(
    store: str, folder: Path, progress: Progress, keys: KeyOptions | None
) -> Iterator[Backend]:
    """Open the store for reading. A SQLite file is copied first, for one state of all threads."""
    path = file_of(store)
    with ExitStack() as stack:
        if path is not None:
            stack.enter_context(file_errors(folder))
            own = tempfile.TemporaryDirectory(dir=folder, prefix=".threadkeep-")
            store = str(Path(stack.enter_context(own), "copy.db"))
            copied = partial(progress, "pages copied")
            maintenance(named(path) or "").back_up(path, Path(store), copied)
        opened = _sealed(open_to_read(store), keys)
        yield stack.enter_context(closing(LayeredBackend(opened).blocking))


def _check_sound(file: Path, progress: Progress, keys: KeyOptions | None) -> None:
    with Saver(open_to_read(str(file)), **(keys or {})) as saver:
        driver.run(check_is_plain(saver._store))  # noqa: SLF001 - its own store
        if saver.backend.keys is not None:
            driver.run(asked(saver.backend.keys, "refresh"))  # (raises if they are other ones)
        report = saver.check(progress)
    if not report.ok:
        raise CorruptionError(
            f"{file} is damaged: {report.findings[0]}",
            hint=f"Run `threadkeep check {file}`, and restore an older backup. If you have none,"
            " open this file as a database: its sound threads can be used.",
        )
