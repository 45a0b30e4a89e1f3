"""Items in a PostgreSQL database, over the connections of a saver's backend."""

from __future__ import annotations

import re
import sys
from array import array as numbers_of
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

from threadkeep import errors
from threadkeep._stores.items import AsyncItemBackend, merged, other_dims, records
from threadkeep._stores.items.records import Namespace
from threadkeep._stores.postgres import migrations
from threadkeep._stores.postgres.connections import PostgresDatabase
from threadkeep._stores.postgres.item_queries import big_endian, bounds_of, path_of, query, quoted
from threadkeep._stores.postgres.messages import NEWEST_STATE
from threadkeep._stores.postgres.statement import (
    Array,
    Number,
    Rows,
    Statement,
    array,
    pack_optional,
)
from threadkeep._stores.records import pack_text
from threadkeep.errors import ThreadkeepError

_MOST_WORDS = 500_000  # bytes of the words of an item; a tsvector takes 1 MB
_MOST_BYTES = 1_000_000_000  # of one message to the server, with room for the rest of it
_OTHER_DIMS = r"expected (\d+) dimensions|vector dimensions (\d+) and"  # pgvector's messages
_INDEX_NAMES = ("store_distance", "store_order", "store_item_vectors")
_MOST_DIMS, _MOST_INDEXED, _MOST_HALVES = 16_000, 2000, 4000  # limits of `vector` and of indexes
_OPERATORS_OF = {"cosine": ("<=>", "cosine"), "l2": ("<->", "l2"), "inner_product": ("<#>", "ip")}


class AsyncPostgresItems(AsyncItemBackend):
    """Rows in tables of a saver's schema, over connections that are awaited."""

    commits_groups = True
    newest_first = True

    def __init__(self, database: PostgresDatabase, options: records.SearchOptions) -> None:
        self._database = database
        self._options = options

    # -- reads ---------------------------------------------------------------------------

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        with self._mapped_errors():
            return await self._database.replies(
                [query(read, self._options.metric) for read in reads]
            )

    # -- changes -------------------------------------------------------------------------

    async def commit(self, change: Any) -> None:
        losses: list[Exception] = []
        with self._mapped_errors():
            statement = _CHANGES[type(change)](change)
            (rows,) = await self._database.answered([statement], NEWEST_STATE, losses)
        is_refused = isinstance(change, records.PutItems) and not rows[0][0]
        if is_refused and not (losses and await self.is_put(change)):
            raise errors.ConflictError("The item has another version.")

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """See `ItemBackend`: puts that cannot be refused are one transaction."""
        together = merged(changes) if len(changes) > 1 else None
        if together is None:
            return await super().commit_many(changes)
        await self.commit(together)
        return [None] * len(changes)

    async def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        bounds = bounds_of(prefix) if prefix else ("", "")
        return await self._drop(*bounds, Number(now), Number(limit))

    async def erase(self, prefix: Namespace) -> int:
        return await self._drop(*bounds_of(prefix), None, None)

    async def _drop(self, *values: Any) -> int:
        text = "SELECT * FROM {schema}.drop_items(%s, %s, %s::bigint, %s::bigint)"
        remove = "SELECT {schema}.drop_namespaces(%s::bigint[])"
        dropped: int
        ((row,),) = await self._database.answered([Statement(text, values)], NEWEST_STATE)
        dropped, emptied = row
        if emptied:
            statement = Statement(remove, (array("bigint", emptied),))
            await self._database.answered([statement], NEWEST_STATE)
        return dropped

    # -- tables --------------------------------------------------------------------------

    async def migrate(self) -> None:
        """Migrate the saver's tables and these, and create the indexes for searches.

        Raises:
            OpenError: the database has no pgvector.
            InvalidArgumentError: its vectors have other dimensions.
        """
        await self._database.migrate()
        if self._options.dims or self._options.text:
            plan = partial(_index_plan, self._database.schema, self._options)
            await self._database.carry_out(plan)

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            with self._database.mapped_errors():
                yield
        except errors.InvalidArgumentError as error:
            if found := re.search(_OTHER_DIMS, str(error)):
                raise other_dims(self._options.dims, int(found[1] or found[2])) from error
            raise
        except errors.NotSetUpError as error:
            if not any(name in str(error) for name in _INDEX_NAMES):
                raise
            raise errors.NotSetUpError(
                "The database is not set up for this index=.",
                hint="Call setup() on the store that is opened with it.",
            ) from error


