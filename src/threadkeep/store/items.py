"""Items as a store returns them, and helpers of its operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from types import NoneType
from typing import Any, NamedTuple

from langgraph.store.base import Item, SearchItem

from threadkeep._core.engine.operation import Fetch, Request
from threadkeep._core.engine.thread_entry import is_time
from threadkeep._stores.items.records import ItemRow
from threadkeep._stores.items.values import ItemPacker, unseal
from threadkeep.errors import CodecError, CorruptionError
from threadkeep.store.embedding import Index

_log = logging.getLogger("threadkeep")


class StoredItem(Item):
    """An item of a store.

    Attributes:
        version: a number that each put of the item increases; for `put(..., if_version=)`.
    """

    __slots__ = ("version",)
    version: int


class FoundItem(SearchItem):
    """An item that a search found.

    Attributes:
        version: see `StoredItem`.
    """

    __slots__ = ("version",)
    version: int


class ItemVersion(NamedTuple):
    """A version of an item.

    Attributes:
        version: its number; a later version has a higher one.
        value: its value.
        updated_at: the time at which it was put.
        replaced_at: the time at which it was replaced or deleted; None for the current version.
        deleted: True if it was deleted, not replaced.
    """

    version: int
    value: dict[str, Any]
    updated_at: datetime
    replaced_at: datetime | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class ItemEngine:
    """Settings that all operations of a store use; `history` limits an item's earlier versions."""

    packer: ItemPacker
    index: Index | None
    now: Callable[[], int]
    omit_expired: bool
    history: int


def time_of(micros: int) -> datetime:
    """Return the time of microseconds since 1970. Raises `CorruptionError`."""
    if not is_time(micros):
        raise CorruptionError("The stored time of an item is invalid.")
    return datetime.fromtimestamp(micros / 1e6, UTC)


def value_of(engine: ItemEngine, row: ItemRow) -> dict[str, Any]:
    """Return the value of an item; errors name the item."""
    try:
        if not is_sound(row):
            raise CorruptionError("a column has an invalid type")
        return engine.packer.unpack(unseal(row.value, row.namespace, row.key))
    except CodecError as error:
        error.message = f"Item {row.key!r} in {row.namespace} cannot be read: {error.message}"
        raise


def is_sound(row: ItemRow) -> bool:
    """Return True if each column of an item has a valid type."""
    return (
        type(row.value) in (str, bytes)
        and type(row.key) is str
        and type(row.version) is int
        and is_time(row.created_at)
        and is_time(row.updated_at)
        and type(row.ttl) in _MAYBE
        and type(row.expires_at) in _MAYBE
    )


_MAYBE = (int, NoneType)


def readable(engine: ItemEngine, row: ItemRow, of: str = "a listing") -> dict[str, Any] | None:
    """Return the value of a listed item; log a damaged one, and return None."""
    try:
        return value_of(engine, row)
    except CorruptionError as error:
        _log.warning("A damaged item was left out of %s. %s", of, error.message)
        return None


def has_expired(row: ItemRow, now: int) -> bool:
    """Return True if an item has expired."""
    return type(row.expires_at) is int and row.expires_at <= now


def ask(read: Any) -> Generator[Request, Any, Any]:
    """Return the reply to one read."""
    (reply,) = yield Fetch((read,))
    return reply
