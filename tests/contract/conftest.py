"""Databases that a module's tests may do anything with; and what runs of the contract."""

from collections import defaultdict
from itertools import count

import psycopg
import pytest
from kit.contract import WIRING, Variant
from kit.postgres_server import server
from kit.selection import drawn

_numbers = count()


def pytest_collection_modifyitems(config, items):
    """Run some cases of the contract on each variant of a backend, in a full run all of them."""
    variants = defaultdict(list)
    for item in items:
        of = getattr(item, "cls", None)
        if of and issubclass(of, Variant) and item.originalname in WIRING:
            variants[of].append(item)
    left_out = set()
    for of, cases in variants.items():
        left_out.update(set(cases) - set(drawn(cases, 10, of.__qualname__)))
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


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
