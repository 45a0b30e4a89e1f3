"""The page on this machine: `threadkeep ui URL`."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from socket import socket
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.ui.app import build
from threadkeep.ui.guard import LocalAccess, PageGuard
from threadkeep.ui.page import Asked, StorePage
from threadkeep.ui.sessions import Sessions

if TYPE_CHECKING:
    from threadkeep.ui.graphs import PageGraph

_log = logging.getLogger("threadkeep")
_NODES = "threadkeep-page"  # begin of the names of threads
_LONGEST = 1000  # bytes of a token or password
_SECONDS = 2  # that open answers get when the page stops
_GRACE = 20.0  # that runs get


class _PageServer(uvicorn.Server):
    """A server that lets runs end their step before it stops. A second signal cancels them."""

    graph: PageGraph | None = None
    _threads: ThreadPoolExecutor  # of sync nodes

    async def serve(self, sockets: list[socket] | None = None) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix=_NODES)
        asyncio.get_running_loop().set_default_executor(self._threads)
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.graph is not None:
            await self.graph.drain(_GRACE, lambda: self.force_exit)
        self._threads.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + _SECONDS
        while any(one.name.startswith(_NODES) for one in threading.enumerate()):
            if time.monotonic() > end:  # (Python would wait for these threads)
                _log.error("A node or the store does not answer: the command ends without it.")
                logging.shutdown()
                os._exit(1)
            await asyncio.sleep(0.05)


def server_of(app: PageGuard, graph: PageGraph | None = None) -> uvicorn.Server:
    """Return a server of the page and its runs, until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        server_header=False,
        lifespan="off",
        proxy_headers=False,
        timeout_graceful_shutdown=_SECONDS,
    )
    made = _PageServer(config)
    made.graph = graph
    return made


def local_app(
    page: StorePage, sessions: Sessions, port: int, names: Collection[str] = ()
) -> PageGuard:
    """Return the application with its entry, for a port of this machine."""
    access = LocalAccess(sessions, port, names)

    async def enter(request: Request) -> Response:
        """Exchange a token or password for a session's cookie."""
        if request.method != "POST":
            closed = "threadkeep.closed" in request.scope  # (an address without a session)
            asks, status = sessions.password is not None, 401 if closed else 200
            return Asked(request.scope).render("enter.html", status, password=asks, closed=closed)
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
