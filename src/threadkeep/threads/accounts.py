"""Erase a user everywhere in a store: threads, items of stores, and cached results of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from threadkeep._core import tenants, validation
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.operation import Operation, Progress, call, fetch
from threadkeep._run.driver import external, on
from threadkeep._run.first_change import check_is_plain
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.caches import CacheCommit, ClearEntries, of_tenant
from threadkeep._stores.items.records import FindItems, Namespace, SearchOptions
from threadkeep.errors import UnfinishedErasureError, invalid
from threadkeep.threads.erasure import erase_all, is_known, plan_of
from threadkeep.threads.erasure_report import Account, AccountReport, EraseReport

if TYPE_CHECKING:
    from threadkeep._core.engine.usage import ItemUsage

_PAGE = 1000
_IN_MEMORY = (
    "Items and cached results in memory belong to their objects: call erase of each Store, and"
    " clear of each NodeCache."
)
_KEYS = "Keys of the threads, which open backups and bundles: call shred for each thread."


def delete_account(
    store: LayeredBackend,
    engine: Engine,
    account: Account,
    progress: Progress | None,
    *,
    rewrite: bool,
    dry_run: bool,
) -> Operation[AccountReport]:
    flags = {"results": account.results, "forks": account.forks, "rewrite": rewrite}
    for name, value in {**flags, "dry_run": dry_run}.items():
        validation.flag(name, value)
    beside = _Beside(store, engine, _checked(account.namespaces))
    wanted = validation.each_thread(account.threads)
    plan = plan_of(store, engine, account.metadata, wanted, forks=account.forks)
    plan = plan._replace(others=beside.places(results=account.results))
    if account.results or beside.namespaces:
        yield from check_is_plain(store.whole)
    known: list[str] = []
    for name in dict.fromkeys(wanted):
        known += [name] if (yield from is_known(store, name)) else []
    options: Any = {"forks": account.forks, "rewrite": rewrite, "dry_run": dry_run, "plan": plan}
    try:
        erased = yield from erase_all(store, engine, known, progress, **options)
    except UnfinishedErasureError as error:
        error.report = beside.report(error.report)
        raise
    if dry_run:
        yield from beside.count(results=account.results)
    return beside.report(erased)


def _checked(namespaces: Iterable[Iterable[str]]) -> list[Namespace]:
    found = []
    for each in validation.several("namespaces", namespaces):
        labels = () if isinstance(each, str) else tuple(cast("Iterable[str]", each))
        if not labels or not all(isinstance(one, str) and one for one in labels):
            raise invalid("namespaces", each, 'Use tuples of texts: [("users", "u1")].')
        found.append(labels)
    return found


class _Beside:
    """The items and cached results of a user in the database of a store."""

    def __init__(
        self, store: LayeredBackend, engine: Engine, namespaces: Sequence[Namespace]
    ) -> None:
        self._whole = store.whole
        self._now = engine.now
        label = None if store.names is None else tenants.label(store.names.tenant)
        self._root: Namespace = () if label is None else (label,)
        self._spaces = None if label is None else (of_tenant(label),)
        self.namespaces = namespaces
        self._items: dict[Namespace, int] = {}
        self._results = 0

    def report(self, erased: EraseReport) -> AccountReport:
        """Return a report that also has the removed items and results."""
        keys = self._whole.backend.keys
        if erased.remains and keys is not None and keys.has_thread_keys:
            erased = replace(erased, remains=(*erased.remains, _KEYS))
        values = {one.name: getattr(erased, one.name) for one in fields(erased)}
        return AccountReport(**values, items=tuple(self._items.items()), results=self._results)

    def _stored(self) -> Operation[LayeredBackend]:
        make = partial(self._whole.backend.items, SearchOptions())
        return LayeredBackend((yield from external(make)))

    def _usage(self) -> Operation[ItemUsage]:
        usage: ItemUsage = yield from on(self._whole, call("item_usage", self._now()))
        return usage

    def places(self, *, results: bool) -> tuple[Operation[ScrubReport], ...]:
        """Return the operations that clear the items and (`results`) the cached results."""
        if self._whole.backend.instant:
            return (_in_memory(),) if results or self.namespaces else ()
        items = (self._erase_items(),) if self.namespaces else ()
        return (*items, self._clear_results()) if results else items

    def _erase_items(self) -> Operation[ScrubReport]:
        """Remove the items of each namespace."""
        items = yield from self._stored()
        for name in self.namespaces:
            self._items[name] = yield from on(items, call("erase", (*self._root, *name)))
        return ScrubReport(("items of the namespaces",))

    def _clear_results(self) -> Operation[ScrubReport]:
        """Remove the cached results of all users, or of this tenant's."""
        before = (yield from self._usage()).cache_entries
        if before:
            cache = LayeredBackend((yield from external(self._whole.backend.cache)))
            yield from on(cache, _clear(self._spaces))
            self._results = max(before - (yield from self._usage()).cache_entries, 0)
        return ScrubReport(("cached results of nodes",))

    def count(self, *, results: bool) -> Operation[None]:
        """Count the items and results, without making tables for them."""
        usage = yield from self._usage()
        if results and self._spaces is None:  # (backends count all tenants together)
            self._results = usage.cache_entries
        self._items = dict.fromkeys(self.namespaces, 0)
        if usage.items and self.namespaces and not self._whole.backend.instant:
            items = yield from self._stored()
            for name in self.namespaces:
                self._items[name] = yield from on(items, _number((*self._root, *name)))


def _in_memory() -> Operation[ScrubReport]:
    yield from ()
    return ScrubReport(remains=(_IN_MEMORY,))


def _clear(spaces: tuple[bytes, ...] | None) -> Operation[None]:
    yield CacheCommit(ClearEntries(spaces))


def _number(prefix: Namespace) -> Operation[int]:
    read: Any = FindItems(prefix, _PAGE)
    number = 0
    while True:
        rows = yield from fetch(read)
        number += len(rows)
        if len(rows) < _PAGE:
            return number
        read = read._replace(after=rows[-1].place)
