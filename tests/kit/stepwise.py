"""Something that happens right before any one request of a saver to its store."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from threadkeep._stores.base import AsyncBackend

REQUESTS = ("fetch", "commit", "commit_many")


_inside: ContextVar[bool] = ContextVar("inside", default=False)


class Requests:
    """The requests of an open saver, one at a time; functions run before some of them.

    The backend stays itself, with all that it remembers: only its methods are announced.
    """

    def __init__(self, saver: Any) -> None:
        self._lock, self._alock = threading.RLock(), asyncio.Lock()
        self.arm()
        backend = saver.backend
        for face in {backend, backend.asynchronous} - {None}:
            announce = self._awaited if isinstance(face, AsyncBackend) else self._blocking
            for name in REQUESTS:
                if method := getattr(face, name, None):
                    setattr(face, name, announce(name, method))

    def arm(self) -> None:
        """Count from 0 again, with nothing to do before a request."""
        self.count = 0
        self.names: list[str] = []
        self._due: dict[int, list[Callable[[], object]]] = {}

    def before(self, number: int, do: Callable[[], object]) -> None:
        """Call the function before the request of this number; several in their order."""
        self._due.setdefault(number, []).append(do)

    def _meet(self, name: str) -> None:
        due = self._due.pop(self.count, ())
        self.count += 1
        self.names.append(name)
        for do in due:
            do()

    def _blocking(self, name: str, method: Any) -> Any:
        def request(*args: Any) -> Any:
            with self._lock:
                self._meet(name)
                return method(*args)

        return request

    def _awaited(self, name: str, method: Any) -> Any:
        async def request(*args: Any) -> Any:
            if _inside.get():  # (a commit reads, and makes moves)
                self._meet(name)
                return await method(*args)
            async with self._alock:
                token = _inside.set(True)
                try:
                    self._meet(name)
                    return await method(*args)
                finally:
                    _inside.reset(token)

        return request
