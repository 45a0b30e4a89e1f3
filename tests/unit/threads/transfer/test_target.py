"""Checkpoints written through LangGraph's savers: the saver returns the same again."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kit.engine import shown
from kit.places import at
from kit.runs import SCHEMAS, story
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from threadkeep._core.codec import NativeCodec
from threadkeep.threads.transfer.opening import open_source
from threadkeep.threads.transfer.sources import SourceWrite
from threadkeep.threads.transfer.target import put_checkpoint, put_writes


@pytest.fixture(params=["memory", "sqlite"])
def target(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "memory":
        yield InMemorySaver()
        return
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as db:
        yield SqliteSaver(db)


def test_the_saver_returns_the_same(target: Any) -> None:
    written = InMemorySaver()
    for name, schema in SCHEMAS.items():
        for who in ("a", "b"):
            story(written, schema).invoke({"log": [who]}, at(name))
    source = open_source(written, NativeCodec(), None, None)
    for name in SCHEMAS:
        versions: dict[str | None, Any] = {}
        for one in source.checkpoints(name):
            put_checkpoint(target, name, one, versions.get(one.parent))
            put_writes(target, name, one.ns, one.id, one.writes)
            versions[one.id] = one.checkpoint["channel_versions"]
        given = [shown(one) for one in target.list(at(name))]
        assert given == [shown(one) for one in written.list(at(name))]


def test_writes_keep_their_index(target: Any) -> None:
    """Also after an error that was written first, and after one that was written last."""
    writes = [
        SourceWrite("one", "~a", -1, "__error__", "failed"),
        SourceWrite("one", "~a", 1, "x", 1),
        SourceWrite("two", "~b", -3, "__interrupt__", "asked"),
        SourceWrite("two", "~b", 0, "x", 2),
        SourceWrite("two", "~b", 1, "y", 3),
    ]
    written = InMemorySaver()
    story(written).invoke({"log": ["a"]}, at("t"))
    source = open_source(written, NativeCodec(), None, None)
    first = next(source.checkpoints("t"))
    put_checkpoint(target, "t", first)
    put_writes(target, "t", first.ns, first.id, writes)
    (read,) = open_source(target, NativeCodec(), None, None).checkpoints("t")
    assert read.writes == writes
