"""Listing checkpoints, page by page: filters, limits, and reading again after removals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from threadkeep._core.engine import model
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.load import Loaded, listed, of_thread
from threadkeep._core.engine.operation import Operation, fetch
from threadkeep._core.engine.rows import unpack_metadata
from threadkeep.errors import CorruptionError


def is_path(name: object) -> bool:
    """Return True for a name that may be a path, such as "user.name"."""
    return isinstance(name, str) and "." in name


def field(value: Mapping[str, Any], name: str) -> Any:
    """Return a field of a dict, or along its path in nested dicts, or None if it is missing.

    A field with exactly this name takes precedence over the path.
    """
    if name in value or not is_path(name):
        return value.get(name)
    found: Any = value
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


_LARGEST_PAGE = 256
_SCALARS = (str, int, float, bool, type(None))


class Listing(NamedTuple):
    """A `list` call. `thread` None means every thread, `ns` None every namespace."""

    thread: str | None
    ns: str | None = None
    id: str | None = None
    before: str | None = None
    filter: Mapping[str, Any] = MappingProxyType({})
    limit: int | None = None
    after: tuple[str, str, str] | None = None
    size: int = 32
    lazy: bool = False  # see `listed`


class Page(NamedTuple):
    """Some checkpoints, and the listing that continues after them, or None at the end."""

    found: list[Loaded]
    rest: Listing | None


def page(engine: Engine, listing: Listing) -> Operation[Page]:
    size, limit = listing.size, listing.limit
    if limit == 0:
        return Page([], None)
    if limit is not None and not listing.filter:
        size = min(limit, _LARGEST_PAGE if listing.lazy else size)
    rows, found = yield from _read_page(engine, listing, size)
    limit = None if limit is None else limit - len(found)
    if len(rows) < size or limit == 0:
        return Page(found, None)
    last = rows[-1]
    after = (last.row.id, last.thread, last.row.ns)
    larger = min(listing.size * 2, _LARGEST_PAGE)
    return Page(found, listing._replace(limit=limit, after=after, size=larger))


def _read_page(
    engine: Engine, listing: Listing, size: int
) -> Operation[tuple[list[model.StoredCheckpoint], list[Loaded]]]:
    """Return a page's rows, and the matching ones with their values."""
    thread, ns, id, before, wanted, _, after, *_ = listing
    simple = {k: v for k, v in wanted.items() if isinstance(v, _SCALARS) and not is_path(k)}
    scan = model.ScanCheckpoints(thread, ns, id, before, simple, after, size)
    previous: list[model.StoredCheckpoint] | None = None
    while True:
        rows = cast("list[model.StoredCheckpoint]", (yield from fetch(scan)))
        try:
            matching = _matching(engine, listing, rows)
            loaded: dict[tuple[str, str, str], Loaded] = {}
            for name in dict.fromkeys(one.thread for one in matching):
                mine = [one for one in matching if one.thread == name]
                if listing.lazy:
                    read = listed(engine, mine)
                else:
                    read = yield from of_thread(engine, name, mine)
                for item in read:
                    loaded[item.thread, item.ns, item.id] = item
            found = [loaded[one.thread, one.row.ns, one.row.id] for one in matching]
        except CorruptionError:
            # Segments may have been removed between the two reads, if the rows changed.
            if rows == previous:
                raise
            previous = rows
        else:
            return rows, found


def _matching(
    engine: Engine, listing: Listing, rows: Sequence[model.StoredCheckpoint]
) -> list[model.StoredCheckpoint]:
    found = []
    for one in rows:
        if listing.ns is None and one.row.ns.startswith(model.OWN_NS):
            continue
        metadata = unpack_metadata(one.row.metadata, one.row.exact, engine.codec)
        if all(field(metadata, key) == value for key, value in listing.filter.items()):
            found.append(one)
    return found[: listing.limit]
