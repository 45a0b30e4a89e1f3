"""Requests of operations for the keys of a store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from threadkeep._core import tenants
from threadkeep._core.engine.operation import External, Operation
from threadkeep._run.first_change import StoreOfThreads, check_is_plain
from threadkeep._stores.base import AsyncBackend
from threadkeep._stores.sync_bridge import finish

if TYPE_CHECKING:
    from threadkeep._core.sealing import Sealer
    from threadkeep._stores.key_record import Ring
    from threadkeep._stores.store_keys import StoreKeys


def sealer_of(
    keys: StoreKeys,
    purpose: Literal["of", "writing", "portable"],
    name: str = "",
    **options: bool,
) -> Operation[Sealer]:
    """Return the sealer for a name. `purpose` is a method of `StoreKeys`, with its options."""
    sealer: Sealer = yield _request(keys, partial(getattr(keys, purpose), name, **options))
    return sealer


def _request(keys: StoreKeys, ask: Callable[[], Coroutine[Any, Any, Any]]) -> External:
    is_awaited = isinstance(keys._store, AsyncBackend)  # noqa: SLF001 - its methods suspend then
    return External(lambda: finish(ask()), ask if is_awaited else None)


def file_sealer(store: StoreOfThreads, *, plain: bool = False) -> Operation[Sealer | None]:
    """Return the sealer of files next to a store, or None for `plain` ones, or without keys.

    Raises:
        WrongKeyError: rows are encrypted, and no keys were given.
    """
    yield from check_is_plain(store)
    backend = store.backend
    if plain or backend.keys is None:
        return None
    prefix = getattr(getattr(backend, "names", None), "prefix", "")  # (of a tenant)
    return (yield from sealer_of(backend.keys, "portable", prefix))


def refreshed(keys: StoreKeys | None) -> Operation[StoreKeys | None]:
    """Return the keys, once the store's record was read again (see `StoreKeys.refresh`)."""
    if keys is not None:
        yield _request(keys, keys.refresh)
    return keys


def portable(ring: Ring, tenant: str | None = None) -> Sealer:
    """Return the sealer of files for a program without the store."""
    from threadkeep._stores.store_keys import StoreKeys  # noqa: PLC0415 - an extra

    name = "" if tenant is None else tenants.prefix(tenants.checked(tenant))
    return finish(StoreKeys(ring).portable(name))
