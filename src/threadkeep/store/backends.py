"""Backends of items, over those of savers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from threadkeep._stores.items.backend import AsyncItemBackend, ItemBackend, SearchOptions
from threadkeep._stores.memory import MemoryBackend
from threadkeep._stores.open import server_of
from threadkeep._stores.sqlite import SqliteBackend
from threadkeep.errors import InvalidArgumentError

if TYPE_CHECKING:
    from threadkeep._stores.base import AsyncBackend, Backend


def items_over(
    backend: Backend | AsyncBackend, options: SearchOptions | None = None
) -> ItemBackend | AsyncItemBackend:
    """Return the backend of items over the connections of a saver's backend.

    Raises:
        InvalidArgumentError: that backend stores no items.
        OpenError: the tables cannot be made.
    """
    search = options or SearchOptions()
    if isinstance(backend, MemoryBackend):
        from threadkeep._stores.memory.items import MemoryItems  # noqa: PLC0415 - one of them is needed

        items = MemoryItems(search)
        backend.beside.add(items)
        return items
    if isinstance(backend, SqliteBackend):
        from threadkeep._stores.sqlite.items import SqliteItems  # noqa: PLC0415 - one of them is needed

        return SqliteItems(backend.connections, search)
    if (server := server_of(backend)) is not None:
        opener: Any = import_module(f"threadkeep._stores.{server}.items").items_over
        found: ItemBackend | AsyncItemBackend = opener(backend, search)
        return found
    raise InvalidArgumentError(
        f"{type(backend).__name__} stores no items.",
        hint="Use a backend of threadkeep: memory, SQLite, PostgreSQL or Redis.",
    )
