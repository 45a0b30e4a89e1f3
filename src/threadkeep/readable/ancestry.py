"""The checkpoints of a thread as a tree: straight runs, and where others branch off.

Invariant: each checkpoint that was given is in the tree once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from threadkeep.readable.checkpoints import View


@dataclass(slots=True)
class Step:
    """A checkpoint, and what begins at it: forks, and subgraphs that ran in its step."""

    view: View
    branches: list[Branch] = field(default_factory=list)


@dataclass(slots=True)
class Branch:
    """Checkpoints of one namespace, each the child of the one before it, oldest first."""

    namespace: str
    steps: list[Step] = field(default_factory=list)


def tree(views: Iterable[View]) -> list[Branch]:
    """The branches that begin at no checkpoint that was given, the graph's own first.

    Of several children the one with the newest descendant goes on with its parent's branch.
    """
    known = {(view.namespace, view.id): Step(view) for view in views}
    children: dict[tuple[str, str], list[Step]] = defaultdict(list)
    roots: list[Step] = []
    for step in sorted(known.values(), key=_place):
        parent = (step.view.namespace, step.view.parent or "")
        # (a child is younger: what claims otherwise is no child, and no circle is made)
        is_child = parent in known and parent[1] < step.view.id
        (children[parent] if is_child else roots).append(step)
    newest = _newest(known, children)
    branches: list[Branch] = []
    for root in roots:
        above = _above(root.view)
        stands = known.get(above) if above is not None else None
        _grow(root, branches if stands is None else stands.branches, children, newest)
    return branches


def _place(step: Step) -> tuple[str, str]:
    return step.view.namespace, step.view.id


def _newest(
    known: dict[tuple[str, str], Step], children: dict[tuple[str, str], list[Step]]
) -> dict[tuple[str, str], str]:
    """The newest id among each checkpoint and its descendants."""
    newest: dict[tuple[str, str], str] = {}
    for place in sorted(known, reverse=True):  # children before parents
        below = [newest[_place(child)] for child in children.get(place, ())]
        newest[place] = max([place[1], *below])
    return newest


def _grow(
    root: Step,
    place: list[Branch],
    children: dict[tuple[str, str], list[Step]],
    newest: dict[tuple[str, str], str],
) -> None:
    """Add the branch that begins here, and all that begin on it."""
    waiting: list[tuple[Step, list[Branch]]] = [(root, place)]
    while waiting:
        step, place = waiting.pop()
        branch = Branch(step.view.namespace)
        place.append(branch)
        while True:
            branch.steps.append(step)
            following = sorted(children.get(_place(step), ()), key=lambda s: newest[_place(s)])
            if not following:
                break
            *forks, main = following
            waiting += [(fork, step.branches) for fork in reversed(forks)]
            step = main


def _above(view: View) -> tuple[str, str] | None:
    """The checkpoint in whose step a subgraph's ran: the innermost of its parents, if any."""
    around = [ns for ns in view.parents if len(ns) < len(view.namespace)]
    if not around:
        return None
    ns = max(around, key=len)
    return ns, view.parents[ns]
