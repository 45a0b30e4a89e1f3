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
from threadkeep._stores.postgres.item_queries import (
    DIALECT,
    arrays,
    big_endian,
    key_of,
    query,
    quoted,
)
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
        statements = _CHANGES[type(change)](change)
        try:
            with self._mapped_errors():
                await self._database.answered(statements, NEWEST_STATE, losses)
        except errors.ThreadkeepError as error:
            if getattr(error.__cause__, "sqlstate", None) not in _REFUSED:
                raise
            if not (losses and await self.is_put(change)):
                raise errors.ConflictError("The item has another version.") from error

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """Puts that cannot be refused are one transaction."""
        together = merged(changes) if len(changes) > 1 else None
        if together is None:
            return await super().commit_many(changes)
        await self.commit(together)
        return [None] * len(changes)

    async def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        return await self._removed(_SWEEP, *DIALECT.bounds(prefix), Number(now), Number(limit))

    async def erase(self, prefix: Namespace) -> int:
        return await self._removed(_ERASE, *DIALECT.bounds(prefix), *DIALECT.bounds(prefix))

    async def _removed(self, text: str, *values: Any) -> int:
        (((removed,),),) = await self._database.answered([Statement(text, values)], NEWEST_STATE)
        return int(removed)

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

# Rows of existing items are locked in the order of their keys, so that two calls cannot deadlock. A
# refused put fails by dividing by zero, or by inserting a key that is there.
_REFUSED = ("22012", "23505")
_CHECKED = """locked AS MATERIALIZED (
    SELECT i.path, i.key, i.version
    FROM unnest(%s::text[], %s::text[]) p (path, key) JOIN {schema}.store_items i USING (path, key)
    ORDER BY i.path, i.key FOR UPDATE OF i
), checked AS MATERIALIZED (
    SELECT 1 / (count(*) = 0)::integer AS passed
    FROM unnest(%s::text[], %s::text[], %s::bigint[]) p (path, key, expected)
    LEFT JOIN locked USING (path, key) WHERE coalesce(version, 0) <> expected)
"""
_PASSED = "(SELECT passed FROM checked) = 1"
_KINDS = (
    *("text", "text", "text", "bytea", "bigint", "bigint", "bigint", "bigint", "text", "text"),
)
_ONE = f"(SELECT {', '.join([f'%s::{kind}' for kind in _KINDS])})"  # (in half of the time)
_MANY = f"unnest({', '.join([f'%s::{kind}[]' for kind in _KINDS])})"
# (see `random_bits`)
_VERSION = f"""
    nextval($name${{schema}}.store_counter$name$) * {records.VERSION_STEP}
        + floor(random() * {records.VERSION_STEP})::bigint
"""
_INSERT = f"""
INSERT INTO {{schema}}.store_items AS i (
    path, key, version, created_at, updated_at, ttl, expires_at, pending, value, body, words)
SELECT path, key, version, created, updated, ttl, expires, pending, json::jsonb,
    coalesce(body, convert_to(json, 'UTF8')), words::tsvector
FROM (
    SELECT *, {_VERSION} AS version FROM {{rows}}
        p (path, key, json, body, created, updated, ttl, expires, pending, words)) p
WHERE {{test}} ORDER BY path, key
"""
# Versions of an item grow: if another put with a newer one came first, this takes another number.
_OR_REPLACE = f"""
ON CONFLICT (path, key) DO UPDATE SET
    version = CASE WHEN i.version < excluded.version THEN excluded.version
        ELSE {_VERSION} END,
    created_at = CASE excluded.created_at WHEN %s THEN i.created_at ELSE excluded.created_at END,
    updated_at = excluded.updated_at, ttl = excluded.ttl, expires_at = excluded.expires_at,
    pending = excluded.pending, value = excluded.value, body = excluded.body, words = excluded.words
"""
_DELETE = """
DELETE FROM {schema}.store_items i USING unnest(%s::text[], %s::text[]) p (path, key)
WHERE (i.path, i.key) = (p.path, p.key) AND {test}
"""
_ADD_VECTORS = """
INSERT INTO {schema}.store_item_vectors (path, key, field, vector)
SELECT path, key, field, floats[(place - 1) * dims + 1 : place * dims]
FROM unnest(%s::text[], %s::text[], %s::text[]) WITH ORDINALITY v (path, key, field, place)
    CROSS JOIN (SELECT %s::real[], %s::bigint) f (floats, dims) JOIN done USING (path, key)
"""
# (a retry after a lost answer may keep a version again)
_KEPT = """kept (path, key, version, updated, replaced, deleted, patch, most) AS (
    SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[],
        %s::boolean[], %s::bytea[], %s::bigint[])
), dropped AS (
    DELETE FROM {schema}.store_item_versions v USING kept k
    WHERE v.path = k.path AND v.key = k.key AND v.version <= (
        SELECT o.version FROM {schema}.store_item_versions o
        WHERE o.path = k.path AND o.key = k.key AND o.version < k.version
        ORDER BY o.version DESC OFFSET k.most - 1 LIMIT 1)
), added AS (
    INSERT INTO {schema}.store_item_versions
    SELECT path, key, version, updated, replaced, deleted, patch FROM kept ON CONFLICT DO NOTHING)
"""
_EARLIER_KINDS = ("bigint", "bigint", "bigint", "boolean", "bytea", "bigint")


