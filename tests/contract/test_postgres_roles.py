"""A role of PostgreSQL for one tenant: its work passes, and no SQL of it reaches other rows."""

import os
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial

import psycopg
import pytest
from kit.engine import Chain, config
from kit.postgres import empty_schema, granted, hashed, make, role_of, url, url_as, url_of_role
from kit.rows import place, put, value_at
from langchain_core.messages import HumanMessage
from psycopg import errors as refusals

from threadkeep import (
    KeyRing,
    LayeredCheckpointSaver,
    Layers,
    Retention,
    grant_role,
    open_saver,
    revoke_role,
)
from threadkeep._core.tenants import STORE, label, prefix
from threadkeep._stores.key_store import MARK
from threadkeep._stores.postgres import roles
from threadkeep.cache import NodeCache
from threadkeep.errors import (
    InvalidArgumentError,
    LockedError,
    ReadOnlyError,
    StateError,
    ThreadkeepError,
    ThreadNotFoundError,
    UnfinishedErasureError,
)
from threadkeep.store import Store

SMALL = Layers(full_window=4, summary_window=10, archive_threshold=20, batch=1)
# (as with the extension `vector`, which not every server has)
VECTORS = "CREATE TABLE {}.store_item_vectors (path text, key text, field text, vector real[])"


def work(saver, store, cache, word):
    """Use every feature, so that each table has rows."""
    index = saver.backend.message_index()  # (none beside keys)
    with closing(index) if index else nullcontext():
        memory = LayeredCheckpointSaver(saver, SMALL, index=index)
        memory.save("long", [HumanMessage(f"{word} {n}", id=f"{word}-{n}") for n in range(30)])
        assert len(memory.search_messages("long", query=word)) > 5
    chain = Chain(saver, "t")
    for number in range(4):
        chain.put(said=[*chain.values.get("said", []), f"{word} {number} {'x' * 3000}"])
        saver.put_writes(chain.at, [("said", word)], "task")
    saver.threads.tag("t", word)
    saver.threads.fork("t", new_thread_id="fork")
    saver.threads.fork("t", new_thread_id="emptied")
    saver.delete_thread("emptied")
    saver.put_many([Chain(saver, f"{number}").arguments(said=[word]) for number in range(3)])
    Chain(saver, "emptied").put(said=[word, "x" * 3000])  # (in a heap of its own)
    saver.copy_thread("t", "copy")
    for number in range(3):
        store.put(("users", "ann"), "k", {"text": f"{word} {number}"})
    store.put(("old",), "k", {"text": word})
    store.delete(("old",), "k")
    cache.set({(("node",), word): (word, 60)})


def check_work(saver, store, cache, word):
    """Find all that `work` has stored, then change and remove some of it."""
    ids = {one.id for one in saver.threads.scan()}
    assert ids == {"long", "t", "fork", "emptied", "copy", "0", "1", "2"}
    for thread in ("t", "fork", "copy"):
        said = saver.get_tuple(config(thread)).checkpoint["channel_values"]["said"]
        assert [one.split()[0] for one in said] == [word] * 4
    assert len([*saver.list(None, filter={"source": "loop"})]) > 8
    assert {one.id for one in saver.threads.search(tags=[word])} == {"t", "copy"}
    assert {one.thread.id for one in saver.threads.find(word).hits} == {"long"}
    assert saver.check().ok
    assert store.get(("users", "ann"), "k").value["text"] == f"{word} 2"
    assert store.search((), limit=9)[0].value["text"] == f"{word} 2"
    assert store.list_namespaces() == [("users", "ann")]
    assert cache.get([(("node",), word)]) == {(("node",), word): word}
    Chain(saver, "fork").follow().put(said=["more"])
    saver.threads.merge_fork("fork", "t", strategy="theirs")
    saver.threads.gc(Retention(keep_last=1))
    saver.threads.erase("0")
    saver.delete_thread("1")
    assert saver.check().ok
    assert saver.stats().threads >= 5
    store.sweep_ttl()
    cache.clear([("node",)])
    assert cache.get([(("node",), word)]) == {}


def user_of(at):
    return at.partition("//")[2].partition("@")[0]


