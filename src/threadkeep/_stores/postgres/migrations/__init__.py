"""Migrations of the tables, and partitions of checkpoints by month (`partition_by="month"`).

A migration is a file of SQL, run once, in order and in one transaction, under an advisory lock. A
released file never changes.

An id of UUID version 6 (RFC 9562, section 5.6) begins with its time, most significant digit first:
as text it sorts by time. So partitions are ranges of ids.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

import psycopg

from threadkeep._core.engine.rows import UUID6_OFFSET
from threadkeep._stores.postgres.statement import Rows, Statement
from threadkeep.errors import InvalidArgumentError, NewerDatabaseError, NotOursError

Plan: TypeAlias = Generator[Statement, Rows, None]
"""Statements to run one by one; the rows of each are sent in."""

_NAME = re.compile(r"(\d{4})_\w+\.sql")
KEY = "hashtextextended('threadkeep ' || {literal}, 0)"
"""The key of the advisory lock on changes of tables."""

_PAUSE = "SELECT pg_sleep(0.05)"
# The tables of a schema that have our names, and their columns.
_TABLES = """
SELECT c.relname::text, ARRAY(
    SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class c
WHERE c.relnamespace = to_regnamespace({literal}) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND c.relname IN (
        'checkpoints', 'migrations', 'segments', 'thread_labels', 'threads', 'writes',
        'store_items', 'store_item_versions', 'store_item_vectors')
"""
_BUSY = "TK007"  # our own error code
# One statement, so that lock, check and change are one transaction, also in a program's pipeline
# and behind a pooler that gives each transaction another session.
_LOCKED = f"""
DO $threadkeep$
{{declarations}}
BEGIN
    IF NOT pg_try_advisory_xact_lock({KEY}) THEN
        RAISE EXCEPTION 'another process migrates' USING ERRCODE = '{_BUSY}';
    END IF;
    -- Opening a table refreshes the cache of names. Otherwise to_regclass() and to_regnamespace()
    -- may miss tables that the last holder of the lock has created.
    PERFORM FROM pg_namespace LIMIT 1;
    {{body}}
END
$threadkeep$
"""
# (CREATE SCHEMA IF NOT EXISTS needs a privilege even if the schema exists)
_APPLY = """
    IF to_regnamespace({literal}) IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
    IF to_regclass({literal} || '.migrations') IS NULL THEN
        CREATE TABLE {schema}.migrations (
            version integer PRIMARY KEY,
            applied_at timestamptz NOT NULL DEFAULT now()
        );
    END IF;
    IF NOT EXISTS (SELECT FROM {schema}.migrations WHERE version = {version}) THEN
        EXECUTE $migration${sql}$migration$;
        INSERT INTO {schema}.migrations (version) VALUES ({version});
    END IF;
"""


class Migration(NamedTuple):
    """One version of the tables."""

    version: int
    sql: str


def _read() -> list[Migration]:
    files = {file.name: file for file in resources.files(__name__).iterdir()}
    names = [found for name in sorted(files) if (found := _NAME.fullmatch(name))]
    return [Migration(int(name[1]), files[name[0]].read_text("utf-8")) for name in names]


_MIGRATIONS = _read()  # (at import: event loops must not open files)


def migrations() -> list[Migration]:
    """Return all migrations in order."""
    return list(_MIGRATIONS)


def plan(schema: str) -> Plan:
    """Migrate the tables to the newest version."""
    done = yield from _done(schema)
    known = migrations()
    newest = max(done, default=0)
    if newest > known[-1].version:
        raise NewerDatabaseError(
            f"The tables in {schema} are of version {newest}; this release knows"
            f" version {known[-1].version}.",
            hint="Upgrade threadkeep.",
        )
    for migration in known:
        if migration.version not in done:
            body = _APPLY.replace("{version}", str(migration.version))
            yield from locked(schema, body.replace("{sql}", migration.sql))


def _done(schema: str) -> Generator[Statement, Rows, set[int]]:
    """Return the applied versions; takes no lock and needs only SELECT."""
    tables: dict[str, list[str]] = dict((yield tables_in(schema)))
    if tables and not are_ours(tables):
        raise _not_ours(schema, tables)
    if not tables:
        return set()
    return {version for (version,) in (yield Statement("SELECT version FROM {schema}.migrations"))}


def tables_in(schema: str) -> Statement:
    """Return the query for a schema's tables with our names, each with its columns."""
    return said(_TABLES, schema)


def are_ours(tables: Mapping[str, Collection[str]]) -> bool:
    """Return True for tables of threadkeep, which one transaction creates together."""
    return "manifest" in tables.get("checkpoints", ()) and "version" in tables.get("migrations", ())


def _not_ours(schema: str, tables: Mapping[str, Collection[str]]) -> NotOursError:
    if {"checkpoint", "checkpoint_ns"} <= set(tables.get("checkpoints", ())):
        name = quote(schema.strip('"'))
        return NotOursError(
            f"The tables in schema {schema} are those of LangGraph's own PostgresSaver.",
            hint="They were not changed. Use another schema for threadkeep, and copy the"
            f" threads: threadkeep adopt 'URL?schema={name}' 'URL?schema=threadkeep'",
        )
    names = ", ".join(sorted(tables))
    return NotOursError(
        f"Schema {schema} has tables of another program with our names: {names}.",
        hint="They were not changed. Use another schema for threadkeep: ?schema=NAME.",
    )


def locked(schema: str, body: str, declarations: str = "") -> Plan:
    """Run a block of PL/pgSQL in one transaction under the advisory lock.

    In `body`, `{literal}` is the schema's name as a literal; `declarations` is the DECLARE part.
    """
    text = _LOCKED.replace("{declarations}", declarations).replace("{body}", body)
    while True:
        try:
            yield said(text, schema)
        except psycopg.Error as error:
            if error.sqlstate != _BUSY:
                raise
        else:
            return
        yield Statement(_PAUSE)


def said(text: str, schema: str) -> Statement:
    """Return the statement with the schema's name as a literal (DO takes no parameters)."""
    return Statement(text.replace("{literal}", "'" + schema.replace("'", "''") + "'"))


# -- partitions ------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = 15  # of an id's time, the version's digit not counted
_TICKS = 10  # in a microsecond


class Month(NamedTuple):
    """A calendar month; `number` is 1 to 12."""

    year: int
    number: int

    @classmethod
    def of(cls, moment: datetime) -> Month:
        """Return the month in UTC of an aware datetime."""
        utc = moment.astimezone(UTC)
        return cls(utc.year, utc.month)

    @property
    def next(self) -> Month:
        """The following month."""
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def name(self) -> str:
        """The month in table names: 2026_11."""
        return f"{self.year:04}_{self.number:02}"

    @property
    def start(self) -> str:
        """The smallest prefix of ids of UUID version 6 made from then on."""
        first = datetime(self.year, self.number, 1, tzinfo=UTC)
        micros = (first - _EPOCH) // timedelta(microseconds=1)
        digits = f"{(micros + UUID6_OFFSET) * _TICKS:0{_DIGITS}x}"
        return f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}"


