"""The contract of `scrub`, for backends that have it."""
# ruff: noqa: S101 - tests are made of asserts

from __future__ import annotations

from typing import Any

from threadkeep.backends.base import Scrubbed
from threadkeep.engine.model import DropThread, ReadThread
from threadkeep.testing.records import NOW, THREAD, Contract, checkpoint, segment, write


class ScrubContract(Contract):
    """Files are seen to, and what is stored is not touched."""

    def test_to_scrub_changes_no_row(self) -> None:
        """Others may use the store meanwhile; idempotent."""
        scrub = self.backend.scrub
        rows: dict[str, Any] = {"segments": (segment(0),), "checkpoints": (checkpoint(1),)}
        rows["writes"] = (write(1),)
        self.put(**rows)
        self.put(thread="gone", **rows)
        self.backend.commit(DropThread("gone", NOW))
        reads = [ReadThread(THREAD), ReadThread("gone")]
        before = self.backend.fetch(reads)
        told = scrub(rewrite=False)
        assert isinstance(told, Scrubbed)
        assert all(isinstance(line, str) for line in (*told.cleared, *told.remains))
        assert scrub(rewrite=False) == told
        assert self.backend.fetch(reads) == before
        self.put(thread="new", **rows)
        assert len(self.rows("new").checkpoints) == 1
