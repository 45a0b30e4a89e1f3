"""Records of a cache, and its backend over the connections of a saver's backend.

An entry's id is 24 bytes: a digest of its namespace, 8, then one of namespace and key. Times are
microseconds since 1970. A row holds a value, or a lease: its owner is computing the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from threadkeep.backends.base import AsyncBackend, Backend
from threadkeep.backends.sync_bridge import BlockingFace, finish

T = TypeVar("T")

AT_ONCE = 1000
"""Entries of each kind (expired, or least recently used) that one `trim` removes at most."""


class Row(NamedTuple):
    """A value, or (None) the lease of an owner, that has not expired."""

    value: bytes | None
    owner: bytes | None
    used_at: int


class Entry(NamedTuple):
    """A value to store."""

    id: bytes
    value: bytes
    expires_at: int | None


class GetEntries(NamedTuple):
    """Read entries. Reply: for each id its `Row`, or None."""

    ids: tuple[bytes, ...]
    now: int


class SetEntries(NamedTuple):
    """Store values, in place of values and leases."""

    entries: tuple[Entry, ...]
    now: int


class UseEntries(NamedTuple):
    """Note that entries were used."""

    ids: tuple[bytes, ...]
    now: int


class RemoveEntries(NamedTuple):
    """Remove values and leases; with `owner`, only the leases of that one."""

    ids: tuple[bytes, ...]
    owner: bytes | None = None


class ClearEntries(NamedTuple):
    """Remove the entries of namespaces, by their digests, or (None) all."""

    spaces: tuple[bytes, ...] | None


Change: TypeAlias = SetEntries | UseEntries | RemoveEntries | ClearEntries


class Claim(NamedTuple):
    """Lease the ids that have neither a value nor a lease."""

    ids: tuple[bytes, ...]
    owner: bytes
    now: int
    until: int


class Limits(NamedTuple):
    """Entries, and bytes of their values."""

    entries: int
    size: int


class CacheBackend(Backend):
    """A backend whose `fetch` answers `GetEntries`, and whose changes are `Change`.

    The connections are those of another backend, which closes them.
    """

    def commit(self, change: Any) -> None:
        """Carry out one change."""
        self.commit_many([change])

    def close(self) -> None:
        """Do nothing."""

    def claim(self, claim: Claim) -> list[bytes]:
        """Lease entries, each atomically; return the ids that were leased."""
        raise NotImplementedError

    def trim(self, now: int, limits: Limits) -> None:
        """Remove expired entries, then the least recently used ones beyond the limits.

        See `AT_ONCE`.
        """
        raise NotImplementedError


class AsyncCacheBackend(AsyncBackend):
    """A `CacheBackend` that is awaited."""

    async def commit(self, change: Any) -> None:
        """Carry out one change."""
        await self.commit_many([change])

    async def close(self) -> None:
        """Do nothing."""

    async def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        raise NotImplementedError

    async def trim(self, now: int, limits: Limits) -> None:
        """See `CacheBackend.trim`."""
        raise NotImplementedError


class BlockingCache(BlockingFace[AsyncCacheBackend]):
    """An `AsyncCacheBackend` over connections that never suspend."""

    def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        return finish(self.face.claim(claim))

    def trim(self, now: int, limits: Limits) -> None:
        """See `CacheBackend.trim`."""
        finish(self.face.trim(now, limits))

    def migrate(self) -> None:
        """See `Backend.migrate`."""
        finish(self.face.migrate())


def surplus(oldest: Iterable[tuple[T, int]], over: Limits) -> Iterator[T]:
    """Yield ids, of pairs of an id and a size, until so much is less."""
    entries, size = over
    for id_, bytes_ in oldest:
        if entries <= 0 and size <= 0:
            return
        yield id_
        entries, size = entries - 1, size - bytes_


def end_of(space: bytes) -> bytes:
    """Return what is greater than all ids of a namespace, and no greater than others."""
    return space + b"\xff" * 17
