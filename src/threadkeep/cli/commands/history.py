"""`threadkeep history`: a thread's checkpoints as a tree."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text
from rich.tree import Tree

from threadkeep.cli.app import Panel, command
from threadkeep.cli.lookup import (
    load,
    made_by,
    moment,
    naming_modules,
)
from threadkeep.cli.parameters import AsJson, Cold, Imports, Thread, Url
from threadkeep.cli.render import (
    line,
    text,
)
from threadkeep.cli.stores import looking, url_of
from threadkeep.cli.terminal import Output
from threadkeep.forks.branches import (
    BranchCheckpoint,
    Branches,
)
from threadkeep.readable.ancestry import Branch, Spot, layout


@command(Panel.LOOK, "threadkeep history 42 --limit 20 --url threads.db")
def history(
    thread: Thread,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="how many, newest first")] = 50,
    namespace: Annotated[
        str | None,
        typer.Option("--ns", help='only this namespace; "" for the graph itself; default: all'),
    ] = None,
    imports: Imports = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Draw a thread's checkpoints: forks as branches, subgraphs where they ran."""
    load(imports)
    trees = _read(url_of(url), cold, thread, namespace)
    seen = _newest(trees, limit)
    more = sum(len(tree.checkpoints) for tree in trees.values()) > limit
    document = {
        "thread": thread,
        "checkpoints": [_document(spot, trees) for spot in seen],
        "more": more,
    }
    drawn = [_drawn(branch) for branch in layout(trees.values(), set(seen))]
    missing = [Text("... older ones are not shown (--limit)", "dim")] if more else []
    Output(as_json=as_json).tell(document, text(f"thread {thread}", "bold"), *drawn, *missing)
    return 0


def _read(url: str, cold: str | None, thread: str, namespace: str | None) -> dict[str, Branches]:
    """The trees that are meant, by namespace."""
    with looking(url, cold) as saver, naming_modules():  # (metadata may hold anything)
        if namespace is None:
            return saver.threads.branches_by_ns(thread)
        return {namespace: saver.threads.branches(thread, namespace)}


def _newest(trees: dict[str, Branches], limit: int) -> list[Spot]:
    """The newest checkpoints of all trees, newest first."""
    found = [(ns, id) for ns, tree in trees.items() for id in tree.checkpoints]
    return sorted(found, key=lambda spot: (spot[1], spot[0]), reverse=True)[:limit]


def _document(spot: Spot, trees: dict[str, Branches]) -> dict[str, Any]:
    ns, id = spot
    one = trees[ns].checkpoints[id]
    return {
        "namespace": ns,
        "checkpoint": id,
        "parent": one.parent,
        "above": one.above,
        "time": one.time,
        "source": one.source,
        "step": one.step,
        "next": one.next,
        "sends": one.sends,
        "written": one.written,
        "interrupted": bool(one.asked),
        "waiting": len(one.waiting),
        "failed": len(one.failed),
        "head": one.is_head,
    }


class _Begun(NamedTuple):
    """A branch that is to be drawn, and where."""

    branch: Branch
    place: Tree


def _drawn(branch: Branch) -> Tree:
    """A branch as a tree: its steps one below the other, what begins at one inside of it."""
    root = Tree("", hide_root=True)
    waiting = [_Begun(branch, _beginning(root, branch))]
    while waiting:
        branch, place = waiting.pop()
        for step in branch.steps:
            spot = place.add(_line(step.namespace, step.checkpoint))
            for inner in step.branches:
                other = inner.namespace != branch.namespace
                label = f"namespace {inner.namespace}" if other else "fork"
                waiting.append(_Begun(inner, spot.add(text(label, "blue"))))
    return root


def _beginning(root: Tree, branch: Branch) -> Tree:
    """Where a branch that begins at no checkpoint of the tree is drawn, and why it begins there."""
    place, first = root, branch.steps[0].checkpoint
    if branch.namespace:
        place = root.add(text(f"namespace {branch.namespace}", "blue"))
    if first.above is not None:
        place.add(text(f"... after {first.above}, which is not shown", "dim"))
    elif first.is_cut or first.hidden:
        place.add(text(f"... after {first.parent}, which was pruned", "dim"))
    return place


def _line(ns: str, one: BranchCheckpoint) -> Text:
    following = [*one.next, *(["what was sent"] if one.sends else [])]
    return line(
        (one.id, "yellow"),
        moment(one.time),
        made_by(one.source, one.step),
        f"wrote: {', '.join(one.written)}" if one.written else "",
        (f"next: {', '.join(following)}" if following else "", "cyan"),
        ("waits" if one.waiting else "was interrupted" if one.asked else "", "bold yellow"),
        ("failed" if one.failed else "", "bold red"),
        ("head" if one.is_head and not ns else "", "bold green"),
    )
