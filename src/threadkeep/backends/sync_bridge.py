"""Runs coroutines that never suspend, so that one logic serves blocking and awaiting callers.

Only that lives here; `blocking` has the face of backends that are written so. Invariant: such a
coroutine runs in the calling thread, to its end.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, by one step: whatever it awaits has no need to wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
    raise AssertionError("what blocks does not suspend")  # pragma: no cover


async def sleep(seconds: float) -> None:
    """Wait in the calling thread."""
    time.sleep(seconds)  # noqa: ASYNC251 - it runs straight: nothing else waits for it
