"""Partitions of the checkpoints by month: the option `partition_by="month"`.

No row is ever in the default partition and in a month's, and none is dropped with a month. Where
nothing is to be done, there is no lock but a reader's, and no DDL. This is no version of the
tables: all statements say `checkpoints`, partitioned or not.

An id of UUID version 6 (RFC 9562, section 5.6) begins with its time, most significant digit first:
as text it sorts by time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from threadkeep.backends.postgres.migrations import KEY, Plan, locked, said
from threadkeep.engine.rows import UUID6_OFFSET
from threadkeep.errors import InvalidArgumentError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = 15  # of an id's time, the version's digit not counted
_TICKS = 10  # in a microsecond


class Month(NamedTuple):
    """A month of the calendar; `number` is 1 to 12."""

    year: int
    number: int

    @classmethod
    def of(cls, moment: datetime) -> Month:
        """Return the month in UTC of a moment with a time zone."""
        utc = moment.astimezone(UTC)
        return cls(utc.year, utc.month)

    @property
    def next(self) -> Month:
        """The month after it."""
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def name(self) -> str:
        """The month in names of tables: 2026_11."""
        return f"{self.year:04}_{self.number:02}"

    @property
    def start(self) -> str:
        """The prefix that all ids of version 6 made from then on have, or sort behind."""
        first = datetime(self.year, self.number, 1, tzinfo=UTC)
        micros = (first - _EPOCH) // timedelta(microseconds=1)
        digits = f"{(micros + UUID6_OFFSET) * _TICKS:0{_DIGITS}x}"
        return f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}"


def ahead(now: datetime, count: int) -> Iterator[Month]:
    """Yield the month of a moment, and as many after it."""
    month = Month.of(now)
    yield month
    for _ in range(count):
        month = month.next
        yield month


def months_of(prefixes: Iterable[str]) -> set[Month]:
    """Return the months of the first and the last id of each prefix (up to 8 hex digits)."""
    return {
        Month.of(_moment(int(prefix.ljust(_DIGITS, digit), 16)))
        for prefix in prefixes
        for digit in "0f"
    }


def _moment(ticks: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ticks // _TICKS - UUID6_OFFSET)


_AHEAD = 3  # months
_PAST = timedelta(days=3653)  # how old rows may be to get a partition of their month
_KEY = "r checkpoint_id"  # by range
_DEFAULT = "checkpoints_default"
_PATIENCE = "500ms"  # for locks to drop a month; others wait as long, behind whoever waits
_NAME = re.compile(r"checkpoints_([1-9][0-9]{3})_(0[1-9]|1[0-2]) ")

# Partitions as `_described` says of ours, that this role may drop, and sees all rows of. (With a
# table's oid, pg_get_expr would lock it; what has no columns needs none.)
_PARTITIONS = """
SELECT p.relname, p.relname || ' ' || pg_get_expr(p.relpartbound, 0) AS described
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhparent
JOIN pg_class p ON p.oid = i.inhrelid
WHERE i.inhparent = to_regclass({literal} || '.checkpoints')
    AND p.relnamespace = c.relnamespace AND p.relkind = 'r' AND NOT p.relrowsecurity
    AND pg_has_role(p.relowner, 'USAGE')
"""
# (pg_get_partkeydef would lock the table)
_LOOK = f"""
SELECT coalesce((
        SELECT p.partstrat::text || ' ' || array_to_string(ARRAY(
            SELECT a.attname FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum = ANY (p.partattrs)), ' ')
        FROM pg_partitioned_table p WHERE p.partrelid = c.oid), ''),
    pg_has_role(c.relowner, 'USAGE'),
    ARRAY(
        SELECT p.relname::text FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid
        WHERE i.inhparent = c.oid),
    ARRAY(SELECT described FROM ({_PARTITIONS}) AS ours)
FROM pg_class c WHERE c.oid = to_regclass({{literal}} || '.checkpoints')
"""  # noqa: S608 - constants of this module
# The first digits of the times in ids of UUID version 6: some thousand for each year.
_PREFIXES = """
SELECT DISTINCT left(checkpoint_id, 6) FROM {schema}.checkpoints
WHERE left(checkpoint_id, 6) ~ '^[0-9a-f]+$' AND substr(checkpoint_id, 15, 1) = '6'
"""
_DECLARATIONS = """
DECLARE
    old oid;
    its_owner text;
    definitions text[];
    one record;
    definition text;
"""
_IS_NEWEST = """
    -- An older snapshot would not show rows that others added meanwhile.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'changes need the isolation level READ COMMITTED' USING ERRCODE = 'TK001';
    END IF;
