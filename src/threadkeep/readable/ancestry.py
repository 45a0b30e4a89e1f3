"""The trees of a thread as they are drawn: straight runs, and where others branch off.

What hangs from what is told by `Branches`; only its layout is made here. Invariant: each
checkpoint that is meant is in it once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from threadkeep.forks.branches import (
    BranchCheckpoint,
    Branches,
)

Spot: TypeAlias = tuple[str, str]
"""A namespace, and a checkpoint's id."""


@dataclass(slots=True)
class Step:
    """A checkpoint, and what begins at it: forks, and subgraphs that ran in its step."""

    namespace: str
    checkpoint: BranchCheckpoint
    branches: list[Branch] = field(default_factory=list)


@dataclass(slots=True)
class Branch:
    """Checkpoints of one namespace, each hanging from the one before it, oldest first."""

    namespace: str
    steps: list[Step] = field(default_factory=list)


def layout(trees: Iterable[Branches], meant: Collection[Spot]) -> list[Branch]:
    """The branches that begin at no checkpoint that is meant, the graph's own first.

    Of several children the one with the newest descendant goes on with its parent's branch.

    Args:
        trees: those of a thread's namespaces.
        meant: which checkpoints of them are to be there.
    """
    known: dict[Spot, Step] = {}
    branches: list[Branch] = []
    for tree in sorted(trees, key=lambda tree: tree.ns):
        for id, one in tree.checkpoints.items():
            if (tree.ns, id) in meant:
                known[tree.ns, id] = Step(tree.ns, one)
    newest = _newest(known)
    for (ns, _), step in known.items():
        if (ns, step.checkpoint.above) not in known:
            around = _around(ns, step.checkpoint)
            stands = None if around is None else known.get(around)
            _grow(step, branches if stands is None else stands.branches, known, newest)
    return branches


def _newest(known: dict[Spot, Step]) -> dict[Spot, str]:
    """The newest id among each checkpoint and what came of it."""
    newest: dict[Spot, str] = {}
    for ns, id in reversed(known):  # (a tree has each checkpoint behind what it hangs from)
        below = [newest.get((ns, child), "") for child in known[ns, id].checkpoint.children]
        newest[ns, id] = max([id, *below])
    return newest


def _grow(
    root: Step, place: list[Branch], known: Mapping[Spot, Step], newest: Mapping[Spot, str]
) -> None:
    """Add the branch that begins here, and all that begin on it."""
    waiting: list[tuple[Step, list[Branch]]] = [(root, place)]
    while waiting:
        step, place = waiting.pop()
        ns = step.namespace
        branch = Branch(ns)
        place.append(branch)
        while True:
            branch.steps.append(step)
            below = [(ns, child) for child in step.checkpoint.children if (ns, child) in known]
            if not below:
                break
            *forks, main = sorted(below, key=lambda spot: newest[spot])
            waiting += [(known[fork], step.branches) for fork in reversed(forks)]
            step = known[main]


def _around(ns: str, one: BranchCheckpoint) -> Spot | None:
    """The checkpoint in whose step a subgraph's ran: the innermost of its parents, if any."""
    parents = one.metadata.get("parents")
    given = parents if isinstance(parents, Mapping) else {}
    around = [name for name in map(str, given) if len(name) < len(ns)]
    if not around:
        return None
    name = max(around, key=len)
    return name, str(given[name])
