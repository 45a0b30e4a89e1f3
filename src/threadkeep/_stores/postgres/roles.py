"""Roles of PostgreSQL that see the rows of one tenant, by row-level security (design note 0028).

The policies of a role have constant conditions, so no SQL of the role changes which rows it sees.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from hashlib import sha256
from typing import Any, NamedTuple

import psycopg
from psycopg.errors import DeadlockDetected, LockNotAvailable

from threadkeep._core import tenants
from threadkeep._stores import caches
from threadkeep._stores.key_store import MARK
from threadkeep._stores.postgres import migrations
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.postgres.statement import Rows, Statement
from threadkeep._stores.records import pack_text
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import InvalidArgumentError, StateError, invalid

_LONGEST = 56  # bytes of a role's name, with room for a word
_STORE_ID = 32  # characters of a store's id in the name of a key (key_store.py)
_TRIES = 20
_OTHER_RIGHTS = "TK008"  # our own error code

_TABLES = """
SELECT relname::text FROM pg_class
WHERE relnamespace = to_regnamespace({literal}) AND relkind IN ('r', 'p')
"""
# Whether the role can evade its policies; whether it can add functions to the schema; whether it
# would have rights on later tables, which have no policies; other roles
# whose rows it would see too; roles that would not see rows any more, as no policy is theirs.
_LOOK = """
SELECT pg_has_role(r.oid, c.relowner, 'MEMBER') OR EXISTS (
        SELECT FROM pg_roles o WHERE (o.rolsuper OR o.rolbypassrls OR o.rolcreaterole)
            AND pg_has_role(r.oid, o.oid, 'MEMBER')),
    has_schema_privilege(r.oid, c.relnamespace, 'CREATE'),
    EXISTS (
        SELECT FROM pg_default_acl d CROSS JOIN aclexplode(d.defaclacl) a
        WHERE d.defaclobjtype = 'r' AND d.defaclnamespace IN (0, c.relnamespace)
            AND CASE WHEN a.grantee = 0 THEN true ELSE pg_has_role(r.oid, a.grantee, 'MEMBER') END),
    ARRAY(
        SELECT DISTINCT o.rolname::text FROM pg_policy p JOIN pg_class t ON t.oid = p.polrelid
        JOIN pg_roles o ON o.oid = ANY (p.polroles)
        WHERE t.relnamespace = c.relnamespace AND o.oid <> r.oid
            AND pg_has_role(r.oid, o.oid, 'MEMBER')),
    ARRAY(
        SELECT DISTINCT coalesce(o.rolname::text, 'PUBLIC')
        FROM pg_class t CROSS JOIN aclexplode(t.relacl) a LEFT JOIN pg_roles o ON o.oid = a.grantee
        WHERE t.relnamespace = c.relnamespace AND t.relname IN ({names}) AND t.relkind IN ('r', 'p')
            AND a.grantee NOT IN (t.relowner, r.oid)
            AND (o.rolsuper OR o.rolbypassrls) IS NOT true
            AND NOT EXISTS (SELECT FROM pg_policy p
                WHERE p.polrelid = t.oid AND a.grantee = ANY (p.polroles)))
FROM pg_class c, pg_roles r
WHERE c.oid = to_regclass({literal} || '.threads') AND r.rolname = {role_literal}
"""
_DECLARATIONS = "DECLARE one record; others text;"
_WITHOUT = """
    SET LOCAL lock_timeout = '500ms';
    LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE;
    FOR one IN
        SELECT p.polname, c.oid::regclass::text AS its_table
        FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid CROSS JOIN pg_roles r
        WHERE c.relnamespace = to_regnamespace({literal}) AND r.rolname = {role_literal}
            AND p.polroles = ARRAY[r.oid]
    LOOP
        EXECUTE 'DROP POLICY ' || quote_ident(one.polname) || ' ON ' || one.its_table;
    END LOOP;
    REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role};
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM {role};
    REVOKE ALL ON SCHEMA {schema} FROM {role};
"""
_OWN = """
    CREATE POLICY {role} ON {table} TO {role} USING ({own}) WITH CHECK ({new});
    GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role};
"""
_READ = """
    CREATE POLICY {reads} ON {table} FOR SELECT TO {role} USING ({read});
    GRANT SELECT ON {table} TO {role};
"""
_USE = """
    GRANT USAGE ON SCHEMA {schema} TO {role};
    GRANT USAGE ON SEQUENCE {schema}.store_counter TO {role};
