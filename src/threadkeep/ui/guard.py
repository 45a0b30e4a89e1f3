"""Access to the page: each request needs a session, and no other web page can make one.

Browsers send requests to `localhost` for any web page. These are refused: requests must name an
allowed host (DNS rebinding), come from the page itself (Origin, Sec-Fetch-Site), and carry a secret
in a header if they change something. Nothing but the entry answers without a session.
"""

from __future__ import annotations

import hmac
import inspect
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import NamedTuple, Protocol, TypeAlias

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threadkeep.ui.sessions import Sessions

CSRF = "x-threadkeep"
"""The header of requests that change something; its value is the secret in each page."""

OPEN = frozenset({"/enter", "/static/enter.js", "/static/ui.css"})
"""Paths that answer without a session. The last two are files of this package."""

Authorize: TypeAlias = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Return the name of the user who makes a request, for the audit log, or None to refuse it."""

_READS = frozenset({"GET", "HEAD"})
_ONCE = ("host", "origin", "sec-fetch-site", CSRF)  # headers that a proxy may read otherwise
_BODY, _SECONDS = 4_000_000, 30.0  # bytes of a request's body, and its time
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class User(NamedTuple):
    """A user, and the secret of the CSRF header of their requests."""

    name: str
    csrf: str


class Access(Protocol):
    """Decides who may make a request."""

    def refusal(self, headers: Headers) -> Response | None:
        """Return the answer to a request for another host or from another origin."""

    async def user(self, scope: Scope, receive: Receive) -> User | Response:
        """Return the user of a request, or the answer that refuses it."""

    @property
    def opened(self) -> Collection[str]:
        """Paths that need no user."""


class Guard:
    """Middleware that passes only requests of the page's users, and adds headers to answers.

    Args:
        app: the page.
        access: decides who may use it.
        writes: True if the page may change the store.
    """

    def __init__(self, app: ASGIApp, access: Access, *, writes: bool) -> None:
        self._app = app
        self._access = access
        self._writes = writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            body = _Body(receive)
            app = await self._refusal(scope, body) or self._app
            await app(scope, body, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    async def _refusal(self, scope: Scope, receive: Receive) -> Response | None:
        headers = Headers(scope=scope)
        is_read = scope["method"] in _READS
        if any(len(headers.getlist(name)) > 1 for name in _ONCE):
            return _refused("A header is repeated.", 400)
        refused = self._access.refusal(headers) or _foreign(headers, is_read=is_read)
        if refused is not None:
            return refused
        if scope["path"] in self._access.opened:
            return None
        user = await self._access.user(scope, receive)
        if isinstance(user, Response):
            return user
        if not is_read:
            if not self._writes:
                return _refused("This page is read-only. Start it with --write.")
            if not secrets.compare_digest(headers.get(CSRF, "").encode(), user.csrf.encode()):
                return _refused("The request has no CSRF token. Reload the page.")
        scope["threadkeep.user"] = user
        return None


def _foreign(headers: Headers, *, is_read: bool) -> Response | None:
    """Return the answer to a request that another web page makes.

    Links from other pages work: the browser shows the answer, and the other page cannot read it.
    """
    site = headers.get("sec-fetch-site")
    if site in (None, "same-origin"):
        return None
    is_link = site == "none" or headers.get("sec-fetch-mode") == "navigate"
    if is_read and is_link and headers.get("sec-fetch-dest", "document") == "document":
        return None
    return _refused("Requests from other web pages are refused.")


def _is_same(origin: str | None, host: str) -> bool:
    return origin is None or origin.lower() in (f"http://{host}", f"https://{host}")


class _Body:
    """The body of a request, which must be short and arrive in time."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = _BODY
        self._end: float | None = None
        self._is_read = False

    async def __call__(self) -> Message:
        if self._is_read:  # (until the client disconnects)
            return await self._receive()
        if self._end is None:
            self._end = anyio.current_time() + _SECONDS
        try:
            with anyio.fail_after(max(self._end - anyio.current_time(), 0)):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "The request took too long.") from None
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, f"The request has more than {_BODY:,} bytes.")
        self._is_read = not message.get("more_body", False)
        return message


