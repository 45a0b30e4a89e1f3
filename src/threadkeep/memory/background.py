"""Workflows that run beside their callers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any

from threadkeep._core.engine.operation import External
from threadkeep._run.layers import driver
from threadkeep._run.layers.driver import Workflow
from threadkeep._stores.first_use import running_loop
from threadkeep._stores.process_forks import ResetInChild
from threadkeep.errors import ClosedError

_WORKERS = 4
_MAX_QUEUED = 64  # threads whose summary is under way in the background
_log = logging.getLogger("threadkeep.memory")


class Background(ResetInChild):
    """Workflows that run beside their callers, one for each thread."""

    def _reset(self) -> None:
        self._pool = ThreadPoolExecutor(_WORKERS, "threadkeep-memory")
        self._running: dict[str, Future[Any] | asyncio.Task[Any]] = {}
        self._lock = threading.Lock()
        self._is_ended = False
        self.busy: set[str] = set()  # threads of which a part is summarised in this process

    def is_ending(self) -> bool:
        """Return True once `end` was called or the program ends: no further call is to be begun."""
        if not self._is_ended:
            try:
                self._pool.submit(int)  # (refused once the program ends, which waits for the pool)
            except RuntimeError:
                self._is_ended = True
        return self._is_ended

    def submit(self, thread: str, make: Callable[[], Workflow[Any]]) -> Workflow[None]:
        """Begin a workflow, unless one of this thread is under way or too many are."""

        async def abegin() -> None:
            self._begin(thread, lambda: asyncio.ensure_future(driver.arun(make())))

        def begin() -> None:
            self._begin(thread, lambda: self._pool.submit(driver.run, make()))

        yield External(begin, abegin)

    def _begin(self, thread: str, start: Callable[[], Any]) -> None:
        with self._lock:
            if self.is_ending() or thread in self._running or len(self._running) >= _MAX_QUEUED:
                return
            running = self._running[thread] = start()
        running.add_done_callback(partial(self._done, thread))

    def _done(self, thread: str, running: Future[Any] | asyncio.Task[Any]) -> None:
        with self._lock:
            self._running.pop(thread, None)
        error = None if running.cancelled() else running.exception()
        if error is not None and not (self._is_ended and isinstance(error, ClosedError)):
            _log.error("Summary of thread %r failed.", thread, exc_info=error)

    def end(self) -> Workflow[None]:
        """Wait for the calls that are under way; further ones are not begun.

        A blocking caller cannot wait for tasks: it cancels them.
        """
        with self._lock:
            self._is_ended = True
            running = list(self._running.values())
        futures = [one for one in running if isinstance(one, Future)]
        tasks = [one for one in running if isinstance(one, asyncio.Task)]

        def end() -> None:
            here = running_loop()
            for task in tasks:
                if task.get_loop() is here:
                    task.cancel()
                    continue
                with suppress(RuntimeError):  # its loop is closed
                    task.get_loop().call_soon_threadsafe(task.cancel)
            wait(futures)
            self._pool.shutdown(wait=False)

        async def ended() -> None:
            await asyncio.gather(*tasks, *map(asyncio.wrap_future, futures), return_exceptions=True)
            self._pool.shutdown(wait=False)

        yield External(end, ended)
