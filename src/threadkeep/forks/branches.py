"""The tree of a thread's checkpoints, from their rows and manifests; no value is decoded.

Each checkpoint stands in the tree once, behind its parent, whatever rows say of their parents:
absent ones, pruned ones, or themselves. Each round trip reads a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from threadkeep.engine.context import Engine, Keyframes, named, not_found, read_manifest
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import HIDDEN, ReadPath, ScanCheckpoints, StoredCheckpoint
from threadkeep.engine.operation import CheckpointRef, Fetch, Operation, fetch
from threadkeep.engine.refs import Inline, Run
from threadkeep.engine.rows import counting, unpack_metadata, unpack_time
from threadkeep.engine.thread_summary import Tasks, following, own, tasks
from threadkeep.langgraph_internals import TASKS

_PAGE = 256  # rows that a scan reads at once
_SHORTEST, _LONGEST = 8, 256  # hidden ancestors that are read at once, of one checkpoint
_ROWS = 1024  # of several


@dataclass(frozen=True, slots=True)
class BranchCheckpoint:
    """One checkpoint of the tree.

    Attributes:
        id: the checkpoint's id.
        parent: LangGraph's parent id, which may have been pruned.
        above: the nearest ancestor shown; None for a root.
        hidden: how many pruned checkpoints, kept for DeltaChannels, are between the two.
        is_cut: True if the parent was removed.
        children: the checkpoints right below it, oldest id first.
        time: ISO text.
        step: of the metadata; None if it has none.
        source: of the metadata; None if it has none.
        metadata: all of it.
        is_head: True for the newest checkpoint.
        next: the nodes to run after it.
        sends: True if tasks were sent (`Send`); values alone name their nodes.
        written: the state's channels that the step before wrote.
        asked: ids of the next step's tasks that called `interrupt()`.
        waiting: those of them still unanswered.
        failed: ids of the next step's tasks that raised.
    """

    id: str
    parent: str | None
    above: str | None
    hidden: int
    is_cut: bool
    children: tuple[str, ...]
    time: str
    step: int | None
    source: str | None
    metadata: Mapping[str, Any]
    is_head: bool
    next: tuple[str, ...]
    sends: bool
    written: tuple[str, ...]
    asked: tuple[str, ...]
    waiting: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def is_interrupted(self) -> bool:
        """True if an interrupt waits here for an answer."""
        return bool(self.waiting)


@dataclass(frozen=True, slots=True)
class Branches:
    """A thread's checkpoints in one namespace.

    `checkpoints` has them by id, each behind the one that it hangs from: a root, its first
    child with all that came of it, and so on. `roots` hang from nothing, nothing hangs from
    `tips`, and several hang from `forks`, each oldest id first. `head` is the checkpoint where a
    run goes on that names none.
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
        above = self.checkpoints[id].above
        while above is not None and len(self.checkpoints[above].children) == 1:
            found.append(above)
            above = self.checkpoints[above].above
        return tuple(reversed(found))


class Shown(NamedTuple):
    """A visible checkpoint, by its rows; see `BranchCheckpoint`."""

    id: str
    parent: str | None
    time: str
    metadata: Mapping[str, Any]
    next: tuple[str, ...] = ()
    sends: bool = False
    written: tuple[str, ...] = ()
    tasks: Tasks = Tasks()


# -- reading ---------------------------------------------------------------------------


def branches(engine: Engine, thread: str, ns: str) -> Operation[Branches]:
    """Return the tree of a thread's checkpoints in a namespace.

    Raises:
        ThreadNotFoundError: there are none.
        CorruptionError, UnknownTypeError: rows cannot be read.
    """
    trees = yield from _trees(engine, thread, ns)
    if ns not in trees:
        raise not_found(CheckpointRef(thread, ns))
    return trees[ns]


def all_branches(engine: Engine, thread: str) -> Operation[dict[str, Branches]]:
    """Return the trees of all namespaces of a thread, by namespace. Raises as `branches`."""
    trees = yield from _trees(engine, thread, None)
    if not trees:
        raise not_found(CheckpointRef(thread, ""))
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
    yield from _read_hidden(rows, thread)
    found = rows.shown.items()
    return {ns: tree(thread, ns, shown, rows.hidden.get(ns, {})) for ns, shown in found}


