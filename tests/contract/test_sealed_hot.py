"""A hot Redis in front of a sealed store holds only sealed segments."""

from __future__ import annotations

import random

import pytest
from kit.marked import holds
from kit.postgres import url_for
from kit.redis_servers import Server
from kit.rows import checkpoint, metadata

from threadkeep import KeyRing, PostgresSaver

RING = KeyRing([b"k" * 32])
T = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


@pytest.fixture
def server():
    with Server() as own:  # (others' keys may look the same)
        yield own


def opened(folder, server, ring=RING):
    return PostgresSaver(
        url_for(folder), max_size=2, hot=server.url, working_set_bytes=0, keys=ring
    )


def fill(saver, mark):
    state = checkpoint({"page": mark + random.Random(1).randbytes(4000)}, page=1)
    saver.put(T, state, metadata(), state["channel_versions"])
    return state["channel_values"]


def stored(client):
    """All keys and values of the server."""
    keys = client.keys("tk-hot*")
    return b"".join([b"".join((key, client.dump(key))) for key in keys])


def test_nothing_is_found_in_the_server(tmp_path, server):
    mark = random.Random(2).randbytes(40)
    for name, ring in (("sealed", RING), ("plain", None)):
        with opened(tmp_path / name, server, ring) as saver:
            values = fill(saver, mark)
            found = holds(stored(server.admin), [mark])
            assert bool(found) == (ring is None)
            hits = saver.counters().cache_hits
            assert saver.get_tuple(T).checkpoint["channel_values"] == values
            assert saver.counters().cache_hits > hits


@pytest.mark.parametrize("ring", [RING, RING.rotated()], ids=["changed", "rotated"])
def test_what_does_not_open_is_a_miss(tmp_path, server, ring):
    with opened(tmp_path, server) as saver:
        values = fill(saver, b"mark")
    if ring is RING:
        for key in server.admin.keys("tk-hot*"):
            if server.admin.type(key) == b"hash":
                for field, data in server.admin.hgetall(key).items():
                    server.admin.hset(key, field, data[:-1] + bytes((data[-1] ^ 1,)))
    with opened(tmp_path, server, ring) as saver:
        assert saver.get_tuple(T).checkpoint["channel_values"] == values
        assert saver.get_tuple(T).checkpoint["channel_values"] == values
