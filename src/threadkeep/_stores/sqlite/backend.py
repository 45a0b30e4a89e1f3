"""SQLite backend."""

from __future__ import annotations

from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Unpack

from threadkeep._core.engine.model import ReadCheckpoint
from threadkeep._core.engine.usage import ItemUsage
from threadkeep._stores.base import Backend
from threadkeep._stores.options import complete
from threadkeep._stores.sqlite import SqliteOptions, path_in
from threadkeep._stores.sqlite.changes import commit_many
from threadkeep._stores.sqlite.connections import Connections
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS, is_undecodable, mapped
from threadkeep._stores.sqlite.opening import DatabaseLocation, finder
from threadkeep._stores.sqlite.reads import checkpoint, needs_transaction, reply
from threadkeep._stores.sqlite.threads import item_usage
from threadkeep.errors import OpenError, ThreadkeepError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadkeep._core.engine.model import Change, Read, ThreadState
    from threadkeep._stores.base import ScrubReport
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.sqlite.cache import SqliteEntries
    from threadkeep._stores.sqlite.items import SqliteItems
    from threadkeep._stores.sqlite.message_index import SqliteIndex
    from threadkeep._stores.sqlite.opening import GivenDatabase


class SqliteBackend(Backend):
    """Rows in one SQLite file, for any number of threads and processes at once.

    Readers are never blocked (WAL mode), and there is one writer at a time. The arguments are those
    of `SqliteSaver`. With `read_only`, the file is neither created nor changed. "live" also shows
    later commits of other processes, and may leave a WAL next to the file.
    """

    commits_groups = True
    has_identity = True
    counts_usage = True
    indexes_messages = True

    def __init__(
        self,
        database: GivenDatabase,
        *,
        read_only: bool | Literal["live"] = False,
        **options: Unpack[SqliteOptions],
    ) -> None:
        given = complete("SQLite", SqliteOptions, options)
        mode = "live" if read_only == "live" else "ro" if read_only else "rwc"
        find, own = finder(database), None if isinstance(database, str | PathLike) else database
        settings = (given["synchronous"], given["busy_timeout"], mode, own)
        self._connections = Connections(lambda: DatabaseLocation(find(), *settings))

    @property
    def location(self) -> DatabaseLocation:
        """Path and mode of the file. Opens the file."""
        return self._connections.location

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order, all from one state. See `Backend.fetch`."""
        if len(reads) == 1 and isinstance(reads[0], ReadCheckpoint):
            state = self._warm(reads[0])
            if state is not None:
                return [state]
        answer = partial(reply, known=self._connections.heads)
        return self._connections.answered(reads, answer, begin=needs_transaction(reads))

    def _warm(self, read: ReadCheckpoint) -> ThreadState | None:
        """Read a checkpoint of a thread that was used lately, or None while another thread writes.

        Uses the writing connection and its cache, because other connections must check the file
        again after each commit.
        """
        connections = self._connections
        if not connections.has_writer or connections.heads.get(read.thread) is None:
            return None
        held: list[bool] = []
        try:
            held.extend(map(connections.write_lock.acquire, (False,)))  # one step for an interrupt
            if not held[0]:
                return None
            return checkpoint(connections.writer(), read, connections.heads)
        except DRIVER_ERRORS as error:
            if is_undecodable(error):  # (read leniently)
                return None
            raise mapped(error, connections.location.path) from error
        finally:
            if True in held:
                connections.write_lock.release()

    def commit(self, change: Change) -> None:
        """Carry out the change, all or nothing. See `Backend.commit`."""
        (failure,) = commit_many(self._connections, [change])
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame: no cycle

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Carry out several changes in one transaction. See `Backend.commit_many`."""
        return commit_many(self._connections, changes)

    def open(self) -> None:
        self._connections.open()

    def identity(self) -> str:
        """Return an id of the file. A copy of the file has another id. See `Backend.identity`."""
        from threadkeep._stores.sqlite.maintenance import identity  # noqa: PLC0415 - seldom needed

        return identity(self._connections)

    def item_usage(self, now: int) -> ItemUsage:
        with self._connections.reading() as db:
            return item_usage(db, now)

    def scrub(self, *, rewrite: bool) -> ScrubReport:
        """Rewrite the file, whether `rewrite` is set or not. See `Backend.scrub`."""
        del rewrite  # (readers continue and writers wait meanwhile, so no flag is needed)
        from threadkeep._stores.sqlite.maintenance import scrub  # noqa: PLC0415 - seldom needed

        return scrub(self._connections)

    def items(self, options: SearchOptions) -> SqliteItems:
        from threadkeep._stores.sqlite.items import SqliteItems  # noqa: PLC0415 - only for a store

        return SqliteItems(self._connections, options)

    def cache(self) -> SqliteEntries:
        from threadkeep._stores.sqlite.cache import SqliteEntries  # noqa: PLC0415 - only for a cache

        return SqliteEntries(self._connections)

    def message_index(self) -> SqliteIndex | None:
        """None if the file is read-only, or SQLite has no FTS5."""
        from threadkeep._stores.sqlite.message_index import SqliteIndex, has_fts5  # noqa: PLC0415 - only for layered memory

        location = self.location
        if location.in_memory or location.is_read_only or not has_fts5():
            return None
        return SqliteIndex(location.path, busy_timeout=location.busy_timeout, given=location.given)

    def keep_words(self, *, kept: bool) -> None:
        from threadkeep._stores.sqlite import message_words  # noqa: PLC0415 - seldom needed

        with self._connections.writing() as db:
            (message_words.create if kept else message_words.drop)(db)

    def close(self) -> None:
        """Close all connections. A read in progress may end first. Idempotent."""
        self._connections.close()


def opened(database: GivenDatabase, **options: Any) -> SqliteBackend:
    """Open the file of a `sqlite:` URL, a path, or a connection."""
    if isinstance(database, str):
        scheme, mark, _ = database.partition("://")
        if mark and scheme.lower() == "sqlite":
            database = path_in(database)
        elif mark and scheme.isalnum():
            # (a path with its password would be in the error)
            hint = "Use open_saver(url) for a URL of any database."
            raise OpenError(f"SQLite needs a file, not a {scheme} URL.", hint=hint)
    return SqliteBackend(database, **options)
