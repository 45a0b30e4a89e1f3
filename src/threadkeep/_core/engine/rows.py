"""Rows of checkpoints and pending writes: checksums, metadata, times, and which writes count.

The checksum of a row (CRC-16/XMODEM) covers its payload and every column that reading relies on.
"""

from __future__ import annotations

import json
import re
from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.base import writes_sort_key

from threadkeep._core.codec import Codec
from threadkeep._core.codec.frame import unreadable
from threadkeep._core.engine.model import HIDDEN, CheckpointRow, Child, StoredCheckpoint, WriteRow
from threadkeep._core.engine.refs import Ref, from_wire, to_wire
from threadkeep.errors import CorruptionError

_CHECKSUM = 2  # bytes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AS_LANGGRAPH = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", re.ASCII).fullmatch
_MICROSECOND = timedelta(microseconds=1)
_MAX_LEVELS = 300  # more than any codec takes
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

# Microseconds between 1582-10-15 (the epoch of UUID version 6) and 1970-01-01.
_UUID6_OFFSET = 0x01B21DD213814000 // 10
_VERSION_AT = 14
_UUID_LENGTH = 36


def seal(payload: bytes, fields: tuple[object, ...]) -> bytes:
    """Append the checksum of a payload and of other fields of its row."""
    # Not `repr`, which escapes other characters in each version of Python.
    crc = crc_hqx(ascii(fields).encode(), crc_hqx(payload, 0))
    return payload + crc.to_bytes(_CHECKSUM, "big")


def unseal(sealed: bytes, fields: tuple[object, ...]) -> bytes:
    """Check and remove the checksum that `seal` appended."""
    payload = sealed[:-_CHECKSUM]
    if len(sealed) < _CHECKSUM or seal(payload, fields) != sealed:
        raise unreadable(sealed, "A stored row is damaged: its checksum does not match.")
    return payload


def checkpoint_fields(row: CheckpointRow) -> tuple[object, ...]:
    """All columns except the manifest. HIDDEN may be set later, and is not covered."""
    return (*row[:5], row.flags & ~HIDDEN, *row[6:-1])


def write_fields(row: WriteRow) -> tuple[object, ...]:
    """All columns except the body and `seq`, which the backend assigns."""
    return row[:6]


def manifest_of(row: CheckpointRow) -> bytes:
    """Return the manifest without its checksum. Raises `CorruptionError`."""
    return unseal(row.manifest, checkpoint_fields(row))


def with_manifest(row: CheckpointRow, manifest: bytes) -> CheckpointRow:
    """Return the row with another manifest, and its checksum."""
    return row._replace(manifest=seal(manifest, checkpoint_fields(row)))


def body_of(row: WriteRow) -> bytes:
    """Return the body without its checksum. Raises `CorruptionError`."""
    return unseal(row.body, write_fields(row))


def with_body(row: WriteRow, body: bytes) -> WriteRow:
    """Return the row with another body, and its checksum."""
    return row._replace(body=seal(body, write_fields(row)))


