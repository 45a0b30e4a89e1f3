"""Runs coroutines that never suspend, so that one logic serves blocking and awaiting callers."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import CoroutineType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in the calling thread, by one step: nothing it awaits suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
    raise AssertionError("A coroutine over a blocking driver suspended.")  # pragma: no cover


async def sleep(seconds: float) -> None:
    """Sleep in the calling thread."""
    time.sleep(seconds)  # noqa: ASYNC251 - nothing else waits for this thread


async def result(value: Any) -> Any:
    """Return the result of a driver's method, awaited where its driver is async."""
    return await value if isinstance(value, CoroutineType) else value


class _Entered:
    """Async face of a blocking context manager."""

    __slots__ = ("_context",)

    def __init__(self, context: AbstractContextManager[Any]) -> None:
        self._context = context

    async def __aenter__(self) -> Any:
        return self._context.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._context.__exit__(kind, error, trace)


def entered(context: Any) -> AbstractAsyncContextManager[Any]:
    """Return a driver's context manager, blocking or async, for `async with`."""
    found: AbstractAsyncContextManager[Any] = (
        context if hasattr(context, "__aenter__") else _Entered(context)
    )
    return found
