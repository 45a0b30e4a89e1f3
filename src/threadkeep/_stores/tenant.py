"""A backend in front of another one, which shows the threads of one tenant (design note 0028).

Names of threads get the tenant's prefix on the way down and lose it on the way up. Reads of many
threads ask for the prefix, so a store never returns a row of another tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from threadkeep._core import tenants
from threadkeep._core.engine import model
from threadkeep._core.engine.cold_references import without_others
from threadkeep._core.engine.thread_entry import (
    CountThreads,
    ReadClock,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
)
from threadkeep._stores.base import AsyncBackend, Backend, no_room
from threadkeep._stores.sync_bridge import BlockingFace, Face, result
from threadkeep.errors import StateError, ThreadkeepError

if TYPE_CHECKING:
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.message_index import ArchiveIndex

C = TypeVar("C", bound=model.Change)


class Names:
    """Names of a tenant's threads, as its callers see them (plain) and as stores do.

    Args:
        tenant: the tenant's name.

    Raises:
        InvalidArgumentError: the name is invalid.
    """

    def __init__(self, tenant: str) -> None:
        self.tenant = tenants.checked(tenant)
        self.prefix = tenants.prefix(self.tenant)

    def stored(self, thread: str) -> str:
        """Return the stored name of a thread."""
        return self.prefix + thread

    def plain(self, name: str) -> str:
        """Return the plain name of this tenant's stored name."""
        return name[len(self.prefix) :]

    # -- reads ---------------------------------------------------------------------------

    def to_store(self, read: model.Read) -> model.Read:
        """Return a read of stored names."""
        return self._READS[type(read)](self, read)

    def from_store(self, read: model.Read, reply: Any) -> Any:
        """Return the reply to a read, given the reply to `to_store(read)`."""
        tell = self._REPLIES.get(type(read))
        return reply if tell is None else tell(self, read, reply)

    def _one(self, read: Any) -> Any:
        # (`_replace` takes three times as long)
        return tuple.__new__(type(read), (self.prefix + read[0], *read[1:]))

    def _page(self, read: Any) -> Any:
        after = None if read.after is None else self.prefix + read.after
        return read._replace(after=after, prefix=self.prefix + read.prefix)

    def _scan(self, read: model.ScanCheckpoints) -> model.ScanCheckpoints:
        thread = None if read.thread is None else self.stored(read.thread)
        if read.after is not None:
            key, name, ns = read.after
            read = read._replace(after=(key, self.stored(name), ns))
        return read._replace(thread=thread, prefix=self.stored(read.prefix))

    def _query(self, query: ThreadQuery) -> ThreadQuery:
        origin = None if query.origin is None else self.stored(query.origin)
        return query._replace(prefix=self.stored(query.prefix), origin=origin)

    def _search(self, read: SearchThreads) -> SearchThreads:
        if read.after is not None:
            place, name = read.after
            place = self.stored(place) if isinstance(place, str) else place
            read = read._replace(after=(place, self.stored(name)))
        return read._replace(query=self._query(read.query))

    def _state(self, read: model.ReadCheckpoint, state: model.ThreadState) -> model.ThreadState:
        if state.found is None:
            return state
        found = model.StoredCheckpoint(read.thread, *state.found[1:])
        return model.ThreadState(state.generation, state.deleted_at, found, *state[3:])

    def _rows(self, read: model.ReadThread, rows: model.ThreadRows) -> model.ThreadRows:
        if not all(name.startswith(self.prefix) for name in rows.family):
            raise StateError(
                "The thread shares values with a thread of another tenant.",
                hint="Use the saver without a tenant.",
                thread=read.thread,
            )
        return rows._replace(
            checkpoints=tuple([one._replace(thread=read.thread) for one in rows.checkpoints]),
            family=tuple(map(self.plain, rows.family)),
        )

    def _stored_rows(
        self, _read: model.Read, rows: Sequence[model.StoredCheckpoint]
    ) -> list[model.StoredCheckpoint]:
        return [one._replace(thread=self.plain(one.thread)) for one in rows]

    def _sizes(self, _read: model.ReadSizes, sizes: model.Sizes) -> model.Sizes:
        threads = tuple([one._replace(thread=self.plain(one.thread)) for one in sizes.threads])
        return model.Sizes(sum([one.row_bytes + one.segment_bytes for one in threads]), threads)

    def _plain_entry(self, entry: ThreadEntry) -> ThreadEntry:
        entry, origin = without_others(entry), entry.origin
        if origin is not None:
            name, checkpoint = origin
            origin = (self.plain(name), checkpoint) if name.startswith(self.prefix) else None
        return entry._replace(thread=self.plain(entry.thread), origin=origin)

    _READS: ClassVar[dict[type, Callable[[Any, Any], model.Read]]] = {
        model.ReadCheckpoint: _one,
        model.ReadSegments: _one,
        model.ReadPath: _one,
        model.ReadThread: _one,
        ReadEntry: _one,
        ReadClock: _one,
        model.FindThreads: _page,
        model.ReadSizes: _page,
        model.ScanCheckpoints: _scan,
        SearchThreads: _search,
        CountThreads: lambda self, read: CountThreads(self._query(read.query)),
        # (findings about the store's files may name all threads)
        model.ReadDamage: lambda self, _: ReadEntry(self.prefix),
    }
    _REPLIES: ClassVar[dict[type, Callable[[Any, Any, Any], Any]]] = {
        model.ReadCheckpoint: _state,
        model.ReadPath: _stored_rows,
        model.ScanCheckpoints: _stored_rows,
        model.ReadThread: _rows,
        model.FindThreads: lambda self, _, found: [*map(self.plain, found)],
        model.ReadSizes: _sizes,
        ReadEntry: lambda self, _, entry: entry and self._plain_entry(entry),
        SearchThreads: lambda self, _, found: [*map(self._plain_entry, found)],
        model.ReadDamage: lambda *_: [],
    }

    # -- changes -------------------------------------------------------------------------

    def change(self, change: C) -> C:
        """Return a change of stored names."""
        made: Any = change
        if isinstance(change, model.Batch):
            made = model.Batch(self.prefix + change.thread, *change[1:])
        elif isinstance(change, model.LeaseThread):
            return cast("C", change._replace(thread=self.stored(change.thread)))
        elif isinstance(change, model.DropThread):
            rows = None if change.rows is None else self.change(change.rows)
            made = change._replace(thread=self.stored(change.thread), rows=rows)
        else:
            made = made._replace(source=self.stored(made.source), target=self.stored(made.target))
        entry = None if isinstance(change, model.CopyThread) else made.entry
        if entry is not None:
            made = made._replace(entry=self._stored_entry(entry))
        return cast("C", made)

    def _stored_entry(self, entry: ThreadEntry) -> ThreadEntry:
        entry = entry._replace(thread=self.stored(entry.thread))
        if entry.origin is None:
            return entry
        name, checkpoint = entry.origin
        return entry._replace(origin=(self.stored(name), checkpoint))

    # -- errors --------------------------------------------------------------------------

    def __enter__(self) -> None:
        """Begin a block whose errors lose stored names."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ThreadkeepError):
            self.named(error)

    def named(self, error: ThreadkeepError | None) -> ThreadkeepError | None:
        """Take stored names out of an error, and return it."""
        if error is None:
            return None
        if error.thread is not None:
            is_own = error.thread.startswith(self.prefix)
            error.thread = self.plain(error.thread) if is_own else None
        error.message = error.message.replace(self.prefix, "")
        error.hint = error.hint.replace(self.prefix, "")
        if tenants.FIRST in f"{error.message}{error.hint}":  # (of others, in one group of commits)
            error.message, error.hint = f"{type(error).__doc__}".strip().splitlines()[0], ""
        return error


class TenantFace(Face):
    """The async face. Over a blocking backend it never suspends.

    It counts neither usage nor items: a store counts those of all tenants together.
    """

    def __init__(self, below: Backend | AsyncBackend, names: Names) -> None:
        super().__init__(below)
        self.names = names
        self.keys = below.keys
        self.indexes_messages = below.indexes_messages

    async def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        with self.names:
            replies = await result(self.below.fetch([*map(self.names.to_store, reads)]))
        return [*map(self.names.from_store, reads, replies)]

    async def commit(self, change: model.Change) -> None:
        with self.names:
            await result(self.below.commit(self.names.change(change)))

    async def commit_many(self, changes: Sequence[model.Change]) -> list[ThreadkeepError | None]:
        refusals = await result(self.below.commit_many([*map(self.names.change, changes)]))
        return [*map(self.names.named, refusals)]

    def items(self, options: SearchOptions) -> Backend | AsyncBackend:
        """A tenant's items have another door."""
        del options
        raise no_room(self, "stores no items", hint="Use the store's own `for_tenant`.")

    def cache(self) -> Backend | AsyncBackend:
        """A tenant's cached results have another door."""
        raise no_room(self, "has no room for a cache", hint="Use the cache's own `for_tenant`.")

    def message_index(self) -> ArchiveIndex | None:
        index: ArchiveIndex | None = self.below.message_index()
        if index is None:
            return None
        from threadkeep._stores.message_index import PrefixedIndex  # noqa: PLC0415 - seldom needed

        return PrefixedIndex(index, self.names.prefix)

    async def close(self) -> None:
        """Close nothing: the other tenants use the same connections."""


class TenantBackend(BlockingFace[TenantFace]):
    """The blocking face of a tenant's threads."""

    def __init__(self, below: Backend, names: Names) -> None:
        beside = below.asynchronous
        super().__init__(
            TenantFace(below, names), None if beside is None else TenantFace(beside, names)
        )
        self.below, self.names = below, names

    @property
    def retries(self) -> int:
        """Return 0: the store counts the retries of all tenants together."""
        return 0

    def message_index(self) -> ArchiveIndex | None:
        return self.face.message_index()


def for_tenant(below: Backend | AsyncBackend, names: Names) -> Backend | AsyncBackend:
    """Return a backend that shows the threads of one tenant."""
    return TenantBackend(below, names) if isinstance(below, Backend) else TenantFace(below, names)
