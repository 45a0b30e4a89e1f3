"""Fork and copy a thread inside the store, and read the tree of its checkpoints.

A fork holds the thread as the run that saved the forked checkpoint left it, without the work of
later runs. Forks and copies hold only elements that their own rows refer to, unless they share
segments.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

from threadkeep._core import tenants, validation
from threadkeep._core.engine import registration, thread_entry, thread_summary
from threadkeep._core.engine.context import Engine, Keyframes, named, not_found, read_manifest
from threadkeep._core.engine.lineage import CheckpointKey, Lineage, checkpoint_key, write_key
from threadkeep._core.engine.model import (
    HIDDEN,
    OWN_NS,
    CheckpointRow,
    CopyThread,
    ForkThread,
    ReadPath,
    ScanCheckpoints,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import Fetch, Operation, commit, fetch
from threadkeep._core.engine.refs import Inline, Manifest, Run
from threadkeep._core.engine.registration import ThreadSnapshot, optimistic, read_snapshot
from threadkeep._core.engine.rows import counting, of_the_graph, unpack_metadata, unpack_time
from threadkeep._core.engine.thread_entry import Lifecycle, ThreadEntry
from threadkeep._core.engine.thread_summary import following, state_channels, tasks
from threadkeep._core.langgraph_internals import TASKS
from threadkeep.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    ThreadExistsError,
    ThreadNotFoundError,
)
from threadkeep.threads.erasure import sweep
from threadkeep.threads.registry import ThreadInfo, info

_READ = partial(read_snapshot, stub=False, alone=True)


def copy_thread(engine: Engine, source: str, target: str) -> Operation[None]:
    """Copy a thread inside the store. A missing source copies nothing."""
    if source == target:
        raise InvalidArgumentError("A thread cannot be copied onto itself.", thread=source)
    yield from commit(CopyThread(source, target, engine.now()))
    yield from _trim(engine, target)


def fork(
    engine: Engine, thread: str, checkpoint_id: str | None, new_thread_id: str | None
) -> Operation[ThreadInfo]:
    source = validation.thread_id(thread)
    target, own = f"{uuid.uuid4()}", tenants.prefix_of(source)
    target = own + target if new_thread_id is None else validation.thread_id(new_thread_id)
    if tenants.prefix_of(target) != own:  # (a tenant's saver could not collect what both share)
        hint = "Use copy_thread, which copies all values."
        raise InvalidArgumentError("A fork belongs to its thread's tenant.", hint=hint)
    checkpoint = validation.checkpoint_id(checkpoint_id)
    tried: list[ThreadEntry] = []

    def build(snapshot: ThreadSnapshot) -> Operation[tuple[ForkThread, ThreadEntry]]:
        yield from ()
        begin = _begin(engine, source, snapshot.rows, checkpoint)
        entry = _entry(engine, target, begin, snapshot.entry)
        tried.append(entry)
        change = ForkThread(
            source,
            target,
            entry.created_at,
            snapshot.rows.generation,
            tuple(map(checkpoint_key, begin.checkpoints)),
            tuple(map(write_key, begin.writes)),
            entry,
        )
        return change, entry

    try:
        entry = yield from optimistic(engine, source, build, _READ)
    except ThreadExistsError:
        found = yield from registration.read(target)
        if found is None or not registration.is_made(found, tried):
            raise
        entry = found
    yield from _trim(engine, target)
    return info(entry, engine.now())


def _trim(engine: Engine, thread: str) -> Operation[None]:
    """Remove elements without a reference from a new copy or fork, unless it shares segments."""
    # (after damage this is unknown, after conflicts a run already uses the thread)
    with suppress(CorruptionError, ConflictError):
        yield from sweep(engine, thread, alone=True)
    engine.working_set.forget(thread)


# -- the beginning of a fork -----------------------------------------------------------


class _Begin(NamedTuple):
    """Rows of a new fork. `at` is its newest checkpoint."""

    at: StoredCheckpoint
    checkpoints: list[StoredCheckpoint]
    writes: list[WriteRow]


def _begin(engine: Engine, source: str, rows: ThreadRows, checkpoint: str | None) -> _Begin:
    lineage = Lineage(rows.checkpoints)
    at = _origin(source, lineage, checkpoint)
    root, children = set(lineage.path(at)), lineage.children()
    found = {
        key: stored
        for key, stored in lineage.stored.items()
        if key in root
        or (key[0].startswith(OWN_NS) and _is_beside(engine, stored, at))
        or (key[0] and _belongs(engine, stored, root, at, children.get(at, ())))
    }
    writes = {key: _writes(one, children.get(key, ()), found) for key, one in found.items()}
    return _Begin(
        found[at]._replace(writes=tuple(writes[at])),
        list(found.values()),
        [write for some in writes.values() for write in some],
    )


def _origin(source: str, lineage: Lineage, checkpoint: str | None) -> CheckpointKey:
    """Find the checkpoint to fork."""
    ids = [stored.row.id for stored in of_the_graph(lineage.stored.values())]
    if checkpoint is not None and checkpoint not in ids:
        kind = CheckpointNotFoundError if lineage.stored else ThreadNotFoundError
        raise kind(thread=source, checkpoint=checkpoint)
    if not ids:
        raise ThreadNotFoundError(thread=source)
    return "", ids[-1] if checkpoint is None else checkpoint


def _belongs(
    engine: Engine,
    stored: StoredCheckpoint,
    root: Container[CheckpointKey],
    at: CheckpointKey,
    children: Sequence[CheckpointRow],
) -> bool:
    """Return True for a subgraph's checkpoint under `root`, from before a run continued."""
    parent = _root_of(engine, stored)
    if parent != at[1]:
        return parent is not None and ("", parent) in root
    return _was_before(stored.row, children)