"""
# The table becomes the default partition of one that has its name and all else that it had.
_PART = """
    old := to_regclass({literal} || '.checkpoints');
    SELECT quote_ident(pg_get_userbyid(relowner)) INTO its_owner FROM pg_class WHERE oid = old;
    IF (SELECT relkind FROM pg_class WHERE oid = old) = 'r' THEN
        LOCK TABLE {schema}.checkpoints IN ACCESS EXCLUSIVE MODE;
        IF (SELECT relrowsecurity FROM pg_class WHERE oid = old)
            OR EXISTS (SELECT FROM pg_policy WHERE polrelid = old)
            OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = old)
            OR EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = old)
            OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = old AND attacl IS NOT NULL)
            OR EXISTS (
                SELECT FROM pg_depend WHERE refobjid = old AND classid = 'pg_rewrite'::regclass)
        THEN
            RAISE EXCEPTION 'checkpoints has policies, triggers, publications, views or grants on'
                ' columns, which a partitioned table would not have' USING ERRCODE = 'TK002';
        END IF;
        SELECT array_agg(pg_get_indexdef(indexrelid)) INTO definitions
        FROM pg_index WHERE indrelid = old AND NOT indisprimary;
        ALTER TABLE {schema}.checkpoints RENAME TO checkpoints_default;
        FOR one IN
            SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            WHERE i.indrelid = old
        LOOP
            EXECUTE 'ALTER INDEX ' || {literal} || '.' || quote_ident(one.relname) || ' RENAME TO '
                || quote_ident(regexp_replace(
                    one.relname, '^(checkpoints_)?', 'checkpoints_default_'));
        END LOOP;
        CREATE TABLE {schema}.checkpoints (
            LIKE {schema}.checkpoints_default INCLUDING ALL EXCLUDING INDEXES,
            PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
        ) PARTITION BY RANGE (checkpoint_id);
        FOREACH definition IN ARRAY coalesce(definitions, ARRAY[]::text[]) LOOP
            EXECUTE definition;
        END LOOP;
        EXECUTE 'ALTER TABLE ' || {literal} || '.checkpoints OWNER TO ' || its_owner;
        FOR one IN
            SELECT a.privilege_type AS what, a.is_grantable, CASE a.grantee
                WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS whom
            FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = old AND a.grantee <> c.relowner
        LOOP
            EXECUTE 'GRANT ' || one.what || ' ON ' || {literal} || '.checkpoints TO ' || one.whom
                || CASE WHEN one.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END;
        END LOOP;
    END IF;
    IF to_regclass({literal} || '.checkpoints_default') IS NULL THEN
        CREATE TABLE {schema}.checkpoints_default (
            LIKE {schema}.checkpoints INCLUDING ALL EXCLUDING INDEXES);
        EXECUTE 'ALTER TABLE ' || {literal} || '.checkpoints_default OWNER TO ' || its_owner;
    END IF;
    -- Nobody may add a row to it that a new month's partition would have to hold.
    LOCK TABLE {schema}.checkpoints_default IN ACCESS EXCLUSIVE MODE;
"""
_IS_MISSING = """
    IF NOT EXISTS (
        SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid
        WHERE i.inhparent = to_regclass({literal} || '.checkpoints') AND p.relname = '{table}')
    THEN
"""
_MONTH = f"""{_IS_MISSING}
        CREATE TABLE {{schema}}.{{table}} (
            LIKE {{schema}}.checkpoints INCLUDING ALL EXCLUDING INDEXES);
        EXECUTE 'ALTER TABLE ' || {{literal}} || '.{{table}} OWNER TO ' || its_owner;
        INSERT INTO {{schema}}.{{table}} SELECT * FROM {{schema}}.checkpoints_default
        WHERE checkpoint_id >= '{{start}}' AND checkpoint_id < '{{stop}}';
        DELETE FROM {{schema}}.checkpoints_default
        WHERE checkpoint_id >= '{{start}}' AND checkpoint_id < '{{stop}}';
        ALTER TABLE {{schema}}.checkpoints ATTACH PARTITION {{schema}}.{{table}}
            FOR VALUES FROM ('{{start}}') TO ('{{stop}}');
    END IF;
"""  # noqa: S608 - constants of this module
# Last: while a default partition is attached, each new one has it read from end to end.
_REST = f"""{_IS_MISSING.replace("{table}", _DEFAULT)}
        ALTER TABLE {{schema}}.checkpoints
            ATTACH PARTITION {{schema}}.checkpoints_default DEFAULT;
    END IF;
