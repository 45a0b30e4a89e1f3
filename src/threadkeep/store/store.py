"""Store: LangGraph's `BaseStore`, sync and async, on any backend of threadkeep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from copy import copy
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    IndexConfig,
    InvalidNamespaceError,
    NotProvided,
    Op,
    PutOp,
    SearchOp,
    TTLConfig,
)

from threadkeep._core import tenants
from threadkeep._core.codec import FormerSerde, Migrations, check_migrations, codec_of
from threadkeep._core.engine.operation import Operation, Progress, call
from threadkeep._core.engine.usage import Counters
from threadkeep._core.validation import is_count
from threadkeep._run import driver
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import AsyncBackend, Backend, no_room
from threadkeep._stores.items.records import ItemPacker, SearchOptions
from threadkeep._stores.options import complete, described, listed
from threadkeep._stores.process_forks import PerLoop
from threadkeep.errors import ClosedError, InvalidArgumentError, invalid
from threadkeep.keys import KeyOptions, sealed
from threadkeep.savers.drop_in import StoreAttributes
from threadkeep.savers.maintenance import Done
from threadkeep.store import operations, puts, transfer
from threadkeep.store.embedding import Index
from threadkeep.store.items import ItemEngine, ItemVersion, StoreOptions, checked_ttl
from threadkeep.store.operations import Calls
from threadkeep.store.tenants import TenantItems
from threadkeep.store.transfer import ItemEraseReport
from threadkeep.threads.retention.background import Collector
from threadkeep.threads.retention.lease import JobLease

if TYPE_CHECKING:
    from threadkeep._stores.items.records import Namespace

_TOGETHER = 1000
_LAST_SECONDS = 5.0  # to wait for a sweeper, which may wait for a model
_SWEPT = 1000  # items removed in one transaction


class Store(BaseStore, StoreAttributes, driver.Closing):
    """A LangGraph store of items, on any backend of threadkeep.

    Args:
        backend: a saver's (`saver.backend`), whose connections it shares.
        owned: close the backend with the store.
        **options: see `help(Store.__init__)`.

    Raises:
        InvalidArgumentError: an option is invalid.
        OpenError: the store cannot be opened.
    """

    supports_ttl = True

    @listed(StoreOptions)
    def __init__(
        self,
        backend: Backend | AsyncBackend,
        *,
        owned: bool = False,
        **options: Unpack[StoreOptions],
    ) -> None:
        self._is_owned = owned
        try:
            given: Any = complete("Store", StoreOptions, options)
            keys = {name: given.pop(name) for name in described(KeyOptions)}
            self._pair = LayeredBackend(sealed(backend, keys))
            self._open(**given)
        except BaseException:
            if owned and isinstance(backend, Backend):
                backend.close()
            raise

    def _open(
        self,
        index: IndexConfig | Mapping[str, Any] | None,
        ttl: TTLConfig | None,
        serde: SerializerProtocol | None,
        migrations: Migrations | None,
        history: int,
    ) -> None:
        self.ttl_config = checked_ttl(ttl)
        check_migrations({"migrations": migrations, "serde": serde})
        self._index = None if index is None else Index(index)
        if self._index is not None and not isinstance(serde, JsonPlusSerializer | None):
            raise InvalidArgumentError(
                "A store whose serde may encrypt cannot have an index of plain text.",
                hint="Leave out index= or serde=.",
            )
        backend = self._pair.backend
        if not isinstance(backend, Backend | AsyncBackend):
            raise no_room(backend, "stores no items")
        keys = backend.keys
        codec = codec_of(migrations, serde, gets_keys=keys is not None and keys.allow_plaintext)
        is_former = isinstance(codec, FormerSerde)
        self._migrates = migrations is not None or is_former
        items = backend.items(self._index.options if self._index else SearchOptions())
        self._store = LayeredBackend(items, most=_TOGETHER).with_threads(self._pair)
        self._engine = ItemEngine(
            packer=ItemPacker(None if is_former else serde, codec),
            index=self._index,
            now=_now,
            omit_expired=bool(self.ttl_config and self.ttl_config.get("omit_expired")),
            history=history,
            newest=getattr(items, "newest_first", False),
            keys=keys,
        )
        self._begin()
        if self.ttl_config and self.ttl_config.get("sweep_interval_minutes"):
            Store.start_ttl_sweeper(self)  # (a subclass may await its own)

    def _begin(self) -> None:
        """Make the state that each view of a store has for itself."""
        self._calls = PerLoop(partial(Calls, self._run))
        self._sweeper: Collector | None = None
        self._swept: Future[None] = Future()

    def for_tenant(self, tenant: str) -> Self:
        """Return this store as one tenant sees it, over the same connections.

        No method of it reads, lists, changes, sweeps or erases items of other tenants. Other
        settings are this store's, and `backend` and `counters` are shared. Its `erase` takes an
        empty prefix, for all items of the tenant. `close` ends a sweeper that was started on it,
        and nothing else.

        A store without a tenant sees the items of all: their namespaces begin with a label that
        names the tenant.

        Args:
            tenant: the tenant's name, a text of 1 to 200 bytes in UTF-8.

        Raises:
            InvalidArgumentError: the name is invalid, or this is already a tenant's store.
        """
        if self._engine.root:
            raise InvalidArgumentError(
                "This is already the store of a tenant.", hint="Use the store that was opened."
            )
        view = copy(self)
        view._show(tenants.label(tenants.checked(tenant)))  # noqa: SLF001 - a copy
        return view

    def _show(self, label: str) -> None:
        """Show only the items of a tenant."""
        self._store = self._store.under(TenantItems(label))
        self._engine = replace(self._engine, root=(label,))
        self._begin()

    @property
    def index_config(self) -> Mapping[str, Any] | None:
        """The `index` option of the store, or None."""
        return None if self._index is None else self._index.config

    @property
    def backend(self) -> Backend | AsyncBackend:
        """The backend whose connections the store uses."""
        return self._pair.backend

    def counters(self) -> Counters:
        """Return the counters of this store since it was opened, in this process.

        `vector_hits`, `vector_misses`, `embedding_calls` and `embedding_failures`: see `Counters`.
        """
        embedder = self._index.embedder if self._index else None
        return Counters() if embedder is None else embedder.counters()

    @property
    def embeddings(self) -> Any:
        """The embedding model, or None."""
        return self._index.embedder.model if self._index and self._index.embedder else None

    # -- LangGraph's methods -------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Any]:
        """Run operations: reads in one round trip, puts in one transaction.

        Reads see the store as it was before the puts. Of several puts of one key, the last counts.

        Raises:
            InvalidNamespaceError, InvalidArgumentError: an operation is invalid, and nothing was
                done.
            UnserializableError: a value cannot be stored, and nothing was done.
            EmbeddingError: a query cannot be embedded. (Items that cannot be embedded are stored,
                and embedded later: see `embed_pending`.)
        """
        return self._store.run(operations.batch(self._engine, list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Any]:
        """Async variant of `batch`.

        Single operations that tasks of one event loop call at the same time are one batch.
        """
        known = list(ops)
        if len(known) == 1:
            return [await self._calls.here().submit(known[0])]
        return await self._run(known)

    async def _run(self, ops: list[Op]) -> list[Any]:
        operation = operations.batch(self._engine, ops)
        if self._index is None and any(isinstance(op, SearchOp) and op.filter for op in ops):
            return await self._store.arun(operation)  # (the filter decodes each value)
        return await self._store.arun_here(operation)

    def put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        if_version: int | None = None,
    ) -> None:
        """Store or update an item. See `BaseStore.put`.

        Args:
            namespace: the item's namespace.
            key: its key in the namespace.
            value: a dict with texts as keys, of JSON or any type that threadkeep's codec stores.
            index: the fields to search instead of the store's, or False for none.
            ttl: minutes after which it expires, or None for never.
            if_version: put it only if the item has this version (`item.version`), or only if it
                does not exist (0).

        Raises:
            ConflictError: the item has another version, and nothing was stored.
        """
        op = self._op(namespace, key, value, index, ttl, if_version)
        expects = None if if_version is None else {0: if_version}
        self._store.run(operations.batch(self._engine, [op], expects))

    async def aput(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        if_version: int | None = None,
    ) -> None:
        """Async variant of `put`."""
        op = self._op(namespace, key, value, index, ttl, if_version)
        if if_version is None:
            await self._calls.here().submit(op)
        else:
            await self._store.arun_here(operations.batch(self._engine, [op], {0: if_version}))

    def delete(self, namespace: Namespace, key: str, *, if_version: int | None = None) -> None:
        """Delete an item, if it exists. See `put` for `if_version`."""
        if if_version is None:
            super().delete(namespace, key)
        else:
            op = self._op(namespace, key, None, None, None, if_version)
            self._store.run(operations.batch(self._engine, [op], {0: if_version}))

    async def adelete(
        self, namespace: Namespace, key: str, *, if_version: int | None = None
    ) -> None:
        """Async variant of `delete`."""
        if if_version is None:
            await super().adelete(namespace, key)
        else:
            op = self._op(namespace, key, None, None, None, if_version)
            await self._store.arun_here(operations.batch(self._engine, [op], {0: if_version}))

    def _op(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        index: Literal[False] | list[str] | None,
        ttl: float | NotProvided | None,
        if_version: int | None,
    ) -> PutOp:
        if not namespace:
            raise InvalidNamespaceError("Namespace cannot be empty.")
        if namespace[0] == "langgraph":
            raise InvalidNamespaceError(
                f'Root label for namespace cannot be "langgraph". Got: {namespace}'
            )
        if if_version is not None and not is_count(if_version, 0):
            raise invalid("if_version", if_version, "Use the item's version, or 0 for no item.")
        if isinstance(ttl, NotProvided):
            ttl = (self.ttl_config or {}).get("default_ttl")
        return PutOp(namespace, key, value, index, ttl)

    # -- lifetimes -----------------------------------------------------------------------

    def _sweep_ttl(self) -> Operation[int]:
        """Remove expired items, and return their number."""
        return self._sweep()

    sweep_ttl, asweep_ttl = driver.in_store(_sweep_ttl)

    def _sweep(self, between: Callable[[], None] | None = None) -> Operation[int]:
        removed = 0
        while True:
            some: int = yield from call("sweep", self._engine.now(), _SWEPT)
            removed += some
            if some < _SWEPT:
                return removed
            if between is not None:
                between()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Remove expired items regularly in a background thread, and embed pending items.

        Idempotent.

        Returns:
            A future that ends with the sweeper, and stops it if you cancel it.

        Raises:
            InvalidArgumentError: the interval is invalid.
        """
        if sweep_interval_minutes is not None:
            interval: Any = {"sweep_interval_minutes": sweep_interval_minutes}
            checked_ttl(interval)
        minutes = sweep_interval_minutes or (self.ttl_config or {}).get("sweep_interval_minutes")
        if self._sweeper is None or self._swept.done():
            seconds = 60.0 * (minutes or 5)
            self._sweeper = Collector(self._sweep_quietly, seconds, self._lease(seconds))
            self._swept = Future()
            stop = self._sweeper.stop
            self._swept.add_done_callback(lambda _: stop())
        return self._swept

    def _lease(self, seconds: float) -> JobLease:
        """Return the lease of all workers that sweep and embed the same items."""
        options = self._index.options if self._index else None
        name = f"sweep {' '.join(self._engine.root)} {options}"
        return JobLease(self._pair, name, seconds)

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper after its present transaction. Idempotent.

        Args:
            timeout: seconds to wait, or None to wait until it has stopped.

        Returns:
            True if it has stopped.
        """
        sweeper = self._sweeper
        if sweeper is None:
            return True
        if not self._swept.done():
            self._swept.set_result(None)
        has_stopped = sweeper.close(timeout)
        if has_stopped:
            self._sweeper = None
        return has_stopped

    def _sweep_quietly(self, progress: Progress) -> None:
        between = partial(progress, "sweep", 0, 0)  # (raises to stop the sweeper)
        try:
            self._store.run(self._sweep(between))
            between()
            self._store.run(puts.embed_pending(self._engine, between))
        except ClosedError:  # (with its saver)
            Store.stop_ttl_sweeper(self)

    # -- in addition to LangGraph's ------------------------------------------------------

    def _versions(self, namespace: Namespace, key: str) -> Operation[list[ItemVersion]]:
        """Return the present version of an item and those that `history` keeps, newest first."""
        return puts.versions(self._engine, operations.checked(namespace), key)

    def _embed_pending(self) -> Operation[int]:
        """Embed the items that were stored while the model failed, and return their number.

        A text that the model refuses is logged, and its item stays pending.

        Raises:
            EmbeddingError: the model still fails. Items before the failure are embedded.
        """
        return puts.embed_pending(self._engine)

    versions, aversions = driver.in_store(_versions)
    embed_pending, aembed_pending = driver.in_store(_embed_pending)

    def _export(
        self, path: str | PathLike[str], prefix: Namespace = (), *, plain: bool = False
    ) -> Operation[int]:
        """Write items to a file, one line of JSON each, and return their number.

        A store with keys encrypts the file: any store with the same keys can import it, and for the
        same tenant. A `serde` that encrypts leaves names readable.

        Args:
            path: the file. An existing file is replaced.
            prefix: the beginning of the items' namespaces.
            plain: never encrypt the file, so that it can be imported without the keys.
        """
        namespace = operations.checked(prefix)
        return transfer.export_items(self._store, self._engine, Path(path), namespace, plain=plain)

    def _import(
        self, source: str | PathLike[str] | BaseStore, *, index: bool = True
    ) -> Operation[int]:
        """Put the items of a file or another store into this one, and return their number.

        Times are kept, and the lifetimes in a file too. Existing items are replaced. You can safely
        import again after a failure.

        Args:
            source: a file that `export_items` wrote, or a store, such as LangGraph's own.
            index: False to index none of them. (An export does not say which items were put with
                an `index` of their own.)

        Raises:
            InvalidArgumentError: the file is damaged, or `export_items` did not write it.
            WrongKeyError: it is encrypted, and this store has not its key.
            TamperedDataError: it is encrypted and was changed, or is another tenant's.
        """
        found = source if isinstance(source, BaseStore) else Path(source)
        return transfer.import_items(self._store, self._engine, found, index=index)

    def _upgrade(self, prefix: Namespace = (), *, dry_run: bool = False) -> Operation[int]:
        """Put the items again that have an older shape than `migrations=`, and return their number.

        With `keys=`, `allow_plaintext="migrate"` and `serde=EncryptedSerializer...`: the items that
        this serializer encrypted. Leave out `serde=` afterwards.

        They keep their times, and are indexed by this store's `index`: open it with your program's.
        You can repeat an interrupted call.

        Args:
            prefix: the beginning of the items' namespaces.
            dry_run: change nothing, and return the number of items to put.

        Raises:
            InvalidArgumentError: the store was opened without `migrations=`.
            CodecError: an item cannot be read or migrated. The message names it.
        """
        if not self._migrates:
            raise InvalidArgumentError(
                "The store was opened without migrations=.",
                hint="Open it with the migrations of your program: migrations=.",
            )
        namespace = operations.checked(prefix)
        return transfer.upgrade(self._store, self._engine, namespace, dry_run=dry_run)

    def _erase(self, prefix: Namespace) -> Operation[ItemEraseReport]:
        """Erase items with their versions, vectors and words.

        The store's files are scrubbed, as by `saver.threads.erase`. The report lists the places
        that the store cannot clear.

        Args:
            prefix: the beginning of the items' namespaces, empty only for all items of a tenant.
        """
        if not (prefix or self._engine.root):
            raise invalid("prefix", prefix, "Use a namespace, such as ('users', '1').")
        return transfer.erase(self._store, self._pair, operations.checked(prefix))

    export_items, aexport_items = driver.sync_and_async(_export)
    import_items, aimport_items = driver.sync_and_async(_import)
    upgrade, aupgrade = driver.sync_and_async(_upgrade)
    erase, aerase = driver.sync_and_async(_erase)

    # -- life ----------------------------------------------------------------------------

    def setup(self) -> Done:
        """Create the tables in a PostgreSQL database. Idempotent, and may be awaited.

        `asetup` does not block the event loop.
        """
        self._store.run(self._migrate())
        return Done()

    async def asetup(self) -> None:
        """Async variant of `setup`."""
        await self._store.arun_here(self._migrate())

    def _migrate(self) -> Operation[None]:
        yield self._pair.external("migrate")
        yield from call("migrate")

    def _opening(self) -> Operation[None]:
        return self._store.opening()

    def _close(self) -> Operation[None]:
        """Stop the sweeper, and close the backend if the store owns it. Idempotent."""
        yield from driver.external(partial(Store.stop_ttl_sweeper, self, _LAST_SECONDS))
        if self._engine.root:
            return
        yield from driver.sync_or_async(self._store.close, self._store.aclose)
        if self._is_owned:
            yield from driver.sync_or_async(self._pair.close, self._pair.aclose)

    close, aclose = driver.sync_and_async(_close)


def _now() -> int:
    return time.time_ns() // 1000