def visible(checkpoints: Iterable[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Return the checkpoints that are not hidden, in order."""
    return [stored for stored in checkpoints if not stored.row.flags & HIDDEN]


def of_the_graph(checkpoints: Iterable[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Return the visible checkpoints of the root namespace, in order."""
    return [stored for stored in visible(checkpoints) if not stored.row.ns]


def heads(checkpoints: Iterable[StoredCheckpoint]) -> dict[str, str]:
    """Return the newest visible checkpoint of each namespace, given them in ascending order."""
    return {stored.row.ns: stored.row.id for stored in visible(checkpoints)}


def pack_metadata(metadata: dict[Any, Any], codec: Codec) -> tuple[str, bytes | None]:
    """Return metadata as JSON text, and as the codec's bytes if JSON cannot hold it.

    It comes back as from JSON, as with LangGraph's savers. Values that its SQLite and PostgreSQL
    savers refuse (a UUID, NaN) come back as from its saver in memory.
    """
    try:
        text = _plain_text(metadata)
        if text is None:
            text = _COMPACT.encode(metadata)
            text.encode()
    except (TypeError, ValueError, RecursionError):
        exact = codec.encode(
            _with_json_containers(metadata)
        )  # first, as it refuses the same values
        return _readable(metadata), exact
    return text, None


PLAIN_METADATA = re.compile(
    r'\{"source":"([a-z]{1,16})","step":(-?[1-9][0-9]{0,17}|0),"parents":\{\}\}'
)
"""The most frequent form of metadata, which SQL stores rebuild from its two values."""

_USUAL = ("source", "step", "parents")


def _plain_text(metadata: dict[Any, Any]) -> str | None:
    """Return the JSON of words and numbers in half the time, or None for other metadata."""
    if len(metadata) == len(_USUAL) and tuple(metadata) == _USUAL:
        source, step, parents = metadata.values()
        is_plain = type(source) is str and type(step) is int and type(parents) is dict
        if is_plain and source.isidentifier() and not parents:
            return f'{{"source":"{source}","step":{step},"parents":{{}}}}'
    parts = []
    for key, value in metadata.items():
        if type(key) is not str or not key.isidentifier():
            return None
        if type(value) is int:
            parts.append(f'"{key}":{value}')
        elif type(value) is str and value.isidentifier():
            parts.append(f'"{key}":"{value}"')
        elif type(value) is dict and not value:
            parts.append(f'"{key}":{{}}')
        else:
            return None
    return "{" + ",".join(parts) + "}"


def _with_json_containers(value: Any, level: int = 0) -> Any:
    if level > _MAX_LEVELS:
        return value  # the codec refuses it
    if isinstance(value, dict):
        return {key: _with_json_containers(part, level + 1) for key, part in dict.items(value)}
    if isinstance(value, (list, tuple)):
        return [_with_json_containers(part, level + 1) for part in value]
    return value


def _readable(metadata: dict[Any, Any]) -> str:
    """Return JSON of the metadata, with the parts that JSON cannot hold as text."""
    plain = {}
    for key, value in metadata.items():
        try:
            json.dumps({key: value}, ensure_ascii=False, allow_nan=False).encode()
            plain[key] = value
        except (TypeError, ValueError, RecursionError):
            name = str(key).encode(errors="backslashreplace").decode()
            try:
                plain[name] = ascii(value)
            except Exception:  # noqa: BLE001 - code of the program
                plain[name] = f"<{type(value).__qualname__}>"
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def unpack_metadata(text: str, exact: bytes | None, codec: Codec) -> dict[str, Any]:
    try:
        metadata = json.loads(text) if exact is None else codec.decode(exact)
    except (ValueError, RecursionError) as exc:
        raise CorruptionError("A checkpoint's metadata is damaged.") from exc
    if not isinstance(metadata, dict):
        raise CorruptionError("A checkpoint's metadata is damaged.")
    return metadata


def pack_time(text: str) -> int | str:
    """Return microseconds since 1970 for an ISO time in LangGraph's form, else the text."""
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return text
    # (Matching LangGraph's form is much faster than formatting the time again.)
    if not (time.microsecond and _AS_LANGGRAPH(text)) and (
        time.tzinfo is not UTC or time.isoformat() != text
    ):
        return text
    return (time - _EPOCH) // _MICROSECOND


def unpack_time(packed: int | str) -> str:
    if isinstance(packed, str):
        return packed
    try:
        return (_EPOCH + packed * _MICROSECOND).isoformat()
    except (OverflowError, TypeError) as exc:
        raise CorruptionError("A checkpoint's time is damaged.") from exc


@lru_cache(maxsize=1024)  # (called for each checkpoint and its first child)
def created_at(checkpoint_id: str | None) -> int | None:
    """Return when a UUID of version 6 was made, in microseconds since 1970, or None."""
    if (
        checkpoint_id is None
        or len(checkpoint_id) != _UUID_LENGTH
        or checkpoint_id[_VERSION_AT] != "6"
    ):
        return None
    digits = checkpoint_id[:8] + checkpoint_id[9:13] + checkpoint_id[15:18]
    try:
        return int(digits, 16) // 10 - _UUID6_OFFSET
    except ValueError:
        return None


def id_after(moment: int) -> str:
    """Return an id above those that LangGraph makes until this moment, in microseconds."""
    ticks = max((moment + _UUID6_OFFSET) * 10, 0)
    return f"{ticks >> 28:08x}-{ticks >> 12 & 0xFFFF:04x}-6{ticks & 0xFFF:03x}-8000-000000000000"


def time_of(row: CheckpointRow) -> int | None:
    """Return when a checkpoint was made, in microseconds since 1970, or None if unknown."""
    return row.ts if isinstance(row.ts, int) else created_at(row.id)


class Write(NamedTuple):
    """One pending write. `idx` is negative for LangGraph's special channels."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    ref: Ref
    shape: int = 1  # of the channels, when it was written


_NOTE = "threadkeep$note "  # before the text of a note, in place of a channel: it has no value


def pack_writes(
    writes: Iterable[tuple[int, str, Ref]], shape: int = 1, note: str | None = None
) -> bytes:
    """Pack the body of a write row, without its checksum. `unpack_writes` passes over the note."""
    packed: list[Any] = [[idx, channel, to_wire(ref)] for idx, channel, ref in writes]
    if note is not None:
        packed.append([0, _NOTE + note, None])
    return ormsgpack.packb(packed if shape == 1 else [shape, *packed])


def unpack_writes(row: WriteRow) -> list[Write]:
    """Return the writes of one row, in the order they were packed."""
    try:
        packed = ormsgpack.unpackb(body_of(row))
        shape = packed.pop(0) if packed and packed[0].__class__ is int else 1
        if not all(type(idx) is int and type(channel) is str for idx, channel, _ in packed):
            raise TypeError("a write without a number and a channel")  # noqa: TRY301 - as any damage
        return [
            Write(row.task_id, row.task_path, idx, channel, ref, shape)
            for idx, channel, wire in packed
            if (ref := from_wire(wire)) is not None
        ]
    except (ValueError, TypeError, LookupError, AttributeError) as exc:
        raise CorruptionError(
            "A pending write is damaged.", namespace=row.ns, checkpoint=row.checkpoint_id
        ) from exc


def note_of(row: WriteRow) -> str | None:
    """Return the note of a row that `unpack_writes` can read, or None."""
    match ormsgpack.unpackb(body_of(row))[-1:]:
        case [[_, str(channel), None]] if channel.startswith(_NOTE):
            return channel.removeprefix(_NOTE)
    return None


def counts_for(row: WriteRow, child: Child | CheckpointRow) -> bool:
    """Return True if the writes led to the child: its run made them, or had loaded them."""
    return row.run == child.run or row.seq <= child.seen


def counting(rows: Sequence[WriteRow], child: Child | None) -> list[Write]:
    """Return the writes of a checkpoint that count, in the order LangGraph applies them.

    With a child, these are the writes that the child's run made, or had loaded when it began.
    Without one, they are from the first run of each task. Among a task's writes with the same
    index the first counts, and among the special ones (negative index) the last.
    """
    chosen: dict[tuple[str, int], Write] = {}
    began: dict[str, list[WriteRow]] = {}
    for row in rows:
        if child is not None and not counts_for(row, child):
            continue
        writes = unpack_writes(row)
        torn = any(r.run != row.run and r.seq > row.seen for r in began.get(row.task_id, ()))
        for write in writes:
            key = (write.task_id, write.idx)
            if write.idx < 0 or (not torn and key not in chosen):
                chosen[key] = write
        if not torn and any(write.idx >= 0 for write in writes):
            began.setdefault(row.task_id, []).append(row)
    return sorted(chosen.values(), key=lambda w: writes_sort_key(w.task_path, w.task_id, w.idx))
