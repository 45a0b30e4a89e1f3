"""Running coroutines that never suspend, so that one logic serves waiting and awaiting.

Only that lives here. Invariant: such a coroutine runs in the calling thread, to its end.
"""

from __future__ import annotations

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
