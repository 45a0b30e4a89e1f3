"""The tree that a thread's checkpoints make, from what their rows say.

Pure functions and records. Invariant: each checkpoint stands in the tree once, behind its
parent, whatever rows say of their parents: absent ones, pruned ones, or themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from threadkeep.engine.thread_summary import Tasks


@dataclass(frozen=True, slots=True)
class BranchCheckpoint:
    """One checkpoint of the tree.

    `parent` is the parent's id as LangGraph has it, and `above` the checkpoint that this one
    hangs from: the nearest ancestor that is there; None for a root. The two differ where
    pruned ancestors that are kept, hidden, for DeltaChannels lie between: `hidden` of them.
    `is_cut` tells that the way up ends at a parent that is absent, as after a prune.
    `children` are those that hang from it, oldest id first. `time` is ISO text; `step` and
    `source` are of the metadata (None where that has none).

    `next` names the nodes that are to run after it; `sends`: so are nodes that tasks were sent
    to (`Send`), which only values name. `written` names the state's channels that the step
    before wrote. `asked`, `waiting` and `failed` are ids of tasks of the step after it: those
    that called `interrupt()`, those of them that have not ended since while nothing came after
    this checkpoint, and those that left an error.
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
        """Whether an interrupt waits here for an answer."""
        return bool(self.waiting)


@dataclass(frozen=True, slots=True)
class Branches:
    """A thread's checkpoints in one namespace.

    `checkpoints` has them by id, each behind the one that it hangs from: a root, its first
    child with all that came of it, and so on. `roots` are what hangs from nothing, `tips`
    what nothing hangs from, `forks` what several hang from, each oldest id first. `head` is
    where a run goes on that names no checkpoint.
    """

    thread: str
    ns: str
    head: str
    roots: tuple[str, ...]
    tips: tuple[str, ...]
    forks: tuple[str, ...]
    checkpoints: Mapping[str, BranchCheckpoint]

    def since_fork(self, id: str) -> tuple[str, ...]:
        """What led to this checkpoint alone, oldest first: from behind the fork, or from a root.

        Args:
            id: a checkpoint of the tree; the last that is told.
        """
        found = [id]
        above = self.checkpoints[id].above
        while above is not None and len(self.checkpoints[above].children) == 1:
            found.append(above)
            above = self.checkpoints[above].above
        return tuple(reversed(found))


class Around(NamedTuple):
    """What a checkpoint's rows say of the steps before and after it; see `BranchCheckpoint`."""

    next: tuple[str, ...] = ()
    sends: bool = False
    written: tuple[str, ...] = ()
    tasks: Tasks = Tasks()


class Shown(NamedTuple):
    """What a visible checkpoint's rows say."""

    id: str
    parent: str | None
    time: str
    metadata: Mapping[str, Any]
    around: Around = Around()


def tree(
    thread: str, ns: str, shown: Mapping[str, Shown], hidden: Mapping[str, str | None]
) -> Branches:
    """The tree of at least one visible checkpoint; `hidden` has the pruned ones' parents."""
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
        next=one.around.next,
        sends=one.around.sends,
        written=one.around.written,
        asked=one.around.tasks.asked,
        waiting=one.around.tasks.waiting,
        failed=one.around.tasks.failed,
    )


# -- ways up -------------------------------------------------------------------------


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
    """Where checkpoints are their own ancestors, the oldest id of them becomes a root."""
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
