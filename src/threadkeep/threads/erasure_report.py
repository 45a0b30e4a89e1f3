"""Reports of erasures: of threads, and of all that a store holds of a user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class ErasedThread:
    """Rows and bytes removed from one thread (in a dry run: to be removed).

    Args:
        thread: its id.
        checkpoints, writes, segments: number of rows. A row of writes holds one task's. Shared
            segments count if they were removed or shortened.
        bytes: bytes removed from the store.
        archived_bytes: size of its archive in the cold store.
    """

    thread: str
    checkpoints: int = 0
    writes: int = 0
    segments: int = 0
    bytes: int = 0
    archived_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EraseReport:
    """Result of an erasure, or of a dry run.

    Args:
        threads: removed rows and bytes by thread.
        forks: direct and indirect forks of the erased threads, which keep their copies. Empty if
            they were erased too.
        shared_with: origins of the erased threads, and other forks of these. They hold
            checkpoints from before the fork, but nothing that the erased thread added.
        cleared: places that hold nothing of the threads any more.
        remains: places that threadkeep cannot clear, each with a remedy.
        unfinished: errors, each with the step to take before you erase again.
        dry_run: True if nothing was done.
    """

    threads: tuple[ErasedThread, ...]
    forks: tuple[str, ...] = ()
    shared_with: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """True if everything was erased."""
        return not self.unfinished

    def as_json(self) -> dict[str, Any]:
        """Return the same as JSON values."""
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True, slots=True)
class AccountReport(EraseReport):
    """Result of `delete_account`, or of a dry run: an `EraseReport`, and the other removals.

    Args:
        items: number of items removed from each namespace.
        results: number of cached results of nodes removed. A cache does not know whose they are.
    """

    items: tuple[tuple[tuple[str, ...], int], ...] = ()
    results: int = 0


class Account(NamedTuple):
    """A user's threads, items and results, as `Threads.delete_account` takes them."""

    metadata: Mapping[str, Any]
    threads: Iterable[str]
    namespaces: Iterable[Iterable[str]]
    results: bool
    forks: bool
