"""How a capability runs its operations: on the store that the saver has opened.

Only that lives here. Invariant: no capability knows the saver, and none opens anything.
"""

from __future__ import annotations

from typing import TypeVar

from threadkeep.engine.calls import Operation
from threadkeep.engine.operations.context import Engine
from threadkeep.open_store import OpenStore

T = TypeVar("T")


class Running:
    """What the capabilities have in common.

    Args:
        store: where operations run.
        engine: the parts that they work with.
    """

    def __init__(self, store: OpenStore, engine: Engine) -> None:
        self._store = store
        self._engine = engine

    def _run(self, operation: Operation[T]) -> T:
        return self._store.run(operation)

    async def _arun(self, operation: Operation[T]) -> T:
        return await self._store.arun(operation)


def quiet(what: str, done: int, total: int) -> None:
    """Show no progress."""
