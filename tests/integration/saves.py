"""Saves that a test waits for, holds up, or lets fail."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from kit.runs import WAIT, Gate


class Watched:
    """Counts the saves of a saver, holds them up at `gate`, and fails them with `error`."""

    def __init__(self, saver: Any) -> None:
        self.done = threading.Condition()
        self.count = 0
        self.gate: Gate | None = None
        self.error: Exception | None = None
        self._put, self._aput = saver.put, saver.aput
        saver.put, saver.aput = self.put, self.aput

    def _begin(self) -> None:
        if self.gate is not None:
            self.gate.pass_through()
        if self.error is not None:
            raise self.error

    def _end(self, stored: Any) -> Any:
        with self.done:
            self.count += 1
            self.done.notify_all()
        return stored

    def put(self, *given: Any) -> Any:
        self._begin()
        return self._end(self._put(*given))

    async def aput(self, *given: Any) -> Any:
        await asyncio.to_thread(self._begin)
        return self._end(await self._aput(*given))

    def wait(self, count: int) -> None:
        self.until(lambda: self.count >= count)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what a save has done."""
        with self.done:
            assert self.done.wait_for(condition, WAIT)
