"""The names of the threads that an erasure by metadata removes, kept in the store until its end.

A removed thread has no metadata any more. So an interrupted erasure finds the threads whose
archives and copies it has still to clear only by this record. Tombstones keep the same names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from threadkeep._core.engine import registration
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.operation import Operation, commit
from threadkeep._core.engine.thread_entry import ThreadQuery
from threadkeep._run.driver import on
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import ScrubReport
from threadkeep.errors import ReadOnlyError
from threadkeep.threads import documents


class ErasurePlan(NamedTuple):
    """An erasure of all threads with some labels, and of some by name."""

    store: LayeredBackend
    engine: Engine
    labels: tuple[str, ...]
    threads: tuple[str, ...] = ()
    forks: bool = False
    others: tuple[Operation[ScrubReport], ...] = ()  # places that hold more than threads

    @property
    def _document(self) -> str:
        """The hidden thread of the record: the same for a repeated call."""
        tenant = None if self.store.names is None else self.store.names.tenant
        parts = [tenant, sorted(self.labels), sorted(self.threads), self.forks]
        digest = blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
        return documents.thread_of(f"erasure {digest}")

    def found(self) -> Operation[list[str]]:
        """Return the names of all existing threads with the labels."""
        if not self.labels:
            return []
        query = ThreadQuery(labels=self.labels)
        return (yield from on(self.store, registration.all_names(query)))

    def recorded(self) -> Operation[list[str]]:
        """Return the names that an interrupted call of the same arguments has recorded."""
        names, _ = yield from on(self.store.whole, documents.read(self.engine, self._document))
        return [one for one in names or () if isinstance(one, str)]

    def record(self, names: Sequence[str]) -> Operation[None]:
        """Store the names, before the first thread is removed."""
        change = documents.replaced(self.engine, self._document, list(names), None)
        # (a tenant's role of PostgreSQL may store no rows of the whole store)
        with suppress(ReadOnlyError):
            yield from on(self.store.whole, commit(change))

    def end(self) -> Operation[None]:
        """Remove the record: all places are cleared."""
        with suppress(ReadOnlyError):
            yield from on(self.store.whole, commit(documents.removed(self._document)))
