"""Prefixes for tests on a real Redis server: one for each folder that a test names.

`scripts/services` starts the server and says where it is. What a prefix holds is removed when
it is another folder's turn, and at the end.
"""

import atexit
import os
from functools import cache
from itertools import count
from pathlib import Path

import redis


def url() -> str:
    """The URL of the server."""
    found = os.environ.get("TK_TEST_REDIS")
    assert found, "no Redis server: run the tests with `make test`, or scripts/services"
    return found


@cache
def _server() -> redis.Redis:
    client = redis.Redis.from_url(url())
    atexit.register(client.close)
    return client


_numbers = count()
_prefixes: dict[str, str] = {}
_MOST = 4  # a test uses no more folders at a time


def _remove(prefix: str) -> None:
    for key in _server().scan_iter(match=f"{prefix}:*", count=1000):
        _server().unlink(key)


def _remove_all() -> None:
    for prefix in _prefixes.values():
        _remove(prefix)


def prefix_for(folder: Path | str) -> str:
    """The prefix that stands for a folder: as empty as that when a test begins."""
    if not _prefixes:
        atexit.register(_remove_all)
    known = _prefixes.get(str(folder))
    if known is None:
        if len(_prefixes) == _MOST:
            _remove(_prefixes.pop(next(iter(_prefixes))))
        known = _prefixes[str(folder)] = f"test-{os.getpid()}-{next(_numbers)}"
    return known


def url_for(folder: Path | str) -> str:
    """The URL of what stands for a folder."""
    return f"{url()}?prefix={prefix_for(folder)}"


def empty_prefix() -> str:
    """A prefix under which there is nothing."""
    return prefix_for(f"number {next(_numbers)}")