def _read_hidden(rows: _Rows, thread: str) -> Operation[None]:
    """Read on from the parents that the scan did not show, until all are known."""
    size = _SHORTEST
    unknown = rows.unknown()
    while unknown:
        some = unknown[: _ROWS // size]
        replies = yield Fetch([ReadPath(thread, ns, id, size) for ns, id in some])
        for key, path in zip(some, replies, strict=True):
            rows.add(path)
            if not path:
                rows.absent.add(key)
        size = min(2 * size, _LONGEST)
        unknown = rows.unknown()


class _Rows:
    """The rows read so far, by namespace and id; `absent` are parents that do not exist."""

    def __init__(self, engine: Engine) -> None:
        self.shown: dict[str, dict[str, Shown]] = {}
        self.hidden: dict[str, dict[str, str | None]] = {}
        self.absent: set[tuple[str, str]] = set()
        self._engine = engine
        self._keyframes: Keyframes = {}
        self._nothing = Inline(engine.codec.encode([]))

    def add(self, page: list[StoredCheckpoint]) -> None:
        """Add rows."""
        for stored in page:
            row = stored.row
            if row.flags & HIDDEN:
                self.hidden.setdefault(row.ns, {})[row.id] = row.parent
            elif row.id not in self.shown.get(row.ns, ()):
                with named(stored):
                    self.shown.setdefault(row.ns, {})[row.id] = self._shown(stored)

    def unknown(self) -> list[tuple[str, str]]:
        """Return the parents that were not read yet."""
        found: list[tuple[str, str]] = []
        for ns, shown in self.shown.items():
            hidden = self.hidden.get(ns, {})
            parents = {one.parent for one in shown.values()} | set(hidden.values())
            known = shown.keys() | hidden.keys()
            found += [(ns, id) for id in parents if id is not None and id not in known]
        return sorted(set(found) - self.absent)

    def _shown(self, stored: StoredCheckpoint) -> Shown:
        row = stored.row
        metadata = unpack_metadata(row.metadata, row.exact, self._engine.codec)
        read, _ = read_manifest(stored, self._keyframes)
        channels = [name for name, entry in read.entries.items() if entry.ref is not None]
        return Shown(
            row.id,
            row.parent,
            unpack_time(row.ts),
            metadata,
            next=tuple(following(channels)),
            sends=self._sends(read),
            written=tuple(own(read.updated if isinstance(read.updated, list) else ())),
            tasks=_tasks(stored),
        )

    def _sends(self, read: Manifest) -> bool:
        """Return True if tasks were sent: their list is often there, and empty."""
        entry = read.entries.get(TASKS)
        ref = None if entry is None else entry.ref
        return bool(ref.spans) if isinstance(ref, Run) else ref not in (None, self._nothing)


def _tasks(stored: StoredCheckpoint) -> Tasks:
    """The tasks of the step after it; where the thread went on, none waits any more."""
    if not stored.writes:
        return Tasks()
    found = tasks([(w.task_id, w.channel) for w in counting(stored.writes, stored.child)])
    return found if stored.child is None else found._replace(waiting=())


# -- the tree --------------------------------------------------------------------------


def tree(
    thread: str, ns: str, shown: Mapping[str, Shown], hidden: Mapping[str, str | None]
) -> Branches:
    """Build the tree of at least one visible checkpoint.

    Args:
        thread: its name.
        ns: the namespace.
        shown: the visible checkpoints by id.
        hidden: the parents of the pruned ones, by id.
    """
    ways = _ways(shown, hidden)
    above = {id: way.above for id, way in ways.items()}
    _break_circles(above)
    children: dict[str, list[str]] = {id: [] for id in shown}
    for id in sorted(shown):
        hangs_from = above[id]
        if hangs_from is not None:
            children[hangs_from].append(id)
    head = max(shown)
    roots = tuple([id for id in sorted(shown) if above[id] is None])
    found = {
        id: _checkpoint(shown[id], ways[id], above[id], children[id], is_head=id == head)
        for id in _in_order(roots, children)
    }
    return Branches(
        thread=thread,
        ns=ns,
        head=head,
        roots=roots,
        tips=tuple([id for id in sorted(shown) if not children[id]]),
        forks=tuple([id for id in sorted(shown) if len(children[id]) > 1]),
        checkpoints=found,
    )


def _checkpoint(
    one: Shown, way: _Way, above: str | None, children: list[str], *, is_head: bool
) -> BranchCheckpoint:
    return BranchCheckpoint(
        id=one.id,
        parent=one.parent,
        above=above,
        hidden=way.hidden,
        is_cut=way.is_cut,
        children=tuple(children),
        time=one.time,
        step=one.metadata.get("step"),
        source=one.metadata.get("source"),
        metadata=one.metadata,
        is_head=is_head,
        next=one.next,
        sends=one.sends,
        written=one.written,
        asked=one.tasks.asked,
        waiting=one.tasks.waiting,
        failed=one.tasks.failed,
    )


class _Way(NamedTuple):
    """The way up to the nearest visible ancestor: past so many hidden ones, or to a gap."""

    above: str | None
    hidden: int = 0
    is_cut: bool = False


def _ways(shown: Mapping[str, Shown], hidden: Mapping[str, str | None]) -> dict[str, _Way]:
    """Each visible checkpoint's way up; a step through hidden ones is taken once for all."""
    known: dict[str, _Way] = {}
    return {id: _way(one.parent, shown, hidden, known) for id, one in shown.items()}


def _way(
    start: str | None,
    shown: Mapping[str, Shown],
    hidden: Mapping[str, str | None],
    known: dict[str, _Way],
) -> _Way:
    passed: dict[str, None] = {}
    at = start
    while at is not None and at in hidden and at not in known and at not in passed:
        passed[at] = None
        at = hidden[at]
    if at in known:
        way = known[at]
    elif at is None or at in passed:  # the beginning, or hidden ones that go round in a circle
        way = _Way(None)
    else:
        way = _Way(at) if at in shown else _Way(None, is_cut=True)
    for id in reversed(passed):
        way = known[id] = way._replace(hidden=way.hidden + 1)
    return way


def _break_circles(above: dict[str, str | None]) -> None:
    """Make the oldest id a root where checkpoints are their own ancestors."""
    done: set[str] = set()
    for start in above:
        passed: dict[str, None] = {}
        at: str | None = start
        while at is not None and at not in done and at not in passed:
            passed[at] = None
            at = above[at]
        if at is not None and at in passed:
            met = list(passed)
            above[min(met[met.index(at) :])] = None
        done.update(passed)


def _in_order(roots: Iterable[str], children: Mapping[str, list[str]]) -> Iterable[str]:
    """Each root with all below it, a checkpoint always behind the one that it hangs from."""
    waiting = list(roots)[::-1]
    while waiting:
        id = waiting.pop()
        yield id
        waiting += reversed(children[id])
