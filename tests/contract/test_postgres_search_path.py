"""Tenants that LangGraph's savers keep apart by search_path stay apart, or opening is refused."""

import os

import psycopg
import pytest
from kit.places import at
from kit.postgres import role_of, url, url_as
from kit.runs import story, told
from langgraph.checkpoint.postgres import PostgresSaver as LangGraphsSaver
from psycopg_pool import ConnectionPool

from threadkeep import PostgresSaver
from threadkeep.errors import InvalidArgumentError

TENANTS = [f"tk_path_{letter}_{os.getpid()}" for letter in "ab"]


@pytest.fixture
def server():
    names = ", ".join([*TENANTS, *(f"threadkeep_{name}" for name in TENANTS)])
    with psycopg.connect(url(), autocommit=True) as db:
        for name in TENANTS:
            db.execute(f"CREATE SCHEMA {name}")
        yield db
        db.execute(f"DROP SCHEMA IF EXISTS {names} CASCADE")


def of_tenant(name):
    return f"{url()}?options=-csearch_path%3D{name}"


def test_tenants_stay_apart(server):
    for name in TENANTS:
        place = of_tenant(name)
        with LangGraphsSaver.from_conn_string(place) as theirs:
            theirs.setup()
            story(theirs).invoke({"log": [f"of {name}"]}, at())
        own = {"schema": f"threadkeep_{name}", "migrate_from": place}
        with PostgresSaver(place, **own) as saver:
            saver.setup()
            assert story(saver).invoke({"log": ["more"]}, at())["log"] == told(f"of {name}", "more")


def test_a_path_that_the_session_sets_is_refused_by_setup(server):
    def configure(connection):
        connection.execute(f"SET search_path = {TENANTS[0]}")

    server.execute(f"SET search_path = {TENANTS[0]}")
    given = {"autocommit": True}
    with ConnectionPool(url(), min_size=1, kwargs=given, configure=configure) as pool:
        for connection in (server, pool):
            with pytest.raises(InvalidArgumentError, match=TENANTS[0]):
                PostgresSaver(connection).setup()
            PostgresSaver(connection, schema=f"threadkeep_{TENANTS[0]}").setup()


def test_a_path_of_the_role_is_refused_by_setup(server):
    role = role_of("LOGIN SUPERUSER")
    server.execute(f"ALTER ROLE {role} SET search_path = {TENANTS[0]}, public")
    with (
        PostgresSaver(url_as(url(), role)) as saver,
        pytest.raises(InvalidArgumentError, match=TENANTS[0]),
    ):
        saver.setup()
