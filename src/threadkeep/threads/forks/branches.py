"""The tree of a thread's checkpoints, from their rows and manifests; no value is decoded.

Each checkpoint is in the tree once, behind its parent, whatever rows say of their parents: absent
ones, pruned ones, or themselves. Each round trip reads a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from threadkeep._core import validation
from threadkeep._core.engine.context import Engine, Keyframes, named, not_found, read_manifest
from threadkeep._core.engine.manifest import Manifest
from threadkeep._core.engine.model import HIDDEN, ReadPath, ScanCheckpoints, StoredCheckpoint
from threadkeep._core.engine.operation import Fetch, Operation, fetch
from threadkeep._core.engine.refs import Inline, Run
from threadkeep._core.engine.rows import counting, unpack_metadata, unpack_time
from threadkeep._core.engine.thread_summary import following, own, tasks
from threadkeep._core.langgraph_internals import TASKS

_PAGE = 256  # rows that a scan reads at once
_SHORTEST, _LONGEST = 8, 256  # hidden ancestors that are read at once, of one checkpoint
_ROWS = 1024  # of several


@dataclass(frozen=True, slots=True)
class BranchCheckpoint:
    """One checkpoint of the tree.

    Attributes:
        id: the checkpoint's id.
        parent: LangGraph's parent id, which may have been pruned.
        time: ISO text.
        metadata: all of it.
        next: the nodes to run after it.
        has_sends: True if tasks were sent (`Send`); values alone name their nodes.
        written: the state's channels that the step before wrote.
        interrupted: ids of the next step's tasks that called `interrupt()`.
        waiting: those of them still unanswered.
        failed: ids of the next step's tasks that raised.
        visible_parent: the nearest ancestor in the tree; None for a root.
        hidden: how many pruned checkpoints, kept for DeltaChannels, are between the two.
        is_cut: True if the parent was removed.
        children: the checkpoints right below it, oldest id first.
        is_head: True for the newest checkpoint.
    """

    id: str
    parent: str | None
    time: str
    metadata: Mapping[str, Any]
    next: tuple[str, ...] = ()
    has_sends: bool = False
    written: tuple[str, ...] = ()
    interrupted: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    visible_parent: str | None = None
    hidden: int = 0
    is_cut: bool = False
    children: tuple[str, ...] = ()
    is_head: bool = False

    @property
    def step(self) -> int | None:
        """`step` of the metadata; None if it has none."""
        return self.metadata.get("step")

    @property
    def source(self) -> str | None:
        """`source` of the metadata; None if it has none."""
        return self.metadata.get("source")


@dataclass(frozen=True, slots=True)
class Branches:
    """A thread's checkpoints in one namespace.

    `checkpoints` has them by id, each behind its visible parent: a root, its first child with all
    that came of it, and so on. `roots` have no visible parent, `tips` no children, and `forks`
    several, each oldest id first. A run that names no checkpoint continues at `head`.
    """

    thread: str
    ns: str
    head: str
    roots: tuple[str, ...]
    tips: tuple[str, ...]
    forks: tuple[str, ...]
    checkpoints: Mapping[str, BranchCheckpoint]

    def since_fork(self, id: str) -> tuple[str, ...]:
        """Return the ids that led to this checkpoint alone, from behind the fork or from a root.

        Args:
            id: a checkpoint of the tree; the last one of the result.
        """
        found = [id]
        parent = self.checkpoints[id].visible_parent
        while parent is not None and len(self.checkpoints[parent].children) == 1:
            found.append(parent)
            parent = self.checkpoints[parent].visible_parent
        return tuple(reversed(found))


# -- reading ---------------------------------------------------------------------------


def branches(engine: Engine, thread: str, ns: str) -> Operation[Branches]:
    """See `Threads.branches`."""
    place = validation.place(thread, ns)
    trees = yield from _trees(engine, place.thread, place.ns)
    if ns not in trees:
        raise not_found(place)
    return trees[ns]


def all_branches(engine: Engine, thread: str) -> Operation[dict[str, Branches]]:
    """See `Threads.branches_by_ns`."""
    place = validation.place(thread)
    trees = yield from _trees(engine, place.thread, None)
    if not trees:
        raise not_found(place)
    return dict(sorted(trees.items()))


def _trees(engine: Engine, thread: str, ns: str | None) -> Operation[dict[str, Branches]]:
    rows = _Rows(engine)
    after: tuple[str, str, str] | None = None
    while True:
        scan = ScanCheckpoints(thread, ns, None, None, {}, after, _PAGE)
        page = cast("list[StoredCheckpoint]", (yield from fetch(scan)))
        rows.add(page)
        if len(page) < _PAGE:
            break
        after = page[-1].row.id, thread, page[-1].row.ns
    size = _SHORTEST
    while unknown := rows.unknown_parents():
        some = unknown[: _ROWS // size]
        replies = yield Fetch([ReadPath(thread, ns, id, size) for ns, id in some])
        for key, path in zip(some, replies, strict=True):
            rows.add(path)
            if not path:
                rows.absent.add(key)
        size = min(2 * size, _LONGEST)
    found = rows.shown.items()
    return {ns: tree(thread, ns, shown, rows.hidden.get(ns, {})) for ns, shown in found}


class _Rows:
    """The rows read so far, by namespace and id; `absent` are parents that do not exist."""

    def __init__(self, engine: Engine) -> None:
        self.shown: dict[str, dict[str, BranchCheckpoint]] = {}
        self.hidden: dict[str, dict[str, str | None]] = {}
        self.absent: set[tuple[str, str]] = set()
        self._engine = engine
        self._keyframes: Keyframes = {}
        self._no_tasks = Inline(engine.codec.encode([]))

    def add(self, page: list[StoredCheckpoint]) -> None:
        for stored in page:
            row = stored.row
            if row.flags & HIDDEN:
                self.hidden.setdefault(row.ns, {})[row.id] = row.parent
            elif row.id not in self.shown.get(row.ns, ()):
                with named(stored):
                    self.shown.setdefault(row.ns, {})[row.id] = self._checkpoint(stored)

    def unknown_parents(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for ns, shown in self.shown.items():
            hidden = self.hidden.get(ns, {})
            parents = {one.parent for one in shown.values()} | set(hidden.values())
            known = shown.keys() | hidden.keys()
            found += [(ns, id) for id in parents if id is not None and id not in known]
        return sorted(set(found) - self.absent)

    def _checkpoint(self, stored: StoredCheckpoint) -> BranchCheckpoint:
        row = stored.row
        read, _ = read_manifest(stored, self._keyframes)
        filled = [name for name, entry in read.entries.items() if entry.ref is not None]
        counted = counting(stored.writes, stored.child)
        status = tasks([(write.task_id, write.channel) for write in counted])
        return BranchCheckpoint(
            row.id,
            row.parent,
            unpack_time(row.ts),
            unpack_metadata(row.metadata, row.exact, self._engine.codec),
            next=tuple(following(filled)),
            has_sends=self._has_sends(read),
            written=tuple(own(read.updated if isinstance(read.updated, list) else ())),
            interrupted=status.asked,
            waiting=status.waiting if stored.child is None else (),
            failed=status.failed,
        )

    def _has_sends(self, read: Manifest) -> bool:
        """Return True if tasks were sent: their list is often there, and empty."""
        entry = read.entries.get(TASKS)
        ref = None if entry is None else entry.ref
        return bool(ref.spans) if isinstance(ref, Run) else ref not in (None, self._no_tasks)


# -- the tree --------------------------------------------------------------------------


def tree(
    thread: str, ns: str, shown: Mapping[str, BranchCheckpoint], hidden: Mapping[str, str | None]
) -> Branches:
    """Build the tree of at least one visible checkpoint."""
    ids, head = sorted(shown), max(shown)
    found = {id: _with_parent(shown[id], shown, hidden) for id in ids}
    children: dict[str, list[str]] = {id: [] for id in ids}
    for id in ids:
        parent = found[id].visible_parent
        if parent is not None:
            children[parent].append(id)
    roots = [id for id in ids if found[id].visible_parent is None]
    order = list(_in_order(roots, children))
    while len(order) < len(ids):  # a checkpoint is its own ancestor
        root = min(set(ids).difference(order))
        parent = found[root].visible_parent
        if parent is not None:
            children[parent].remove(root)
        found[root] = replace(found[root], visible_parent=None)
        roots.append(root)
        order += _in_order([root], children)
    return Branches(
        thread=thread,
        ns=ns,
        head=head,
        roots=tuple(sorted(roots)),
        tips=tuple([id for id in ids if not children[id]]),
        forks=tuple([id for id in ids if len(children[id]) > 1]),
        checkpoints={
            id: replace(found[id], children=tuple(children[id]), is_head=id == head) for id in order
        },
    )


def _with_parent(
    one: BranchCheckpoint, shown: Mapping[str, BranchCheckpoint], hidden: Mapping[str, str | None]
) -> BranchCheckpoint:
    """Find the nearest visible ancestor, past hidden ones."""
    parent, passed = one.parent, set[str]()
    while parent is not None and parent in hidden and parent not in passed:
        passed.add(parent)
        parent = hidden[parent]
    if parent in shown:
        return replace(one, visible_parent=parent, hidden=len(passed))
    is_cut = parent is not None and parent not in passed
    return replace(one, hidden=len(passed), is_cut=is_cut)


def _in_order(roots: Iterable[str], children: Mapping[str, list[str]]) -> Iterable[str]:
    """Iterate over each root and all below it, a checkpoint always behind its parent."""
    pending = list(roots)[::-1]
    while pending:
        id = pending.pop()
        yield id
        pending += reversed(children[id])
