"""Layer that brings archived threads and offloaded values back when they are read.

A stub takes the place of a segment whose bytes are in the cold store. Its data is a frame (see
`codec.frame`) with their location in MessagePack: `[object, first byte, bytes, SHA-256]`. If the
bytes have another digest, the stub is returned, and decoding it fails. Reads of other threads cost
no further request. A store with keys seals the bytes: see `seals`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from threadkeep._core.engine.cold_references import (
    STUB,
    WITH_COLD,
    ArchiveRecord,
    Location,
    archive_of,
    is_at,
    is_stub,
    location_of,
    place_in,
)
from threadkeep._core.engine.context import RUN_ATTEMPTS
from threadkeep._core.engine.model import (
    CopyThread,
    DropThread,
    ForkThread,
    Read,
    ReadCheckpoint,
    ReadPath,
    ReadSegments,
    ReadThread,
    ScanCheckpoints,
    Segment,
)
from threadkeep._core.engine.operation import (
    Commit,
    Fetch,
    Operation,
    call,
    commit,
    external,
    fetch,
)
from threadkeep._core.engine.registration import retry
from threadkeep._core.engine.thread_entry import (
    EntryFence,
    ReadEntry,
    ThreadEntry,
    is_archived,
    sound,
)
from threadkeep._run.driver import through
from threadkeep.errors import (
    BackendError,
    ConflictError,
    CorruptionError,
    ReadOnlyError,
    TamperedDataError,
    ThreadArchivedError,
    ThreadExistsError,
    ThreadkeepError,
)
from threadkeep.threads import lazy
from threadkeep.threads.archives.seals import seal_of

if TYPE_CHECKING:
    from threadkeep._stores.cold_store import ColdStore
    from threadkeep.threads.archives.seals import ObjectSeal


_log = logging.getLogger("threadkeep")


def whole(
    cold: ColdStore | None, thread: str, segments: Iterable[Segment], seal: ObjectSeal
) -> list[Segment]:
    """Replace the stubs among a thread's segments by the bytes in the cold store.

    Raises WrongKeyError if they are encrypted with another key, or should be encrypted.
    """
    found = list(segments)
    by_object: dict[str, list[tuple[int, Location]]] = {}
    for number, segment in enumerate(found):
        location = location_of(segment) if is_stub(segment) else None
        if location is not None:  # (None: a damaged stub, which raises when it is decoded)
            by_object.setdefault(location.key, []).append((number, location))
    for key, stubs in by_object.items():
        if cold is None:
            raise ThreadArchivedError(
                "Parts of this thread are in the cold store.", hint=WITH_COLD, thread=thread
            )
        parts = _parts(cold, key, [location for _, location in stubs])
        for (number, location), data in zip(stubs, parts, strict=True):
            stub = found[number]
            with suppress(TamperedDataError):
                if location.matches(data):
                    opened = seal.open(data, place_in(key, location.start, stub))
                    found[number] = stub._replace(data=opened)
            if found[number] is stub:
                _log.error("The object %s in the cold store is missing or was changed.", key)
    return found


def _parts(cold: ColdStore, key: str, locations: Sequence[Location]) -> list[bytes]:
    """Read locations of an object, as empty bytes if it lacks them."""
    try:
        return cold.get_parts(key, [(at.start, at.size) for at in locations])
    except CorruptionError:
        return [b""] * len(locations)
    except BackendError:
        data = cold.get(key)  # (the object may be too short, otherwise this raises too)
        return [data[at.start : at.start + at.size] for at in locations]


class TierLayer:
    """Layer that brings archived threads and offloaded values back when they are read.

    Args:
        cold: the cold store, if there is one.
    """

    handles = frozenset({Fetch, CopyThread, ForkThread, DropThread})

    def __init__(self, cold: ColdStore | None = None) -> None:
        self.cold = cold

    def answer(self, request: Fetch | Commit) -> Operation[Any]:
        if isinstance(request, Fetch):
            replies = yield request
            if self.suffices(request, replies):
                return replies
            return (yield from self.complete(request, replies))
        change = request.change
        if isinstance(change, CopyThread | ForkThread):
            return (yield from retry(change.source, partial(self._copy, change), ConflictError))
        if isinstance(change, DropThread) and change.entry is None:
            return (yield from self._drop(change))
        return (yield request)

    # -- reads -------------------------------------------------------------------------

    def suffices(self, request: Fetch, replies: list[Any]) -> bool:
        """Return False if a reply has a stub, or lacks a thread that may be archived."""
        return not any(map(_is_short, request.reads, replies))

    def complete(self, request: Fetch, replies: list[Any]) -> Operation[list[Any]]:
        """Return the replies after bringing back archived threads and offloaded values."""
        reads = request.reads
        names = sorted(
            {
                str(getattr(read, "thread", None))
                for read, reply in zip(reads, replies, strict=True)
                if not isinstance(read, ReadSegments) and _is_short(read, reply)
            }
        )
        if names:
            replies = yield from retry(
                names[0], partial(self._looked_for, reads, names), ConflictError, RUN_ATTEMPTS
            )
        for number, read in enumerate(reads):
            if isinstance(read, ReadSegments) and _is_short(read, replies[number]):
                seal = yield from seal_of(self.cold, read.thread)
                replies[number] = yield from external(
                    whole, self.cold, read.thread, replies[number], seal
                )
        return replies

    def _looked_for(self, reads: Sequence[Read], names: Sequence[str]) -> Operation[list[Any]]:
        """Read while none of these threads is archived, else restore them and raise ConflictError.

        Archiving and restoring raise the generation. So a thread that is not archived before the
        reads, and has the same generation after them, was not archived in between.
        """
        heads: list[Read] = [ReadCheckpoint(name, "") for name in names]
        entries: list[Read] = [ReadEntry(name) for name in names]
        found, count = (yield Fetch([*heads, *entries, *reads])), len(names)
        archived = [entry for entry in map(sound, found[count : 2 * count]) if is_archived(entry)]
        for entry in archived:
            yield from self._bring_back(entry)
        if not archived:
            after = yield Fetch(heads)  # (some stores answer one fetch in several steps)
            if [one.generation for one in found[:count]] == [one.generation for one in after]:
                return list(found[2 * count :])
        raise ConflictError(thread=names[0])

    def _bring_back(self, entry: ThreadEntry) -> Operation[None]:
        """Restore a thread, unless another process has done so."""
        archive, thread = archive_of(entry), entry.thread
        if self.cold is None or archive is None:
            raise ThreadArchivedError(hint=WITH_COLD, thread=thread)
        try:
            data = yield from external(self.cold.get, archive.key)
            found = yield from lazy.archive.opened(self.cold, thread, data, archive)
        except CorruptionError:
            now = yield from fetch(ReadEntry(thread))
            if is_at(now, archive.key):
                raise
            return
        try:
            yield from lazy.archive.reopen(found, archive, _now())
        except ReadOnlyError as error:
            raise ThreadArchivedError(
                "The thread is archived, and the store is open read-only.",
                hint=f"Restore it first: threadkeep restore --thread {thread!r}",
                thread=thread,
            ) from error

    # -- changes -----------------------------------------------------------------------

    def _copy(self, change: CopyThread | ForkThread) -> Operation[None]:
        """Copy or fork a thread that may have stubs or be archived, even while this runs."""
        known = yield from self._ready(change.source, change.target)
        yield from commit(change._replace(revision=_revision(known)))
        if isinstance(change, ForkThread):
            return
        known, copy = yield Fetch([ReadEntry(change.source), ReadThread(change.target, stub=True)])
        if not copy.checkpoints and is_archived(known):
            yield from self._bring_back(known)
            raise ConflictError(thread=change.source)

    def _ready(self, source: str, target: str) -> Operation[ThreadEntry | None]:
        """Restore the source's offloaded values. Return its entry, which every new stub changes."""
        while True:
            replies = yield Fetch([ReadEntry(source), ReadEntry(target)])
            known, at = cast("list[ThreadEntry | None]", replies)
            if is_archived(at):
                raise ThreadExistsError("The target is archived.", thread=target)
            archive = archive_of(known)
            if archive is None or not archive.offloaded or is_archived(known):
                return known
            if not (yield from through(self, lazy.offload.bring_back(source, _now()))):
                return known

    def _drop(self, change: DropThread) -> Operation[None]:
        """Remove a thread, then all of its objects in the cold store.

        The entry names their folder, so the change is fenced by the entry that was read. After
        repeated conflicts, an unconditional deletion is done without the fence.
        """
        if change.fences:
            yield from self._drop_as(change)
            return
        attempt = partial(self._drop_as, change, fenced=True)
        try:
            yield from retry(change.thread, attempt, ConflictError)
        except ConflictError:
            yield from self._drop_as(change)

    def _drop_as(self, change: DropThread, *, fenced: bool = False) -> Operation[None]:
        entry = yield from fetch(ReadEntry(change.thread))
        archive = archive_of(entry)
        fences = (EntryFence(_revision(entry)),) if fenced else change.fences
        yield from commit(change._replace(fences=fences))
        left = None if change.rows is None else archive_of(change.rows.entry)
        if archive is not None and (left is None or left.folder != archive.folder):
            yield from self._remove(change.thread, archive)

    def _remove(self, thread: str, archive: ArchiveRecord) -> Operation[None]:
        """Remove the archives of a deleted thread. A new thread of its id gets another folder."""
        if self.cold is None:
            _log.warning("No cold store is configured: %s was not deleted.", archive.folder)
            return
        if not archive.folder.startswith(self.cold.of((yield from call("identity"))).home()):
            return  # (this store is a copy of the one that wrote the archive)
        try:
            yield from external(self.cold.clear, archive.folder)
        except ThreadkeepError as error:
            raise BackendError(
                f"The thread was deleted, but its archive was not: {error.message}",
                hint="When the cold store is available again: saver.threads.erase(thread_id).",
                thread=thread,
            ) from error


def _revision(entry: ThreadEntry | None) -> int:
    return 0 if entry is None else entry.revision


def _now() -> int:
    return time.time_ns() // 1000


def _is_short(read: Read, reply: Any) -> bool:
    """Return True if the reply has a stub, or if its thread may be archived.

    A thread that was ever archived has a generation greater than 0.
    """
    if isinstance(read, ReadCheckpoint):
        return reply.found is None and bool(reply.generation)
    if isinstance(read, ReadSegments):
        return not read.stub and _has_stub(reply)
    if isinstance(read, ReadThread):
        is_whole = not read.skip and not read.stub
        return is_whole and not reply.checkpoints and bool(reply.generation)
    if isinstance(read, ScanCheckpoints):
        return not reply and read.thread is not None and read.after is None
    return isinstance(read, ReadPath) and not reply


def _has_stub(segments: Iterable[Segment]) -> bool:
    for segment in segments:  # noqa: SIM110 - a generator expression takes longer
        if segment.data.startswith(STUB):
            return True
    return False
