"""Every parameter of every route with values that no page sends: refused, never a failure.

The parameters are those that a route asks for while it answers, in its address and in its form.
"""

import asyncio
import os
import re
from collections import defaultdict
from contextlib import closing, contextmanager, suppress
from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
import pytest
from kit.asgi import Client
from kit.backends import open_backend
from kit.graphs_to_look_at import desk, fill
from kit.pages import page_over
from kit.postgres import url
from kit.selection import drawn
from langgraph.checkpoint.postgres import PostgresSaver as OfficialPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver as OfficialSaver
from starlette import requests
from starlette.datastructures import QueryParams

from threadkeep import Store
from threadkeep.threads.transfer.reading import LangGraphReader
from threadkeep.ui.app import build
from threadkeep.ui.graphs import PageGraph
from threadkeep.ui.guard import MountedAccess
from threadkeep.ui.page import ROUTES, Asked, StorePage

FAILED = 500
OTHERS = ("self", "path", "request")  # names that no route asks for
VALUES = (
    *("", "\0", "a\0b", "zz", "-1", "0", "1.5", "9" * 40, "\u0663", "x" * 600, "\u202e\u00e9"),
    *("..", "a.b", "a..b", "%", "[", '{"a": [1]}', "nan", "true", "<script>", "' OR 1 --"),
    *("0001-01-01T00:00", "9999-12-31T23:59:59.999999", "2026-01-01T00:00+14:00", "status:waiting"),
)


class Recorded:
    """Names of parameters, by the route that asks for them."""

    def __init__(self, monkeypatch):
        self.query, self.form = defaultdict(set), defaultdict(set)
        self.path = ""
        of = self

        class Names:
            def __getitem__(self, name):
                self.asked[of.path].add(name)
                return super().__getitem__(name)

            def __contains__(self, name):
                self.asked[of.path].add(name)
                return super().__contains__(name)

            def get(self, name, default=None):
                self.asked[of.path].add(name)
                return super().get(name, default)

        class Query(Names, QueryParams):
            asked = self.query

        class Form(Names, dict):
            asked = self.form

        fields = Asked.fields

        async def recorded(request):
            return Form(await fields(request))

        monkeypatch.setattr(requests, "QueryParams", Query)
        monkeypatch.setattr(Asked, "fields", recorded)


async def status_of(service, method, path, query, form, csrf):
    """Send a request, and leave once it is answered; return the status."""
    statuses = []
    messages = iter([{"type": "http.request", "body": urlencode(form).encode()}])

    async def receive():
        return next(messages, {"type": "http.disconnect"})

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = {"host": "page", "x-threadkeep": csrf, "hx-request": "true"}
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "scheme": "http"}
    scope |= {"query_string": urlencode(query).encode(), "http_version": "1.1", "server": None}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    with suppress(Exception):  # (after its answer, a failure is raised)
        await service(scope, receive, send)
    return statuses[0] if statuses else FAILED


async def failures_of(service, method, address, csrf, recorded):
    """Return the requests with one changed parameter that fail, each parameter with each value."""
    found, tried = [], set()
    recorded.path, _, query = address.partition("?")
    own = dict(parse_qsl(query, keep_blank_values=True))
    base = {"query": {**own, **dict.fromkeys(OTHERS, "x")}, "form": {}}
    asked = {"query": recorded.query[recorded.path], "form": recorded.form[recorded.path]}
    changes = [(None, None, None)]
    while changes:
        for part, name, value in changes:
            given = {one: dict(fields) for one, fields in base.items()}
            if name is not None:
                tried.add((part, name))
                given[part].pop(name, None)
            if value is not None:
                given[part][name] = value
            status = await status_of(service, method, recorded.path, **given, csrf=csrf)
            if status >= FAILED:
                found.append((address, name, value, status))
        new = [(part, one) for part in base for one in asked[part]]
        new = sorted(set(new) - tried)
        changes = [(*one, value) for one in new for value in (None, *drawn(VALUES, 4, one))]
    return found


