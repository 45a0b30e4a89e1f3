"""Names and values of a store that try to become markup, on every page that links lead to."""

import asyncio
from collections import Counter
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from kit.asgi import HERE, Client
from kit.graphs import linear
from kit.pages import page_over
from kit.places import at
from kit.runs import Delta
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver as OfficialSaver
from langgraph.types import Interrupt

from threadkeep import MemorySaver, SqliteSaver, Store
from threadkeep.sessions import CheckpointManager
from threadkeep.threads.facade import Threads
from threadkeep.threads.transfer.reading import LangGraphReader
from threadkeep.ui.page import StorePage
from threadkeep.ui.serve import local_app
from threadkeep.ui.sessions import Sessions

BAD = "x\" pwn=1 '><x-pwn pwn=2>%(pwn)s %s</title></script>&lt;x-pwn&gt;"


CHANGES = "/changes?a_thread=one&b_thread=one&a={id}&b={id}"
MOST = 6  # addresses of one path that are read


class Seen(HTMLParser):
    """The links of a page, and markup that the store made."""

    def __init__(self, html):
        super().__init__()
        self.links, self.made = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "x-pwn" or any("pwn" in name for name, _ in attrs):
            self.made.append(self.get_starttag_text())
        self.links += [value for name, value in attrs if name in ("href", "hx-get") and value]


def put(saver, values, writes=(), thread=BAD, ns="", **metadata):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, 1)
    checkpoint["versions_seen"] = {BAD: {BAD: 1}}
    place = {"thread_id": thread, "checkpoint_ns": ns}
    config = {"configurable": place}
    if (found := saver.get_tuple(config)) is not None:
        place["checkpoint_id"] = found.checkpoint["id"]
    stored = saver.put(config, checkpoint, metadata, checkpoint["channel_versions"])
    for channel, value in writes:
        saver.put_writes(stored, [(channel, value)], BAD)
    return stored


@pytest.fixture
def hostile(tmp_path):
    with SqliteSaver(tmp_path / "threads.db") as saver:
        call = {"name": BAD, "args": {BAD: [BAD]}, "id": BAD}
        picture = {"type": "image_url", "image_url": {"url": f"https://{BAD}"}}
        said = [
            HumanMessage([{"type": "text", "text": BAD}, picture, {"type": BAD}], id=BAD, name=BAD),
            AIMessage(
                BAD, tool_calls=[call], id="a", response_metadata={"model": BAD, "stop_reason": BAD}
            ),
            ToolMessage(BAD, tool_call_id=BAD, id="b", status="error"),
        ]
        review = {"action_name": BAD, "allowed_decisions": ["approve", "edit", "reject"]}
        asked = {
            "action_requests": [{"name": BAD, "args": {BAD: BAD}, "description": BAD}],
            "review_configs": [review],
        }
        put(saver, {"messages": said, BAD: {BAD: BAD}}, step=BAD, source=BAD)
        put(
            saver,
            {"messages": said[:2], BAD: [BAD, {BAD: 1}]},
            [("__error__", BAD), (BAD, BAD), ("__interrupt__", [Interrupt(asked, id=BAD)])],
            step=1,
        )
        put(saver, {BAD: [BAD]}, ns=f"{BAD}:{BAD}")
        saver.threads.tag(BAD, BAD)
        saver.threads.update(BAD, metadata={BAD: BAD, "list": [BAD], "dict": {BAD: BAD}})
        fork = saver.threads.fork(BAD, None, f"{BAD} fork").id
        put(saver, {"a": 1}, thread=fork)
        with Store(saver.backend, history=5) as items:
            for number in range(2):
                items.put((BAD,), BAD, {BAD: [BAD, number]})
        manager = CheckpointManager(saver)
        manager.create_checkpoint(f"{BAD} session", BAD, {BAD: BAD})
        yield saver


async def crawled(page):
    """Return the pages that links of the page lead to, by their addresses."""
    sessions, pages, count = Sessions(), {}, Counter()
    waiting = ["/", "/count", "/inbox", "/store", "/store/check?run=1", "/store/items?ns=."]
    app = local_app(page, sessions, 8230)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
        await client.post("/enter", content=sessions.new_token())
        client.headers["hx-request"] = "true"
        for path in waiting:  # (which grows)
            name = path.partition("?")[0]
            count[name] += path not in pages
            if path in pages or count[name] > MOST:
                continue
            answer = await client.get(path)
            assert answer.status_code < 500, (path, answer.text)
            pages[path] = found = Seen("")
            if answer.headers["content-type"].startswith("text/html"):
                found.feed(answer.text)
                links = [urlsplit(urljoin(HERE + path, one)) for one in found.links]
                here = [one for one in links if f"{one.scheme}://{one.netloc}" == HERE]
                waiting += [f"{one.path}?{one.query}" for one in here]
    return pages


def test_nothing_of_a_store_becomes_markup(hostile):
    pages = asyncio.run(crawled(page_over(hostile, write=True)))
    names = {one.partition("?")[0] for one in pages}
    assert names >= {"/actions", "/changes", "/edit", "/growth", "/store/item", "/timeline"}
    assert [(path, one.made) for path, one in pages.items() if one.made] == []


def test_odd_states_of_langgraph_are_shown(tmp_path):
    path = str(tmp_path / "a.db")
    with OfficialSaver.from_conn_string(path) as saver:
        put(saver, {7: "seven", "b": "c"}, thread="key")
        put(saver, {"__pregel_tasks": 7}, thread="sent")
    with LangGraphReader(path) as reader:
        pages = asyncio.run(crawled(StorePage(saver=reader, title="", is_own=False)))
        (found,) = reader.list({"configurable": {"thread_id": "key"}}, values="lazy")
        assert found.checkpoint["channel_values"]["7"] == "seven"
    assert any(one.startswith("/value?") and "channel=7" in one for one in pages)


@pytest.mark.parametrize("path", ["/thread?id=one", "/thread/step?id=one&at={id}", CHANGES])
def test_a_page_reads_the_entry_of_its_thread_once(path, monkeypatch):
    read = Threads.aget
    asked = []

    def counted(self, thread):
        asked.append(thread)
        return read(self, thread)

    monkeypatch.setattr(Threads, "aget", counted)
    with MemorySaver() as saver:
        put(saver, {"n": 1}, thread="one")
        id = put(saver, {"n": 2}, thread="one")["configurable"]["checkpoint_id"]
        sessions = Sessions()
        client = Client(local_app(page_over(saver), sessions, 8230))
        client.cookies = dict(client("POST", "/enter", content=sessions.new_token()).cookies)
        answer = client.get(path.format(id=id))
    assert (answer.status_code, asked) == (200, ["one"])


def test_a_conversation_of_writes_is_named():
    with MemorySaver() as saver:
        linear(saver, Delta, n=lambda _: {"log": ["b"]}).invoke({"log": ["a"]}, at("one"))
        sessions = Sessions()
        client = Client(local_app(page_over(saver), sessions, 8230))
        client.cookies = dict(client("POST", "/enter", content=sessions.new_token()).cookies)
        shown = client.get("/thread/messages?id=one").text
    assert "DeltaChannel" in shown
    assert "<bdi>log</bdi>" in shown
