"""References into the cold store: archives that entries name, and stubs of segments.

A stub stands at the segment's own place, and is a segment as every store knows them. Its data is a
frame (see `codec.frame`) with a location in MessagePack: `[object, first byte, bytes, SHA-256]`.
Bytes with another digest are never taken for the segment's: the stub is left, and fails alone
where it is opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

import ormsgpack

from threadkeep._core.codec.frame import ELSEWHERE, MAGIC, VERSION, elsewhere, pack_elsewhere
from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.model import Segment
from threadkeep._core.engine.thread_entry import WITH_CHECKPOINTS, ThreadEntry, is_archived
from threadkeep.errors import CorruptionError

STUB = bytes((MAGIC, VERSION << 4 | ELSEWHERE))
"""First bytes of a stub's data."""

LEAST = 1024
"""Smallest limit in bytes that can be set for offloading."""

OFFLOAD_OVER = 64 * 1024
"""Bytes of a stored run of values above which an object of the cold store pays."""

USUAL = 140
"""Bytes that a stub takes, about."""

MOST = 512
"""Bytes that a stub takes at most."""

WITH_COLD = "Open the store with cold=, the URL of the cold store (in the shell: TK_COLD)."


# -- archives --------------------------------------------------------------------------


class ArchiveRecord(NamedTuple):
    """The record of a thread's archive in its entry.

    `folder` is where one store puts all archives of this thread: this store, or one that this is a
    copy of. `name` is that of the newest in it; `sha256` is the digest of its bytes in hex, `size`
    their number; empty before the first. `state` is the thread's own, which it has again when it
    is back. `offloaded` is about how many bytes of segments are there beside archives: 0 where
    there is no stub, -1 where there may soon be one. `back_at` is when the thread, or what was
    offloaded of it, came back last, in microseconds since 1970.
    """

    folder: str
    name: str = ""
    state: str = ""
    sha256: str = ""
    size: int = 0
    offloaded: int = 0
    back_at: int = 0

    @property
    def key(self) -> str:
        """Key of the newest archive."""
        return self.folder + self.name


def archive_of(entry: ThreadEntry | None) -> ArchiveRecord | None:
    """Return the archive that an entry names; one of another thread does not count.

    Raises `CorruptionError` if the entry is damaged.
    """
    thread_entry.sound(entry)
    labels = () if entry is None else entry.labels
    record = thread_entry.find_record(labels, thread_entry.ARCHIVE_RECORD)
    if entry is None or record is None:
        return None
    try:
        archive = ArchiveRecord(*record)
        return archive if _name(entry.thread) in archive.folder.split("/") else None
    except (TypeError, AttributeError) as error:
        raise CorruptionError(
            "The record of a thread's archive cannot be read.", thread=entry.thread
        ) from error


def lost_archive(entry: ThreadEntry | None) -> str:
    """Return a sentence if a thread is archived and its entry does not say where; else nothing."""
    if not is_archived(entry):
        return ""
    try:
        archive = archive_of(entry._replace(damage=""))
        is_lost = archive is None or not archive.name
    except CorruptionError:
        is_lost = True
    if not is_lost:
        return ""
    return (
        "it is archived, and the record of where is lost:"
        f" its archive is under {home_of('*', entry.thread)} in the cold store"
    )


def says_active(entry: ThreadEntry | None) -> bool:
    """Return True if an entry names an archive that never came back, but is not archived."""
    if entry is None or entry.state not in WITH_CHECKPOINTS:
        return False
    try:
        archive = archive_of(entry)
    except CorruptionError:
        return False
    return archive is not None and bool(archive.name) and not archive.back_at


def with_archive(entry: ThreadEntry, archive: ArchiveRecord) -> ThreadEntry:
    """Return the entry with this archive, and no other."""
    others = thread_entry.without_record(entry.labels, thread_entry.ARCHIVE_RECORD)
    label = thread_entry.record_label(thread_entry.ARCHIVE_RECORD, list(archive))
    return entry._replace(labels=tuple(sorted((*others, label))))


def is_at(entry: ThreadEntry | None, key: str) -> TypeGuard[ThreadEntry]:
    """Return whether the thread is archived under this key."""
    archive = archive_of(entry)
    return is_archived(entry) and archive is not None and archive.key == key


def home_of(store: str, thread: str) -> str:
    """Return the folder of a thread's objects, by the identity of the store that put them there."""
    return f"threads/{store}/{_name(thread)}/"


def _name(thread: str) -> str:
    """A thread's name as a part of keys, which take few characters."""
    return hashlib.sha256(thread.encode()).hexdigest()[:40]


# -- stubs -----------------------------------------------------------------------------


class Location(NamedTuple):
    """Location of a segment's bytes: `size` of them, from `start` on, in the object `key`."""

    key: str
    start: int
    size: int
    sha256: bytes

    def matches(self, data: bytes) -> bool:
        """Return whether these are the bytes that were put there."""
        return hashlib.sha256(data).digest() == self.sha256


def stubs_for(segments: Iterable[Segment], key: str) -> tuple[bytes, tuple[Segment, ...]]:
    """Return an object that holds the segments' bytes, one behind the other, and their stubs."""
    stubs, data, start = [], list[bytes](), 0
    for segment in segments:
        size = len(segment.data)
        location = Location(key, start, size, hashlib.sha256(segment.data).digest())
        stubs.append(segment._replace(data=pack_elsewhere(ormsgpack.packb(list(location)))))
        data.append(segment.data)
        start += size
    return b"".join(data), tuple(stubs)


def location_of(segment: Segment) -> Location | None:
    """Return the location of a stub's bytes; None of a segment that is no stub."""
    packed = elsewhere(segment.data)
    if packed is None:
        return None
    try:
        key, start, size, sha256 = ormsgpack.unpackb(packed)
        return Location(str(key), int(start), int(size), bytes(sha256))
    except (ValueError, TypeError) as error:
        raise CorruptionError("The location of an offloaded segment cannot be read.") from error


def is_stub(segment: Segment) -> bool:
    """Return whether it is a stub that can be read."""
    try:
        return location_of(segment) is not None
    except CorruptionError:
        return False