@contextmanager
def opened(at, options, tenant=None):
    """Open a saver, a store and a cache, of a tenant or (None) of the operator."""
    if "key_store" in options:
        options = {**options, "key_store": url_as(options["key_store"], user_of(at))}
    if "keys" not in options:
        options = {**options, "search": "messages"}
    with open_saver(at, **options) as saver, Store(saver.backend, history=9) as store:
        saver.setup()
        store.setup()
        three = saver, store, NodeCache(saver.backend)
        yield three if tenant is None else [one.for_tenant(tenant) for one in three]


def rows(at):
    """All rows that a role finds, by table, as the server writes them."""
    with connected(at) as db:
        return {table: rows_of(db, table) for table in tables_in(db)}


def rows_of(db, table):
    return {row for (row,) in db.execute(f"SELECT t::text FROM {table} t")}


@contextmanager
def connected(at):
    at, _, schema = at.partition("?schema=")
    with psycopg.connect(at, autocommit=True) as db:
        db.execute(f"SET search_path = {schema}")
        yield db


def tables_in(db):
    query = """
        SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace
            AND relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY 1
    """
    return [name for (name,) in db.execute(query)]


OPTIONS = {
    "plain": {},
    "sealed": {"keys": KeyRing([b"k" * 32])},
    "random keys": {"keys": KeyRing([b"k" * 32]), "thread_keys": True},
}


class Made:
    """A store with rows of the operator and of two tenants, each with its own role."""

    def __init__(self, options):
        self.options = dict(options)
        if "thread_keys" in options:
            self.options["key_store"] = f"{url()}?schema={empty_schema(granted)}"
        options = self.options
        self.operator = f"{url()}?schema={empty_schema(granted)}"
        with connected(self.operator) as db:
            db.execute(VECTORS.format(self.schema))
        with opened(self.operator, options) as three:
            work(*three, "ours")
        self.urls = {name: url_of_role(self.operator, name) for name in ("acme", "beta")}
        for name, at in self.urls.items():
            if "key_store" in options:
                grant_role(options["key_store"], user_of(at), tenant=name)
        self.own = {"ours": rows(self.operator)}
        for name, at in self.urls.items():
            with opened(at, options, name) as three:
                work(*three, name)
            with connected(at) as db:
                db.execute("INSERT INTO store_item_vectors SELECT path, key FROM store_items")
            known = [*self.own.values()]
            self.own[name] = {
                table: found.difference(*(one[table] for one in known))
                for table, found in rows(self.operator).items()
            }

    @property
    def schema(self):
        return self.operator.partition("?schema=")[2]


@pytest.fixture(scope="module", params=OPTIONS)
def made(request):
    return Made(OPTIONS[request.param])


def shared(found):
    """Rows that every role may read: the record of a sealed store."""
    return {row for row in found if row.startswith(f"({STORE},")}


def others(made):
    """All rows but those of acme."""
    own = rows(made.urls["acme"])
    return {table: found - own[table] for table, found in rows(made.operator).items()}


INDEX = (
    *("threadkeep_memory_messages", "threadkeep_memory_records"),
    *("threadkeep_words", "threadkeep_unindexed"),
)


@pytest.mark.drawn(1)
def test_a_role_sees_the_rows_of_its_tenant_alone(made):
    """The tables are those of the catalog: one without a policy is found here."""
    for name, at in made.urls.items():
        found = rows(at)
        assert found.keys() == made.own[name].keys()
        for table, own in made.own[name].items():
            everyones = made.own["ours"][table]
            everyones = everyones if table == "migrations" else shared(everyones)
            assert found[table] == own | everyones, table
            is_used = table != "migrations" and not (made.options and table in INDEX)
            assert bool(own) == is_used, table
    assert bool(shared(made.own["ours"]["threads"])) == bool(made.options)


@pytest.mark.drawn(1)
def test_the_work_of_a_tenant_passes(made):
    one = Made(made.options)
    before = others(one)
    with opened(one.urls["acme"], one.options, "acme") as three:
        check_work(*three, "acme")
    assert others(one) == before
    with opened(one.operator, one.options) as (saver, store, _):
        assert saver.check().ok
        assert store.get(("users", "ann"), "k").value["text"] == "ours 2"
        assert saver.threads.gc(Retention(keep_last=1)).checkpoints > 0
        assert saver.check().ok