# -- parameters of statements -----------------------------------------------------


def _floats(data: bytes) -> Array:
    """Encode concatenated vectors as a `real[]`: before each element, its length."""
    numbers = big_endian(data)
    length = int.from_bytes(b"\0\0\0\4", sys.byteorder)
    elements = numbers_of("I", [length]) * (2 * len(numbers))
    elements[1::2] = numbers
    head = [1, 0, 700, len(numbers), 1]  # dimensions, flags, type, length, first index
    return Array(b"".join([one.to_bytes(4, "big") for one in head]) + elements.tobytes())


def _words(words: str | None) -> str | None:
    """Return words as a tsvector with positions, so that it counts each word.

    Words after the first 500 kB are left out.
    """
    if not words:
        return None
    head = words.encode()[:_MOST_WORDS].decode(errors="ignore")
    return " ".join([f"{quoted(word)}:{at}" for at, word in enumerate(head.split(), 1)])


# -- changes -----------------------------------------------------------------------------

# Optional parameters of `put_items`.
_EXPECTED = ", expected => %s::bigint[]"
_TIMES = ", created => %s::bigint[], updated => %s::bigint[], expires => %s::bigint[]"
_EARLIER = (
    ", earlier_items => %s::bigint[], earlier_versions => %s::bigint[],"
    " earlier_updates => %s::bigint[], earlier_times => %s::bigint[],"
    " earlier_deleted => %s::boolean[], earlier_patches => %s::bytea[],"
    " earlier_most => %s::bigint[]"
)
_EARLIER_KINDS = ("bigint", "bigint", "bigint", "bigint", "boolean", "bytea", "bigint")
_VECTORS = "vector_items => %s::bigint[], vector_paths => %s::text[], vector_floats => %s::real[]"
_PUT = (
    "SELECT {schema}.put_items(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::bytea[],"
    " %s::bigint[], %s::text[], %s::text[], %s, %s"
)

_PUT_ONE = (
    "SELECT {schema}.put_item(%s::text, %s::text, %s::text, %s::bytea, %s::bigint, %s::text,"
    " %s::text, %s)"
)


def _put(change: records.PutItems) -> Statement:
    puts = change.puts
    if sum([len(put.value) for put in puts if put.value is not None]) > _MOST_BYTES:
        raise errors.InvalidArgumentError(
            "The values of one put take more than 1 GB, which is what PostgreSQL takes.",
            hint="Put them one by one, and keep larger values outside the store.",
        )
    is_plain = all(put.value is not None and put.expects is None for put in puts)
    if is_plain and len(puts) == 1 and not (puts[0].vectors or puts[0].earlier or puts[0].times):
        return _put_one(puts[0], change.now)
    json = [put.value if isinstance(put.value, str) else None for put in puts]
    bodies = [None if isinstance(put.value, str) else put.value for put in puts]
    paths: dict[str, int] = {}
    spaces = [paths.setdefault(path_of(put.namespace), len(paths) + 1) for put in puts]
    text = _PUT
    values: list[Any] = [
        array("text", list(paths)),
        array("bigint", spaces),
        array("text", [pack_text(put.key) for put in puts]),
        array("text", json),
        array("bytea", bodies),
        array("bigint", [put.ttl for put in puts]),
        array("text", [pack_optional(put.pending) for put in puts]),
        array("text", [_words(put.words) for put in puts]),
        Number(change.now),
        is_plain,
    ]
    if not is_plain and any(put.expects is not None for put in puts):
        text += _EXPECTED
        values.append(array("bigint", [put.expects for put in puts]))
    if any(put.times is not None for put in puts):
        text += _TIMES
        times = [put.times or (None, None, None) for put in puts]
        values += [array("bigint", column) for column in zip(*times, strict=True)]
    earlier = [
        (at, *put.earlier.row, put.earlier.keep)
        for at, put in enumerate(puts, 1)
        if put.earlier is not None
    ]
    if earlier:
        text += _EARLIER
        values += map(array, _EARLIER_KINDS, zip(*earlier, strict=True))
    vectors = _vector_values(puts)
    if vectors:
        text += ", " + _VECTORS
    return Statement(text + ")", (*values, *vectors))


