"""Requests of operations for the keys of a store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from threadkeep._core import tenants
from threadkeep._core.engine.operation import External, Operation
from threadkeep._run.first_change import check_is_plain
from threadkeep._stores.base import AsyncBackend
from threadkeep._stores.sync_bridge import finish

if TYPE_CHECKING:
    from threadkeep._core.sealing import Sealer
    from threadkeep._run.layered_backend import LayeredBackend
    from threadkeep._stores.key_record import Ring
    from threadkeep._stores.store_keys import StoreKeys


def asked(keys: StoreKeys, method: str, *args: Any, **options: Any) -> Operation[Any]:
    """Call a method of `StoreKeys`, which may read the store and the key store."""
    ask = partial(getattr(keys, method), *args, **options)
    is_awaited = isinstance(keys._store, AsyncBackend)  # noqa: SLF001 - its methods suspend then
    return (yield External(lambda: finish(ask()), ask if is_awaited else None))


def file_sealer(store: LayeredBackend, *, plain: bool = False) -> Operation[Sealer | None]:
    """Return the sealer of files next to a store, or None for `plain` ones, or without keys.

    Raises:
        WrongKeyError: rows are encrypted, and no keys were given.
    """
    yield from check_is_plain(store)
    keys = store.backend.keys
    if plain or keys is None:
        return None
    prefix = "" if store.names is None else store.names.prefix
    sealer: Sealer = yield from asked(keys, "portable", prefix)
    return sealer


def portable(ring: Ring, tenant: str | None = None) -> Sealer:
    """Return the sealer of files for a program without the store."""
    from threadkeep._stores.store_keys import StoreKeys  # noqa: PLC0415 - an extra

    name = "" if tenant is None else tenants.prefix(tenants.checked(tenant))
    return finish(StoreKeys(ring).portable(name))
