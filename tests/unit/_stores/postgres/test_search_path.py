"""A search_path set on purpose is found in a conninfo, and refused with the option to give."""

import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep import AsyncPostgresSaver, PostgresCache, PostgresSaver, PostgresStore
from threadkeep._stores.postgres import search_path
from threadkeep.errors import InvalidArgumentError

URL = "postgresql://user@host/db?options="
ON_PURPOSE = (
    "-c search_path=tenant_a",
    "-csearch_path=tenant_a",
    "--search-path=tenant_a",
    "-c statement_timeout=5s -c search_path=tenant_a,public -c lock_timeout=1s",
    r'-c search_path="tenant_a",\ public',
    '-c search_path="$user",tenant_a',
    "-c search_path=public -c search_path=tenant_a",
)
OTHERS = (
    "-c search_path=public",
    '-c search_path="$user",public,extensions',
    "-c search_path=",
    "-c statement_timeout=5s",
)


def escaped(options):
    return options.replace(" ", "%20").replace("=", "%3D").replace("\\", "%5C")


@pytest.mark.parametrize("options", ON_PURPOSE)
def test_it_is_refused(options):
    with pytest.raises(InvalidArgumentError, match="search_path") as caught:
        PostgresSaver(URL + escaped(options))
    assert "schema='threadkeep_tenant_a'" in caught.value.hint
    PostgresSaver(URL + escaped(options), schema="tenant_a_agents").close()
    PostgresSaver(URL + escaped(options) + "&schema=tenant_a_agents").close()


@pytest.mark.parametrize("options", OTHERS)
def test_others_change_nothing(options):
    PostgresSaver(URL + escaped(options)).close()


@pytest.mark.parametrize("kind", [AsyncPostgresSaver, PostgresStore, PostgresCache])
def test_it_is_refused_by_all_that_have_tables(kind):
    with pytest.raises(InvalidArgumentError, match="tenant_a"):
        kind(URL + escaped(ON_PURPOSE[0]))


def test_it_is_refused_of_a_pool():
    given = {"options": ON_PURPOSE[0], "autocommit": True}
    pool = ConnectionPool("host=host", kwargs=given, open=False)
    with pytest.raises(InvalidArgumentError, match="tenant_a"):
        PostgresSaver(pool)
    with pytest.raises(InvalidArgumentError, match="tenant_a"):
        AsyncPostgresSaver(AsyncConnectionPool("host=host", kwargs=given, open=False))
    PostgresSaver(pool, schema="tenant_a_agents").close()


def test_it_is_refused_of_the_environment(monkeypatch):
    monkeypatch.setenv("PGOPTIONS", ON_PURPOSE[0])
    with pytest.raises(InvalidArgumentError, match="tenant_a"):
        PostgresSaver("postgresql://user@host/db")


def test_a_conninfo_that_the_program_computes_is_none():
    pool = ConnectionPool(lambda: "host=host", open=False)
    PostgresSaver(pool).close()
    assert search_path.conninfo_of(ConnectionPool("host=h", open=False)) == "host=h"
