"""Rows to what LangGraph knows and back: metadata, times, what is visible, which writes count.

Pure functions over rows. Invariant: times come back exactly, metadata as JSON gives it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.base import writes_sort_key

from threadkeep.codec import Codec
from threadkeep.engine import checksum
from threadkeep.engine.model import HIDDEN, CheckpointRow, Child, StoredCheckpoint, WriteRow
from threadkeep.engine.refs import Ref, from_wire, to_wire
from threadkeep.errors import CorruptionError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AS_LANGGRAPH = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", re.ASCII).fullmatch
_MICROSECOND = timedelta(microseconds=1)
_MAX_LEVELS = 300  # more than any codec takes
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


# -- what is visible -------------------------------------------------------------------


def visible(checkpoints: Iterable[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Those that are not hidden, in their order."""
    return [stored for stored in checkpoints if not stored.row.flags & HIDDEN]


def of_the_graph(checkpoints: Iterable[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """The visible ones of the graph itself, without those of subgraphs, in their order."""
    return [stored for stored in visible(checkpoints) if not stored.row.ns]


def heads(checkpoints: Iterable[StoredCheckpoint]) -> dict[str, str]:
    """The newest visible checkpoint of each namespace; they come in ascending order."""
    return {stored.row.ns: stored.row.id for stored in visible(checkpoints)}


# -- metadata and times --------------------------------------------------------------


def pack_metadata(metadata: dict[str, Any], codec: Codec) -> tuple[str, bytes | None]:
    """JSON text, and the codec's bytes where JSON cannot hold it.

    Metadata comes back as JSON gives it, as from LangGraph's savers: a tuple as a list. Where
    those of SQLite and PostgreSQL refuse it (a UUID, NaN), it comes back as from its saver in
    memory: such values as they were, the containers around them as JSON has them.
    """
    try:
        text = _plain_text(metadata)
        if text is None:
            text = _COMPACT.encode(metadata)
            text.encode()
    except (TypeError, ValueError, RecursionError):
        exact = codec.encode(_with_json_containers(metadata))  # first: it refuses the same
        return _readable(metadata), exact
    return text, None


def _plain_text(metadata: dict[str, Any]) -> str | None:
    """The JSON of words and numbers, as most metadata is, in half the time; None for other."""
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
    """The value with plain lists and dicts in place of tuples and the like."""
    if level > _MAX_LEVELS:
        return value  # the codec refuses it
    if isinstance(value, dict):
        return {key: _with_json_containers(part, level + 1) for key, part in dict.items(value)}
    if isinstance(value, (list, tuple)):
        return [_with_json_containers(part, level + 1) for part in value]
    return value


def _readable(metadata: dict[str, Any]) -> str:
    """The parts of metadata that JSON can hold, the rest as text."""
    plain = {}
    for key, value in metadata.items():
        try:
            json.dumps({key: value}, ensure_ascii=False, allow_nan=False).encode()
            plain[key] = value
        except (TypeError, ValueError, RecursionError):
            name = str(key).encode(errors="backslashreplace").decode()
            plain[name] = _as_text(value)
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _as_text(value: Any) -> str:
    """The value for a reader of the store, whatever its `__repr__` does."""
    try:
        return ascii(value)
    except Exception:  # noqa: BLE001 - it is the program's own code
        return f"<{type(value).__qualname__}>"


def unpack_metadata(text: str, exact: bytes | None, codec: Codec) -> dict[str, Any]:
    """The metadata that `pack_metadata` packed.

    Raises:
        CorruptionError, UnknownTypeError: it cannot be read back as it was.
    """
    try:
        metadata = json.loads(text) if exact is None else codec.decode(exact)
    except ValueError as exc:
        raise CorruptionError("A checkpoint's metadata is damaged.") from exc
    if not isinstance(metadata, dict):
        raise CorruptionError("A checkpoint's metadata is damaged.")
    return metadata


def pack_time(text: str) -> int | str:
    """Microseconds since 1970 for an ISO time as LangGraph writes it, else the text."""
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return text
    # (LangGraph's form is known by its looks, which is much quicker than to write it out again)
    if not (time.microsecond and _AS_LANGGRAPH(text)) and (
        time.tzinfo is not UTC or time.isoformat() != text
    ):
        return text
    return (time - _EPOCH) // _MICROSECOND


def unpack_time(packed: int | str) -> str:
    """The text that `pack_time` packed."""
    if isinstance(packed, str):
        return packed
    return (_EPOCH + packed * _MICROSECOND).isoformat()


# -- pending writes ------------------------------------------------------------------


class Write(NamedTuple):
    """One pending write: `idx` is negative for LangGraph's special channels."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    ref: Ref


def pack_writes(writes: Iterable[tuple[int, str, Ref]]) -> bytes:
    """A write row's body."""
    return ormsgpack.packb([[idx, channel, to_wire(ref)] for idx, channel, ref in writes])


def unpack_writes(row: WriteRow) -> list[Write]:
    """The writes of one row, in the order they were given."""
    try:
        body = ormsgpack.unpackb(checksum.unseal(row.body, checksum.of_writes(row)))
        return [
            Write(row.task_id, row.task_path, idx, channel, ref)
            for idx, channel, wire in body
            if (ref := from_wire(wire)) is not None
        ]
    except (ValueError, TypeError, IndexError) as exc:
        raise CorruptionError(
            "A pending write is damaged.", namespace=row.ns, checkpoint=row.checkpoint_id
        ) from exc


def counts_for(row: WriteRow, child: Child | CheckpointRow) -> bool:
    """Whether the writes led to the child: its run made them, or had loaded them."""
    return row.run == child.run or row.seq <= child.seen


def counting(rows: Sequence[WriteRow], child: Child | None) -> list[Write]:
    """The writes of a checkpoint that count, in the order LangGraph applies them.

    With a child: those that the child's run made, or had loaded when it began. Without
    one: all, the first run's of each task. Of a task's writes with the same index the
    first counts, of the special ones (negative index) the last.
    """
    chosen: dict[tuple[str, int], Write] = {}
    began: dict[str, list[WriteRow]] = {}
    for row in rows:
        if child is not None and not counts_for(row, child):
            continue
        writes = unpack_writes(row)
        torn = any(r.run != row.run and r.seq > row.seen for r in began.get(row.task_id, ()))
        for write in writes:
            place = (write.task_id, write.idx)
            if write.idx < 0 or (not torn and place not in chosen):
                chosen[place] = write
        if not torn and any(write.idx >= 0 for write in writes):
            began.setdefault(row.task_id, []).append(row)
    return sorted(chosen.values(), key=lambda w: writes_sort_key(w.task_path, w.task_id, w.idx))
