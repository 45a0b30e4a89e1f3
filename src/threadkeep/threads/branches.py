"""The trees of a thread's checkpoints: `branches`, `all_branches`.

Only the face lives here; `forks.tree` reads and `forks.branches` builds.
Invariant: rows and manifests are read, values never.
"""

from __future__ import annotations

from threadkeep.engine.operation import Operation
from threadkeep.forks import tree
from threadkeep.forks.branches import (
    BranchCheckpoint,
    Branches,
)
from threadkeep.threads.running import Running

__all__ = ["BranchCheckpoint", "Branches", "Branching"]


class Branching(Running):
    """Where a thread parted."""

    def branches(self, thread: str, ns: str = "") -> Branches:
        """The tree of a thread's checkpoints: roots, children, tips, and where they part.

        Args:
            thread: the thread's id.
            ns: the checkpoint namespace; "" is the graph's own, a subgraph has another.

        Raises:
            ThreadNotFoundError: the thread holds no checkpoints in this namespace.
            InvalidArgumentError: a name is no text.
            CorruptionError, UnknownTypeError: a checkpoint's row or writes cannot be read.
        """
        return self._run(self._branches(thread, ns))

    async def abranches(self, thread: str, ns: str = "") -> Branches:
        """See `branches`."""
        return await self._arun(self._branches(thread, ns))

    def _branches(self, thread: str, ns: str) -> Operation[Branches]:
        place = self._place(thread, ns)
        return tree.branches(self._engine, place.thread, place.ns)

    def all_branches(self, thread: str) -> dict[str, Branches]:
        """The trees of all checkpoint namespaces, by namespace; "" is the graph's own.

        Args:
            thread: the thread's id.

        Raises:
            ThreadNotFoundError: the thread holds no checkpoints.
            InvalidArgumentError, CorruptionError, UnknownTypeError: as `branches`.
        """
        return self._run(self._all_branches(thread))

    async def aall_branches(self, thread: str) -> dict[str, Branches]:
        """See `all_branches`."""
        return await self._arun(self._all_branches(thread))

    def _all_branches(self, thread: str) -> Operation[dict[str, Branches]]:
        return tree.all_branches(self._engine, self._place(thread, "").thread)
