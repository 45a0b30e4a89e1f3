"""Requests that the page refuses: without a session, from other pages, for other hosts."""

import asyncio
import re

import pytest
from kit.asgi import HERE, Client
from kit.pages import page_over
from langgraph.checkpoint.memory import InMemorySaver
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from threadkeep import MemorySaver
from threadkeep.errors import InvalidArgumentError
from threadkeep.ui import app
from threadkeep.ui.guard import CSRF, OPEN
from threadkeep.ui.serve import local_app
from threadkeep.ui.sessions import Sessions


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
            for accept in ("*/*", "text/html"):
                answer = stranger(method, path, origin=HERE, accept=accept)
                assert answer.status_code == 401, (method, path)


def test_a_tab_without_a_session_is_told_what_to_do(stranger):
    """Such as one that is left from before a restart."""
    text = {}
    for language, path in (("en", "/thread?id=secret<b>"), ("zh", "/store/items?ns=secret")):
        answer = stranger.get(path, accept="text/html", accept_language=language)
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "secret" not in answer.text
        assert "/static/enter.js" not in answer.text
        text[language] = answer.text
    assert "Open the new link from the terminal" in text["en"]
    assert "请打开运行 threadkeep ui 的终端中的新链接" in text["zh"]
    for method, more in (("GET", {"hx_request": "true"}), ("POST", {"origin": HERE})):
        answer = stranger(method, "/", accept="text/html", **more)
        assert (answer.status_code, answer.headers["content-type"][:10]) == (401, "text/plain")


def test_with_a_password_a_tab_is_led_to_the_entry():
    with MemorySaver() as saver:
        client = Client(local_app(page_over(saver), Sessions("correct horse"), 8230))
        answer = client.get("/", accept="text/html")
        assert (answer.status_code, answer.headers["location"]) == (303, "/enter")
        assert client.get("/", accept="text/html", hx_request="true").status_code == 401


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
    for host in ("localhost:8230", "LOCALHOST:8230", "[::1]:8230", "192.168.7.7:8230"):
        assert client.get("/", host=host, origin=f"http://{host}").status_code == 200


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
    assert sessions.enter(sessions.new_token()) is not None, "a token cannot be guessed"
    now[0] = 61.0
    assert sessions.enter("correct horse") is not None


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example:8230",
            "localhost:8231",
            "127.0.0.1",
            "localhost.",
            "localhost",
            "",
            ":8230",
        ),
        *("[::1%evil.example]:8230", "::1:8230", "[127.0.0.1]:8230", "2130706433:8230", "[::1]"),
    ],
)
def test_another_host_is_refused(client, host):
    """A name that an attacker lets resolve to this machine (DNS rebinding)."""
    assert client.get("/", host=host).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "null"},
        {"origin": "ftp://127.0.0.1:8230"},
        {"origin": "http://127.0.0.1:8231"},
        {"origin": "http://127.0.0.1:8230.evil.example"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"},
        {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
    ],
)
def test_another_page_cannot_read(client, headers):
    assert client.get("/", **headers).status_code == 403


@pytest.mark.parametrize("name", ["host", "origin", "sec-fetch-site", CSRF])
def test_a_repeated_header_is_refused(client, name):
    """A proxy may read the first one, and the page the last."""
    given = [("host", "127.0.0.1:8230"), (name, "127.0.0.1:8230"), (name, "same-origin")]
    sent, headers = ask(client.app, "GET", "/", given, client.cookies)
    assert (sent, headers["content-type"]) == (400, "text/plain; charset=utf-8")


def ask(app, method, path, headers, cookies=None, receive=None):
    """Send a request that no client library would send; return the status and headers."""
    cookie = "; ".join(f"{name}={value}" for name, value in (cookies or {}).items())
    given = [(n.encode(), v.encode()) for n, v in [*headers, ("cookie", cookie)]]
    scope = {"type": "http", "method": method, "path": path, "headers": given}
    found = []

    async def send(message):
        found.append(message)

    async def nothing():
        return {"type": "http.request", "body": b""}

    more = {"query_string": b"", "root_path": "", "http_version": "1.0", "scheme": "http"}
    asyncio.run(app({**scope, **more}, receive or nothing, send))
    return found[0]["status"], {n.decode(): v.decode() for n, v in found[0]["headers"]}


def test_odd_requests_are_refused(client):
    host = [("host", "127.0.0.1:8230")]
    assert ask(client.app, "GET", "/", [], client.cookies)[0] == 421, "HTTP/1.0 without a host"
    for path in (f"{HERE}/enter", "//enter", "/enter/", "/ENTER", "/static/ui.css/", "/x/../enter"):
        assert ask(client.app, "GET", path, host)[0] == 401, path
    for method in ("post", "TRACE", "CONNECT", "get"):
        assert ask(client.app, method, "/", host, client.cookies)[0] == 403, method