"""
# By the index: what vacuum has emptied of a table would still be read from end to end.
_IS_EMPTY = """'SELECT NOT EXISTS (SELECT FROM (SELECT FROM ' || {literal} || '.' || one.relname ||
    ' ORDER BY thread_id, checkpoint_ns, checkpoint_id LIMIT 1) AS any_row)'"""
# Rows are looked for while others still read the table; everybody is kept out only to drop it.
# What cannot be locked soon is left to the next time: sooner than the server looks for a deadlock
# (deadlock_timeout: a second), so that rather this than somebody's save gives way.
_DROP = f"""
DO $threadkeep$
DECLARE
    one record;
    is_empty boolean;
    emptied text;
    all_emptied text[] := ARRAY[]::text[];
BEGIN
    PERFORM set_config('lock_timeout', '{{patience}}', true);
    FOR one IN SELECT * FROM ({_PARTITIONS}) AS ours WHERE described = ANY (ARRAY[{{months}}]) LOOP
        BEGIN
            EXECUTE {_IS_EMPTY} INTO is_empty;
            CONTINUE WHEN NOT is_empty;
            EXIT WHEN current_setting('transaction_read_only')::boolean
                OR NOT pg_try_advisory_xact_lock({KEY});
            {_IS_NEWEST}
            EXECUTE 'LOCK TABLE ' || {{literal}} || '.' || one.relname || ' IN SHARE MODE';
            EXECUTE {_IS_EMPTY} INTO is_empty;
            IF is_empty AND one.described IN (SELECT described FROM ({_PARTITIONS}) AS ours) THEN
                all_emptied := all_emptied || one.relname::text;
            END IF;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN EXIT;
            WHEN undefined_table THEN NULL;
        END;
    END LOOP;
    FOREACH emptied IN ARRAY all_emptied LOOP
        BEGIN
            EXECUTE 'DROP TABLE ' || {{literal}} || '.' || emptied;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN EXIT;
            WHEN dependent_objects_still_exist THEN NULL;
        END;
    END LOOP;
END
$threadkeep$
"""  # noqa: S608 - constants of this module


def plan(schema: str, now: datetime) -> Plan:
    """Partition `checkpoints` by month, and make the partitions that are needed soon.

    Empty ones of past months are dropped, unless others hold locks. A role that does not own
    the table leaves a partitioned one as it is.

    Args:
        schema: the quoted name of the schema.
        now: the time; partitions are made for its month and the next three.

    Raises:
        InvalidArgumentError: the table is partitioned in another way.
    """
    ((key, is_owner, names, described),) = yield said(_LOOK, schema)
    if key not in ("", _KEY):
        raise InvalidArgumentError(
            f"The table checkpoints in {schema} is partitioned, but not by checkpoint_id.",
            hint="Leave partition_by out: it works as it is.",
        )
    if key and not is_owner:
        return
    months = set(ahead(now, _AHEAD))
    if not key:
        found = months_of(prefix for (prefix,) in (yield said(_PREFIXES, schema)))
        months |= {month for month in found if Month.of(now - _PAST) <= month <= max(months)}
    missing = [month for month in sorted(months) if _table(month) not in names]
    if missing or _DEFAULT not in names:
        yield from locked(schema, _body(missing), _DECLARATIONS)
    past = sorted(_past(described, now))
    if past:
        yield said(_dropping(past), schema)


def _table(month: Month) -> str:
    return f"checkpoints_{month.name}"


def _described(month: Month) -> str:
    """Return the name and the bounds of a month's partition as the server writes them."""
    return f"{_table(month)} FOR VALUES FROM ('{month.start}') TO ('{month.next.start}')"


def _past(described: Iterable[str], now: datetime) -> Iterator[str]:
    """Yield those of past months that are as they were made here."""
    for text in described:
        found = _NAME.match(text)
        month = Month(int(found[1]), int(found[2])) if found else Month.of(now)
        if month < Month.of(now) and text == _described(month):
            yield text


def _dropping(described: Sequence[str]) -> str:
    """Return the block that drops these partitions where they are empty."""
    months = ", ".join(["'" + text.replace("'", "''") + "'" for text in described])
    return _DROP.replace("{patience}", _PATIENCE).replace("{months}", months)


def _body(months: Iterable[Month]) -> str:
    """Return the block that makes partitions of these months, where they are missing."""
    made = [
        _MONTH.replace("{table}", _table(month))
        .replace("{start}", month.start)
        .replace("{stop}", month.next.start)
        for month in months
    ]
    return "".join([_IS_NEWEST, _PART, *made, _REST])