def test_a_role_sees_the_keys_of_its_tenant_alone():
    """If random keys are in a PostgreSQL schema, too."""
    made = Made(OPTIONS["random keys"])
    keys = made.options["key_store"]
    everything = rows(keys)
    for name, at in made.urls.items():
        found = rows(url_as(keys, user_of(at)))
        for table in ("threads", "writes"):
            ends = f" tenant {name},", f" thread {prefix(name)}"
            plain = {row.replace('"', ""): row for row in everything[table]}
            own = {row for text, row in plain.items() if any(end in text for end in ends)}
            mark = {row for text, row in plain.items() if f" {MARK}," in text}
            assert found[table] == own | mark, table
            assert len(own) > 3
            assert len(mark) == 1
            with connected(url_as(keys, user_of(at))) as db:
                for row in everything[table] - own:
                    text = f"INSERT INTO {table} SELECT (%s::{table}).*"
                    refused(db, refusals.InsufficientPrivilege, text, row)


# -- a role that tries --------------------------------------------------------------------


@pytest.fixture
def acme(made):
    """A connection of the role of acme, after which the rows of all others are as before."""
    before = others(made)
    with connected(made.urls["acme"]) as db:
        db.made = made
        yield db
    assert others(made) == before


def refused(db, error, text, *values):
    with pytest.raises(error), db.transaction(force_rollback=True):
        db.execute(text, values)


def test_it_cannot_change_rows_of_others(acme):
    for table, own in acme.made.own["acme"].items():
        if table == "migrations":
            refused(acme, refusals.InsufficientPrivilege, "DELETE FROM migrations")
            continue
        with acme.transaction(force_rollback=True):
            query = f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass"
            query += " AND attnum > 0 ORDER BY attnum <> 2 LIMIT 1"
            column = acme.execute(query).fetchone()[0]
            done = acme.execute(f"UPDATE {table} SET {column} = {column}")
            assert done.rowcount == len(own), table
        with acme.transaction(force_rollback=True):
            assert acme.execute(f"DELETE FROM {table}").rowcount == len(own), table


def test_it_cannot_store_rows_of_others(acme):
    """Neither new ones, nor its own under another name."""
    for name in ("beta", "ours"):
        for table, found in acme.made.own[name].items():
            for row in sorted(found)[:20]:
                text = f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT (%s::{table}).*"
                refused(acme, refusals.InsufficientPrivilege, text, row)
    with connected(acme.made.operator) as db:
        (path,) = db.execute(
            "SELECT path FROM store_items WHERE starts_with(path, %s)", [label("beta")]
        ).fetchone()
    for table, column, value in (
        *[(one, "thread_id", f"{prefix('beta')}t") for one in ("threads", "checkpoints", "writes")],
        *[(one, "thread_id", f"{prefix('beta')}t") for one in ("segments", "thread_labels")],
        *(("threads", "thread_id", "t"), ("threads", "thread_id", STORE)),
        *(("threads", "heap", f"{prefix('beta')}t"), ("threads", "heap", "t")),
        *[(f"store_item{kind}", "path", path) for kind in ("s", "_versions", "_vectors")],
        ("cache", "id", b"0" * 24),
    ):
        text = f"UPDATE {table} SET {column} = %s"
        refused(acme, refusals.InsufficientPrivilege, text, value)


CALLS = (  # (each is refused, or finds no row of another)
    "DELETE FROM store_items",
    "DELETE FROM store_item_versions",
    "INSERT INTO store_items SELECT {space}, 'k', 1, 1, 1, 1, 1, NULL, NULL, '{{}}'",
    "DELETE FROM cache",
)


def test_functions_have_the_rights_of_their_caller():
    made = Made({})
    before = others(made)
    names = {"acme": f"'{prefix('acme')}t'", "beta": f"'{prefix('beta')}t'"}
    with connected(made.urls["acme"]) as db:
        assert db.execute("SELECT FROM registry()").rowcount == 8
        for call in CALLS:
            with suppress(refusals.InsufficientPrivilege):
                db.execute(call.format(space=f"'{label('beta')}.users.'", **names))
            assert others(made) == before, call
        stolen = f"SELECT FROM checkpoints WHERE thread_id = {names['acme']} || 'stolen'"
        assert db.execute(stolen).fetchall() == []
        query = "SELECT proname FROM pg_proc WHERE prosecdef AND pronamespace = %s::regnamespace"
        assert db.execute(query, (made.schema,)).fetchall() == []


