"""A state of very many channels, as a hostile file may hold: a page shows some of them."""

from collections.abc import Set as AbstractSet

import pytest
from kit.asgi import Client
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from threadkeep.threads.transfer.reading import LangGraphReader
from threadkeep.threads.transfer.source_sqlite import _SqliteSource as Source
from threadkeep.ui.app import build
from threadkeep.ui.guard import MountedAccess
from threadkeep.ui.page import MOST, StorePage
from threadkeep.ui.pages.thread import _SEARCHED

MANY = 1500
HEAD = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A client of the page over a LangGraph file, and the channels of each read."""
    path = tmp_path / "langgraph.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        at = HEAD
        for step in range(2):
            names = [f"channel-{number}" for number in range(MANY)]
            values = {name: [name, step * (name == "channel-1499")] for name in names}
            versions = {name: 1 + step * (name == "channel-1499") for name in names}
            made = {"channel_values": values, "channel_versions": versions}
            metadata = {"source": "loop", "step": step, "parents": {}}
            at = saver.put(at, {**empty_checkpoint(), **made}, metadata, versions)
    reads, real = [], Source.checkpoint

    def checkpoint(self, window, channels):
        reads.append(channels)
        return real(self, window, channels)

    monkeypatch.setattr(Source, "checkpoint", checkpoint)
    reader = LangGraphReader(str(path))
    page = StorePage(saver=reader, title="theirs", is_own=False)
    ids = [one.checkpoint["id"] for one in reader.list(HEAD, values="lazy")]
    yield Client(build(page, MountedAccess(lambda _: "ann"))), reads, ids
    reader.close()


def test_messages_are_looked_for_in_some(theirs):
    client, reads, _ = theirs
    answer = client.get("/thread/messages?id=t")
    assert "This state holds no conversation" in answer.text
    assert len(set().union(*reads)) == _SEARCHED < MANY
    assert all(isinstance(one, AbstractSet) for one in reads), "a list would be searched for each"


def test_changed_ones_are_compared_first(theirs):
    client, reads, ids = theirs
    html = client.get(f"/changes?a_thread=t&a={ids[1]}&b_thread=t&b={ids[0]}").text
    assert html.count('class="channel" open') == 1
    assert "channel-1499" in html
    assert f"{MOST} of 1,500 shown" in html
    assert len(html) < 10_000
    assert {len(one) for one in reads} == {MOST}


def test_a_checkpoint_shows_some(theirs):
    client, _, ids = theirs
    html = client.get(f"/thread/step?id=t&at={ids[0]}").text
    assert html.count("<details") < MOST + 20
    assert "1500 shown" in html
