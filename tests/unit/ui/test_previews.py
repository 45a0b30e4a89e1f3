"""Previews of threads: their contents, and how seldom they are read."""

import pytest
from kit.graphs_to_look_at import asks, desk, named
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph

from threadkeep import MemorySaver, SqliteSaver
from threadkeep.savers.showing import as_stored
from threadkeep.ui.page import StorePage
from threadkeep.ui.previews import Preview, Previews


class Reads:
    """A saver that counts the threads that are read."""

    def __init__(self, saver):
        self.saver, self.threads, self.read = saver, saver.threads, []

    async def aget_tuple(self, config, **options):
        self.read.append(config["configurable"]["thread_id"])
        return await self.saver.aget_tuple(config, **options)


def over(saver):
    """Previews of a saver, and its reads."""
    reads = Reads(as_stored(saver))
    return Previews(StorePage(saver=reads, title="")), reads


def save(saver, messages, thread="t", channel="messages"):
    builder = StateGraph(MessagesState if channel == "messages" else dict)
    builder.add_node("end", lambda _: None)
    builder.add_edge(START, "end")
    builder.compile(checkpointer=saver).invoke({channel: messages}, named(thread))


async def preview_of(saver, thread="t"):
    previews, reads = over(saver)
    info = await reads.threads.aget(thread)
    await previews.read([info])
    return previews.of(info)


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([HumanMessage("Hello")], Preview("Hello", step=1)),
        (
            [SystemMessage("Be kind"), HumanMessage("Hello\n\nthere"), AIMessage("**Hi**\nyou")],
            Preview("Hello", "ai", "Hi you", 1),
        ),
        ([AIMessage("Hello")], Preview("", "ai", "Hello", 1)),
        ([{"role": "user", "content": "我的包裹在哪里？"}], Preview("我的包裹在哪里？", step=1)),
        ([HumanMessage("\u202ea\tb" + "x" * 500)], Preview("\\u202ea b" + "x" * 150 + "…", step=1)),
        ([HumanMessage("a"), HumanMessage([{"type": "image", "url": "x"}])],
         Preview("a", "human", "[image]", 1)),
    ],
)  # fmt: skip
async def test_what_it_shows(messages, shown):
    with MemorySaver() as saver:
        save(saver, messages)
        found = await preview_of(saver)
    assert found._replace(last=found.last.replace("[x]", "[image]")) == shown


async def test_it_is_read_again_when_the_thread_has_changed():
    with MemorySaver() as saver:
        previews, reads = over(saver)
        for name in ("a", "b"):
            desk(saver).invoke(asks("One"), named(name))
        for _ in range(3):
            await previews.read(await reads.threads.asearch())
        assert sorted(reads.read) == ["a", "b"]
        desk(saver).invoke(asks("Two", 1), named("a"))
        found = await reads.threads.asearch(order="thread")
        assert [previews.is_current(one) for one in found] == [False, True]
        assert previews.of(found[0]).question == "One", "the old one is shown meanwhile"
        await previews.read(found)
        assert sorted(reads.read) == ["a", "a", "b"]


async def test_an_archived_or_deleted_thread_is_never_read(tmp_path):
    with SqliteSaver(tmp_path / "t.db", cold=f"file://{tmp_path}/cold") as saver:
        previews, reads = over(saver)
        for name in ("archived", "deleted"):
            desk(saver).invoke(asks("One"), named(name))
        saver.threads.archive("archived")
        saver.delete_thread("deleted")
        found = await reads.threads.asearch(state=["archived", "deleted"])
        assert len(found) == 2
        await previews.read(found)
        assert (reads.read, {previews.of(one) for one in found}) == ([], {Preview()})


async def test_a_large_thread_is_read_without_its_messages(monkeypatch):
    monkeypatch.setattr("threadkeep.ui.previews._LARGEST", 10)
    with MemorySaver() as saver:
        desk(saver).invoke(asks("One"), named("t"))
        assert await preview_of(saver) == Preview(step=3)


async def test_it_stops_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr("threadkeep.ui.previews._SECONDS", 0)
    with MemorySaver() as saver:
        previews, reads = over(saver)
        for name in ("a", "b"):
            desk(saver).invoke(asks("One"), named(name))
        found = await reads.threads.asearch(order="thread")
        await previews.read(found)
        assert reads.read == ["a"]
        await previews.read(found)
        assert reads.read == ["a", "b"]