def test_cookies_of_other_programs_shut_nobody_out(client):
    """Cookies ignore ports: another page on this machine may set ours, with a longer path."""
    ((name, session),) = client.cookies.items()
    for cookie in (f"{name}=theirs; {name}={session}", f"{name}={session}; {name}=theirs"):
        client.cookies = {}
        assert client.get("/", cookie=cookie).status_code == 200


def test_a_cookie_behind_https_is_secure(sessions):
    with MemorySaver() as saver:
        app = local_app(page_over(saver), sessions, 8230, ["agents.example"])
        for scheme in ("https", "http"):
            address = f"{scheme}://agents.example"
            token = sessions.new_token()
            answer = Client(app, address)("POST", "/enter", content=token, origin=address)
            assert ("Secure" in answer.headers["set-cookie"]) == (scheme == "https")


def test_the_usual_port_is_left_out(sessions):
    with MemorySaver() as saver:
        app = local_app(page_over(saver), sessions, 80)
        for host in ("localhost", "127.0.0.1", "[::1]", "localhost:80"):
            assert ask(app, "GET", "/", [("host", host)])[0] == 401, "only the session is missing"
        assert ask(app, "GET", "/", [("host", "evil.example")])[0] == 421


def test_bodies_are_short_and_arrive_in_time(stranger, monkeypatch):
    async def never():
        await asyncio.Event().wait()

    async def endless():
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": True}

    host = [("host", "127.0.0.1:8230")]
    monkeypatch.setattr("threadkeep.ui.guard._SECONDS", 0.01)
    for receive in (never, endless):
        assert ask(stranger.app, "POST", "/enter", host, receive=receive)[0] == 408
    monkeypatch.undo()
    monkeypatch.setattr("threadkeep.ui.guard._BODY", 999)
    assert stranger("POST", "/enter", content=b"x" * 999).status_code == 403
    assert stranger("POST", "/enter", content=b"x" * 1000).status_code == 413


def test_links_from_elsewhere_work(client):
    link = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    for site in ("none", "cross-site", "same-origin"):
        assert client.get("/", sec_fetch_site=site, **link).status_code == 200


@pytest.mark.parametrize("path", ["/store", "/store?again=1", "/store/check?run=1"])
def test_links_from_elsewhere_start_no_long_work(client, path):
    link = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    work = client.app._app.state.work
    assert client.get(path, sec_fetch_site="cross-site", **link).status_code == 200
    assert client.get(path, hx_request="true", sec_fetch_site="cross-site").status_code == 403
    assert work == {}
    assert client.get(path, hx_request="true", sec_fetch_site="same-origin").status_code == 200
    assert len(work) == 1


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


# -- mounted in another application ------------------------------------------------------


def mounted(saver, authorize=None, **options):
    return Client(app(saver, authorize=authorize, **options), "http://service.example")


def test_a_mounted_page_is_closed_without_authorize():
    with MemorySaver() as saver:
        answer = mounted(saver).get("/")
        assert (answer.status_code, "authorize=" in answer.text) == (403, True)


def test_a_mount_opens_no_path():
    """Neither the paths that the page on this machine opens, nor others."""
    with MemorySaver() as saver:
        page = app(saver, authorize=lambda _: None, write=True)
        outer = Client(Starlette(routes=[Mount("/threads", page)]), "http://service.example")
        for path in {*paths(page._app.routes), *OPEN, "/threads/enter"}:
            for method in ("GET", "HEAD", "POST", "OPTIONS"):
                assert outer(method, f"/threads{path}").status_code == 403, (method, path)


def test_each_user_has_a_secret_of_their_own():
    """All processes of a service have the same ones."""

    def secret_of(client, user):
        (found,) = re.findall(r'"x-threadkeep": "([^"]+)"', client.get("/", x_user=user).text)
        return found

    def authorize(request):
        return request.headers["x-user"]

    with MemorySaver() as saver:
        one, two = (mounted(saver, authorize, secret="s" * 32, write=True) for _ in range(2))
        assert secret_of(one, "ann") == secret_of(two, "ann") != secret_of(one, "bob")
        assert secret_of(one, "ann") != secret_of(mounted(saver, authorize), "ann")
        foreign = {CSRF: secret_of(one, "bob"), "x_user": "ann"}
        assert one("POST", "/actions?thread=t&action=pin", **foreign).status_code == 403


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
