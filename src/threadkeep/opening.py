"""A saver, a store and a cache on one database."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, Unpack

from threadkeep._core.engine.operation import Operation
from threadkeep._run import driver
from threadkeep._run.driver import sync_or_async
from threadkeep._stores.options import listed
from threadkeep.cache.cache import CacheOptions, NodeCache
from threadkeep.errors import invalid
from threadkeep.savers.options import OpenSaverOptions
from threadkeep.savers.saver import Saver
from threadkeep.savers.savers import open_saver
from threadkeep.store.items import StoreOptions
from threadkeep.store.store import Store


class _Three(NamedTuple):
    saver: Saver
    store: Store
    cache: NodeCache


class Opened(driver.Closing, _Three):
    """A saver, and the store and the cache that use its connections: a tuple of the three.

    Use it under `with` or `async with`, which closes them.
    """

    def _setup(self) -> Operation[None]:
        """Make the tables that a PostgreSQL database needs. Idempotent."""
        for each in (self.saver, self.store):
            yield from driver.sync_or_async(each.setup, each.asetup)

    setup, asetup = driver.sync_and_async(_setup)

    def _opening(self) -> Operation[None]:
        for each in self:
            yield from each._opening()  # noqa: SLF001 - each is ours

    def _close(self) -> Operation[None]:
        """Close all three. Idempotent."""
        for each in (self.cache, self.store, self.saver):
            yield from sync_or_async(each.close, each.aclose)

    close, aclose = driver.sync_and_async(_close)


@listed(OpenSaverOptions)
def open_all(
    url: str,
    *,
    store: StoreOptions | None = None,
    cache: CacheOptions | None = None,
    **options: Unpack[OpenSaverOptions],
) -> Opened:
    """Open a saver, a store and a cache on one database, in this order.

    They share its connections, the `keys` and the `serde`: each encrypts what the others do.

    Args:
        url: as `open_saver` takes it.
        store: options of `threadkeep.store.Store`, such as `index`.
        cache: options of `threadkeep.cache.NodeCache`.
        **options: as for `open_saver`, without `cache`.

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or invalid.
    """
    for name, given in (("store", store), ("cache", cache)):
        if given is not None and not isinstance(given, Mapping):
            raise invalid(name, given, f"Use a dict with the options of the {name}.")
    saver = open_saver(url, **options)
    shared: Any = {name: options.get(name) for name in ("serde", "migrations")}
    with ExitStack() as stack:
        stack.callback(saver.close)
        beside = Store(saver.backend, **{**shared, **(store or {})})
        stack.callback(beside.close)
        results = NodeCache(saver.backend, **{**shared, **(cache or {})})
        stack.pop_all()
    return Opened(saver, beside, results)
