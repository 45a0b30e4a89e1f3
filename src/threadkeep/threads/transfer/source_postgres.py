"""Reader of the tables of LangGraph's PostgresSaver and AsyncPostgresSaver.

Every transaction is read-only. Each thread is read in its own transaction, so that it is one state.

A checkpoint's row holds small values, and `checkpoint_blobs` holds the others, by channel and
version. The tables are the same since langgraph-checkpoint-postgres 2.0, except the column
`checkpoint_writes.task_path`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias

import psycopg
from langgraph.checkpoint.base import BaseCheckpointSaver, writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg.rows import dict_row

from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._core.langgraph_internals import TASKS
from threadkeep._stores.postgres.connections import PostgresSettings, settings_of
from threadkeep._stores.postgres.statement import mapped_errors
from threadkeep.errors import OpenError, ReadOnlyError
from threadkeep.threads.transfer.sources import (
    DatabaseSource,
    MissingTablesError,
    Payloads,
    SourceCheckpoint,
    SourceStep,
    SourceWindow,
    SourceWrite,
    naming,
    needs,
    own_store,
)

_Row: TypeAlias = dict[str, Any]
_BlobKey: TypeAlias = tuple[str, str, str]  # namespace, channel, version

_PAGE = 16  # rows of checkpoints in one read
_CURSOR = "threadkeep_adopt"
_COLUMNS = """
SELECT relname, attname, relnamespace::regnamespace::text AS schema
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE attrelid IN (to_regclass('checkpoints'), to_regclass('checkpoint_blobs'),
    to_regclass('checkpoint_writes')) AND attnum > 0 AND NOT attisdropped
AND relkind IN ('r', 'p')
"""  # (a view of a stranger may call functions, with the rights of this user)
_WANTED = {
    "checkpoints": {"checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint"},
    "checkpoint_blobs": {"checkpoint_ns", "channel", "version", "type", "blob"},
    "checkpoint_writes": {"checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "blob"},
}
_SCHEMA = """
SELECT coalesce(current_schema() = nspname, false) AS is_first, pg_backend_pid() AS pid
FROM pg_namespace WHERE nspname = %(schema)s
"""
_CHECKPOINTS = """
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata,
    (SELECT array_agg(ARRAY[key, value]) FROM jsonb_each_text(checkpoint -> 'channel_versions'))
        AS versions
FROM checkpoints WHERE thread_id = %s AND checkpoint_id COLLATE "C" >= %s
ORDER BY checkpoint_ns COLLATE "C", checkpoint_id COLLATE "C"
"""
_BLOBS = """
SELECT b.channel, b.version, b.type, b.blob FROM checkpoint_blobs b
JOIN unnest(%s::text[], %s::text[]) AS wanted (channel, version)
    ON b.channel = wanted.channel AND b.version = wanted.version