BARRED = (
    "SET ROLE {beta}",
    "SET ROLE {owner}",
    "SET SESSION AUTHORIZATION {beta}",
    "ALTER TABLE threads DISABLE ROW LEVEL SECURITY",
    "DROP POLICY {acme} ON threads",
    "CREATE POLICY more ON threads USING (true)",
    "ALTER ROLE {acme} BYPASSRLS",
    "GRANT {beta} TO {acme}",
    "TRUNCATE cache",
    "CREATE TABLE more ()",
    "CREATE FUNCTION time_of(integer) RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
    "CREATE TRIGGER more AFTER DELETE ON threads EXECUTE FUNCTION threadkeep_memory_remove()",
    "SELECT setval('store_counter', 1)",
)
FREE = (  # it may run these, and sees no more afterwards
    "RESET ROLE",
    "RESET SESSION AUTHORIZATION",
    "SET row_security = on",
    "SELECT set_config('threadkeep.tenant', 'beta', false)",
    "SELECT set_config('role', 'none', false)",
)


def test_its_rights_cannot_be_widened(acme):
    users = {name: user_of(at) for name, at in acme.made.urls.items()}
    with connected(acme.made.operator) as db:
        owner = db.info.user
    for text in BARRED:
        refused(acme, refusals.InsufficientPrivilege, text.format(owner=owner, **users))
    for text in FREE:
        acme.execute(text)
        assert acme.execute("SELECT FROM threads").rowcount == len(rows_of(acme, "threads"))
        found = {table: rows_of(acme, table) for table in tables_in(acme)}
        assert found == rows(acme.made.urls["acme"])
    acme.execute("SET row_security = off")
    refused(acme, refusals.InsufficientPrivilege, "SELECT FROM threads")


def test_its_functions_get_no_row_before_the_policy(acme):
    acme.execute(
        "CREATE FUNCTION pg_temp.tell(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS"
        " $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$"
    )
    told = []
    acme.add_notice_handler(lambda notice: told.append(notice.message_primary))
    acme.execute("SELECT FROM threads WHERE pg_temp.tell(thread_id)")
    found = {name for (name,) in acme.execute("SELECT thread_id FROM threads")}
    assert {*told} == found
    assert not [name for name in told if "acme" not in name and name != STORE]


def test_no_catalog_shows_names_of_other_tenants(store):
    """Every role can read the policies of all."""
    name = "bolt-oncology"
    with open_saver(store) as saver:
        put(saver.for_tenant(name), place("t"), {"value": 1})
    for tenant in (name, "acme"):
        at = url_of_role(store, tenant)
    with connected(store) as db:
        db.execute("ANALYZE")
    with connected(at) as db:
        catalogs = db.execute("""
            SELECT oid::regclass::text FROM pg_class
            WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
                AND has_table_privilege(oid, 'SELECT') AND relname <> 'pg_stat_activity'
        """).fetchall()  # (pg_stat_activity shows this query itself)
        assert ("pg_policies",) in catalogs
        found = []
        for (catalog,) in catalogs:
            with suppress(refusals.InsufficientPrivilege, refusals.ObjectNotInPrerequisiteState):
                query = f"SELECT FROM {catalog} t WHERE strpos(t::text, 'bolt-onc') > 0"
                found += [catalog] * db.execute(query).rowcount
        assert found == []


def test_partitions_are_reached_through_their_table_alone():
    schema = f"tk_roles_hashed_{os.getpid()}"
    make(schema, hashed)
    operator = f"{url()}?schema={schema}"
    at = url_of_role(operator, "acme")
    with open_saver(operator) as saver, open_saver(at) as own:
        for each in (saver, saver.for_tenant("beta"), own.for_tenant("acme")):
            put(each, place("t"), {"value": 1})
        assert own.threads.count() == 1
        own.setup()
        assert own.for_tenant("acme").check().ok
    with connected(at) as db:
        assert db.execute("SELECT FROM checkpoints").rowcount == 1
        parts = db.execute("SELECT relid::regclass::text FROM pg_partition_tree('checkpoints')")
        for (part,) in parts.fetchall()[1:]:
            refused(db, refusals.InsufficientPrivilege, f"SELECT FROM {part}")


