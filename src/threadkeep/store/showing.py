"""Stores that show items: they load no class of a program, and never put."""

from __future__ import annotations

from dataclasses import replace

from threadkeep._core.codec.codecs import PlainCodec
from threadkeep._run.layered_backend import store_of
from threadkeep._stores.items.records import ItemPacker
from threadkeep.savers.saver import Saver
from threadkeep.store.store import Store


def items_of(saver: Saver) -> Store:
    """Return the items in a saver's store, of its tenant, with values as they are stored.

    It shares the saver's connections and needs no `close`. Don't put items with it.

    Raises:
        OpenError: the store has no tables for items, or cannot be opened.
    """
    store = Store(store_of(saver).whole.backend)  # (a tenant's backend has threads only)
    store._engine = replace(store._engine, packer=ItemPacker(codec=PlainCodec()))  # noqa: SLF001
    return store if saver.tenant is None else store.for_tenant(saver.tenant)
