"""Export, import and erasure of items."""

from __future__ import annotations

import base64
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import orjson
from langgraph.store.base import (
    BaseStore,
    ListNamespacesOp,
    PutOp,
    SearchOp,
    validate_op_namespace,
)

from threadkeep._core.engine.operation import Operation, call, fetch
from threadkeep._core.engine.thread_entry import is_time
from threadkeep._core.sealed_files import FileKind, FileWriter, opened_file
from threadkeep._run.driver import external, on, sync_or_async, within
from threadkeep._run.first_change import check_is_plain
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.sealers import asked
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.external import file_errors, replacing
from threadkeep._stores.items.records import (
    FindItems,
    ItemPut,
    ItemRow,
    Namespace,
    without_checksum,
)
from threadkeep.errors import ConflictError, InvalidArgumentError
from threadkeep.store import puts as putting
from threadkeep.store.items import ItemEngine, is_older, readable
from threadkeep.store.operations import labels

if TYPE_CHECKING:
    from threadkeep._core.sealing import Sealer

_FORMAT = {"format": "threadkeep-items", "version": 1}
_PAGE = 500
_EVERYTHING = 10**9


class ItemEraseReport(NamedTuple):
    """Report of an erasure.

    Attributes:
        items: the number of items removed.
        cleared: places that no longer contain the items.
        remains: places that may still contain them and that the store cannot clear, each with the
            action to take.
    """

    items: int
    cleared: tuple[str, ...]
    remains: tuple[str, ...]


def erase(
    stack: LayeredBackend, pair: LayeredBackend, prefix: Namespace
) -> Operation[ItemEraseReport]:
    """Remove items, their versions and vectors, also from the store's files."""
    yield from check_is_plain(pair)
    removed: int = yield from on(stack, call("erase", prefix))
    scrubbed: ScrubReport = yield pair.external("scrub", rewrite=True)
    return ItemEraseReport(removed, *scrubbed)


# -- files -------------------------------------------------------------------------------


def export_items(
    stack: LayeredBackend, engine: ItemEngine, path: Path, prefix: Namespace, *, plain: bool
) -> Operation[int]:
    """Write items to a file, one on each line, and return their number. Log damaged items.

    The store's keys encrypt the file, unless it is `plain`.
    """
    context = ExitStack()
    sealer = None if plain else (yield from _sealer(engine))

    def write() -> Operation[int]:
        part = yield from external(partial(context.enter_context, replacing(path)))
        opened = context.enter_context((yield from external(lambda: part.open("wb"))))
        file = yield from external(partial(FileWriter, opened, FileKind.ITEMS, sealer))
        exported = yield from _write(stack, engine, file, prefix)
        yield from external(file.end)
        return exported

    with file_errors(path):
        return (yield from within(context, write()))


def _sealer(engine: ItemEngine) -> Operation[Sealer | None]:
    if engine.keys is None:
        return None
    name = engine.root[0] if engine.root else ""
    sealer: Sealer = yield from asked(engine.keys, "portable", name)
    return sealer


def _write(
    stack: LayeredBackend, engine: ItemEngine, file: FileWriter, prefix: Namespace
) -> Operation[int]:
    read: Any = FindItems(prefix, _PAGE)
    exported = 0
    yield from external(partial(file.write, orjson.dumps(_FORMAT) + b"\n"))
    while True:
        rows: list[ItemRow] = yield from on(stack, fetch(read))
        # (an import would stop at a damaged item)
        sound = [row for row in rows if readable(engine, row, "an export") is not None]
        yield from external(partial(file.write, b"".join(map(_line, sound))))
        exported += len(sound)
        if len(rows) < _PAGE:
            break
        read = read._replace(after=rows[-1].place)
    yield from external(partial(file.write, orjson.dumps({"items": exported}) + b"\n"))
    return exported


def upgrade(
    stack: LayeredBackend, engine: ItemEngine, prefix: Namespace, *, dry_run: bool
) -> Operation[int]:
    """Put the items again that have an older shape, with their times, and return their number."""
    read: Any = FindItems(prefix, _PAGE)
    count = 0
    while True:
        rows: list[ItemRow] = yield from on(stack, fetch(read))
        older = [row for row in rows if is_older(engine, row)]
        for row in older if not dry_run else ():
            times = (row.created_at, row.updated_at, row.expires_at)
            value = engine.unseal(row.value, row.namespace, row.key)
            again = ItemPut(row.namespace, row.key, value, row.ttl, times=times)
            again = again._replace(expects=row.version)
            with suppress(ConflictError):  # (it was put or deleted meanwhile)
                yield from on(stack, putting.put_rows(engine, [again], index=True))
        count += len(older)
        if len(rows) < _PAGE:
            return count
        read = read._replace(after=rows[-1].place)