def _is_beside(engine: Engine, stored: StoredCheckpoint, at: CheckpointKey) -> bool:
    """Return True for a checkpoint of an own namespace that the fork may refer to.

    It belongs to a checkpoint that is not younger than the forked one, on any branch. Ids are
    compared, as they begin with a time.
    """
    parent = _root_of(engine, stored)
    return parent is not None and parent <= at[1]


def _root_of(engine: Engine, stored: StoredCheckpoint) -> str | None:
    """Find the root graph's checkpoint that a checkpoint belongs to, by LangGraph's `parents`."""
    metadata = unpack_metadata(stored.row.metadata, stored.row.exact, engine.codec)
    parents = metadata.get("parents")
    parent = parents.get("") if isinstance(parents, dict) else None
    return parent if isinstance(parent, str) else None


def _writes(
    stored: StoredCheckpoint, children: Sequence[CheckpointRow], found: Container[CheckpointKey]
) -> list[WriteRow]:
    """Select a checkpoint's pending writes for the fork.

    All of them if the fork holds a child, which decides which of them count. Otherwise those from
    before a run continued: for example an interrupt, without the later answer.
    """
    if any((row.ns, row.id) in found for row in children):
        return list(stored.writes)
    return [write for write in stored.writes if _was_before(write, children)]


def _was_before(row: CheckpointRow | WriteRow, children: Sequence[CheckpointRow]) -> bool:
    """Return True if the row was stored before a run continued from its checkpoint.

    Run 0 saved the checkpoint. If run 0 continued itself, this is unknown, hence False.
    """
    return not children or (row.run == 0 and all(child.run != 0 for child in children))


def _entry(engine: Engine, target: str, begin: _Begin, origin: ThreadEntry | None) -> ThreadEntry:
    now, root = engine.now(), begin.at.row
    rows: list[CheckpointRow | WriteRow] = [s.row for s in begin.checkpoints]
    rows += begin.writes
    new = ThreadEntry(
        target,
        Lifecycle.FORKED,
        now,
        now,
        sum(map(thread_summary.row_size, rows)),
        labels=thread_entry.metadata_labels(origin.labels if origin is not None else ()),
        origin=(begin.at.thread, root.id),
    )
    if origin is not None:
        new = new._replace(
            status=origin.status, status_at=origin.status_at, failed_node=origin.failed_node
        )
    return thread_summary.with_status(new, thread_summary.status_of((begin.at,)))


