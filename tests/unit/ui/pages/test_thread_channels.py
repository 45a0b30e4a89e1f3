"""The conversation of a thread: the channel that holds it, found in few reads."""

import pytest
from kit.asgi import Client
from kit.places import THREAD
from kit.rows import place, put
from langchain_core.messages import HumanMessage

from threadkeep import MemorySaver
from threadkeep._run.lazy_values import LazyValues
from threadkeep.errors import CorruptionError
from threadkeep.ui import app

LONG = "x" * 5000  # (short values come with the listing)


@pytest.fixture
def reads(monkeypatch):
    """The channels of each read. One of the name "damaged" fails."""
    read, found = LazyValues._read, []

    def noted(self, channels):
        found.append([*channels])
        if "damaged" in found[-1]:
            raise CorruptionError("It is damaged.")
        return read(self, channels)

    monkeypatch.setattr(LazyValues, "_read", noted)
    return found


def messages_of(values):
    with MemorySaver() as saver:
        put(saver, place(), values)
        client = Client(app(saver, authorize=lambda _: "ann"))
        return client.get(f"/thread/messages?id={THREAD}")


def test_many_channels_are_read_in_few_reads(reads):
    names = [f"c{number:03}" for number in range(300)]
    answer = messages_of(dict.fromkeys(names, LONG))
    assert answer.status_code == 200
    assert sorted(name for read in reads for name in read) == names
    assert len(reads) < 7


def test_a_damaged_channel_hides_no_conversation(reads):
    state = {"a": LONG, "b": LONG, "c": [HumanMessage(LONG + " is said")], "damaged": LONG}
    assert "is said" in messages_of(state).text
    assert reads == [["a"], ["b", "c", "damaged"], ["b"], ["c"]]
