"""Export and import of bundles, and backups in their format.

A bundle file is complete or absent. A whole bundle is read and verified before a store is changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace as replaced
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from threadkeep._core import validation
from threadkeep._core.engine.cold_references import STUB
from threadkeep._core.engine.operation import Operation, Progress
from threadkeep._core.engine.thread_entry import is_archived
from threadkeep._core.engine.thread_summary import bytes_of
from threadkeep._core.sealed_files import FileKind, FileWriter, opened_file
from threadkeep._run.driver import external, on, within
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.sealers import file_sealer
from threadkeep._stores.external import file_errors, replacing
from threadkeep._stores.open import DATABASES, BackupFormat
from threadkeep._stores.sqlite.opening import wal_of
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotOursError,
    OpenError,
    ThreadkeepError,
    ThreadNotFoundError,
)
from threadkeep.threads.transfer import digest, whole_thread
from threadkeep.threads.transfer.bundle_format import MAGIC, BundleWriter, read_bundle
from threadkeep.threads.transfer.meter import Meter
from threadkeep.threads.transfer.whole_thread import Outcome, WholeThread, put_thread

if TYPE_CHECKING:
    from threadkeep._core.sealing import Sealer

_SQLITE = b"SQLite format 3\0"
_WAL_AT = 18  # offset of the byte in SQLite's file that is 2 if it has a WAL
_WITH_WAL = _SQLITE.ljust(_WAL_AT, b"\0") + b"\2"
_START = 32  # bytes that tell the kinds of files apart


class ExportReport(NamedTuple):
    """Result of an export.

    Attributes:
        threads: the number of threads written.
        checkpoints: the number of their checkpoints, including hidden ones.
        size: bytes of the bundle.
        archived: unnamed threads in the cold store, not written.
        skipped: unnamed damaged threads, each with the reason, not written.
    """

    threads: int
    checkpoints: int
    size: int
    archived: tuple[str, ...]
    skipped: dict[str, str]


class ImportReport(NamedTuple):
    """Result of an import, or of its dry run: the ids of threads with checkpoints.

    Attributes:
        added: threads that were written.
        unchanged: threads that were complete already.
        checkpoints: the number of checkpoints of these threads.
        replaced: threads of `added` that replaced others.
    """

    added: tuple[str, ...]
    unchanged: tuple[str, ...]
    checkpoints: int
    replaced: tuple[str, ...] = ()


# -- kinds of files --------------------------------------------------------------------


BUNDLE = BackupFormat("bundle", "a bundle", MAGIC)
_FORMATS = (BUNDLE, *(found.backup for found in DATABASES.values() if found.backup))


def kind_of(file: Path) -> BackupFormat:
    """Return the format of a backup."""
    kind = _kind(_start_of(file))
    if kind is None:
        raise NotOursError(
            f"{file} is no backup.", hint="Use a file that `threadkeep backup` has written."
        )
    return kind


def is_in_use(file: Path) -> bool:
    """Return True for a database that a saver has opened. Backups have no WAL."""
    start = _start_of(file)
    return start[_WAL_AT : _WAL_AT + 1] == b"\2" and start.startswith(_SQLITE)


def check_may_be_replaced(file: Path) -> None:
    """Refuse to overwrite a file that is not a backup."""
    if not file.exists():
        return
    start, in_use = _start_of(file), is_in_use(file)
    if start and (in_use or _kind(start) is None):
        what = "a live database" if in_use else "no backup"
        raise OpenError(f"{file} is {what}: it is left as it is.", hint="Use another file.")


def check_is_bundle(file: Path) -> None:
    """Refuse a file that is not a bundle."""
    kind = kind_of(file)
    if kind is not BUNDLE:
        raise InvalidArgumentError(
            f"{file} is {kind.title}, no bundle.",
            hint="Use a file of export_bundle(); restore others: `threadkeep restore`.",
        )


def _start_of(file: Path) -> bytes:
    if not file.exists():
        raise OpenError(f"There is no file {file}.")
    if not file.is_file():
        raise OpenError(f"{file} is not a file.", hint="Use the path of a file.")
    with file_errors(file):
        if wal_of(file).exists():
            return _WITH_WAL  # not read: closing it would release this process's locks
        with file.open("rb") as opened:
            return opened.read(_START)


def _kind(start: bytes) -> BackupFormat | None:
    if FileKind.BUNDLE.begins(start):
        return BUNDLE
    return next((one for one in _FORMATS if start.startswith(one.magic)), None)


# -- export ----------------------------------------------------------------------------


def export_bundle(
    store: LayeredBackend,
    threads: str | Iterable[str] | None,
    file: str | os.PathLike[str],
    progress: Progress | None,
    *,
    plain: bool,
) -> Operation[ExportReport]:
    names, path = validation.thread_ids(threads), Path(file)
    yield from external(partial(check_may_be_replaced, path))
    archived, counts = list[str](), list[int]()
    is_named = names is not None

    def read(name: str, meter: Meter) -> Operation[WholeThread | None]:
        whole = yield from digest.read(store, name, meter, stub=not is_named)
        if whole.checkpoints:
            counts.append(len(whole.checkpoints))
            return whole
        if is_named:
            hint = "Find its id: saver.threads.search(), or `threadkeep threads`."
            raise ThreadNotFoundError(hint=hint, thread=name)
        archived.extend([name] if is_archived(whole.entry) else [])  # (else it was deleted)
        return None

    skipped = yield from _write(store, path, names, read, progress, plain=plain, check=True)
    size = yield from external(lambda: path.stat().st_size)
    return ExportReport(len(counts), sum(counts), size, tuple(archived), skipped)


def back_up(
    store: LayeredBackend,
    file: Path,
    progress: Progress,
    skipped: dict[str, str],
    *,
    plain: bool = False,
) -> Operation[int]:
    """Write all threads to a bundle, and return their number.

    Damaged checkpoints are copied byte by byte. Unreadable threads are added to `skipped`.
    """
    listed: list[str] = []  # (a deleted thread has only a tombstone)

    def read(name: str, meter: Meter) -> Operation[WholeThread | None]:
        whole = yield from on(store, whole_thread.read_thread(name, stubs=True, meter=meter))
        listed.extend([name] if whole.is_listed else [])
        return None if whole.is_nothing else whole

    skipped |= yield from _write(store, file, None, read, progress, plain=plain)
    return len(listed)


def _write(
    store: LayeredBackend,
    file: Path,
    names: Sequence[str] | None,
    read: Callable[[str, Meter], Operation[WholeThread | None]],
    progress: Progress | None,
    *,
    plain: bool,
    check: bool = False,
) -> Operation[dict[str, str]]:
    """Write a bundle of some or all threads, encrypted if the store has keys and not `plain`.

    Damaged threads are left out, and returned, each with the reason. If they are named, they raise.
    """
    every = names is None
    names = (yield from on(store, whole_thread.all_threads())) if names is None else names
    sealer = yield from file_sealer(store, plain=plain)
    meter, stack = Meter(progress, "read", len(names)), ExitStack()

    def write() -> Operation[dict[str, str]]:
        skipped: dict[str, str] = {}
        part = yield from external(partial(stack.enter_context, replacing(file)))
        opened = stack.enter_context((yield from external(lambda: part.open("wb"))))
        output = yield from external(partial(FileWriter, opened, FileKind.BUNDLE, sealer))
        bundle = yield from external(partial(BundleWriter, output))

        def add(name: str) -> Operation[None]:
            try:
                whole = yield from read(name, meter)
                if whole is not None:
                    yield from external(partial(bundle.add, whole))
            except CorruptionError as error:
                if not every:
                    raise
                skipped[name] = error.message

        yield from meter.each(names, add)
        for step in (bundle.end, output.end, opened.close):
            yield from external(step)
        if check:
            yield from BundleSource(part, sealer).verify(progress, digests=True)
        return skipped

    with file_errors(file):
        return (yield from within(stack, write()))


# -- import ----------------------------------------------------------------------------


class BundleSource(NamedTuple):
    """A bundle file, as a source of threads.

    Attributes:
        file: the file.
        sealer: opens an encrypted bundle.
        thread: a new id for the bundle's only thread.
    """

    file: Path
    sealer: Sealer | None
    thread: str | None = None

    def each(self, handle: Callable[[WholeThread], Operation[None]]) -> Operation[None]:
        """Handle each thread, read in worker threads."""
        with closing(self._threads()) as threads:
            while (whole := (yield from external(partial(next, threads, None)))) is not None:
                yield from handle(whole)

    def _threads(self) -> Generator[WholeThread, None, None]:
        new = self.thread
        with file_errors(self.file), self.file.open("rb") as opened:
            for whole in read_bundle(opened_file(opened, FileKind.BUNDLE, self.sealer)):
                # (a thread with a new id was never deleted)
                yield whole if new is None else replaced(whole, thread=new, deleted_at=0)

    def verify(self, progress: Progress | None, *, digests: bool = False) -> Operation[list[str]]:
        """Verify the bundle, optionally the digests of checkpoints too. Return its thread ids."""
        names, meter = list[str](), Meter(progress, "verified")

        def look(whole: WholeThread) -> Operation[None]:
            meter.begin(whole.thread, len(whole.checkpoints), bytes_of(whole.segments))
            if digests:
                yield from external(partial(_check, whole, meter))
            names.append(whole.thread)
            meter.end()

        yield from self.each(look)
        return names


def import_bundle(
    store: LayeredBackend,
    file: str | os.PathLike[str],
    thread: str | None,
    progress: Progress | None,
    *,
    replace: bool,
    dry_run: bool,
) -> Operation[ImportReport]:
    path = Path(file)
    new = None if thread is None else validation.text("thread_id", thread)
    yield from external(partial(check_is_bundle, path))
    source = BundleSource(path, (yield from file_sealer(store)))
    names = yield from source.verify(progress, digests=True)
    if new is not None and len(names) != 1:
        raise InvalidArgumentError(
            f"{path} holds {len(names)} threads: they cannot all get the id {new!r}.",
            hint="Leave the new id out, or export that thread alone.",
        )
    source, flags = source._replace(thread=new), {"replace": replace, "dry_run": dry_run}
    return (yield from fill(store, source, len(names), progress, **flags, verify=True))


def fill(
    store: LayeredBackend,
    source: BundleSource,
    count: int,
    progress: Progress | None,
    *,
    replace: bool,
    dry_run: bool = False,
    verify: bool = False,
) -> Operation[ImportReport]:
    """Put all threads of a verified bundle into a store. Other threads do not change.

    With `verify`, each thread is read back, and the digests of its checkpoints are compared.
    """
    done: dict[str, Outcome] = {}
    checkpoints: dict[str, int] = {}
    meter = Meter(progress, "compared" if dry_run else "written", count)
    back = Meter(progress, "compared", count)

    def check(whole: WholeThread) -> Operation[None]:
        yield from on(store, put_thread(whole, 0, dry_run=True))

    def handle(whole: WholeThread) -> Operation[None]:
        meter.begin(whole.thread)
        now = time.time_ns() // 1000
        put = put_thread(whole, now, replace=replace, dry_run=dry_run, meter=meter)
        done[whole.thread] = yield from on(store, put)
        if verify and not dry_run:
            if whole.digests is None:
                whole = yield from external(partial(digest.digested, whole))
            yield from digest.verify_copy(store, whole, back)
        if whole.is_listed:
            checkpoints[whole.thread] = len(whole.checkpoints)
        meter.end()

    if not (replace or dry_run):
        yield from source.each(check)
    try:
        yield from source.each(handle)
    except ThreadkeepError as exc:
        if not dry_run:
            exc.add_note(_so_far(done, count))
        raise
    unchanged = tuple([name for name in checkpoints if done[name] == "unchanged"])
    added = tuple([name for name in checkpoints if done[name] != "unchanged"])
    others = tuple([name for name in added if done[name] == "replaced"])
    return ImportReport(added, unchanged, sum(checkpoints.values()), others)


def _so_far(done: Iterable[str], total: int) -> str:
    names = ", ".join(map(repr, done)) or "none"
    threads = "1 thread" if total == 1 else f"{total} threads"
    return (
        f"Written so far, of {threads}: {names}. The next thread may be stored in an older state;"
        " repeat the call to complete it."
    )


def _check(whole: WholeThread, meter: Meter) -> None:
    """Compute the digests of a bundle's thread, and compare them with the bundle's."""
    if any(segment.data.startswith(STUB) for segment in whole.segments):
        raise InvalidArgumentError(
            "This bundle is a backup, and values of this thread are in the cold store.",
            hint="Restore the backup: threadkeep restore STORE FILE. To copy threads, export them.",
            thread=whole.thread,
        )
    digest.digested(whole, meter)
