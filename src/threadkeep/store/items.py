"""Items as a store returns them, helpers of its operations, and its options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import IndexConfig, Item, SearchItem, TTLConfig

from threadkeep._core.codec import Migrations
from threadkeep._core.codec.frame import is_sealed, unreadable
from threadkeep._core.engine.operation import Fetch, Request
from threadkeep._core.engine.thread_entry import is_time
from threadkeep._core.validation import is_count
from threadkeep._stores.items.records import (
    ItemPacker,
    ItemRow,
    Namespace,
    Packed,
    opened,
    seal,
    unseal,
)
from threadkeep._stores.options import Option
from threadkeep.errors import CodecError, CorruptionError, InvalidArgumentError, invalid
from threadkeep.keys import KeyOptions
from threadkeep.store.embedding import Index

if TYPE_CHECKING:
    from threadkeep._stores.store_keys import StoreKeys

_log = logging.getLogger("threadkeep")


class StoredItem(Item):
    """An item of a store.

    Attributes:
        version: a number that each put of the item increases, for `put(..., if_version=)`.
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
        version: its number, higher in a later version.
        value: its value.
        updated_at: the time at which it was put.
        replaced_at: the time at which it was replaced or deleted, or None for the current version.
        deleted: True if it was deleted, not replaced.
    """

    version: int
    value: dict[str, Any]
    updated_at: datetime
    replaced_at: datetime | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class ItemEngine:
    """Settings that all operations of a store use.

    `history` limits an item's earlier versions. `newest` is the backend's `newest_first`. `root`
    precedes all namespaces in the database.
    `keys` encrypt exported files.
    """

    packer: ItemPacker
    index: Index | None
    now: Callable[[], int]
    omit_expired: bool
    history: int
    newest: bool
    root: Namespace = ()
    keys: StoreKeys | None = None

    def seal(self, packed: Packed, namespace: Namespace, key: str) -> Packed:
        """Add a checksum of the value and the item's full name."""
        return seal(packed, (*self.root, *namespace), key)

    def unseal(self, packed: Packed, namespace: Namespace, key: str) -> Packed:
        """Check and remove the checksum. Raises `CorruptionError`."""
        return unseal(packed, (*self.root, *namespace), key)


def time_of(micros: int) -> datetime:
    """Return the time of microseconds since 1970. Raises `CorruptionError`."""
    if not is_time(micros):
        raise CorruptionError("The stored time of an item is invalid.")
    return datetime.fromtimestamp(micros / 1e6, UTC)


def value_of(engine: ItemEngine, row: ItemRow) -> dict[str, Any]:
    """Return the value of an item. Errors name the item."""
    try:
        value = opened(row.value)
        if not is_sound(row):
            raise CorruptionError("a column has an invalid type")
        if engine.keys is None and type(value) is bytes and is_sealed(value):
            raise unreadable(value, "")
        return engine.packer.unpack(engine.unseal(value, row.namespace, row.key))
    except CodecError as error:
        error.message = f"Item {row.key!r} in {row.namespace} cannot be read: {error.message}"
        raise


def is_older(engine: ItemEngine, row: ItemRow) -> bool:
    """Return True if an item has an older shape than the program's migrations."""
    value_of(engine, row)  # (raises for a damaged item)
    return engine.packer.is_older(engine.unseal(row.value, row.namespace, row.key))


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
    """Return the value of a listed item, and log a damaged one, and return None."""
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


# -- options of a store ------------------------------------------------------------------

_TTL_KEYS = ("refresh_on_read", "omit_expired", "default_ttl", "sweep_interval_minutes")


def _option(help: str) -> Option:
    """Return an option that `Store` checks, and that has no text form."""
    return Option(None, help, lambda _: True, "", None)


class StoreOptions(KeyOptions, total=False):
    """Options of every store."""

    index: Annotated[
        IndexConfig | Mapping[str, Any] | None,
        _option(
            "The fields to search by meaning or words, and the model: see LangGraph's"
            ' `IndexConfig`. In addition: `search`, "semantic" (default), "hybrid" (meaning and'
            ' words) or "text" (only words); `distance_type`, "cosine" (default), "l2" or'
            ' "inner_product".'
        ),
    ]
    ttl: Annotated[
        TTLConfig | None,
        _option(
            "Lifetimes of items in minutes: see LangGraph's `TTLConfig`. With"
            " `sweep_interval_minutes`, a thread removes expired items until the store is closed."
        ),
    ]
    serde: Annotated[
        SerializerProtocol | None,
        _option(
            "A LangGraph serializer for all values, such as an `EncryptedSerializer`, instead of"
            " JSON and threadkeep's codec. Filters are then tested on each item of the namespace."
        ),
    ]
    migrations: Annotated[
        Migrations | None,
        Option(
            None,
            "How to read the values of older releases of your program, as for a saver.",
            lambda value: value is None or isinstance(value, Migrations),
            "Use a threadkeep.Migrations.",
            None,
        ),
    ]
    history: Annotated[
        int,
        Option(
            0,
            "Earlier versions of an item to keep, for `versions`. Use the same number in all"
            " stores that write to the database: a put without it discards the replaced version.",
            lambda value: is_count(value, 0),
            "Use a number of versions, 0 or more.",
            None,
        ),
    ]


def checked_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    """Validate the `ttl` option of a store."""
    if ttl is None:
        return None
    if not isinstance(ttl, Mapping):
        raise invalid("ttl", ttl, "Use a dict, such as {'default_ttl': 60}.")
    for key, value in ttl.items():
        if key not in _TTL_KEYS:
            raise InvalidArgumentError(
                f"Unknown key in ttl: {key!s:.60}.", hint=f"Known are {', '.join(_TTL_KEYS)}."
            )
        is_flag = key in ("refresh_on_read", "omit_expired")
        if value is None:
            continue
        if is_flag and type(value) is not bool:
            raise invalid(key, value, "Use True or False.")
        least = 0 if key == "sweep_interval_minutes" else 1e-9  # (0: no sweeper)
        is_time = isinstance(value, int | float) and type(value) is not bool and value >= least
        if not is_flag and not is_time:
            raise invalid(key, value, "Use minutes, more than 0, or None.")
    return ttl