def ahead(now: datetime, count: int) -> Iterator[Month]:
    """Yield the month of a moment and the `count` months after it."""
    month = Month.of(now)
    for _ in range(count + 1):
        yield month
        month = month.next


def months_of(prefixes: Iterable[str]) -> set[Month]:
    """Return the months of each prefix's first and last id (a prefix has up to 8 hex digits)."""
    return {
        Month.of(_moment(int(prefix.ljust(_DIGITS, digit), 16)))
        for prefix in prefixes
        for digit in "0f"
    }


def _moment(ticks: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ticks // _TICKS - UUID6_OFFSET)


_AHEAD = 3  # months
_PAST = timedelta(days=3653)  # older rows go into the default partition
_BY_RANGE = "r checkpoint_id"
_LOCK_TIMEOUT = "500ms"  # to drop a partition: other queries queue behind the lock request
_PARTITION = re.compile(r"checkpoints_([1-9][0-9]{3})_(0[1-9]|1[0-2]) ")


def plan_partitions(schema: str, now: datetime) -> Plan:
    """Partition `checkpoints` by month, and create the partitions of the next months.

    Empty partitions of past months are dropped, unless others hold locks. A role that does not
    own a partitioned table leaves it unchanged.
    """
    ((key, is_owner, names, described),) = yield said(_TEXTS["look"], schema)
    if key not in ("", _BY_RANGE):
        raise InvalidArgumentError(
            f"The table checkpoints in {schema} is partitioned, but not by checkpoint_id.",
            hint="Leave partition_by out: the table works without it.",
        )
    if key and not is_owner:
        return
    months = set(ahead(now, _AHEAD))
    if not key:
        found = months_of(prefix for (prefix,) in (yield said(_TEXTS["prefixes"], schema)))
        months |= {month for month in found if Month.of(now - _PAST) <= month <= max(months)}
    missing = [month for month in sorted(months) if _table(month) not in names]
    if missing or "checkpoints_default" not in names:
        yield from locked(schema, _body(missing), _TEXTS["declarations"])
    past = sorted(_past(described, now))
    if past:
        yield said(_dropping(past), schema)


def _table(month: Month) -> str:
    return f"checkpoints_{month.name}"


def _described(month: Month) -> str:
    """Return the name and bounds of a month's partition as the server writes them."""
    return f"{_table(month)} FOR VALUES FROM ('{month.start}') TO ('{month.next.start}')"


def _past(described: Iterable[str], now: datetime) -> Iterator[str]:
    """Yield partitions of past months whose definition is ours."""
    for text in described:
        found = _PARTITION.match(text)
        month = Month(int(found[1]), int(found[2])) if found else Month.of(now)
        if month < Month.of(now) and text == _described(month):
            yield text


def _dropping(described: Sequence[str]) -> str:
    months = ", ".join(["'" + text.replace("'", "''") + "'" for text in described])
    return _TEXTS["drop"].replace("{patience}", _LOCK_TIMEOUT).replace("{months}", months)


def _body(months: Iterable[Month]) -> str:
    texts = _TEXTS
    made = [
        texts["month"]
        .replace("{table}", _table(month))
        .replace("{start}", month.start)
        .replace("{stop}", month.next.start)
        for month in months
    ]
    rest = texts["rest"].replace("{table}", "checkpoints_default")
    return "\n".join([texts["is_newest"], texts["part"], *made, rest])


def _read_texts() -> dict[str, str]:
    file = Path(__file__).with_name("partitions.sql")
    _, *parts = re.split(r"(?m)^-- name: (\w+)\n", file.read_text("utf-8"))
    texts = {"key": KEY}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        texts[name] = re.sub(r"\{(\w+)\}", lambda found: texts.get(found[1], found[0]), text)
    return texts


_TEXTS = _read_texts()  # (at import: event loops must not open files)