def _put(change: records.PutItems) -> list[Statement]:
    puts, now = change.puts, change.now
    if sum([len(put.value) for put in puts if put.value is not None]) > _MOST_BYTES:
        raise errors.InvalidArgumentError(
            "The values of one put take more than 1 GB, which is what PostgreSQL takes.",
            hint="Put them one by one, and keep larger values outside the store.",
        )
    gone = [put for put in puts if put.value is None]
    new = [put for put in puts if put.value is not None and put.expects == 0]
    others = [put for put in puts if put.value is not None and put.expects != 0]
    statements: list[Statement] = []
    ctes, test = [], "true"
    given: tuple[Any, ...] = ()
    if len(puts) > max(1, len(others)) or any(put.expects is not None for put in puts):
        expected = array("bigint", [put.expects for put in puts])
        ctes, test, given = [_CHECKED], _PASSED, (*arrays(puts), *arrays(puts), expected)
    earlier = [(put, *put.earlier.row, put.earlier.keep) for put in puts if put.earlier is not None]
    if earlier:
        kept, *columns = zip(*earlier, strict=True)
        ctes.append(_KEPT)
        given += (*arrays(kept), *map(array, _EARLIER_KINDS, columns))
    for text, some in ((_INSERT, new), (_INSERT + _OR_REPLACE, others), (_DELETE, gone)):
        if not some:
            continue
        rows, values = (_MANY, arrays(some)) if some is gone else _rows(some, now)
        given += (*values, *((Number(now),) if some is others else ()))
        sql = text.replace("{rows}", rows).replace("{test}", test)
        if any(put.vectors for put in some):
            ctes.append(f"done AS ({sql} RETURNING i.path, i.key)")
            sql, given = _ADD_VECTORS, given + _vector_values(some)
        statements.append(Statement(f"WITH {', '.join(ctes)} {sql}" if ctes else sql, given))
        ctes, test, given = [], "true", ()
    return statements


def _rows(puts: Sequence[records.ItemPut], now: int) -> tuple[str, tuple[Any, ...]]:
    """Return new rows as SQL, and its values."""
    rows = []
    for put in puts:
        is_json = isinstance(put.value, str)
        created, updated, expires = put.times_at(now, now)
        rows.append(
            (
                *key_of(put.namespace, put.key),
                *((put.value, None) if is_json else (None, put.value)),
                *(created, updated, put.ttl, expires, pack_optional(put.pending)),
                _words(put.words),
            )
        )
    if len(rows) == 1:
        return _ONE, tuple([Number(one) if isinstance(one, int) else one for one in rows[0]])
    return _MANY, tuple(map(array, _KINDS, zip(*rows, strict=True)))


def _vector_values(items: Sequence[records.ItemPut | records.EmbedItem]) -> tuple[Any, ...]:
    """Return the parameters for the vectors of items."""
    some = [(one, vector) for one in items for vector in one.vectors]
    names = array("text", [pack_text(vector.path) for _, vector in some])
    data = b"".join([vector.data for _, vector in some])
    dims = len(data) // 4 // max(1, len(some))
    return *arrays([one for one, _ in some]), names, _floats(data), Number(dims)


