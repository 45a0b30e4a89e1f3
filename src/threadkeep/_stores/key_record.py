"""The record of a sealed store, and the ring that opens it (design note 0026)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from threadkeep._core.sealing import Sealer


class Ring(Protocol):
    """A `threadkeep.KeyRing`."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys, the current one first."""

    def sealer(self, *context: str | bytes, clues: bytes = b"", padding: int = 0) -> Sealer:
        """Return a sealer whose keys are derived for a context."""


class KeyRecord(NamedTuple):
    """The record of a sealed store."""

    store: bytes  # its id
    clues: bytes  # secret of digests for searches
    keys: list[str]  # ids of keys that may have sealed rows
    searchable: list[str]  # keys of metadata whose digests all rows have
    random: int = 0  # owners of random keys: 0 none, 1 tenants, 2 threads

    def __repr__(self) -> str:
        """Return the ids of the keys, without secrets."""
        return f"KeyRecord({', '.join(self.keys)})"
