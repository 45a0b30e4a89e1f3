"""Requests that the page refuses: without a session, from other pages, for other hosts."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from kit.browser import page_over
from langgraph.checkpoint.memory import InMemorySaver
from starlette.routing import Mount, Route

from threadkeep import MemorySaver
from threadkeep.errors import InvalidArgumentError
from threadkeep.ui import app
from threadkeep.ui.guard import CSRF, OPEN
from threadkeep.ui.serve import listen, local_app
from threadkeep.ui.sessions import Sessions

HERE = "http://127.0.0.1:8230"


class Client:
    """Sends requests to an application without a network."""

    def __init__(self, app, address=HERE):
        self.app, self.address, self.cookies = app, address, {}

    def __call__(self, method, path, *, content=None, **headers):
        async def send():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=self.address) as client:
                client.cookies.update(self.cookies)
                given = {name.replace("_", "-"): value for name, value in headers.items()}
                return await client.request(method, path, content=content, headers=given)

        return asyncio.run(send())

    def get(self, path, **headers):
        return self("GET", path, **headers)


@pytest.fixture
def sessions():
    return Sessions()


@pytest.fixture
def stranger(sessions):
    """A client without a session."""
    with MemorySaver() as saver:
        yield Client(local_app(page_over(saver), sessions, 8230))


@pytest.fixture
def client(stranger, sessions):
    """A client with a session."""
    answer = stranger("POST", "/enter", content=sessions.new_token())
    stranger.cookies = dict(answer.cookies)
    return stranger


def paths(routes, prefix=""):
    for route in routes:
        if isinstance(route, Mount):
            yield f"{prefix}{route.path}/ui.js"
        elif isinstance(route, Route):
            yield prefix + re.sub(r"{[^}]*}", "x", route.path)


def test_no_path_answers_without_a_session(stranger):
    every = {*paths(stranger.app._app.routes), "/nothing", "/static/nothing", "/static/../ui.js"}
    assert len(every) > 5
    for path in every - OPEN:
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            answer = stranger(method, path, origin=HERE)
            assert answer.status_code == 401, (method, path)


def test_a_websocket_is_closed(stranger):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(stranger.app({"type": "websocket", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_token_opens_one_session(stranger, sessions):
    token = sessions.new_token()
    first, second = [stranger("POST", "/enter", content=token) for _ in range(2)]
    assert (first.status_code, second.status_code) == (200, 403)
    (cookie,) = first.headers.get_list("set-cookie")
    assert cookie.startswith("threadkeep-8230=")
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(cookie.split("; "))


def test_a_new_token_voids_the_last_one(stranger, sessions):
    old, new = sessions.new_token(), sessions.new_token()
    assert stranger("POST", "/enter", content=old).status_code == 403
    assert stranger("POST", "/enter", content=new).status_code == 200


def test_a_session_reads(client):
    assert client.get("/").status_code == 200
    assert client.get("/", host="localhost:8230").status_code == 200


def test_a_session_ends():
    now = [0.0]
    sessions = Sessions(clock=lambda: now[0])
    session = sessions.enter(sessions.new_token())
    assert sessions.csrf(session) is not None
    now[0] = 13 * 3600.0
    assert sessions.csrf(session) is None


def test_passwords_are_tried_ten_times_a_minute():
    now = [0.0]
    sessions = Sessions("correct horse", clock=lambda: now[0])
    for _ in range(10):
        assert sessions.enter("wrong") is None
    assert sessions.enter("correct horse") is None
    now[0] = 61.0
    assert sessions.enter("correct horse") is not None


@pytest.mark.parametrize("host", ["evil.example:8230", "localhost:8231", "127.0.0.1", "localhost."])
def test_another_host_is_refused(client, host):
    """A name that an attacker lets resolve to this machine (DNS rebinding)."""
    assert client.get("/", host=host).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"},
        {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
    ],
)
def test_another_page_cannot_read(client, headers):
    assert client.get("/", **headers).status_code == 403


def test_links_from_elsewhere_work(client):
    link = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    for site in ("none", "cross-site", "same-origin"):
        assert client.get("/", sec_fetch_site=site, **link).status_code == 200


def test_changes_need_write(client):
    answer = client("POST", "/", origin=HERE)
    assert (answer.status_code, "--write" in answer.text) == (403, True)


def test_changes_need_the_secret_of_the_page(sessions):
    with MemorySaver() as saver:
        client = Client(local_app(page_over(saver, write=True), sessions, 8230))
        client.cookies = dict(client("POST", "/enter", content=sessions.new_token()).cookies)
        (secret,) = re.findall(r'"x-threadkeep": "([^"]+)"', client.get("/").text)
        for wrong in ({}, {CSRF: "wrong"}, {CSRF: "ä".encode("latin-1")}):
            assert client("POST", "/", **wrong).status_code == 403
        passed = client("POST", "/", **{CSRF: secret})
        assert passed.status_code == 405, "the guard passes it; this page has no such method"
        for foreign in ({"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}):
            assert client("POST", "/", **{CSRF: secret}, **foreign).status_code == 403


def test_every_answer_has_a_policy(client, stranger):
    for answer in (client.get("/"), client.get("/static/ui.js"), client.get("/nothing")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


def test_other_machines_need_a_password():
    with pytest.raises(InvalidArgumentError, match="Other machines can reach"):
        listen("0.0.0.0", 0, password=None)
    with listen("0.0.0.0", 0, password="correct horse") as opened:
        assert opened.getsockname()[1]


# -- mounted in another application ------------------------------------------------------


def mounted(saver, authorize=None, **options):
    return Client(app(saver, authorize=authorize, **options), "http://service.example")


def test_a_mounted_page_is_closed_without_authorize():
    with MemorySaver() as saver:
        answer = mounted(saver).get("/")
        assert (answer.status_code, "authorize=" in answer.text) == (403, True)


@pytest.mark.parametrize("name", [None, "", True, 7])
def test_a_user_without_a_name_is_refused(name):
    with MemorySaver() as saver:
        assert mounted(saver, lambda _: name).get("/").status_code == 403


def test_authorize_may_be_async_and_sees_the_request():
    async def authorize(request):
        return request.headers.get("x-user")

    with MemorySaver() as saver:
        client = mounted(saver, authorize)
        assert client.get("/", x_user="ann").status_code == 200
        assert client.get("/").status_code == 403
        assert client.get("/", x_user="ann", origin="http://evil.example").status_code == 403


def test_only_savers_of_threadkeep_are_mounted():
    with pytest.raises(InvalidArgumentError, match="saver"):
        app(InMemorySaver())