"""
# Rights by PUBLIC or by another role: TRUNCATE heeds no policies, and partitions have none.
_CHECK = f"""
    SELECT string_agg(c.relname, ', ') INTO others FROM pg_class c
    WHERE c.relnamespace = to_regnamespace({{literal}}) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
        AND (has_table_privilege({{role_literal}}, c.oid, 'TRUNCATE, REFERENCES, TRIGGER')
            OR NOT c.relrowsecurity AND (
                has_table_privilege({{role_literal}}, c.oid, 'DELETE')
                OR has_any_column_privilege({{role_literal}}, c.oid, 'SELECT, INSERT, UPDATE')));
    IF others IS NOT NULL THEN
        RAISE EXCEPTION '%', others USING ERRCODE = '{_OTHER_RIGHTS}';
    END IF;
"""


def grant(url: str, role: str, tenant: str | None) -> None:
    change = _Change(role, tenant)
    with closing(PostgresBackend(url, max_size=1)) as backend:
        backend.migrate()
        index: Any = backend.message_index()
        with closing(index):
            index.create()
        finish(backend.face.carry_out(lambda: change.granting(backend.face.schema)))


def revoke(url: str, role: str) -> None:
    change = _Change(role, None)
    with closing(PostgresBackend(url, max_size=1)) as backend:
        finish(backend.face.carry_out(lambda: change.revoking(backend.face.schema)))


class _Change:
    """Changes of the rights of one role, for one tenant or (None) for all."""

    def __init__(self, role: str, tenant: str | None) -> None:
        is_name = isinstance(role, str) and not set(role) & set("\0%${")
        if not is_name or not 0 < len(role.encode()) <= _LONGEST:
            hint = f"Use a name of 1 to {_LONGEST} bytes, without %, $ and braces."
            raise invalid("role", role, hint)
        self._role = role
        self._is_of_all = tenant is None
        self._conditions = _OF_ALL if tenant is None else _conditions(tenants.checked(tenant))

    def granting(self, schema: str) -> migrations.Plan:
        """Replace the role's rights by its tenant's."""
        found = yield from self._found(schema)
        if not self._is_of_all:
            _check_keeps_apart(self._role, found)
        names = yield from _tables(schema)
        rights = [self._rights(f"{schema}.{name}", self._conditions[name]) for name in names]
        end = _USE if self._is_of_all else _USE + _CHECK
        try:
            yield from self._run(schema, names, "".join([_WITHOUT, *rights, end]))
        except psycopg.Error as error:
            if error.sqlstate != _OTHER_RIGHTS:
                raise
            raise StateError(
                f"{self._role} has other rights on {error.diag.message_primary}.",
                hint="Nothing was changed. Revoke them from PUBLIC, and from roles that it is in.",
            ) from None

    def revoking(self, schema: str) -> migrations.Plan:
        """Remove the role's rights and policies."""
        yield from self._found(schema)
        names = yield from _tables(schema)
        yield from self._run(schema, names, _WITHOUT)

    def _found(self, schema: str) -> Generator[Statement, Rows, Any]:
        rows = yield migrations.said(self._filled(_LOOK), schema)
        if not rows:
            raise InvalidArgumentError(
                f"There is no role {self._role}, or no table of threadkeep in schema {schema}.",
                hint=f"Run CREATE ROLE {_quoted(self._role)} LOGIN, and `threadkeep migrate URL`.",
            )
        is_powerful, *found = rows[0]
        if is_powerful:
            raise StateError(
                f"{self._role} owns the tables, ignores policies or creates roles, or is in a role"
                " that does.",
                hint="Use a role without SUPERUSER, BYPASSRLS and CREATEROLE, in no such role.",
            )
        return found

    def _rights(self, table: str, conditions: _Conditions) -> str:
        own, new, read = conditions
        text = (_OWN if own else "") + (_READ if read else "")
        if not self._is_of_all:
            text += "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;"
        for name, value in (("table", table), ("own", own), ("new", new or own), ("read", read)):
            text = text.replace(f"{{{name}}}", value)
        return text

    def _run(self, schema: str, names: list[str], body: str) -> migrations.Plan:
        """Run the body in one transaction, which never waits long before all others."""
        tables = ", ".join([f"{schema}.{name}" for name in names])
        text = self._filled(body.replace("{tables}", tables))
        for left in reversed(range(_TRIES)):
            try:
                return (yield from migrations.locked(schema, text, _DECLARATIONS))
            except (LockNotAvailable, DeadlockDetected):
                if not left:
                    raise

    def _filled(self, text: str) -> str:
        literal = "'" + self._role.replace("'", "''") + "'"
        text = text.replace("{role_literal}", literal).replace("{role}", _quoted(self._role))
        text = text.replace("{reads}", _quoted(f"{self._role} reads"))
        return text.replace("{names}", str([*_OF_ALL])[1:-1]).replace("%", "%%")


