"""The page on this machine: `threadkeep ui URL`."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Collection

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.errors import InvalidArgumentError, OpenError
from threadkeep.ui.app import build
from threadkeep.ui.guard import Guard, LocalAccess
from threadkeep.ui.page import StorePage, render
from threadkeep.ui.sessions import Sessions

_LONGEST = 1000  # bytes of a token or password
_SECONDS = 2  # that open answers get when the page stops


def listen(host: str, port: int, *, password: str | None) -> socket.socket:
    """Open the port of the page; 0 for any. Connections wait until the page is served.

    Raises:
        InvalidArgumentError: another machine could reach the host, and there is no password.
        OpenError: the port or the host cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        if password is None and not is_loopback(address[0]):
            raise InvalidArgumentError(
                f"Other machines can reach {host}.", hint="Use --password-file FILE."
            )
        is_both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=is_both)
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        hint = "Use --port 0 for a free one." if is_used else "Correct --host and --port."
        text = f"{error.strerror}".partition(" (while")[0]  # (it would repeat the address)
        raise OpenError(f"{host}:{port}: {text}.", hint=hint) from error


def is_loopback(address: object) -> bool:
    """True if only this machine reaches an address."""
    return ipaddress.ip_address(str(address).partition("%")[0]).is_loopback


def address_of(opened: socket.socket) -> str:
    """Return the URL of the page on this machine."""
    host, port = opened.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "127.0.0.1" if opened.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_of(app: Guard) -> uvicorn.Server:
    """Return a server of the page, for sockets of `listen`, until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        server_header=False,
        lifespan="off",
        proxy_headers=False,
        timeout_graceful_shutdown=_SECONDS,
    )
    return uvicorn.Server(config)


def local_app(page: StorePage, sessions: Sessions, port: int, names: Collection[str] = ()) -> Guard:
    """Return the application with its entry, for a port of this machine."""
    access = LocalAccess(sessions, port, names)

    async def enter(request: Request) -> Response:
        """Exchange a token or password for a session's cookie."""
        if request.method != "POST":
            return render(request, "enter.html", password=sessions.password is not None)
        word = b""
        async for part in request.stream():
            word = (word + part)[:_LONGEST]
        session = sessions.enter(word.decode("utf-8", "replace"))
        if session is None:
            return Response(status_code=403)
        answer = Response()
        # (a browser sends the origin: https is a proxy's, which need not tell)
        is_secure = request.headers.get("origin", "").startswith("https:")
        answer.set_cookie(
            access.cookie, session, httponly=True, samesite="lax", path="/", secure=is_secure
        )
        return answer

    return build(page, access, [Route("/enter", enter, methods=["GET", "POST"])])
