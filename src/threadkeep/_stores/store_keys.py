"""The keys of one store, as the faces that seal its rows use them (design note 0026)."""

from __future__ import annotations

from typing import Protocol

from threadkeep._core import tenants
from threadkeep._core.sealing import Sealer


class Ring(Protocol):
    """A `threadkeep.KeyRing`."""

    def sealer(self, *context: str | bytes) -> Sealer:
        """Return a sealer whose keys are derived for a context."""


class StoreKeys:
    """Finds the sealer of each row of a store.

    Its methods suspend only where keys are read from an awaited store.

    Args:
        ring: the keys.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._sealers: dict[tuple[str, str], Sealer] = {}

    async def of(self, name: str = "") -> Sealer:
        """Return the sealer of a thread (by its stored name) or an item (by its first label)."""
        return self._sealer("store", tenants.tenant_of(name))

    async def portable(self, name: str = "") -> Sealer:
        """Return the sealer of files that other stores read too, such as bundles."""
        return self._sealer("portable", tenants.tenant_of(name))

    def _sealer(self, purpose: str, tenant: str) -> Sealer:
        sealer = self._sealers.get((purpose, tenant))
        if sealer is None:
            sealer = self._sealers[purpose, tenant] = self._ring.sealer(purpose, tenant)
        return sealer
