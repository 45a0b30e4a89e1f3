"""The record of a sealed store: in memory, and its conditional update (design note 0026).

A sealed store has a record, the pending write of a thread of its own: its random id, a key for
digests that searches use, and the ids of the ring's keys that may have sealed rows. The record is
sealed, too. It is written before the first sealed row, and before the first row of another key.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import ormsgpack

from threadkeep._core import tenants
from threadkeep._core.engine.model import (
    Batch,
    FindThreads,
    ReadCheckpoint,
    ReadThread,
    RowsFence,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.sealing import Sealer, place
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.records import tie
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import ConflictError, StaleThreadError, WrongKeyError

KNOWN_FOR = 60.0
"""Seconds for which a program uses the record, or a random key, without reading it again."""
_PLACE = place("record")


class Ring(Protocol):
    """A `threadkeep.KeyRing`."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys, the current one first."""

    def sealer(self, *context: str | bytes, clues: bytes = b"", padding: int = 0) -> Sealer:
        """Return a sealer whose keys are derived for a context."""


class KeyRecord(NamedTuple):
    """The record of a sealed store."""

    store: bytes  # its id
    clues: bytes  # secret of digests for searches
    keys: list[str]  # ids of keys that may have sealed rows
    searchable: list[str]  # keys of metadata whose digests all rows have
    random: int = 0  # owners of random keys: 0 none, 1 tenants, 2 threads

    def __repr__(self) -> str:
        """Return the ids of the keys, without secrets."""
        return f"KeyRecord({', '.join(self.keys)})"


class KnownRecord(ResetInChild):
    """The record as it was read: a hint, until the store has confirmed it.

    `read` and `confirm` take the store below, blocking or awaited.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        super().__init__()

    def _reset(self) -> None:
        self.value: KeyRecord | None = None
        self.has_current = False  # it names the ring's current key
        self._tips: tuple[int, ...] = ()  # of its thread
        self.until = 0.0  # when to read it again

    async def read(
        self, store: Any, check: Callable[[KeyRecord], Awaitable[None]]
    ) -> tuple[ThreadRows, KeyRecord | None]:
        """Return the record with its rows, and remember it. `check` may refuse the first one."""
        (rows,) = await result(store.fetch([ReadThread(tenants.STORE)]))
        until = time.monotonic() + KNOWN_FOR
        if not rows.orphans:
            self.until = 0.0
            return rows, None
        body, sealer = rows.orphans[0].body, self._ring.sealer("record")
        record = KeyRecord(*ormsgpack.unpackb(sealer.open(body, _PLACE, [sealer.group("")])))
        missing = [key for key in record.keys if key not in self._ring.ids]
        if missing:
            raise WrongKeyError(
                f"Rows of this store may be encrypted with key {missing[0]}, which was not given.",
                hint="Add it to the keys; `threadkeep rotate` makes it unnecessary.",
            )
        if self.value is None:
            await check(record)
        elif self.value.store != record.store:
            raise WrongKeyError(
                "Another store was put in the place of this one.", hint="Open it again."
            )
        self.value, self.until, self._tips = record, until, rows.tips
        self.has_current = self._ring.ids[0] in record.keys
        return rows, record

    async def confirm(self, store: Any, within: float) -> bool:
        """Return True if the record's thread names the same tips as when it was read.

        Args:
            store: the store below.
            within: seconds. True if the record was read or confirmed that short a time ago.
        """
        now = time.monotonic()
        if self.until - KNOWN_FOR + within <= now:
            (state,) = await result(store.fetch([ReadCheckpoint(tenants.STORE, "")]))
            if not state.tips or state.tips != self._tips:
                return False
            self.until = now + KNOWN_FOR
        return True

    async def put(self, store: Any, rows: ThreadRows, record: KeyRecord) -> None:
        """Put a record in place of the one in these rows, if no other process has done so."""
        sealer = self._ring.sealer("record")
        body = sealer.seal(ormsgpack.packb(tuple(record)), _PLACE, sealer.group(""))
        batch = Batch(
            tenants.STORE,
            time.time_ns() // 1000,
            fences=(RowsFence(0, len(rows.orphans)),),
            writes=(WriteRow("", tenants.STORE, 0, 0, tenants.STORE, "", body),),
            drop_writes=tuple([(one.ns, one.checkpoint_id, one.seq) for one in rows.orphans]),
            link=Link(Proof.of(rows)),  # (after a loss, another one may be there)
        )
        tie([batch])
        with suppress(ConflictError, StaleThreadError):
            await result(store.commit(batch))


async def holds_plain_threads(store: Any) -> bool:
    """Return True if a store has threads, and no record."""
    (found,) = await result(store.fetch([FindThreads(None, 1, empty=True)]))
    (rows,) = await result(store.fetch([ReadThread(tenants.STORE)]))
    return bool(found) and not rows.orphans  # (else another process was faster)