WHERE b.thread_id = %s AND b.checkpoint_ns = %s
"""
_WRITES = """
SELECT checkpoint_ns, checkpoint_id, task_id, {path} AS task_path, idx, channel, type, blob
FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_ns = ANY(%s) AND checkpoint_id = ANY(%s)
"""
# Like LangGraph's saver: from any namespace, in the order of the database's collation.
_SENDS = """
SELECT type, blob FROM checkpoint_writes
WHERE thread_id = %s AND checkpoint_id = %s AND channel = %s ORDER BY {path}, task_id, idx
"""
# (as stored: compressed)
_BYTES = """((
    SELECT coalesce(sum(pg_column_size(checkpoint) + pg_column_size(metadata)), 0)
    FROM checkpoints AS own WHERE own.thread_id = {thread}
) + (
    SELECT coalesce(sum(pg_column_size(blob)), 0)
    FROM checkpoint_writes AS own WHERE own.thread_id = {thread}
) + (
    SELECT coalesce(sum(pg_column_size(blob)), 0) FROM checkpoint_blobs AS own {blobs}
))::bigint"""
_BETWEEN = "%s AND checkpoint_id BETWEEN %s AND %s"
_USED = """JOIN (
    SELECT DISTINCT thread_id, checkpoint_ns, key, value
    FROM checkpoints, jsonb_each_text(checkpoint -> 'channel_versions') WHERE thread_id = {thread}
) AS used USING (thread_id, checkpoint_ns) WHERE channel = key AND version = value"""
_TOTAL = """
SELECT sum(pg_total_relation_size(name::regclass)) AS size
FROM unnest(ARRAY['checkpoints', 'checkpoint_blobs', 'checkpoint_writes']) AS name
"""
_WINDOW = """
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata, {parts}
FROM (
    SELECT * FROM checkpoints WHERE {where} ORDER BY checkpoint_id DESC, checkpoint_ns LIMIT %s
) AS c ORDER BY checkpoint_id DESC, checkpoint_ns
"""
_OWN_BLOBS = """jsonb_each_text(checkpoint -> 'channel_versions') JOIN checkpoint_blobs AS b
    ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
    AND b.channel = key AND b.version = value"""
# Values are neither read nor sent.
_WITHOUT_VALUES = """checkpoint - 'channel_values' AS checkpoint,
    pg_column_size(checkpoint)
        + coalesce((SELECT sum(octet_length(blob)) FROM {own}), 0)::bigint AS size,
    ARRAY(
        SELECT jsonb_object_keys(coalesce(checkpoint -> 'channel_values', jsonb_build_object()))
        UNION SELECT key FROM {own} WHERE b.type <> 'empty'
    ) AS names,
    ARRAY(
        SELECT ARRAY[task_id, channel] FROM checkpoint_writes AS w WHERE w.thread_id = c.thread_id
        AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id
    ) AS written"""
_WHOLE = """checkpoint,
    (SELECT array_agg(ARRAY[key, value]) FROM jsonb_each_text(checkpoint -> 'channel_versions'))
        AS versions"""
_SENDS_MOVED = 4  # since this version of checkpoints, sent tasks are a channel
_FIRST_VERSION = f"{1:032}.{0:016}"  # LangGraph's first version, without its random part


def open_postgres(database: str, payloads: Payloads, schema: str | None = None) -> DatabaseSource:
    """Connect to a database, for reading only."""
    settings = settings_of(database)
    server = settings.server
    with mapped_errors(server):
        db = psycopg.connect(settings.conninfo, row_factory=dict_row, prepare_threshold=None)
    try:
        _enter(db, schema)
        db.commit()
        db.read_only = True
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return _PostgresSource(db, server, payloads)
    except BaseException:
        db.close()
        raise


def open_saver(
    database: str,
    serde: SerializerProtocol | None,
    stack: ExitStack,
    schema: str | None,
    *,
    shared: bool,
) -> BaseCheckpointSaver[Any]:
    """Connect LangGraph's saver to a database (see `open_writer`)."""
    with needs("langgraph-checkpoint-postgres", "write its tables"):
        from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415 - only to write
        from psycopg_pool import ConnectionPool  # noqa: PLC0415 - likewise
    settings = settings_of(database)
    given: Any = {"autocommit": True, "prepare_threshold": None, "row_factory": dict_row}
    if shared:
        pool: Any = ConnectionPool(
            settings.conninfo,
            kwargs=given,
            min_size=1,
            max_size=4,
            open=True,
            configure=partial(_enter, schema=schema),
            check=ConnectionPool.check_connection,
        )
        return PostgresSaver(stack.enter_context(pool), serde=serde)
    with mapped_errors(settings.server):
        db: psycopg.Connection[Any] = psycopg.connect(settings.conninfo, **given)
        stack.callback(db.close)
        _enter(db, schema)
        saver = PostgresSaver(db, serde=serde)
        saver.setup()
    return saver


def _enter(db: psycopg.Connection[Any], schema: str | None) -> None:
    """Let a connection find the tables of a schema."""
    if schema is None:
        return
    found = db.execute(_SCHEMA, {"schema": schema}).fetchone()
    path = PostgresSettings("", {"schema": schema}).quoted_schema
    if found is None:
        raise OpenError(
            f"The database has no schema {schema}.",
            hint=f"Correct ?schema= in the URL, or create it: CREATE SCHEMA {path}.",
        )
    if found["is_first"]:
        return
    if found["pid"] != db.info.backend_pid:  # (other programs would get the search_path)
        raise OpenError(
            "?schema= needs a connection to PostgreSQL itself, not to PgBouncer or another pooler.",
            hint="Use the server's URL, or a role whose search_path begins with this schema.",
        )
    db.execute("SELECT set_config('search_path', %s, false)", (path,))


