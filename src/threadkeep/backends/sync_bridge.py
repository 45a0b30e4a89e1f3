"""Runs coroutines that never suspend, so that one logic serves blocking and awaiting callers."""

from __future__ import annotations

import time
from collections.abc import Coroutine
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
    raise AssertionError("what blocks does not suspend")  # pragma: no cover


async def sleep(seconds: float) -> None:
    """Sleep in the calling thread."""
    time.sleep(seconds)  # noqa: ASYNC251 - it runs straight: nothing else waits for it