def _put_one(put: records.ItemPut, now: int) -> Statement:
    is_json = isinstance(put.value, str)
    values = (
        path_of(put.namespace),
        pack_text(put.key),
        put.value if is_json else None,
        None if is_json else put.value,
        None if put.ttl is None else Number(put.ttl),
        pack_optional(put.pending),
        _words(put.words),
        Number(now),
    )
    return Statement(_PUT_ONE, values)


def _vector_values(items: Sequence[records.ItemPut | records.EmbedItem]) -> tuple[Array, ...]:
    """Return the parameters for the vectors of items; () without any."""
    some = [(at, *vector) for at, one in enumerate(items, 1) for vector in one.vectors]
    if not some:
        return ()
    places, paths, data = zip(*some, strict=True)
    names = array("text", list(map(pack_text, paths)))
    return array("bigint", places), names, _floats(b"".join(data))


# (locked in the order of their keys, as all changes do)
_REFRESH = """
WITH chosen AS MATERIALIZED (
    SELECT i.namespace, i.key FROM unnest(%s::text[], %s::text[]) p (path, key)
    JOIN {schema}.store_namespaces n ON n.path = p.path COLLATE "C"
    JOIN {schema}.store_items i ON i.namespace = n.number AND i.key = p.key
    WHERE i.ttl IS NOT NULL ORDER BY i.namespace, i.key FOR NO KEY UPDATE OF i)
UPDATE {schema}.store_items i SET expires_at = %s + i.ttl FROM chosen
WHERE i.namespace = chosen.namespace AND i.key = chosen.key
"""


def _refresh(change: records.RefreshItems) -> Statement:
    paths = array("text", [path_of(namespace) for namespace, _ in change.keys])
    keys = array("text", [pack_text(key) for _, key in change.keys])
    return Statement(_REFRESH, (paths, keys, Number(change.now)))


def _embed(change: records.EmbedItems) -> Statement:
    items = change.items
    text = "SELECT {schema}.embed_items(%s::text[], %s::text[], %s::bigint[], "
    values = (
        array("text", [path_of(one.namespace) for one in items]),
        array("text", [pack_text(one.key) for one in items]),
        array("bigint", [one.version for one in items]),
    )
    vectors = _vector_values(items)
    if not vectors:
        vectors = (array("bigint", ()), array("text", ()), _floats(b""))
    return Statement(f"{text}{_VECTORS})", (*values, *vectors))


_REPLACE = """
UPDATE {schema}.store_item_versions v SET patch = p.patch
FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bytea[]) p (namespace, key, version, patch)
WHERE (v.namespace, v.key, v.version) = (p.namespace, p.key, p.version)
"""


def _replace(change: records.ReplacePatches) -> Statement:
    numbers, keys, versions = zip(*[one.place for one, _ in change.versions], strict=True)
    patches = array("bytea", [patch for _, patch in change.versions])
    places = (array("bigint", numbers), array("text", keys), array("bigint", versions))
    return Statement(_REPLACE, (*places, patches))


_CHANGES: dict[type, Callable[[Any], Statement]] = {
    records.PutItems: _put,
    records.RefreshItems: _refresh,
    records.EmbedItems: _embed,
    records.ReplacePatches: _replace,
}

# -- indexes for searches ------------------------------------------------------------------


