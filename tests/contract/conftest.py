"""Databases that a module's tests may do anything with."""

from itertools import count

import psycopg
import pytest
from kit.postgres_server import server

_numbers = count()


@pytest.fixture(scope="session")
def own_server():
    with server() as own:
        yield own


@pytest.fixture
def database(own_server):
    """The URL of an empty database."""
    name = f"empty{next(_numbers)}"
    with psycopg.connect(own_server.url(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    return own_server.url(database=name)
