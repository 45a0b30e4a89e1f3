"""Move whole threads to the cold store and back.

The entry names the archive's folder before anything is written there, and until the folder is
empty. One change removes the rows and marks the thread as archived, and one change adds the rows
again and clears the mark. Keys are never reused. A copy of a store does not touch the original's
archives.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import BytesIO
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from threadkeep._core.engine import registration, thread_summary
from threadkeep._core.engine.cold_references import ArchiveRecord, archive_of, is_at, with_archive
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import Batch, DropThread, RowsFence, ThreadRows
from threadkeep._core.engine.operation import Operation, commit, fetch_checkpoint
from threadkeep._core.engine.registration import OVERTAKEN, read_snapshot, retry
from threadkeep._core.engine.thread_entry import (
    WITH_CHECKPOINTS,
    EntryFence,
    Lifecycle,
    ThreadEntry,
    is_archived,
)
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.parts import parts_of
from threadkeep._run.driver import Runner, external, on
from threadkeep.errors import (
    CodecError,
    CorruptionError,
    StaleThreadError,
    StateError,
    TamperedDataError,
    ThreadNotFoundError,
)
from threadkeep.threads.archives.seals import ObjectSeal, names_of, seal_of
from threadkeep.threads.transfer import digest
from threadkeep.threads.transfer.bundle_format import ARCHIVE, BundleWriter, read_threads
from threadkeep.threads.transfer.whole_thread import (
    WholeThread,
    read_thread,
    registered,
)

if TYPE_CHECKING:
    from threadkeep._stores.cold_store import ColdStore

GRACE = 3600
"""Seconds to keep an object that no entry names: another process may be about to name it."""

_SUFFIX = ".tkb"


# -- into an archive -------------------------------------------------------------------


def archive(
    store: Runner,
    cold: ColdStore,
    engine: Engine,
    thread: str,
    is_due: Callable[[ThreadEntry, ThreadRows], bool] = lambda _entry, _rows: True,
) -> Operation[ThreadEntry]:
    """Write a thread to an archive, and leave only its entry in the store.

    Raises StateError if `is_due`, which gets the rows to archive, returns False.
    """

    def removal() -> Operation[DropThread]:
        """Build the change that removes the rows, with the entry as it is."""
        _, entry, rows, _ = snapshot = yield from read_snapshot(thread)
        if is_archived(entry):
            raise StateError("Another process has archived this thread.", thread=thread)
        if entry is None or not rows.checkpoints:
            raise ThreadNotFoundError(thread=thread)
        if not is_due(entry, rows):
            raise StateError("The thread is in use again.", thread=thread)
        event = thread_summary.status_of(rows.checkpoints, rows.orphans)
        entry = thread_summary.with_status(entry, event)
        change = DropThread(thread, rows.deleted_at, rows.generation, snapshot.fences, entry)
        return change._replace(link=Link(Proof.of(rows)))

    def attempt() -> Operation[ThreadEntry]:
        seal = yield from seal_of(cold, thread)
        announced = yield from announce(store, cold, engine, thread)
        change = yield from on(store, removal())
        entry = cast("ThreadEntry", change.entry)
        whole = yield from on(store, read_thread(thread))  # (as it was, or the change is refused)
        data, new = yield from external(partial(pack, whole, announced, entry.state, seal))
        record = new._replace(offloaded=(archive_of(entry) or new).offloaded)
        archived = with_archive(entry, record)._replace(state=Lifecycle.ARCHIVED)
        change = change._replace(entry=archived)
        yield from exchange(store, cold, new.key, data, change)
        engine.working_set.forget(thread)
        found = yield from on(store, registration.read(thread))
        yield from external(partial(_tidy, cold, {new.key, announced.key}, new.folder))
        return found or archived

    return retry(thread, attempt)


def announce(
    store: Runner, cold: ColdStore, engine: Engine, thread: str, *, stubs: bool = False
) -> Operation[ArchiveRecord]:
    """Name this store's folder in the entry before anything is written there. Return the record.

    With `stubs`, the record also notes that the thread may have stubs.
    """
    name, *others = yield from names_of(cold, thread, writing=True)
    folder = f"{cold.home(name)}{secrets.token_hex(8)}/"
    of = "".join(others)

    def update(entry: ThreadEntry) -> ThreadEntry:
        if entry.state not in WITH_CHECKPOINTS:
            raise StateError(f"A thread that is {entry.state} cannot be archived.", thread=thread)
        known = archive_of(entry)
        archive = known or ArchiveRecord("")
        if not archive.folder.startswith(cold.home()):
            archive = archive._replace(folder=folder, name="", sha256="", size=0, of=of)
        if stubs and not archive.offloaded:
            archive = archive._replace(offloaded=-1)
        return entry if archive == known else with_archive(entry, archive)

    record = archive_of((yield from on(store, registration.change(engine, thread, update))))
    if record is None:  # (it was lost at once)
        raise StaleThreadError(thread=thread)
    return record


def pack(
    whole: WholeThread, announced: ArchiveRecord, state: str, seal: ObjectSeal
) -> tuple[bytes, ArchiveRecord]:
    """Pack a thread into a bundle with digests, and return its bytes, sealed, and its record.

    `announced` is the record so far, `state` the thread's state after it is restored.
    """
    file, name = BytesIO(), f"{secrets.token_hex(8)}{_SUFFIX}"
    sealed = seal.writer(file, announced.folder + name)
    bundle = BundleWriter(sealed, ARCHIVE)
    bundle.add(replace(whole, digests=tuple(digest.of_checkpoints(whole).values())))
    bundle.end()
    sealed.end()
    data = file.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    return data, ArchiveRecord(announced.folder, name, state, sha256, len(data), of=announced.of)


def exchange(
    store: Runner,
    cold: ColdStore,
    key: str,
    data: bytes,
    change: Batch | DropThread,
    needs: Callable[[str], Operation[bool]] | None = None,
) -> Operation[None]:
    """Write an object, then commit the change that names it. Remove it if others were faster.

    `needs` returns True if a thread in the store needs the object. By default its entry names it.
    """
    yield from external(partial(_put, cold, key, data))
    try:
        yield from on(store, commit(change))
    except OVERTAKEN:
        needed = (needs or partial(_is_archive, key))(change.thread)
        if not (yield from on(store, needed)):  # (else only the reply was lost)
            yield from external(partial(cold.delete, key))
            raise


def _is_archive(key: str, thread: str) -> Operation[bool]:
    return is_at((yield from registration.read(thread)), key)


def _put(cold: ColdStore, key: str, data: bytes) -> None:
    """Write an object and read it back, because it will be the only copy."""
    cold.put(key, data)
    if cold.get(key) != data:
        raise CorruptionError(
            f"The cold store returned other bytes than were written: {key}.",
            hint="Check the cold store, and try again. The thread is still in the store.",
        )


def _tidy(cold: ColdStore, keep: set[str], folder: str) -> None:
    """Remove earlier archives, and interrupted attempts'.

    The previous archive stays for an hour, in case the cold store has not synced the new one yet.
    """
    for key in cold.objects(folder, older_than=GRACE):
        if key.endswith(_SUFFIX) and key not in keep:
            cold.delete(key)


# -- and back --------------------------------------------------------------------------


def unpack(thread: str, data: bytes, archive: ArchiveRecord, seal: ObjectSeal) -> WholeThread:
    """Unpack the thread in an archive."""
    if hashlib.sha256(data).hexdigest() != archive.sha256:
        raise TamperedDataError(
            f"The archive {archive.key} was changed or damaged.",
            hint="Restore it from a backup of the cold store.",
            thread=thread,
        )
    try:
        ((whole, _),) = read_threads(seal.reader(data, archive.key), ARCHIVE)
    except CodecError as error:
        error.at(thread=thread)
        raise
    return replace(whole, thread=thread)  # (a tenant's saver writes its own name of the thread)


def opened(
    cold: ColdStore, thread: str, data: bytes, archive: ArchiveRecord
) -> Operation[WholeThread]:
    """Unpack an archive outside the event loop (see `unpack`)."""
    seal = yield from seal_of(cold, thread)
    return (yield from external(partial(unpack, thread, data, archive, seal)))


def reopen(whole: WholeThread, archive: ArchiveRecord, now: int) -> Operation[None]:
    """Restore the rows of a thread, if `archive` still is its archive.

    Segments come first, then one change adds all rows and the thread's former state. Each builds on
    the one before. The entry still names the archive.
    """

    def attempt() -> Operation[None]:
        entry = yield from registration.read(whole.thread)
        if not is_at(entry, archive.key):
            return  # (another process has restored it)
        state = yield from fetch_checkpoint(whole.thread, "", None)
        fences = (RowsFence(0, 0), EntryFence(entry.revision))
        plain, proof = Batch(whole.thread, now, state.generation, fences=fences), Proof.of(state)
        for segments in parts_of(whole.segments, attrgetter("size")):
            yield from commit(plain._replace(segments=tuple(segments), link=Link(proof)))
        back = with_archive(entry, archive._replace(back_at=now))._replace(state=archive.state)
        change = registered(whole, now)._replace(generation=state.generation, fences=fences)
        yield from commit(change._replace(segments=(), entry=back, link=Link(proof)))

    return retry(whole.thread, attempt)