_LOOK = """
SELECT (SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n
        ON n.oid = e.extnamespace WHERE e.extname = 'vector'),
    (SELECT format('(%%s)', a.atttypmod) FROM pg_attribute a
     WHERE a.attrelid = to_regclass({literal} || '.store_item_vectors') AND a.attname = 'vector'),
    ARRAY(SELECT c.relname::text FROM pg_class c
          WHERE c.relnamespace = to_regnamespace({literal})
              AND starts_with(c.relname, 'store_item'))
"""
# (Another schema's migration may create it at the same time.)
_EXTENSION = """
    BEGIN
        CREATE EXTENSION IF NOT EXISTS vector;
    EXCEPTION WHEN unique_violation THEN NULL;
    END;
"""
_VECTOR_TABLE = """
    CREATE TABLE IF NOT EXISTS {schema}.store_item_vectors (
        namespace bigint NOT NULL,
        item bigint NOT NULL,
        path text COLLATE "C" NOT NULL,
        vector {extension}.vector({dims}) NOT NULL,
        PRIMARY KEY (namespace, item, path)
    );
"""
# The searching role may have another search_path, so operators are qualified. The planner inlines
# these functions.
_VECTOR_FUNCTIONS = """
    CREATE OR REPLACE FUNCTION {schema}.store_distance_{metric}(
        a {extension}.vector, b {extension}.vector)
    RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT a OPERATOR({extension}.{operator}) b
    $$;
    CREATE OR REPLACE FUNCTION {schema}.store_order_{metric}(
        a {extension}.vector, b {extension}.vector)
    RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT a{halved} OPERATOR({extension}.{operator}) b{halved}
    $$;
"""
_VECTOR_INDEX = """
    CREATE INDEX IF NOT EXISTS {name} ON {schema}.store_item_vectors
        USING hnsw ((vector{halved}) {extension}.{kind}_{class}_ops);
"""
_WORD_INDEX = """
    CREATE INDEX IF NOT EXISTS store_items_words ON {schema}.store_items USING gin (words);
"""
_NO_EXTENSION = ("0A000", "42501", "58P01")  # it is not installed, or this user may not create it


def _index_plan(schema: str, options: records.SearchOptions) -> migrations.Plan:
    """Create the missing tables and indexes for searches."""
    ((extension, dims, names),) = yield migrations.said(_LOOK, schema)
    body = ""
    if options.text and "store_items_words" not in names:
        body += _WORD_INDEX
    if options.dims:
        if extension is None:
            yield from _extension(schema)
            ((extension, *_),) = yield migrations.said(_LOOK, schema)
        if dims not in (None, f"({options.dims})"):
            raise other_dims(options.dims, int(dims[1:-1]))
        body += _vector_tables(options, extension, names)
    if body:
        yield from migrations.locked(schema, body)


def _extension(schema: str) -> Generator[Statement, Rows, None]:
    try:
        yield from migrations.locked(schema, _EXTENSION)
    except psycopg.Error as error:
        if error.sqlstate not in _NO_EXTENSION:
            raise
        raise errors.OpenError(
            "Semantic search in PostgreSQL needs the extension pgvector, which this database"
            f" lacks: {error.diag.message_primary}.",
            hint="Install it on the server (Debian: apt install postgresql-NN-pgvector, with the"
            " version of PostgreSQL), then let an administrator run, once in this database:"
            " CREATE EXTENSION vector. Without index= the store works as it is.",
        ) from error


def _vector_tables(options: records.SearchOptions, extension: str, names: Sequence[str]) -> str:
    """Return the SQL that creates the vectors' table and index; "" if both exist."""
    dims, (operator, class_) = options.dims, _OPERATORS_OF[options.metric]
    if dims > _MOST_DIMS:
        raise errors.OpenError(
            f"Vectors have {dims} dimensions; pgvector takes {_MOST_DIMS}.",
            hint="Use an embedding model with fewer dimensions.",
        )
    is_indexed, is_halved = dims <= _MOST_HALVES, _MOST_INDEXED < dims <= _MOST_HALVES
    name = f"store_item_vectors_{options.metric}"
    if (name if is_indexed else "store_item_vectors") in names:
        return ""
    text = _VECTOR_TABLE + _VECTOR_FUNCTIONS + (_VECTOR_INDEX if is_indexed else "")
    for field, part in (
        *(("name", name), ("dims", str(dims)), ("metric", options.metric)),
        *(("operator", operator), ("class", class_)),
        ("kind", "halfvec" if is_halved else "vector"),
        ("halved", f"::{{extension}}.halfvec({dims})" if is_halved else ""),
        ("extension", extension),
    ):
        text = text.replace(f"{{{field}}}", part)
    return text
