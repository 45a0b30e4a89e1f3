"""Records of a cache, and its backend over the connections of a saver's backend.

An entry's id is 24 bytes: a digest of its namespace, 8, then one of namespace and key. In front of
the id of a tenant's entry is a digest of the tenant, 8. Times are microseconds since 1970. A row
holds a value, or a lease: its owner is computing the value.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.engine import operation
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.sync_bridge import BlockingFace

KEY_BYTES = 16
"""The length of an id's digest of namespace and key."""

PAGE = 1000
"""Entries of each kind (expired, or least recently used) that one trim removes at most."""

Entry: TypeAlias = tuple[bytes, bytes, int | None]
"""An id, the value to store, and the time at which it expires."""

CacheRow: TypeAlias = tuple[bytes | None, bytes | None]
"""A value and None, or None and the owner of a lease."""


class GetEntries(NamedTuple):
    """Read entries. Reply: a dict of ids to `CacheRow`s. Missing and expired ids are left out.

    `tenant` is the label whose keys open them (`_core.tenants`), or "".
    """

    ids: tuple[bytes, ...]
    now: int
    tenant: str = ""


class ReadUses(NamedTuple):
    """Read the entries that a trim may remove. Reply: `Uses`."""

    now: int


class Uses(NamedTuple):
    """The number of entries and their bytes, or about as many, and some entries with their sizes.

    `expired` and `oldest`, the least recently used ones, are at most a `PAGE` of each.
    """

    entries: int
    size: int
    expired: list[tuple[bytes, int]]
    oldest: list[tuple[bytes, int]]


class SetEntries(NamedTuple):
    """Store values, in place of values and leases. `tenant` as for `GetEntries`."""

    entries: tuple[Entry, ...]
    now: int
    tenant: str = ""


class UseEntries(NamedTuple):
    """Note that entries were used."""

    ids: tuple[bytes, ...]
    now: int


class RemoveEntries(NamedTuple):
    """Remove values and leases, with `owner` only its leases."""

    ids: tuple[bytes, ...]
    owner: bytes | None = None


class ClearEntries(NamedTuple):
    """Remove the entries whose ids begin with any of these digests, or (None) all."""

    spaces: tuple[bytes, ...] | None


class LeaseEntries(NamedTuple):
    """Lease the ids that have neither a value nor a lease, each by itself."""

    ids: tuple[bytes, ...]
    owner: bytes
    now: int
    until: int


CacheChange: TypeAlias = SetEntries | LeaseEntries | UseEntries | RemoveEntries | ClearEntries


_commit: Any = operation.Commit
CacheCommit: Callable[[CacheChange], operation.Commit] = _commit
"""The request that carries out a change."""


class CacheBackend(Backend):
    """A backend whose `fetch` answers `GetEntries` and `ReadUses`. Its changes are `CacheChange`.

    The connections are another backend's, which closes them.
    """

    def commit(self, change: Any) -> None:
        """Carry out one change."""
        self.commit_many([change])

    def close(self) -> None:
        """Do nothing."""


class AsyncCacheBackend(AsyncBackend):
    """A `CacheBackend` that is awaited."""

    async def commit(self, change: Any) -> None:
        """Carry out one change."""
        await self.commit_many([change])

    def blocking(self, asynchronous: AsyncCacheBackend | None) -> BlockingCache:
        """Return the same cache for blocking calls. Its connections never suspend."""
        return BlockingCache(self, asynchronous)

    async def close(self) -> None:
        """Do nothing."""


class BlockingCache(BlockingFace[AsyncCacheBackend]):
    """An `AsyncCacheBackend` over connections that never suspend."""

    commits_groups = False  # (a server takes the commits of several threads at once)


def of_tenant(tenant: str) -> bytes:
    """Return the digest that the ids of a tenant's entries begin with."""
    return blake2b(tenant.encode(), digest_size=8).digest() if tenant else b""


def end_of(space: bytes) -> bytes:
    """Return a bound above all ids that begin with `space`, and below all later ids."""
    return space + b"\xff" * 25
