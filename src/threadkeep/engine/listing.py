"""Listing checkpoints, newest first, a page at a time.

Nothing is held open between pages. Each segment is decoded once for all checkpoints of a
page that share it, so that one message may be met in several of them. A filter is checked
here, whatever the backend made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from threadkeep.engine import collector
from threadkeep.engine.calls import Operation, fetch
from threadkeep.engine.context import (
    Engine,
    Keyframes,
    named,
    read_elements,
    read_manifest,
)
from threadkeep.engine.elements import Elements
from threadkeep.engine.load import (
    Loaded,
    assemble,
)
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import FREE, ScanCheckpoints, Span, StoredCheckpoint
from threadkeep.engine.rows import Write, counting, unpack_metadata
from threadkeep.errors import CorruptionError

_FIRST_PAGE = 32
_LARGEST_PAGE = 256
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Listing:
    """What a `list` call asks for: `thread` None means every thread, `ns` None every namespace."""

    thread: str | None
    ns: str | None = None
    id: str | None = None
    before: str | None = None
    filter: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None


class Page(NamedTuple):
    """Some checkpoints, and the listing that goes on behind them; None at the end."""

    found: list[Loaded]
    rest: Cursor | None


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a listing goes on."""

    listing: Listing
    after: tuple[str, str, str] | None = None
    size: int = _FIRST_PAGE


def begin(listing: Listing) -> Cursor | None:
    """The start of a listing; None if it can hold nothing."""
    if listing.limit is not None and listing.limit <= 0:
        return None
    return Cursor(listing)


def page(engine: Engine, cursor: Cursor) -> Operation[Page]:
    """The next checkpoints of a listing.

    Raises:
        CorruptionError, UnknownTypeError: as `load` does, naming the checkpoint.
    """
    asked = cursor.listing
    size = cursor.size
    if asked.limit is not None and not asked.filter:
        size = min(size, asked.limit)
    rows, found = yield from _read(engine, cursor, size)
    limit = None if asked.limit is None else asked.limit - len(found)
    if len(rows) < size or limit == 0:
        return Page(found, None)
    last = rows[-1]
    after = (last.row.id, last.thread, last.row.ns)
    larger = min(cursor.size * 2, _LARGEST_PAGE)
    return Page(found, Cursor(replace(asked, limit=limit), after, larger))


def _read(
    engine: Engine, cursor: Cursor, size: int
) -> Operation[tuple[list[StoredCheckpoint], list[Loaded]]]:
    """A page's rows, and those that match with their values."""
    before: list[StoredCheckpoint] | None = None
    while True:
        rows = yield from _scan(cursor, size)
        try:
            found = yield from _assembled(engine, _matching(engine, cursor.listing, rows))
        except CorruptionError:
            # Segments may have been removed between the two reads: then the rows changed.
            if rows == before:
                raise
            before = rows
        else:
            return rows, found


def _matching(
    engine: Engine, asked: Listing, rows: Sequence[StoredCheckpoint]
) -> list[StoredCheckpoint]:
    return [row for row in rows if _matches(_metadata(engine, row), asked.filter)][: asked.limit]


def _scan(cursor: Cursor, size: int) -> Operation[list[StoredCheckpoint]]:
    asked = cursor.listing
    simple = {k: v for k, v in asked.filter.items() if isinstance(v, _SCALARS)}
    read = ScanCheckpoints(
        asked.thread, asked.ns, asked.id, asked.before, simple, cursor.after, size
    )
    reply = yield from fetch(read)
    return cast("list[StoredCheckpoint]", reply)


def _metadata(engine: Engine, stored: StoredCheckpoint) -> dict[str, Any]:
    return unpack_metadata(stored.row.metadata, stored.row.exact, engine.codec)


def _matches(metadata: dict[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(key) == value for key, value in wanted.items())


def _assembled(engine: Engine, rows: Sequence[StoredCheckpoint]) -> Operation[list[Loaded]]:
    """The checkpoints with their values, thread by thread."""
    found: dict[int, Loaded] = {}
    for thread in dict.fromkeys(row.thread for row in rows):
        mine = [(i, row) for i, row in enumerate(rows) if row.thread == thread]
        loaded = yield from _of_thread(engine, thread, [row for _, row in mine])
        found |= {i: one for (i, _), one in zip(mine, loaded, strict=True)}
    return [found[i] for i in range(len(rows))]


def _of_thread(
    engine: Engine, thread: str, rows: Sequence[StoredCheckpoint]
) -> Operation[list[Loaded]]:
    opened: list[tuple[StoredCheckpoint, Manifest, list[Write]]] = []
    spans: set[Span] = set()
    known: Keyframes = {}
    for stored in rows:
        with named(stored):
            read, _ = read_manifest(stored, known)
            writes = counting(stored.writes, stored.child)
        spans.update(read.needs(), *[write.ref.needs for write in writes])
        opened.append((stored, read, writes))
    elements, _ = yield from read_elements(engine, thread, spans)
    with collector.paused():
        return [_loaded(engine, elements, *one) for one in opened]


def _loaded(
    engine: Engine,
    elements: Elements,
    stored: StoredCheckpoint,
    read: Manifest,
    writes: list[Write],
) -> Loaded:
    with named(stored):
        return assemble(engine, stored, read, elements, writes, {}, FREE)