def _line(row: ItemRow) -> bytes:
    packed = without_checksum(row.value)
    value = (
        {"value": orjson.Fragment(packed)}
        if isinstance(packed, str)
        else {"encoded": base64.b64encode(packed).decode()}
    )
    data = {
        "namespace": row.namespace,
        "key": row.key,
        **value,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "ttl": row.ttl,
        "expires_at": row.expires_at,
    }
    return orjson.dumps(data) + b"\n"


def import_items(
    stack: LayeredBackend, engine: ItemEngine, source: Path | BaseStore, *, index: bool
) -> Operation[int]:
    """Put the items of a file, or of another store, into this one, and return their number."""
    if isinstance(source, BaseStore):
        return (yield from _copied(stack, engine, source, index=index))
    imported, exported = 0, None
    sealer = yield from _sealer(engine)
    with file_errors(source), (yield from external(lambda: source.open("rb"))) as opened:
        file = yield from external(partial(opened_file, opened, FileKind.ITEMS, sealer))
        if _parsed((yield from external(file.readline))) != _FORMAT:
            raise InvalidArgumentError(
                f"{source} is not a file of exported items, or a newer release wrote it.",
                hint="Use a file that export_items wrote.",
            )
        while exported is None and (lines := (yield from external(partial(_some, file)))):
            exported = _count(lines[-1])
            rows = lines if exported is None else lines[:-1]
            puts = [_put(line, at, source) for at, line in enumerate(rows, imported + 2)]
            if puts:
                yield from on(stack, putting.put_rows(engine, puts, index=index))
            imported += len(puts)
    if exported != imported:
        raise InvalidArgumentError(
            f"{source} is cut off after {imported} items."
            if exported is None
            else f"{source} has {imported} items instead of {exported}.",
            hint="These items were imported. Export the items again, and import the new file.",
        )
    return imported


def _count(line: bytes) -> int | None:
    """Return the number of items in the last line of a file, or None for another line."""
    found = _parsed(line)
    count = found.get("items") if isinstance(found, dict) else None
    return count if isinstance(count, int) else None


def _parsed(line: bytes) -> Any:
    """Return the JSON of a line, or None if it has none."""
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(line)
    return None


def _some(file: BinaryIO) -> list[bytes]:
    return [line for line in islice(file, _PAGE) if line.strip()]


def _put(line: bytes, number: int, path: Path) -> ItemPut:
    try:
        data = orjson.loads(line)
        value: str | bytes
        if "encoded" in data:
            value = base64.b64decode(data["encoded"], validate=True)
        else:
            value = orjson.dumps(data["value"]).decode()
        created, updated, expires = data["created_at"], data["updated_at"], data["expires_at"]
        namespace, key, ttl = labels(data["namespace"]), data["key"], data["ttl"]
        validate_op_namespace(PutOp(namespace, key, {}))
        are_times = is_time(created) and is_time(updated) and is_time(expires or 0)
        is_named = namespace and isinstance(key, str)
        if not (is_named and are_times and type(ttl or 0) is int):
            raise TypeError(data)  # noqa: TRY301 - one error for all damage
        return ItemPut(namespace, key, value, ttl, times=(created, updated, expires))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"Line {number} of {path} is damaged: {error!r:.100}",
            hint="Earlier lines may have been imported. You can safely import the file again.",
        ) from error


# -- other stores ------------------------------------------------------------------------


def _copied(
    stack: LayeredBackend, engine: ItemEngine, source: BaseStore, *, index: bool
) -> Operation[int]:
    """Copy each namespace with one search: pages may overlap, or leave items out."""
    copied = 0
    names: Any = yield from _result_of(source, ListNamespacesOp(limit=_EVERYTHING))
    for name in names:
        op = SearchOp(name, limit=_EVERYTHING, refresh_ttl=False)
        items: Any = yield from _result_of(source, op)
        puts = [
            ItemPut(
                *(item.namespace, item.key, engine.packer.pack(item.value)),
                times=(_micros(item.created_at), _micros(item.updated_at), None),
            )
            for item in items
            if item.namespace == name
        ]
        for start in range(0, len(puts), _PAGE):
            some = puts[start : start + _PAGE]
            yield from on(stack, putting.put_rows(engine, some, index=index))
        copied += len(puts)
    return copied


def _result_of(source: BaseStore, op: ListNamespacesOp | SearchOp) -> Operation[Any]:
    results = yield from sync_or_async(partial(source.batch, [op]), partial(source.abatch, [op]))
    return results[0]


def _micros(time: datetime) -> int:
    if time.tzinfo is None:  # (LangGraph's SqliteStore returns UTC without saying so)
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1e6)