def _tables(schema: str) -> Generator[Statement, Rows, list[str]]:
    names = {name for (name,) in (yield migrations.said(_TABLES, schema))}
    return [name for name in _OF_ALL if name in names]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_keeps_apart(role: str, found: tuple[bool, bool, list[str], list[str]]) -> None:
    """Raise a `StateError` if the policies would not hold, or would end the work of others."""
    may_create, has_later, others, blind = found
    if may_create:
        raise StateError(
            f"{role} may create functions in the schema, which other roles could call.",
            hint="REVOKE CREATE ON SCHEMA from it and from PUBLIC.",
        )
    if has_later:
        raise StateError(
            f"{role} would have rights on all tables that are created later.",
            hint="ALTER DEFAULT PRIVILEGES ... REVOKE ALL ON TABLES FROM it and from PUBLIC.",
        )
    if others:
        raise StateError(
            f"{role} is in the role {others[0]}, and would see its rows, too.",
            hint=f"REVOKE {_quoted(others[0])} FROM {_quoted(role)}.",
        )
    if blind:
        raise StateError(
            f"Row-level security would hide all rows from {', '.join(blind)}.",
            hint=f"Run `threadkeep grant URL --role {blind[0]} --all-tenants` first, or revoke"
            " the rights of this role.",
        )


# -- conditions ------------------------------------------------------------------------------


class _Conditions(NamedTuple):
    """Conditions on the rows of a table, as SQL, "" for none.

    Attributes:
        own: on rows that a role sees, changes and removes.
        new: on rows as it stores them, if it is another one.
        read: on rows that it only sees.
    """

    own: str = ""
    new: str = ""
    read: str = ""


_NAMED = ("checkpoints", "segments", "thread_labels")
_ITEMS = ("store_items", "store_item_versions", "store_item_vectors")
_INDEX = (
    *("threadkeep_memory_records", "threadkeep_memory_messages"),
    *("threadkeep_words", "threadkeep_unindexed"),
)
_REST = ("threads", "writes", "cache")
_OF_ALL = {
    **dict.fromkeys((*_NAMED, *_ITEMS, *_INDEX, *_REST), _Conditions("true")),
    "migrations": _Conditions(read="true"),
}
"""By table: the conditions of a role that sees all rows."""


def _conditions(tenant: str) -> dict[str, _Conditions]:
    label = tenants.label(tenant)
    own = _opaque(_named("thread_id", label))
    family = _named("thread_id", label, tenants.FAMILY)
    keys, mark = _keys(tenant)
    hidden = _opaque(f"{_named('thread_id', label)} OR {family} OR {keys}")
    in_heap = _named("heap", label)
    # (a thread in a heap of another tenant would stop the collection of that heap)
    new = f"{hidden} AND (heap IS NULL OR {in_heap})"
    record = f"thread_id = '{tenants.STORE}' OR {mark}"
    paths = _opaque(_is("split_part(path, '.', 1)", pack_text(label)))
    ids = caches.of_tenant(label)
    entries = f"(id >= '\\x{ids.hex()}' AND id < '\\x{caches.end_of(ids).hex()}')"
    return _OF_ALL | {
        **dict.fromkeys((*_NAMED, *_INDEX), _Conditions(own)),
        **dict.fromkeys(_ITEMS, _Conditions(paths)),
        "threads": _Conditions(hidden, new, read=record),
        "writes": _Conditions(hidden, read=record),
        "cache": _Conditions(entries),
    }


def _keys(tenant: str) -> tuple[str, str]:
    """Return the conditions on threads of a key store: on keys of a tenant, and on the mark."""
    name = f"substr(thread_id, {len(f'{tenants.KEY} ') + _STORE_ID + 2})"
    own = _is(name, pack_text(f"tenant {tenant}"))
    of_thread = _named(name, tenants.label(tenant), "thread")
    is_key = f"starts_with(thread_id, '{tenants.KEY} ')"
    return f"{is_key} AND ({own} OR {of_thread})", f"{is_key} AND {name} = '{MARK}'"


def _named(column: str, label: str, *before: str) -> str:
    """Return the condition that a name is of a tenant's thread, after these words."""
    kind, name = label.split(" ")
    beginning = " ".join([*before, kind])
    word = _is(f"split_part({column}, ' ', {len(before) + 2})", name)
    return f"({column} LIKE '{beginning} % %' AND {word})"


def _is(text: str, value: str) -> str:
    """Return the condition that a text has a value. All roles can read it, so it has a digest."""
    digest = sha256(value.encode()).hexdigest()
    return f"sha256(convert_to({text}, 'UTF8')) = '\\x{digest}'"


def _opaque(condition: str) -> str:
    """Return a condition that the planner takes for true.

    It would expect hardly any row of a long thread to have the digest, and then take any index.
    """
    return f"CASE WHEN {condition} THEN 1 END IS NOT NULL"