def addresses(saver, writes):
    """Return an address of each route, with the parameters that it needs."""
    head = saver.get_tuple({"configurable": {"thread_id": "order-17"}}).checkpoint["id"]
    a, b = f"thread=order-17&id={head}", f"a_thread=order-17&a={head}&b_thread=order-18&b="
    yield from ("GET /", "GET /thread?id=order-17", "GET /thread/messages?id=order-17&skip=1")
    yield from (
        "GET /thread/steps?id=order-17",
        "GET /timeline?id=order-17",
        "GET /live?id=order-17",
    )
    yield from (
        f"GET /thread/at?id=order-17&at={head}",
        f"GET /thread/step?id=order-17&at={head}",
        f"GET /value?{a}&channel=messages&at=0.",
        f"GET /changes?{b}",
    )
    yield from (f"GET /value?{a}&channel=messages&task=t&n=0", f"GET /compare?{b}", "GET /savings")
    for path in ("/inbox", "/count", "/growth?id=order-17", "/store", "/store/check?run=1"):
        yield f"GET {path}"
    yield from (
        "GET /graph",
        "GET /counts",
        "GET /previews?q=order",
        "GET /previews?id=order-17",
        "GET /found?q=parcel",
    )
    yield from ("GET /store/sessions", "GET /store/metrics", "GET /store/items?ns=users.acme")
    yield "GET /store/item?ns=users.acme&key=likes"
    yield from (f"GET /edit?{a}&channel=summary", f"GET /actions?{a}")
    if not writes:
        return
    (first, *_) = saver.threads.interrupts("refund")
    yield f"POST /inbox/answer?thread=refund&id={first.id}&checkpoint={first.checkpoint_id}"
    yield f"POST /edit?{a}&channel=summary"
    actions = "tag untag pin unpin release resume replay fork restore delete erase archive"
    for action in actions.split():
        yield f"POST /actions?thread=order-18&action={action}"


@contextmanager
def theirs(name, folder):
    """A database of LangGraph's savers."""
    if name == "LangGraph":
        with OfficialSaver.from_conn_string(f"{folder / 'langgraph.db'}") as saver:
            yield saver, f"{folder / 'langgraph.db'}"
        return
    schema = f"langgraph_{os.getpid()}"
    to = f"{url()}?options=-csearch_path%3D{schema}"
    with psycopg.connect(url(), autocommit=True) as server:
        server.execute(f"CREATE SCHEMA {schema}")
        with OfficialPostgresSaver.from_conn_string(to) as saver:
            saver.setup()
            yield saver, to
        server.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(params=["sqlite", "postgres", "LangGraph", "LangGraph on PostgreSQL"])
def page(request, tmp_path):
    """A page over a store, and a saver of it."""
    if request.param.startswith("LangGraph"):
        with theirs(request.param, tmp_path) as (saver, to):
            fill(saver, extras=False)
            with closing(LangGraphReader(to)) as reader:
                graph = PageGraph(desk(None))
                yield StorePage(saver=reader, title="theirs", is_own=False, graph=graph), saver
    else:
        with open_backend(request.param, tmp_path) as saver, Store(saver.backend) as items:
            fill(saver)
            items.put(("users", "acme"), "likes", {"text": "tea"})
            yield page_over(saver, write=True, graph=PageGraph(desk(saver), saver)), saver


@pytest.mark.drawn(1)
async def test_a_strange_value_is_refused_and_never_a_failure(page, monkeypatch):
    shown, saver = page
    service = build(shown, MountedAccess(lambda _: "ann"))
    recorded, failed, paths = Recorded(monkeypatch), [], set()
    html = await asyncio.to_thread(lambda: Client(service).get("/").text)
    csrf = re.search('"x-threadkeep": "([^"]+)"', html)[1]

    for one in addresses(saver, shown.writer is not None):
        method, address = one.split()
        paths.add((method, urlsplit(address).path))
        failed += await failures_of(service, method, address, csrf, recorded)
    assert failed == []
    assert sum(map(len, recorded.query.values())) > len(paths), "parameters are found"
    if shown.writer is not None:
        assert paths == {(next(iter(one.methods - {"HEAD"})), one.path) for one in ROUTES}
