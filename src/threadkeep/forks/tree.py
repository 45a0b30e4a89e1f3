"""Reading the rows that a thread's trees are made of.

Rows and manifests only: no channel's value is decoded. Invariant: each round trip reads
a bounded number of rows, and none a single checkpoint where there are many.
"""

from __future__ import annotations

from typing import cast

from threadkeep.engine.context import (
    Engine,
    Keyframes,
    named,
    not_found,
    read_manifest,
)
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import HIDDEN, ReadPath, ScanCheckpoints, StoredCheckpoint
from threadkeep.engine.operation import (
    CheckpointRef,
    Fetch,
    Operation,
    fetch,
)
from threadkeep.engine.refs import Inline, Run
from threadkeep.engine.rows import counting, unpack_metadata, unpack_time
from threadkeep.engine.thread_summary import (
    Tasks,
    following,
    own,
    tasks,
)
from threadkeep.forks.branches import (
    Around,
    Branches,
    Shown,
    tree,
)
from threadkeep.langgraph_internals import TASKS

_PAGE = 256  # rows that a scan reads at once
_SHORTEST, _LONGEST = 8, 256  # hidden ancestors that are read at once, of one checkpoint
_ROWS = 1024  # of several


def branches(engine: Engine, thread: str, ns: str) -> Operation[Branches]:
    """The tree of a thread's checkpoints in a namespace.

    Raises:
        ThreadNotFoundError: there are none.
        CorruptionError, UnknownTypeError: rows cannot be read.
    """
    trees = yield from _trees(engine, thread, ns)
    if ns not in trees:
        raise not_found(CheckpointRef(thread, ns))
    return trees[ns]


def all_branches(engine: Engine, thread: str) -> Operation[dict[str, Branches]]:
    """The trees of all namespaces of a thread, by namespace. Raises as `branches`."""
    trees = yield from _trees(engine, thread, None)
    if not trees:
        raise not_found(CheckpointRef(thread, ""))
    return dict(sorted(trees.items()))


def _trees(engine: Engine, thread: str, ns: str | None) -> Operation[dict[str, Branches]]:
    rows = _Rows(engine)
    after: tuple[str, str, str] | None = None
    while True:
        scan = ScanCheckpoints(thread, ns, None, None, {}, after, _PAGE)
        reply = yield from fetch(scan)
        page = cast("list[StoredCheckpoint]", reply)
        rows.add(page)
        if len(page) < _PAGE:
            break
        after = page[-1].row.id, thread, page[-1].row.ns
    yield from _read_hidden(rows, thread)
    found = rows.shown.items()
    return {ns: tree(thread, ns, shown, rows.hidden.get(ns, {})) for ns, shown in found}


class _Rows:
    """What was read so far, by namespace and id; `absent` are parents that are not there."""

    def __init__(self, engine: Engine) -> None:
        self.shown: dict[str, dict[str, Shown]] = {}
        self.hidden: dict[str, dict[str, str | None]] = {}
        self.absent: set[tuple[str, str]] = set()
        self._engine = engine
        self._keyframes: Keyframes = {}
        self._nothing = Inline(engine.codec.encode([]))

    def add(self, page: list[StoredCheckpoint]) -> None:
        """Note what these rows say."""
        for stored in page:
            row = stored.row
            if row.flags & HIDDEN:
                self.hidden.setdefault(row.ns, {})[row.id] = row.parent
            elif row.id not in self.shown.get(row.ns, ()):
                with named(stored):
                    self.shown.setdefault(row.ns, {})[row.id] = self._shown(stored)

    def _shown(self, stored: StoredCheckpoint) -> Shown:
        row = stored.row
        metadata = unpack_metadata(row.metadata, row.exact, self._engine.codec)
        around = self._around(stored)
        return Shown(row.id, row.parent, unpack_time(row.ts), metadata, around)

    def _around(self, stored: StoredCheckpoint) -> Around:
        read, _ = read_manifest(stored, self._keyframes)
        held = [name for name, entry in read.entries.items() if entry.ref is not None]
        written = read.updated if isinstance(read.updated, list) else ()
        return Around(
            next=tuple(following(held)),
            sends=self._sends(read),
            written=tuple(own(written)),
            tasks=_tasks(stored),
        )

    def _sends(self, read: Manifest) -> bool:
        """Whether tasks were sent: their list is often there, and empty."""
        entry = read.entries.get(TASKS)
        ref = None if entry is None else entry.ref
        return bool(ref.spans) if isinstance(ref, Run) else ref not in (None, self._nothing)

    def unknown(self) -> list[tuple[str, str]]:
        """Parents that nothing is known of yet."""
        found: list[tuple[str, str]] = []
        for ns, shown in self.shown.items():
            hidden = self.hidden.get(ns, {})
            parents = {one.parent for one in shown.values()} | set(hidden.values())
            known = shown.keys() | hidden.keys()
            found += [(ns, id) for id in parents if id is not None and id not in known]
        return sorted(set(found) - self.absent)


def _tasks(stored: StoredCheckpoint) -> Tasks:
    """How the tasks stand; where the thread went on, nothing waits any more."""
    if not stored.writes:
        return Tasks()
    found = tasks([(w.task_id, w.channel) for w in counting(stored.writes, stored.child)])
    return found if stored.child is None else found._replace(waiting=())


def _read_hidden(rows: _Rows, thread: str) -> Operation[None]:
    """Read on from the parents that the scan did not show, until all are known."""
    size = _SHORTEST
    unknown = rows.unknown()
    while unknown:
        some = unknown[: _ROWS // size]
        replies = yield Fetch([ReadPath(thread, ns, id, size) for ns, id in some])
        for place, path in zip(some, replies, strict=True):
            rows.add(path)
            if not path:
                rows.absent.add(place)
        size = min(2 * size, _LONGEST)
        unknown = rows.unknown()