def _refused(text: str, status: int = 403) -> Response:
    return PlainTextResponse(text, status)


def _with_headers(send: Send) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            new = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message["headers"], *[one for one in new if one[0] not in names]]
        await send(message)

    return answer


# -- a page on this machine ------------------------------------------------------------


_HTTP, _SIX = 80, 6


class LocalAccess:
    """Access to a page that `threadkeep ui` serves: a session's cookie, and known hosts alone.

    Args:
        sessions: the open sessions.
        port: the port of the page. It is part of the cookie's name, as cookies ignore ports.
        names: host names of the page, each with a port if a proxy listens on another one.
            Addresses such as 127.0.0.1 are always allowed, because DNS rebinding needs a name.
    """

    opened = OPEN

    def __init__(self, sessions: Sessions, port: int, names: Collection[str] = ()) -> None:
        self._sessions = sessions
        self._port = port
        self._names = frozenset(["localhost", *[name.lower() for name in names]])
        self.cookie = f"threadkeep-{port}"

    def refusal(self, headers: Headers) -> Response | None:
        """See `Access`."""
        host = headers.get("host", "").lower()
        if not self._is_ours(host):
            return _refused("This host name is not allowed. Start the page with --name NAME.", 421)
        if _is_same(headers.get("origin"), host):
            return None
        return _refused("Requests from other origins are refused.")

    def _is_ours(self, host: str) -> bool:
        if host in self._names - {"localhost"}:  # (behind a proxy)
            return True
        if self._port == _HTTP and not host.endswith(f":{_HTTP}"):
            name = host  # (browsers leave this port out)
        else:
            name, _, port = host.rpartition(":")
            if port != str(self._port):
                return False
        return name in self._names or _is_address(name)

    async def user(self, scope: Scope, receive: Receive) -> User | Response:
        """See `Access`."""
        del receive
        headers = Headers(scope=scope)
        for session in self._cookies(headers):
            csrf = self._sessions.csrf(session)
            if csrf is not None:
                return User("local", csrf)
        if self._sessions.password is not None and "text/html" in headers.get("accept", ""):
            return RedirectResponse("/enter", 303)
        return _refused("Open the link that `threadkeep ui` has printed.", 401)

    def _cookies(self, headers: Headers) -> Iterator[str]:
        """Yield the sessions of a request; other programs on this machine may set the name too."""
        for header in headers.getlist("cookie"):
            for part in header.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self.cookie:
                    yield value


def _is_address(name: str) -> bool:
    is_six = name.startswith("[") and name.endswith("]")
    try:
        found = ipaddress.ip_address(name[1:-1] if is_six else name)
    except ValueError:
        return False
    return (found.version == _SIX) == is_six and "%" not in name  # (a zone may be any text)


# -- a page inside another application -------------------------------------------------


class MountedAccess:
    """Access to a page in another application, which knows its users.

    Args:
        authorize: returns the name of a request's user; None closes the page.
        secret: the same in all processes of a service; None for a random one.
    """

    opened: Collection[str] = ()

    def __init__(self, authorize: Authorize | None, secret: str | None = None) -> None:
        self._authorize = authorize
        self._secret = (secret or secrets.token_urlsafe(32)).encode()

    def refusal(self, headers: Headers) -> Response | None:
        """See `Access`."""
        if _is_same(headers.get("origin"), headers.get("host", "").lower()):
            return None
        return _refused("Requests from other origins are refused.")

    async def user(self, scope: Scope, receive: Receive) -> User | Response:
        """See `Access`."""
        if self._authorize is None:
            return _refused("This page is closed: give threadkeep.ui.app an authorize= function.")
        name = self._authorize(Request(scope, receive))
        if inspect.isawaitable(name):
            name = await name
        # (not `True`: the audit log needs a name)
        if isinstance(name, str) and name:
            csrf = hmac.new(self._secret, name.encode("utf-8", "replace"), "sha256").hexdigest()
            return User(name, csrf)
        return _refused("You may not use this page.")