@contextmanager
def _reading(server: str) -> Iterator[None]:
    try:
        with mapped_errors(server):
            yield
    except ReadOnlyError as error:
        _, _, cause = error.message.partition(": ")
        raise OpenError(
            f"LangGraph's tables cannot be read: {cause}",
            hint="Grant this user USAGE on their schema, and SELECT on the tables.",
        ) from error


class _PostgresSource(DatabaseSource):
    mark = "%s"
    writes = "checkpoint_writes"
    size = _BYTES.format(thread="c.thread_id", blobs="WHERE own.thread_id = c.thread_id")
    between = _BYTES.format(thread=_BETWEEN, blobs=_USED.format(thread=_BETWEEN))
    between, total = f"SELECT {between} AS size", _TOTAL
    digest = "string_agg(task_id || idx || md5(blob), ',' ORDER BY task_id, idx)"

    def __init__(self, db: psycopg.Connection[_Row], server: str, payloads: Payloads) -> None:
        super().__init__(payloads)
        self._db = db
        self._server = server
        columns: dict[str, set[str]] = {}
        schema = None
        for row in self._all(_COLUMNS):
            schema = row["schema"] if row["relname"] == "checkpoints" else schema
            columns.setdefault(row["relname"], set()).add(row["attname"])
        self.end()
        if "manifest" in columns.get("checkpoints", ()):
            raise own_store("This schema", " If LangGraph's tables are in another: ?schema=NAME.")
        if any(wanted - columns.get(table, set()) for table, wanted in _WANTED.items()):
            raise MissingTablesError(
                "The database has no tables of LangGraph's PostgresSaver (2.0 or newer).",
                hint="If they are in another schema, name it in the URL: ?schema=NAME."
                " Tables of ShallowPostgresSaver cannot be read.",
            )
        info = self._db.info
        self._place = f"postgres {info.dbname} {schema}", f"{info.host}:{info.port}"
        self._has_paths = "task_path" in columns["checkpoint_writes"]
        path = "task_path" if self._has_paths else "''::text"
        self._writes, self._sends = _WRITES.format(path=path), _SENDS.format(path=path)

    @property
    def place(self) -> tuple[str, str]:
        return self._place

    def _all(self, text: str, parameters: Sequence[Any] = ()) -> list[_Row]:
        with _reading(self._server):  # (bytes as text would be twice as long)
            return self._db.execute(text, parameters, binary=True).fetchall()

    def end(self) -> None:
        # (the next statement begins a transaction)
        with mapped_errors(self._server):
            self._db.rollback()

    def checkpoints(self, thread: str, first: str = "") -> Generator[SourceCheckpoint, None, None]:
        blobs: dict[_BlobKey, Any] = {}  # of the last checkpoint
        with _reading(self._server), self._db.cursor(_CURSOR) as cursor:
            cursor.execute(_CHECKPOINTS, (thread, first))
            while page := cursor.fetchmany(_PAGE):
                writes = self._writes_of(thread, page)
                for row in page:
                    place = row["checkpoint_ns"], row["checkpoint_id"]
                    with naming(thread, *place):
                        blobs, size = self._blobs_of(thread, row, blobs)
                        found = self._found(thread, row, blobs, writes.get(place, []), size)
                    yield found

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self._all(text, parameters)]

    def steps(self, window: SourceWindow) -> list[SourceStep]:
        rows = self._window(window, _WITHOUT_VALUES.format(own=_OWN_BLOBS))
        return [
            SourceStep(
                *(row["checkpoint_ns"], row["checkpoint_id"], row["parent_checkpoint_id"] or None),
                *(row["checkpoint"], row["metadata"], dict.fromkeys(row["names"])),
                *([(task, channel) for task, channel in row["written"]], row["size"]),
            )
            for row in rows
        ]

    def _window(self, window: SourceWindow, parts: str) -> list[_Row]:
        where, values = window.where(self.mark)
        text = _WINDOW.format(parts=parts, where=where)
        return self._all(text, (*values, window.limit))

    def checkpoint(
        self, window: SourceWindow, channels: Collection[str] | None = None
    ) -> SourceCheckpoint | None:
        for row in self._window(window._replace(limit=1), _WHOLE):
            with naming(window.thread, row["checkpoint_ns"], row["checkpoint_id"]):
                writes = [
                    one for own in self._writes_of(window.thread, [row]).values() for one in own
                ]
                if channels is not None:
                    row["versions"] = [one for one in row["versions"] or () if one[0] in channels]
                    writes = [one for one in writes if one["channel"] in channels]
                blobs, size = self._blobs_of(window.thread, row, {})
                return self._found(window.thread, row, blobs, writes, size)
        return None

    def limit(self, seconds: float) -> None:
        milliseconds = str(int(seconds * 1000))
        self.rows("SELECT set_config('statement_timeout', %s, false)", (milliseconds,))
        self._db.commit()

    def _found(
        self, thread: str, row: _Row, blobs: dict[_BlobKey, Any], writes: list[_Row], size: int
    ) -> SourceCheckpoint:
        checkpoint = row["checkpoint"]
        values = {**(checkpoint.get("channel_values") or {})}
        values |= {channel: blob[0] for (_, channel, _), blob in blobs.items() if blob}
        whole = {**checkpoint, "channel_values": values}
        if checkpoint.get("v", 1) < _SENDS_MOVED and row["parent_checkpoint_id"]:
            self._move_sends(thread, row["parent_checkpoint_id"], whole)
        read = [self._write(write) for write in writes]
        size += sum([len(write["blob"]) for write in writes])
        parent = row["parent_checkpoint_id"] or None
        place = row["checkpoint_ns"], row["checkpoint_id"]
        return SourceCheckpoint(*place, parent, whole, row["metadata"], read, size)

    def _blobs_of(
        self, thread: str, row: _Row, known: dict[_BlobKey, Any]
    ) -> tuple[dict[_BlobKey, Any], int]:
        """Read a checkpoint's values from `checkpoint_blobs`, and return them and the bytes read.

        Keys are namespace, channel and version, and a value is a tuple, empty if the channel has no
        value. `known` are the values of the last checkpoint, which shares most of them.
        """
        ns = row["checkpoint_ns"]
        wanted = [(ns, channel, version) for channel, version in row["versions"] or ()]
        found = {place: known[place] for place in wanted if place in known}
        missing = [place for place in wanted if place not in found]
        if not missing:
            return found, 0
        names, versions = [place[1] for place in missing], [place[2] for place in missing]
        rows = self._all(_BLOBS, (names, versions, thread, ns))
        for blob in rows:
            value = () if blob["type"] == "empty" else (self._payloads.value(*_payload(blob)),)
            found[ns, blob["channel"], blob["version"]] = value
        return found, sum([len(blob["blob"] or b"") for blob in rows])

    def _writes_of(self, thread: str, page: list[_Row]) -> dict[CheckpointKey, list[_Row]]:
        """Read the pending writes of a page of checkpoints, in LangGraph's order."""
        places = {row["checkpoint_ns"] for row in page}, {row["checkpoint_id"] for row in page}
        rows = self._all(self._writes, (thread, *map(list, places)))
        rows.sort(key=lambda row: writes_sort_key(row["task_path"], row["task_id"], row["idx"]))
        found: dict[CheckpointKey, list[_Row]] = {}
        for row in rows:
            found.setdefault((row["checkpoint_ns"], row["checkpoint_id"]), []).append(row)
        return found

    def _write(self, row: _Row) -> SourceWrite:
        value = self._payloads.value(*_payload(row))
        return SourceWrite(row["task_id"], row["task_path"], row["idx"], row["channel"], value)

    def _move_sends(self, thread: str, parent: str, checkpoint: dict[str, Any]) -> None:
        """Add the sent tasks to a checkpoint of an old format, as LangGraph's saver does."""
        sends = self._all(self._sends, (thread, parent, TASKS))
        if not sends:
            return
        versions = checkpoint["channel_versions"]
        newest = max(versions.values()) if versions else _FIRST_VERSION
        checkpoint["channel_versions"] = {**versions, TASKS: newest}
        checkpoint["channel_values"][TASKS] = [self._payloads.value(*_payload(s)) for s in sends]

    def saver(self) -> BaseCheckpointSaver[Any]:
        if not self._has_paths:
            raise OpenError(
                "LangGraph's saver cannot read these tables of an older release, to verify.",
                hint="Call setup() of LangGraph's PostgresSaver on them, or adopt without verify.",
            )
        with needs("langgraph-checkpoint-postgres", "verify"):
            from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415 - only to verify
        return PostgresSaver(self._db, serde=self._payloads.serde)

    def close(self) -> None:
        self._db.close()


def _payload(row: _Row) -> tuple[str, bytes | None]:
    return row["type"], row["blob"]