# -- errors -------------------------------------------------------------------------------


def test_errors_of_a_role_say_what_to_do(made):
    with opened(made.urls["acme"], made.options) as (saver, store, _):
        for call in (
            lambda: put(saver, place("t"), {"value": 1}),
            lambda: put(saver.for_tenant("beta"), place("t"), {"value": 1}),
            lambda: saver.threads.tag(f"{prefix('beta')}t", "x"),
            lambda: store.put(("users", "ann"), "k", {}),
            lambda: store.for_tenant("beta").put(("users", "ann"), "k", {}),
        ):
            with pytest.raises(ThreadkeepError) as caught:
                call()
            if not isinstance(caught.value, ThreadNotFoundError):
                assert isinstance(caught.value, ReadOnlyError)
                assert "for_tenant()" in caught.value.hint
        assert saver.for_tenant("beta").get_tuple(config("t")) is None
        assert saver.threads.count() == saver.for_tenant("acme").threads.count()


def test_files_are_rewritten_by_the_operator(store):
    with open_saver(url_of_role(store, "acme")) as saver:
        report = saver.for_tenant("acme").threads.erase("t")
        assert "permission denied" in str(report)
        with pytest.raises(UnfinishedErasureError, match="role that owns the schema"):
            saver.for_tenant("acme").threads.erase("t", rewrite=True)


def test_a_store_with_keys_is_begun_by_the_operator():
    operator = f"{url()}?schema={empty_schema(granted)}"
    keys = {"keys": KeyRing([b"k" * 32])}
    with open_saver(url_of_role(operator, "acme"), **keys) as saver:
        with pytest.raises(ReadOnlyError, match="keys"):
            put(saver.for_tenant("acme"), place("t"), {"value": 1})
        with open_saver(operator, **keys) as own:
            put(own, place("t"), {"value": 1})
        put(saver.for_tenant("acme"), place("t"), {"value": 1})


# -- grants -------------------------------------------------------------------------------


@pytest.fixture
def store():
    """A store with a thread of each tenant, and of none."""
    at = f"{url()}?schema={empty_schema(granted)}"
    with open_saver(at) as saver:
        for each in (saver, saver.for_tenant("acme"), saver.for_tenant("beta")):
            put(each, place("t"), {"value": 1})
    return at


def seen(at):
    with connected(at) as db:
        names = [name for (name,) in db.execute("SELECT thread_id FROM threads")]
        return sorted(name.removesuffix(" t").removeprefix("threadkeep@tenant ") for name in names)


def test_a_grant_is_replaced_and_revoked(store):
    at = url_of_role(store, "acme")
    assert seen(at) == ["acme"]
    for tenant, expected in (("beta", ["beta"]), (None, ["acme", "beta", "t"]), ("acme", ["acme"])):
        for _ in range(2):
            grant_role(store, user_of(at), tenant=tenant)
            assert seen(at) == expected
    revoke_role(store, user_of(at))
    with pytest.raises(ReadOnlyError), open_saver(at) as saver:
        saver.threads.count()
    with connected(store) as db:
        query = "SELECT FROM pg_policy WHERE polroles = ARRAY[to_regrole(%s)::oid]"
        assert db.execute(query, (user_of(at),)).rowcount == 0
    revoke_role(store, user_of(at))


def test_names_of_any_text(store):
    for tenant in ("a b", "a%'\"\\", "$threadkeep$ {schema}", "客户", "x" * 200, "ac", "acme "):
        with open_saver(store) as saver:
            put(saver.for_tenant(tenant), place("t"), {"value": 1})
        at = url_of_role(store, tenant)
        with open_saver(at) as saver:
            assert value_at(saver.for_tenant(tenant), place("t")) == 1
            assert saver.threads.count() == 1
    role = role_of(name="odd \"role' name")
    grant_role(store, role, tenant="acme")
    with connected(store) as db:
        db.execute(f"SET ROLE {db.execute('SELECT quote_ident(%s)', (role,)).fetchone()[0]}")
        assert db.execute("SELECT FROM threads").rowcount == 1


