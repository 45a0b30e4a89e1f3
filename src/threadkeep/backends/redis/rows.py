"""Records as members of sorted sets, and back.

Only these conversions live here. Invariants: a member begins with the place that it is found
by; what the scripts look at (`common.lua`) comes next and has a fixed width; what follows is
for this module alone.

    checkpoint   ns NUL id NUL, flags run seen key_log key_pos, 0 or 1 (has exact), parent, ...
    child        ns NUL parent NUL id NUL, run seen
    write        ns NUL checkpoint NUL, seq run seen, ...
    segment      log start stop
"""

from __future__ import annotations

from collections.abc import Sequence

from threadkeep.backends.redis.packing import (
    pack_number,
    pack_text,
    place,
    unpack_number,
    unpack_text,
)
from threadkeep.engine.model import (
    CheckpointRow,
    Child,
    Segment,
    SegmentInfo,
    StoredCheckpoint,
    WriteRow,
)


def pack_checkpoint(row: CheckpointRow) -> bytes:
    """The member that is a checkpoint."""
    numbers = (row.flags, row.run, row.seen, row.key_log, row.key_pos)
    parent = b"\x00" if row.parent is None else b"\x01" + pack_text(row.parent) + b"\x00"
    return b"".join(
        (
            place(row.ns, row.id),
            b"\x00",
            *map(pack_number, numbers),
            b"0" if row.exact is None else b"1",
            parent,
            b"n" + pack_number(row.ts) if isinstance(row.ts, int) else b"t" + _sized(row.ts),
            _sized(row.metadata),
            b"" if row.exact is None else _sized(row.exact),
            row.manifest,
        )
    )


def pack_child(row: CheckpointRow) -> bytes:
    """The member that makes the row its parent's child; nothing without a parent."""
    if row.parent is None:
        return b""
    ids = place(row.ns, row.parent, row.id)
    return ids + b"\x00" + pack_number(row.run) + pack_number(row.seen)


def pack_write(row: WriteRow) -> bytes:
    """The part of the member behind its `seq`."""
    return b"".join(
        (
            pack_number(row.run),
            pack_number(row.seen),
            _sized(row.task_id),
            _sized(row.task_path),
            row.body,
        )
    )


def pack_place(log: int, start: int, count: int) -> bytes:
    """The member that is a segment's place."""
    return pack_number(log) + pack_number(start) + pack_number(start + count)


def _sized(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(4, "big") + data


class _Reader:
    """Takes a member apart from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def raw(self, size: int) -> bytes:
        at, self._at = self._at, self._at + size
        return self._data[at : self._at]

    def number(self) -> int:
        return unpack_number(self.raw(8))

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def text(self) -> str:
        """A packed text and the NUL behind it."""
        stop = self._data.index(b"\x00", self._at)
        found = unpack_text(self._data[self._at : stop])
        self._at = stop + 1
        return found

    def sized(self) -> bytes:
        return self.raw(int.from_bytes(self.raw(4), "big"))

    def rest(self) -> bytes:
        return self._data[self._at :]


def unpack_checkpoint(member: bytes) -> CheckpointRow:
    """The checkpoint that a member is."""
    reader = _Reader(member)
    ns, key = reader.text(), reader.text()
    flags, run, seen, key_log, key_pos = reader.numbers(5)
    has_exact = reader.raw(1) == b"1"
    parent = reader.text() if reader.raw(1) == b"\x01" else None
    ts = reader.number() if reader.raw(1) == b"n" else reader.sized().decode()
    metadata = reader.sized().decode()
    exact = reader.sized() if has_exact else None
    return CheckpointRow(
        *(ns, key, parent, run, seen, flags, ts, metadata, exact),
        *(key_log, key_pos, reader.rest()),
    )


def unpack_child(member: bytes) -> Child | None:
    """The child that a member is; none of no bytes."""
    if not member:
        return None
    reader = _Reader(member)
    _, _, key = reader.text(), reader.text(), reader.text()
    return Child(key, *reader.numbers(2))


def unpack_write(member: bytes) -> WriteRow:
    """The write that a member is."""
    reader = _Reader(member)
    ns, key = reader.text(), reader.text()
    seq, run, seen = reader.numbers(3)
    task, path = reader.sized().decode(), reader.sized().decode()
    return WriteRow(ns, key, run, seen, task, path, reader.rest(), seq)


def unpack_place(member: bytes) -> tuple[int, int, int]:
    """Log, start and count of the segment that a member says the place of."""
    log, start, stop = (int.from_bytes(member[at : at + 8], "big") for at in (0, 8, 16))
    return log, start, stop - start


def unpack_info(member: bytes, size: int) -> SegmentInfo:
    """A segment's place, and how long its data is."""
    return SegmentInfo(*unpack_place(member), size)


class Keyframes:
    """The keyframes of one reply: places and data in turn, each once."""

    def __init__(self, flat: Sequence[bytes]) -> None:
        self._found = {
            at: Segment(*unpack_place(at), data)
            for at, data in zip(flat[::2], flat[1::2], strict=True)
        }

    def at(self, member: bytes) -> Segment | None:
        """The one of this place; None of no place."""
        return self._found[member] if member else None


def unpack_stored(
    thread: str, keyframes: Keyframes, found: tuple[bytes, bytes, bytes, list[bytes]]
) -> StoredCheckpoint:
    """A checkpoint with what belongs to it, as `common.lua` gives it."""
    member, keyframe, child, writes = found
    return StoredCheckpoint(
        thread,
        unpack_checkpoint(member),
        keyframes.at(keyframe),
        tuple(map(unpack_write, writes)),
        unpack_child(child),
    )
