"""References into the cold store: archives named by entries, and stubs of segments.

A stub takes the place of a segment, and stores treat it as one. Its data is a frame (see
`codec.frame`) with a location in MessagePack: `[object, first byte, bytes, SHA-256]`. Bytes with
another digest are never used for the segment: the stub remains, and fails when it is opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple, TypeAlias, TypeGuard

import ormsgpack

from threadkeep._core.codec.frame import ELSEWHERE, MAGIC, VERSION, elsewhere, pack_elsewhere
from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.model import Segment
from threadkeep._core.engine.thread_entry import WITH_CHECKPOINTS, ThreadEntry, is_archived
from threadkeep._core.tenants import prefix_of
from threadkeep.errors import CorruptionError

STUB = bytes((MAGIC, VERSION << 4 | ELSEWHERE))  # first bytes of a stub's data
USUAL = 140  # typical bytes of a stub
MOST = 512  # most bytes of a stub
LEAST = 1024  # smallest limit for offloading, in bytes
OFFLOAD_OVER = 64 * 1024  # default limit: an object in the cold store pays for larger segments
WITH_COLD = "Open the store with cold=, the URL of the cold store (in the shell: THREADKEEP_COLD)."


# -- archives --------------------------------------------------------------------------


class ArchiveRecord(NamedTuple):
    """The record of a thread's archive in its entry.

    `folder` holds all archives of this thread from one store: this one, or the one that it is a
    copy of. `name` is the newest archive, `sha256` the hex digest of its bytes, `size` their
    number, all empty before the first archive. `state` is the thread's own state, restored with it.
    `offloaded` estimates the bytes of segments offloaded besides archives: 0 without stubs, -1 if
    there may soon be some. `back_at` is the last time that the thread, or offloaded bytes of it,
    came back, in microseconds since 1970. `of` is the digest of the thread's name, empty if the
    folder has it in its own name.
    """

    folder: str
    name: str = ""
    state: str = ""
    sha256: str = ""
    size: int = 0
    offloaded: int = 0
    back_at: int = 0
    of: str = ""

    @property
    def key(self) -> str:
        return self.folder + self.name

    def is_of(self, thread: str) -> bool:
        """Return True if this is a record of the thread: entries are copied to other threads."""
        return _name(thread) in (self.of or self.folder).split("/")


def archive_of(entry: ThreadEntry | None) -> ArchiveRecord | None:
    """Return the archive that an entry names. Archives of other threads do not count.

    Raises `CorruptionError` if the entry is damaged.
    """
    thread_entry.sound(entry)
    labels = () if entry is None else entry.labels
    record = thread_entry.find_record(labels, thread_entry.ARCHIVE_RECORD)
    if entry is None or record is None:
        return None
    try:
        archive = ArchiveRecord(*record)
        return archive if archive.is_of(entry.thread) else None
    except (TypeError, AttributeError) as error:
        raise CorruptionError(
            "The record of a thread's archive cannot be read.", thread=entry.thread
        ) from error


def without_others(entry: ThreadEntry) -> ThreadEntry:
    """Return the entry without an archive of another thread."""
    if thread_entry.find_record(entry.labels, thread_entry.ARCHIVE_RECORD) is None:
        return entry
    with suppress(CorruptionError):  # (a damaged record stays)
        if archive_of(entry) is None:
            labels = thread_entry.without_record(entry.labels, thread_entry.ARCHIVE_RECORD)
            return entry._replace(labels=labels)
    return entry


def lost_archive(entry: ThreadEntry | None) -> str:
    """Describe an archived thread whose entry does not name its archive, else ""."""
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
        "it is archived, but its entry does not name the archive:"
        f" look under {home_of('*', name_of(entry.thread))} in the cold store, or with keys under"
        " their digest of its id"
    )


def says_active(entry: ThreadEntry | None) -> bool:
    """Return True if an unarchived entry names an archive that never came back."""
    if entry is None or entry.state not in WITH_CHECKPOINTS:
        return False
    try:
        archive = archive_of(entry)
    except CorruptionError:
        return False
    return archive is not None and bool(archive.name) and not archive.back_at


def with_archive(entry: ThreadEntry, archive: ArchiveRecord) -> ThreadEntry:
    """Return the entry with this archive as its only one."""
    others = thread_entry.without_record(entry.labels, thread_entry.ARCHIVE_RECORD)
    record = list(archive) if archive.of else list(archive[:-1])  # (as earlier releases read it)
    label = thread_entry.record_label(thread_entry.ARCHIVE_RECORD, record)
    return entry._replace(labels=tuple(sorted((*others, label))))


def is_at(entry: ThreadEntry | None, key: str) -> TypeGuard[ThreadEntry]:
    """Return True if the thread is archived under this key."""
    archive = archive_of(entry)
    return is_archived(entry) and archive is not None and archive.key == key


def home_of(store: str, name: str = "") -> str:
    """Return the folder of the objects that a store wrote, or wrote for one thread.

    Args:
        store: the store's identity.
        name: of the thread as part of a key (see `name_of`).
    """
    return f"threads/{store}/{name}/" if name else f"threads/{store}/"


def name_of(thread: str) -> str:
    """Return a thread's name as part of a key, which allows few characters.

    It has both names of a tenant's thread, so that both find it in the thread's entry.
    """
    prefix = prefix_of(thread)
    names = [thread, thread.removeprefix(prefix)] if prefix else [thread]
    return "/".join(map(_name, names))


def _name(thread: str) -> str:
    return hashlib.sha256(thread.encode()).hexdigest()[:40]


# -- stubs -----------------------------------------------------------------------------


class Location(NamedTuple):
    """Location of a segment's bytes: `size` bytes of the object `key`, from `start` on."""

    key: str
    start: int
    size: int
    sha256: bytes

    def matches(self, data: bytes) -> bool:
        """Return True if these are the bytes that were put there."""
        return hashlib.sha256(data).digest() == self.sha256


_LOCATION = [str, int, int, bytes]
Place: TypeAlias = tuple[str | int, ...]


def stubs_for(
    segments: Iterable[Segment], key: str, seal: Callable[[bytes, Place], bytes]
) -> tuple[bytes, tuple[Segment, ...]]:
    """Return an object with the segments' bytes in a row, and their stubs.

    `seal` gets the bytes and the place of each segment, and returns the bytes to store.
    """
    stubs, data, start = [], list[bytes](), 0
    for segment in segments:
        stored = seal(segment.data, place_in(key, start, segment))
        location = Location(key, start, len(stored), hashlib.sha256(stored).digest())
        stubs.append(segment._replace(data=pack_elsewhere(ormsgpack.packb(list(location)))))
        data.append(stored)
        start += len(stored)
    return b"".join(data), tuple(stubs)


def place_in(key: str, start: int, segment: Segment) -> Place:
    """Return the place of a segment in an object, with which its bytes are sealed."""
    return ("offloaded", key, start, segment.log, segment.start, segment.count)


def location_of(segment: Segment) -> Location | None:
    """Return the location of a stub's bytes, or None for a segment that is not a stub."""
    packed = elsewhere(segment.data)
    if packed is None:
        return None
    try:
        location = Location(*ormsgpack.unpackb(packed))
    except (ValueError, TypeError) as error:
        raise CorruptionError("The location of an offloaded segment cannot be read.") from error
    if [*map(type, location)] != _LOCATION:
        raise CorruptionError("The location of an offloaded segment is no location.")
    return location


def is_stub(segment: Segment) -> bool:
    """Return True for a readable stub."""
    try:
        return location_of(segment) is not None
    except CorruptionError:
        return False