_REFRESH = """
WITH chosen AS MATERIALIZED (
    SELECT i.path, i.key FROM unnest(%s::text[], %s::text[]) p (path, key)
    JOIN {schema}.store_items i USING (path, key)
    WHERE i.ttl IS NOT NULL ORDER BY i.path, i.key FOR NO KEY UPDATE OF i)
UPDATE {schema}.store_items i SET expires_at = %s + i.ttl FROM chosen
WHERE i.path = chosen.path AND i.key = chosen.key
"""
_EMBED = f"""
WITH chosen AS MATERIALIZED (
    SELECT i.path, i.key FROM unnest(%s::text[], %s::text[], %s::bigint[]) p (path, key, version)
    JOIN {{schema}}.store_items i USING (path, key, version)
    WHERE i.pending IS NOT NULL ORDER BY i.path, i.key FOR NO KEY UPDATE OF i
), done AS (
    UPDATE {{schema}}.store_items i SET pending = NULL FROM chosen
    WHERE i.path = chosen.path AND i.key = chosen.key RETURNING i.path, i.key)
{_ADD_VECTORS}
"""
_REPLACE = """
UPDATE {schema}.store_item_versions v SET patch = p.patch
FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bytea[]) p (path, key, version, patch)
WHERE (v.path, v.key, v.version) = (p.path, p.key, p.version)
"""


def _refresh(change: records.RefreshItems) -> list[Statement]:
    return [Statement(_REFRESH, (*arrays(change.keys), Number(change.now)))]


def _embed(change: records.EmbedItems) -> list[Statement]:
    versions = array("bigint", [one.version for one in change.items])
    values = (*arrays(change.items), versions, *_vector_values(change.items))
    return [Statement(_EMBED, values)]


def _replace(change: records.ReplacePatches) -> list[Statement]:
    versions = array("bigint", [one.row.version for one, _ in change.versions])
    patches = array("bytea", [patch for _, patch in change.versions])
    values = (*arrays([one for one, _ in change.versions]), versions, patches)
    return [Statement(_REPLACE, values)]


# (in the order of their keys, or without waiting for others)
_SWEEP = """
WITH gone AS (
    DELETE FROM {schema}.store_items i USING (
        SELECT path, key FROM {schema}.store_items
        WHERE path >= %s AND path < %s AND expires_at <= %s LIMIT %s FOR UPDATE SKIP LOCKED) chosen
    WHERE i.path = chosen.path AND i.key = chosen.key RETURNING i.path, i.key
), versions AS (
    DELETE FROM {schema}.store_item_versions v USING gone
    WHERE v.path = gone.path AND v.key = gone.key)
SELECT count(*) FROM gone
"""
_ERASE = """
WITH chosen AS MATERIALIZED (
    SELECT path, key FROM {schema}.store_items WHERE path >= %s AND path < %s
    ORDER BY path, key FOR UPDATE
), gone AS (
    DELETE FROM {schema}.store_items i USING chosen
    WHERE i.path = chosen.path AND i.key = chosen.key RETURNING 1
), versions AS (DELETE FROM {schema}.store_item_versions WHERE path >= %s AND path < %s)
SELECT count(*) FROM gone
"""

_CHANGES: dict[type, Callable[[Any], list[Statement]]] = {
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
        path text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        field text COLLATE "C" NOT NULL,
        vector {extension}.vector({dims}) NOT NULL,
        PRIMARY KEY (path, key, field)
    );
    CREATE OR REPLACE FUNCTION {schema}.store_drop_vectors() RETURNS trigger
    LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM {schema}.store_item_vectors WHERE path = OLD.path AND key = OLD.key;
        IF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END
    $$;
    DROP TRIGGER IF EXISTS store_items_replaced ON {schema}.store_items;
    CREATE TRIGGER store_items_replaced BEFORE DELETE OR UPDATE OF version ON {schema}.store_items
        FOR EACH ROW EXECUTE FUNCTION {schema}.store_drop_vectors();
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
