"""Single operations that tasks of one event loop call at the same time, run as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.store.base import Op, PutOp, SearchOp

from threadkeep.errors import BackendError


class Calls:
    """Batches of the operations that tasks submit in one iteration of their event loop.

    Reads, searches with a query, other searches and puts are separate batches, so that only
    operations with texts wait for the embedding model. If a batch fails, each of its operations
    runs alone, unless the database failed.

    Args:
        run: runs a batch.
    """

    def __init__(self, run: Callable[[list[Op]], Awaitable[list[Any]]]) -> None:
        self._run = run
        self._waiting: dict[str, list[tuple[Op, asyncio.Future[Any]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, op: Op) -> asyncio.Future[Any]:
        """Submit an operation; return the future of its result."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._start)
        kind = "put" if isinstance(op, PutOp) else "read"
        if isinstance(op, SearchOp):
            kind = "query" if op.query else "search"
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.setdefault(kind, []).append((op, future))
        return future

    def _start(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for group in waiting.values():
            task = asyncio.get_running_loop().create_task(self._serve(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, group: list[tuple[Op, asyncio.Future[Any]]]) -> None:
        group = [(op, future) for op, future in group if not future.done()]
        try:
            results = await self._run([op for op, _ in group])
        except Exception as error:  # noqa: BLE001 - every caller gets the error of its operation
            if len(group) == 1:
                _settle(group[0][1], error=error)
            elif isinstance(error, BackendError):
                for _, future in group:
                    _settle(future, error=error.fresh())
            else:
                for each in group:
                    await self._serve([each])
        except BaseException:
            for _, future in group:
                future.cancel()
            raise
        else:
            for (_, future), result in zip(group, results, strict=True):
                _settle(future, result)


def _settle(
    future: asyncio.Future[Any], result: Any = None, *, error: Exception | None = None
) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
