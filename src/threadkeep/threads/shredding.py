"""The end of a tenant's or a thread's key: nothing that it encrypted can be read any more."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import NamedTuple

from threadkeep._core import tenants, validation
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.operation import Operation, Progress, call
from threadkeep._run.driver import on
from threadkeep._run.first_change import WITH_KEYS
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.caches import CacheCommit, ClearEntries, of_tenant
from threadkeep._stores.items.records import SearchOptions
from threadkeep.errors import InvalidArgumentError
from threadkeep.threads.erasure import erase, erase_all
from threadkeep.threads.erasure_report import EraseReport
from threadkeep.threads.transfer.whole_thread import all_threads

REMAINS = (
    "Copies of the key store, such as its backups and replicas: remove them.",
    "The key in the memory of other programs, until they ask for it a minute later: restart them.",
    "Bundles, and backups as bundles, of the whole store, which the ring's key opens: remove them.",
    "Files that were written without encryption, and text that programs have sent elsewhere.",
    "In backups: names of threads, namespaces and keys of items, times and sizes.",
)
"""Places that no shredding reaches."""


class ShredReport(NamedTuple):
    """The result of a shredding.

    Attributes:
        name: the tenant or thread.
        at: the time at which the key was destroyed.
        keys: the ids of the destroyed keys, fewer if the call was repeated.
        erased: the threads that were also removed from the store.
        items: the number of items that were also removed.
        cleared: the places of the key store that hold no key any more.
        remains: the places that shredding cannot reach, each with a remedy.
    """

    name: str
    at: datetime
    keys: tuple[str, ...]
    erased: EraseReport
    items: int
    cleared: tuple[str, ...]
    remains: tuple[str, ...]


def shred_thread(
    store: LayeredBackend, engine: Engine, thread: str, progress: Progress | None, *, forks: bool
) -> Operation[ShredReport]:
    name = validation.thread_id(thread)
    keys = store.backend.keys

    def erasing(*, dry_run: bool) -> Operation[EraseReport]:
        return erase(
            store, engine, name, None, progress, forks=forks, rewrite=False, dry_run=dry_run
        )

    planned = yield from erasing(dry_run=True)  # (also reads the store's record of its keys)
    if keys is None or not keys.has_thread_keys:
        raise InvalidArgumentError(
            "The threads of this store have no keys of their own.",
            hint="Open it with keys=, key_store= and thread_keys=True, before the first save.",
        )
    if planned.forks:
        from threadkeep._stores.resealing import forks_left  # noqa: PLC0415 - an extra

        raise forks_left(planned.forks, name)
    erased = yield from erasing(dry_run=False)
    return (yield from _end(store, "thread", name, erased, 0))


def shred_tenant(
    store: LayeredBackend, engine: Engine, tenant: str, progress: Progress | None
) -> Operation[ShredReport]:
    name = tenants.checked(tenant)
    if store.backend.keys is None:
        raise InvalidArgumentError("The saver has no keys.", hint=WITH_KEYS)
    threads = yield from on(store, all_threads(tenants.prefix(name)))
    erased = yield from erase_all(
        store, engine, threads, progress, forks=False, rewrite=False, dry_run=False
    )
    items = yield from _remove_items(store, tenants.label(name))
    return (yield from _end(store, "tenant", name, erased, items))


def _end(
    store: LayeredBackend, kind: str, name: str, erased: EraseReport, items: int
) -> Operation[ShredReport]:
    from threadkeep._stores.resealing import destroy  # noqa: PLC0415 - an extra

    with store.names or nullcontext():
        stored = name if store.names is None else store.names.stored(name)
        keys, report = yield from on(store.whole, call("work", destroy, kind, stored))
    remains = (*report.remains, *REMAINS)
    if erased.shared_with:
        remains += (f"Values shared with other threads: {', '.join(erased.shared_with[:20])}.",)
    return ShredReport(name, datetime.now(UTC), keys, erased, items, report.cleared, remains)


def _remove_items(store: LayeredBackend, label: str) -> Operation[int]:
    """Remove a tenant's items and cached results, if the database has any."""
    try:
        items = LayeredBackend(store.backend.items(SearchOptions()))
        results = LayeredBackend(store.backend.cache())
    except InvalidArgumentError:
        return 0
    removed = yield from on(items, call("erase", (label,)))
    yield from on(results, _clear(label))
    return int(removed)


def _clear(label: str) -> Operation[None]:
    yield CacheCommit(ClearEntries((of_tenant(label),)))