_PAGE = 256  # rows of one scan
_SHORTEST, _LONGEST = 8, 256  # hidden ancestors of one checkpoint to read at once
_ROWS = 1024  # hidden ancestors of several checkpoints to read at once


# -- the tree of a thread's checkpoints: from rows and manifests, without decoding values -


@dataclass(frozen=True, slots=True)
class BranchCheckpoint:
    """One checkpoint of the tree.

    Attributes:
        id: the checkpoint's id.
        parent: LangGraph's parent id, which may have been pruned.
        time: time of the checkpoint, as ISO text.
        metadata: the checkpoint's metadata.
        next: the nodes to run next.
        has_sends: True if tasks were sent with `Send`. Only their values name the nodes.
        written: channels of the state that the step wrote.
        interrupted: ids of the next step's tasks that called `interrupt()`.
        waiting: interrupted tasks without an answer.
        failed: ids of the next step's tasks that raised.
        visible_parent: the nearest ancestor in the tree, or None for a root.
        hidden: number of hidden checkpoints between the two, which DeltaChannels need.
        is_cut: True if the parent was removed.
        children: ids of the checkpoints below, oldest first.
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
        """The metadata's `step`, if any."""
        return self.metadata.get("step")

    @property
    def source(self) -> str | None:
        """The metadata's `source`, if any."""
        return self.metadata.get("source")


@dataclass(frozen=True, slots=True)
class Branches:
    """Tree of a thread's checkpoints in one namespace.

    Attributes:
        thread: the thread's id.
        checkpoint_ns: the namespace.
        head: id of the newest checkpoint, from which a run without a checkpoint id continues.
        roots: ids without a visible parent, oldest first.
        tips: ids without children, oldest first.
        forks: ids with several children, oldest first.
        checkpoints: checkpoints by id, depth first: every parent comes before its children.
    """

    thread: str
    checkpoint_ns: str
    head: str
    roots: tuple[str, ...]
    tips: tuple[str, ...]
    forks: tuple[str, ...]
    checkpoints: Mapping[str, BranchCheckpoint]

    def since_fork(self, id: str) -> tuple[str, ...]:
        """List the ids from after the last fork (or from the root) to this checkpoint.

        Args:
            id: a checkpoint of the tree, and the last id of the result.
        """
        found = [id]
        parent = self.checkpoints[id].visible_parent
        while parent is not None and len(self.checkpoints[parent].children) == 1:
            found.append(parent)
            parent = self.checkpoints[parent].visible_parent
        return tuple(reversed(found))


# -- reading ---------------------------------------------------------------------------


def branches(engine: Engine, thread: str, ns: str) -> Operation[Branches]:
    place = validation.place(thread, ns)
    trees = yield from _trees(engine, place.thread, place.ns)
    if ns not in trees:
        raise not_found(place)
    return trees[ns]


def all_branches(engine: Engine, thread: str) -> Operation[dict[str, Branches]]:
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
    """Rows read so far, by namespace and id. `absent` are parents that don't exist."""

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
            written=tuple(state_channels(read.updated if isinstance(read.updated, list) else ())),
            interrupted=status.asked,
            waiting=status.waiting if stored.child is None else (),
            failed=status.failed,
        )

    def _has_sends(self, read: Manifest) -> bool:
        """Return True if the list of sent tasks is there and not empty."""
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
    while len(order) < len(ids):  # (damaged rows form a circle)
        root = min(set(ids).difference(order))
        parent = found[root].visible_parent
        if parent is not None:
            children[parent].remove(root)
        found[root] = replace(found[root], visible_parent=None)
        roots.append(root)
        order += _in_order([root], children)
    return Branches(
        thread=thread,
        checkpoint_ns=ns,
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
    """Iterate over the tree depth first."""
    pending = list(roots)[::-1]
    while pending:
        id = pending.pop()
        yield id
        pending += reversed(children[id])
