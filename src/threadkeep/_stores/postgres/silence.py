"""Connections that notice a server that accepts data and never answers.

The kernel of a stopped or overloaded server acknowledges all data, so TCP's own limits don't help,
and a slow statement looks the same. So after some seconds without an answer, another connection
asks the server's port whether it uses TLS, which every server answers at once. Without an answer to
this question, the waiting connection is lost.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Generator
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

C = TypeVar("C", bound=type[Any])

_QUESTION = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")  # SSLRequest
_PATIENCE = 5.0  # seconds for an answer to it at most
_MOST = 3600  # (systems limit the seconds before a keepalive)
_TICK = 0.09  # seconds. Psycopg continues each 0.1 seconds, without data too
_SHORT = 1.0  # the same, soon after a question without an answer


def limits(conninfo: str, seconds: float) -> dict[str, int]:
    """Return libpq's limits for a host that disappears, without those that the program set."""
    whole = min(math.ceil(seconds), _MOST)
    found = {"connect_timeout": whole, "keepalives_idle": whole, "tcp_user_timeout": 1000 * whole}
    given = conninfo_to_dict(conninfo)
    if "PGCONNECT_TIMEOUT" in os.environ:
        del found["connect_timeout"]
    return {name: value for name, value in found.items() if name not in given}


def answers(host: str, port: int, seconds: float) -> bool:
    """Return True if a server answers a new client in time."""
    try:
        if host.startswith("/"):
            probe = socket.socket(socket.AF_UNIX)
            probe.settimeout(seconds)
        else:
            probe = socket.create_connection((host, port), seconds)
        with probe:
            if host.startswith("/"):
                probe.connect(f"{host}/.s.PGSQL.{port}")
            probe.sendall(_QUESTION)
            return bool(probe.recv(1))
    except OSError:
        return False


class _Probe(threading.Thread):
    def __init__(self, conn: Any, seconds: float) -> None:
        super().__init__(name="threadkeep-probe", daemon=True)
        self._target_of = (conn.info.hostaddr or conn.info.host, conn.info.port, seconds)
        self.is_answered = False
        self.start()

    def run(self) -> None:
        self.is_answered = answers(*self._target_of)


class _Watch:
    """The watch of a pool's connections.

    Args:
        seconds: seconds without an answer until the server is asked.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._silent_until = 0.0  # the other idle connections are suspect until then

    def over(self, waiting: Any, conn: Any) -> Generator[Any, Any, Any]:
        """Wrap a generator of psycopg, which continues at least every tenth of a second."""
        try:
            state = next(waiting)
            probe = None
            asked = since = monotonic()
            while True:
                ready = yield state
                now = monotonic()
                if ready and now - asked < _TICK:  # (psycopg 3.2 is "ready" after each tick)
                    since, probe = now, None
                elif probe is None:
                    is_suspect = now < self._silent_until
                    if now - since >= (_TICK if is_suspect else self._seconds):
                        limit = _SHORT if is_suspect else _PATIENCE
                        probe = _Probe(conn, min(limit, self._seconds))
                elif not probe.is_alive():
                    if not probe.is_answered:
                        self._end(conn, now - since)
                    since, probe = now, None
                asked = now
                state = waiting.send(ready)
        except StopIteration as stop:
            return stop.value

    def _end(self, conn: Any, seconds: float) -> None:
        self._silent_until = monotonic() + self._seconds
        conn.pgconn.finish()
        raise psycopg.OperationalError(f"no answer for {seconds:.1f} s, to new clients neither")


def watched(kind: C, seconds: float) -> C:
    """Return a class of connections that a silent server does not keep waiting."""
    over, wait = _Watch(seconds).over, kind.wait

    class Watched(kind):  # type: ignore[misc, valid-type]
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return wait(self, over(gen, self), *args, **kwargs)

    found: Any = Watched
    return found  # type: ignore[no-any-return] # a subclass
