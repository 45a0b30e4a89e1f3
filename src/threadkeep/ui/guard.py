"""Access to the page: each request needs a session, and no other web page can make one.

Browsers send requests to `localhost` for any web page. These are refused: requests must name an
allowed host (DNS rebinding), come from the page itself (Origin, Sec-Fetch-Site), and carry a secret
in a header if they change something. Nothing but the entry answers without a session.
"""

from __future__ import annotations

import hmac
import inspect
import secrets
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple, TypeAlias

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threadkeep.ui.sessions import Sessions

CSRF = "x-threadkeep"
"""The header of requests that change something. Its value is the secret in each page."""

OPEN = frozenset({"/enter", "/static/enter.js", "/static/ui.css"})
"""Paths that answer without a session. The last two are files of this package."""

Authorize: TypeAlias = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Return the name of the user who makes a request, for the audit log, or None to refuse it."""

_READS = frozenset({"GET", "HEAD"})
_ONCE = ("host", "origin", "sec-fetch-site", CSRF)  # headers that a proxy may read otherwise
_BODY, _SECONDS = 4_000_000, 30.0  # bytes of a request's body, and its time
_POLICY = "content-security-policy"
_HEADERS = {
    _POLICY: (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class User(NamedTuple):
    """A user, and the secret of the CSRF header of their requests."""

    name: str
    csrf: str


class PageGuard:
    """Middleware that passes only requests of the page's users, and adds headers to answers.

    Only with `writes`, requests may change the store.
    """

    def __init__(self, app: ASGIApp, access: LocalAccess | MountedAccess, *, writes: bool) -> None:
        self._app, self._access, self._writes = app, access, writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            body = _limited(receive)
            app = await self._refusal(scope, body) or self._app
            await app(scope, body, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    async def _refusal(self, scope: Scope, receive: Receive) -> Response | None:
        headers = Headers(scope=scope)
        is_read = scope["method"] in _READS
        if any(len(headers.getlist(name)) > 1 for name in _ONCE):
            return PlainTextResponse("A header is repeated.", 400)
        if not self._access.is_ours(headers.get("host", "").lower()):
            text = "This host name is not allowed. Start the page with --name NAME."
            return PlainTextResponse(text, 421)
        if _is_foreign(headers, is_read=is_read):
            return PlainTextResponse("Requests from other web pages are refused.", 403)
        if scope["path"] in self._access.opened:
            return None
        user = await self._access.user(scope, receive)
        if user is None or isinstance(user, Response):
            return user
        if not is_read:
            if not self._writes:
                return PlainTextResponse("This page is read-only. Start it with --write.", 403)
            if not secrets.compare_digest(headers.get(CSRF, "").encode(), user.csrf.encode()):
                return PlainTextResponse("The request has no CSRF token. Reload the page.", 403)
        scope["threadkeep.user"] = user
        return None


def _is_foreign(headers: Headers, *, is_read: bool) -> bool:
    """Return True for a request that another web page makes.

    Links from other pages work: the browser shows the answer, and the other page cannot read it.
    """
    host, origin = headers.get("host", "").lower(), headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        return True
    site = headers.get("sec-fetch-site")
    if site in (None, "same-origin"):
        return False
    is_link = site == "none" or headers.get("sec-fetch-mode") == "navigate"
    return not (is_read and is_link and headers.get("sec-fetch-dest", "document") == "document")


def _limited(receive: Receive) -> Receive:
    """Limit the body of a request: it must be short and arrive in time."""
    left, end, is_read = _BODY, 0.0, False

    async def limited() -> Message:
        nonlocal left, end, is_read
        if is_read:  # (until the client disconnects)
            return await receive()
        end = end or anyio.current_time() + _SECONDS
        try:
            with anyio.fail_after(max(end - anyio.current_time(), 0)):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "The request took too long.") from None
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, f"The request has more than {_BODY:,} bytes.")
        is_read = not message.get("more_body", False)
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            # (files of this package are kept, and asked for again)
            headers.setdefault("cache-control", "no-cache" if "etag" in headers else "no-store")
            # (the frame of the graph has a policy of its own)
            headers.update({**_HEADERS, _POLICY: headers.get(_POLICY, _HEADERS[_POLICY])})
        await send(message)

    return answer


# -- a page on this machine ------------------------------------------------------------


class LocalAccess:
    """Access to a page that `threadkeep ui` serves: a session's cookie, and known hosts alone.

    Args:
        sessions: the open sessions.
        port: the port of the page. It is part of the cookie's name, as cookies ignore ports.
        names: host names of the page, each with a port if a proxy listens on another one.
            Addresses such as 127.0.0.1 are always allowed, because DNS rebinding needs a name.
    """

    opened: Collection[str] = OPEN  # paths that need no user

    def __init__(self, sessions: Sessions, port: int, names: Collection[str] = ()) -> None:
        self._sessions, self._port = sessions, f"{port}"
        self._names = {name.lower() for name in names}
        self.cookie = f"threadkeep-{port}"

    def is_ours(self, host: str) -> bool:
        """Return True if the page answers to this host."""
        if host in self._names:  # (behind a proxy)
            return True
        if self._port == "80" and not host.endswith(":80"):
            host += ":80"  # (browsers leave this port out)
        name, _, port = host.rpartition(":")
        is_named = name == "localhost" or name in self._names
        return port == self._port and (is_named or _is_address(name))

    async def user(self, scope: Scope, receive: Receive) -> User | Response | None:
        """Return the user of a request, or the answer that refuses it.

        Returns None for a page in a browser that has no session: the entry answers then, with the
        status 401.
        """
        del receive
        headers = Headers(scope=scope)
        # (other programs on this machine may set a cookie of this name, too)
        for part in ";".join(headers.getlist("cookie")).split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie and (csrf := self._sessions.csrf(value)) is not None:
                return User("local", csrf)
        is_part = "hx-request" in headers or scope["method"] not in _READS
        if "text/html" in headers.get("accept", "") and not is_part:
            if self._sessions.password is not None:
                return RedirectResponse("/enter", 303)
            scope["path"] = scope["threadkeep.closed"] = "/enter"
            return None
        return PlainTextResponse("Open the link that `threadkeep ui` has printed.", 401)


def _is_address(name: str) -> bool:
    is_six = name.startswith("[") and name.endswith("]") and "%" not in name  # (a zone is any text)
    with suppress(ValueError):
        return bool(IPv6Address(name[1:-1]) if is_six else IPv4Address(name))
    return False


# -- a page inside another application -------------------------------------------------


class MountedAccess:
    """Access to a page in another application, which knows its users and hosts (see `app`)."""

    opened: Collection[str] = ()

    def __init__(self, authorize: Authorize | None, secret: str | None = None) -> None:
        self._authorize = authorize
        self._secret = (secret or secrets.token_urlsafe(32)).encode()

    def is_ours(self, host: str) -> bool:
        """Return True for every host: the application knows its own."""
        del host
        return True

    async def user(self, scope: Scope, receive: Receive) -> User | Response:
        """Return the user of a request, or the answer that refuses it."""
        if self._authorize is None:
            text = "This page is closed: give threadkeep.ui.app an authorize= function."
            return PlainTextResponse(text, 403)
        name = self._authorize(Request(scope, receive))
        if inspect.isawaitable(name):
            name = await name
        # (not `True`: the audit log needs a name)
        if isinstance(name, str) and name:
            csrf = hmac.new(self._secret, name.encode("utf-8", "replace"), "sha256").hexdigest()
            return User(name, csrf)
        return PlainTextResponse("You may not use this page.", 403)
