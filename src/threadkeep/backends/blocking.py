"""Blocking face of a backend that is written to be awaited.

Only that face lives here, and the protocols of what it is made of. Invariant: what it awaits runs
over connections that never suspend (see `straight`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from threadkeep.backends.base import AsyncBackend, Backend, Scrubbed
from threadkeep.backends.sync_bridge import finish
from threadkeep.engine.model import Change, Read
from threadkeep.errors import ThreadkeepError

A = TypeVar("A", bound=AsyncBackend)


class Loops(Protocol):
    """Connections of an awaiting face, for each event loop."""

    def close_elsewhere(self) -> None:
        """Close it in all event loops but the one that runs here, if one does."""


class BlockingFace(Backend, Generic[A]):
    """A backend for blocking calls: an async one over connections that never suspend.

    Args:
        face: that one.
        asynchronous: the same store for awaiting calls, where there is one.
        loops: what that one keeps.
    """

    commits_groups = True
    has_identity = True

    def __init__(self, face: A, asynchronous: A | None, loops: Loops | None) -> None:
        self._face = face
        self._loops = loops
        self.asynchronous = asynchronous

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""
        return finish(self._face.fetch(reads))

    def commit(self, change: Change) -> None:
        """See `Backend.commit`."""
        finish(self._face.commit(change))

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `Backend.commit_many`."""
        return finish(self._face.commit_many(changes))

    def identity(self) -> str:
        """See `Backend.identity`."""
        return finish(self._face.identity())

    def scrub(self, *, rewrite: bool) -> Scrubbed:
        """See `Backend.scrub`."""
        return finish(self._face.scrub(rewrite=rewrite))

    def close(self) -> None:
        """Close all connections of ours; later calls raise `ClosedError`. Idempotent."""
        finish(self._face.close())
        if self._loops is not None:
            self._loops.close_elsewhere()
