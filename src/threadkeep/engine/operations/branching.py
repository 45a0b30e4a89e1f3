"""Reading the rows that a thread's tree is made of.

Rows and manifests' neighbours only: no value is decoded. Invariant: each round trip reads
a bounded number of rows, and none a single checkpoint where there are many.
"""

from __future__ import annotations

from typing import cast

from langgraph.checkpoint.serde.types import INTERRUPT

from threadkeep.engine.branches import Branches, Shown, tree
from threadkeep.engine.calls import Fetch, Operation, Place, fetch
from threadkeep.engine.model import HIDDEN, ReadPath, ScanCheckpoints, StoredCheckpoint
from threadkeep.engine.operations.context import Engine, named, not_found
from threadkeep.engine.rows import counting, unpack_metadata, unpack_time

_PAGE = 256  # rows that a scan reads at once
_SHORTEST, _LONGEST = 8, 256  # hidden ancestors that are read at once, of one checkpoint
_ROWS = 1024  # of several


def branches(engine: Engine, thread: str, ns: str) -> Operation[Branches]:
    """The tree of a thread's checkpoints in a namespace.

    Raises:
        ThreadNotFoundError: there are none.
        CorruptionError, UnknownTypeError: writes or metadata cannot be read.
    """
    rows = _Rows(engine)
    after: tuple[str, str, str] | None = None
    while True:
        scan = ScanCheckpoints(thread, ns, None, None, {}, after, _PAGE)
        reply = yield from fetch(scan)
        page = cast("list[StoredCheckpoint]", reply)
        rows.add(page)
        if len(page) < _PAGE:
            break
        after = page[-1].row.id, thread, ns
    if not rows.shown:
        raise not_found(Place(thread, ns))
    yield from _read_hidden(rows, thread, ns)
    return tree(thread, ns, rows.shown, rows.hidden)


class _Rows:
    """What was read so far; `absent` are parents that are not there."""

    def __init__(self, engine: Engine) -> None:
        self.shown: dict[str, Shown] = {}
        self.hidden: dict[str, str | None] = {}
        self.absent: set[str] = set()
        self._engine = engine

    def add(self, page: list[StoredCheckpoint]) -> None:
        """Note what these rows say."""
        for stored in page:
            row = stored.row
            if row.flags & HIDDEN:
                self.hidden[row.id] = row.parent
            elif row.id not in self.shown:
                with named(stored):
                    self.shown[row.id] = self._shown(stored)

    def _shown(self, stored: StoredCheckpoint) -> Shown:
        row = stored.row
        metadata = unpack_metadata(row.metadata, row.exact, self._engine.codec)
        asks = stored.child is None and _asks(stored)
        return Shown(row.id, row.parent, unpack_time(row.ts), metadata, asks)

    def unknown(self) -> list[str]:
        """Parents that nothing is known of yet."""
        parents = {one.parent for one in self.shown.values()} | set(self.hidden.values())
        known = self.shown.keys() | self.hidden.keys() | self.absent
        return sorted(id for id in parents if id is not None and id not in known)


def _asks(stored: StoredCheckpoint) -> bool:
    """Whether a task asked for an answer and has not written since."""
    writes = counting(stored.writes, None) if stored.writes else []
    finished = {write.task_id for write in writes if write.idx >= 0}
    return any(w.channel == INTERRUPT and w.task_id not in finished for w in writes)


def _read_hidden(rows: _Rows, thread: str, ns: str) -> Operation[None]:
    """Read on from the parents that the scan did not show, until all are known."""
    size = _SHORTEST
    unknown = rows.unknown()
    while unknown:
        some = unknown[: _ROWS // size]
        replies = yield Fetch([ReadPath(thread, ns, id, size) for id in some])
        for id, path in zip(some, replies, strict=True):
            rows.add(path)
            if not path:
                rows.absent.add(id)
        size = min(2 * size, _LONGEST)
        unknown = rows.unknown()
