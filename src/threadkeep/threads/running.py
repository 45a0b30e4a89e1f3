"""How a capability runs its operations: on the store that the saver has opened.

Only that lives here, with the checks of what several are given: a place, a cold store.
Invariant: no capability knows the saver, and none opens anything.
"""

from __future__ import annotations

from typing import TypeVar

from threadkeep import validation
from threadkeep.cold.store import ColdStore
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
)
from threadkeep.errors import InvalidArgumentError
from threadkeep.store.opened import (
    OpenStore,
    own_cold,
)
from threadkeep.store.workflows import Plan

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

    @staticmethod
    def _place(thread: str, ns: str, checkpoint: str | None = None) -> CheckpointRef:
        """The place that a caller names; ids of threads may be of any kind, as in configs."""
        return CheckpointRef(
            validation.text("thread", str(thread)),
            validation.text("ns", ns),
            validation.checkpoint_id(checkpoint),
        )

    def _cold(self, what: str) -> Plan[ColdStore]:
        """The cold store, as this store uses it.

        Raises:
            InvalidArgumentError: the saver was opened without one.
        """
        cold = yield from own_cold(self._store)
        if cold is None:
            raise InvalidArgumentError(
                f"A cold store is needed to {what}.",
                hint="Open the saver with cold=, such as cold='file:///folder'.",
            )
        return cold


def quiet(what: str, done: int, total: int) -> None:
    """Show no progress."""
