"""Items of long-term stores: base classes of their backends, and functions of all databases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.items.records import (
    GetItems,
    ItemChange,
    ItemKey,
    ItemPut,
    ItemRow,
    Namespace,
    PutItems,
)
from threadkeep._stores.sync_bridge import BlockingFace, finish
from threadkeep.errors import InvalidArgumentError


def other_dims(dims: int, stored: int) -> InvalidArgumentError:
    """Return the error for a store whose vectors have other dimensions."""
    return InvalidArgumentError(
        f"Invalid dims: {dims}. The vectors in the store have {stored}.",
        hint="Use the model that made them. To change it, export the items and import them into"
        " a new store, which embeds them again.",
    )


def merged(changes: Sequence[ItemChange]) -> PutItems | None:
    """Return unconditional puts as one change; None if another kind of change is among them."""
    last: dict[ItemKey, ItemPut] = {}
    now = 0
    for change in changes:
        if not isinstance(change, PutItems):
            return None
        now = max(now, change.now)
        for put in change.puts:
            if put.expects is not None:
                return None
            last[put.namespace, put.key] = put
    return PutItems(tuple(last.values()), now)


def are_of(change: PutItems, rows: Iterable[ItemRow | None]) -> bool:
    """Return True if these rows are what the puts store: then only their answer was lost."""
    found = [(row.value, row.updated_at) if row else (None, change.now) for row in rows]
    return found == [(put.value, change.now) for put in change.puts]


class ItemBackend(Backend):
    """A backend whose `fetch` answers `ItemRead`s, and whose changes are `ItemChange`s.

    The connections are those of another backend, which closes them.
    """

    newest_first: bool = False
    """A search without a query returns the items updated last first, as LangGraph's store does."""

    def close(self) -> None:
        """Do nothing."""

    def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        """Remove at most so many expired items of these namespaces; return the number removed."""
        raise NotImplementedError

    def erase(self, prefix: Namespace) -> int:
        """Remove the items of these namespaces, and their versions; return the number of items."""
        raise NotImplementedError


class AsyncItemBackend(AsyncBackend):
    """An `ItemBackend` that is awaited."""

    newest_first = False

    async def is_put(self, change: PutItems) -> bool:
        """Return True if the puts are stored."""
        read: Any = GetItems(tuple([(put.namespace, put.key) for put in change.puts]))
        (rows,) = await self.fetch([read])
        return are_of(change, rows)

    def blocking(self, asynchronous: AsyncItemBackend | None) -> BlockingItems:
        """Return the same store for blocking calls; its connections never suspend."""
        return BlockingItems(self, asynchronous)

    async def close(self) -> None:
        """Do nothing."""

    async def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        raise NotImplementedError

    async def erase(self, prefix: Namespace) -> int:
        raise NotImplementedError


class BlockingItems(BlockingFace[AsyncItemBackend], ItemBackend):
    """An `AsyncItemBackend` over connections that never suspend."""

    def __init__(
        self, face: AsyncItemBackend, asynchronous: AsyncItemBackend | None = None
    ) -> None:
        super().__init__(face, asynchronous)
        self.newest_first = face.newest_first

    def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        return finish(self.face.sweep(now, limit, prefix))

    def erase(self, prefix: Namespace) -> int:
        return finish(self.face.erase(prefix))