def test_a_role_that_could_evade_it_is_refused(store):
    with connected(store) as db:
        schema, owner = store.partition("=")[2], db.info.user
        of_beta = user_of(url_of_role(store, "beta"))
        defaults = f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema}"
        for options, more, match in (
            ("SUPERUSER", "", "ignores policies"),
            ("BYPASSRLS", "", "ignores policies"),
            ("CREATEROLE", "", "creates roles"),
            ("", f"GRANT {owner} TO {{role}}", "owns the tables"),
            ("", f"GRANT {of_beta} TO {{role}}", f"is in the role {of_beta}"),
            ("", f"GRANT CREATE ON SCHEMA {schema} TO {{role}}", "create functions"),
            ("", f"{defaults} GRANT SELECT ON TABLES TO {{role}}", "created later"),
            ("", f"{defaults} GRANT SELECT ON TABLES TO PUBLIC", "created later"),
        ):
            role = role_of(f"LOGIN {options}")
            db.execute(more.format(role=role))
            with pytest.raises(StateError, match=match):
                grant_role(store, role, tenant="acme")
            # (other tests use the schema again)
            db.execute(f"{defaults} REVOKE ALL ON TABLES FROM PUBLIC, {role}")
        for change in (partial(grant_role, tenant=None), revoke_role):
            with pytest.raises(StateError, match="owns the tables"):
                change(store, owner)  # (which would lose its own rights)
        role = role_of()
        db.execute("GRANT TRUNCATE ON writes TO PUBLIC")
        with pytest.raises(StateError, match="all rows from PUBLIC"):
            grant_role(store, role, tenant="acme")
        db.execute(
            "REVOKE ALL ON writes FROM PUBLIC; CREATE TABLE more (); GRANT ALL ON more TO PUBLIC"
        )
        with pytest.raises(StateError, match="other rights on more"):
            grant_role(store, role, tenant="acme")
        db.execute("DROP TABLE more")
        assert not db.execute(
            f"SELECT has_schema_privilege('{role}', '{schema}', 'USAGE')"
        ).fetchone()[0]


def test_a_role_is_not_blinded_by_the_grant_of_another(store):
    app = role_of()
    with connected(store) as db:
        schema = store.partition("=")[2]
        db.execute(f"GRANT USAGE ON SCHEMA {schema} TO {app}")
        db.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {app}")
    with pytest.raises(StateError, match=f"all rows from {app}"):
        url_of_role(store, "acme")
    grant_role(store, app, tenant=None)
    assert seen(url_of_role(store, "acme")) == ["acme"]
    with open_saver(url_as(store, app)) as saver:
        assert saver.threads.count() == 3
        put(saver.for_tenant("new"), place("t"), {"value": 1})
        assert saver.threads.gc(Retention(keep_last=1)).examined == 4


def test_what_a_grant_refuses(store, monkeypatch):
    role, wrong = role_of(), InvalidArgumentError
    for call, error, match in (
        (partial(grant_role, "sqlite:///x.db", role, tenant="acme"), wrong, "PostgreSQL"),
        (partial(grant_role, store, "no_such_role", tenant="acme"), wrong, "CREATE ROLE"),
        (partial(grant_role, store, "x" * 57, tenant="acme"), wrong, "56 bytes"),
        (partial(grant_role, store, "a$b", tenant="acme"), wrong, "role"),
        (partial(grant_role, store, role, tenant=""), wrong, "tenant"),
        (partial(revoke_role, store, "no_such_role"), wrong, "CREATE ROLE"),
        (partial(revoke_role, f"{url()}?schema=no_such", role), wrong, "no_such"),
        (
            partial(grant_role, url_of_role(store, "beta"), role, tenant="acme"),
            ReadOnlyError,
            "own",
        ),
    ):
        with pytest.raises(error, match=match):
            call()
    monkeypatch.setattr(roles, "_TRIES", 1)
    with psycopg.connect(url()) as rival:
        rival.execute(f"LOCK TABLE {store.partition('=')[2]}.writes IN ACCESS SHARE MODE")
        with pytest.raises(LockedError):
            grant_role(store, role, tenant="acme")
    grant_role(store, role, tenant="acme")
