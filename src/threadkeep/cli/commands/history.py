"""`threadkeep history`: a thread's checkpoints as a tree."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from threadkeep.cli.app import Panel, command
from threadkeep.cli.drawing import line, text
from threadkeep.cli.looking import config, load, moment, with_hint
from threadkeep.cli.parameters import AsJson, Imports, Thread, Url
from threadkeep.cli.stores import reading, url_of
from threadkeep.cli.terminal import Output
from threadkeep.errors import NotFoundError, UnknownTypeError
from threadkeep.readable.ancestry import Branch, tree
from threadkeep.readable.checkpoints import View, view


@command(Panel.LOOK, "threadkeep history 42 --limit 20 --url threads.db")
def history(
    thread: Thread,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="how many, newest first")] = 50,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--ns",
            help='only this namespace; "" for the graph itself; default: all',
            show_default=False,
        ),
    ] = None,
    imports: Imports = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Draw a thread's checkpoints: forks as branches, subgraphs where they ran."""
    load(imports)
    with reading(url_of(url)) as saver:
        try:
            found = list(map(view, saver.list(config(thread, namespace), limit=limit + 1)))
        except UnknownTypeError as error:
            raise with_hint(error) from error
    seen, more = found[:limit], len(found) > limit
    if not seen:
        raise NotFoundError(thread=thread, namespace=namespace)
    heads = {one.namespace: one.id for one in reversed(seen)}
    document = {
        "thread": thread,
        "checkpoints": [_document(one, heads) for one in seen],
        "more": more,
    }
    trees = [_drawn(branch, heads) for branch in tree(seen)]
    missing = [Text("... older ones are not shown (--limit)", "dim")] if more else []
    Output(as_json=as_json).tell(document, text(f"thread {thread}", "bold"), *trees, *missing)
    return 0


def _document(one: View, heads: dict[str, str]) -> dict[str, Any]:
    return {
        "namespace": one.namespace,
        "checkpoint": one.id,
        "parent": one.parent,
        "time": one.time,
        "source": one.source,
        "step": one.step,
        "next": one.next,
        "written": one.written,
        "interrupted": one.interrupted,
        "waiting": len(one.waiting),
        "failed": len(one.failed),
        "head": heads[one.namespace] == one.id,
    }


def _drawn(branch: Branch, heads: dict[str, str]) -> Tree:
    """A branch as a tree: its steps one below the other, what begins at one inside of it."""
    root = Tree("", hide_root=True)
    waiting = [(branch, root)]
    while waiting:
        branch, place = waiting.pop()
        if place is root:
            place = _begun(root, branch)
        for step in branch.steps:
            spot = place.add(_line(step.view, heads))
            for inner in step.branches:
                other = inner.namespace != branch.namespace
                label = f"namespace {inner.namespace}" if other else "fork"
                waiting.append((inner, spot.add(text(label, "blue"))))
    return root


def _begun(root: Tree, branch: Branch) -> Tree:
    """Where a branch that begins at no checkpoint of the tree is drawn, and why it begins there."""
    place = root
    if branch.namespace:
        place = root.add(text(f"namespace {branch.namespace}", "blue"))
    parent = branch.steps[0].view.parent
    if parent is not None:
        place.add(text(f"... after {parent}, which is not shown", "dim"))
    return place


def _line(one: View, heads: dict[str, str]) -> Text:
    return line(
        (one.id, "yellow"),
        moment(one),
        f"{one.source} {'' if one.step is None else one.step}".strip(),
        f"wrote: {', '.join(one.written)}" if one.written else "",
        (f"next: {', '.join(one.next)}" if one.next else "", "cyan"),
        ("waits" if one.waiting else "was interrupted" if one.interrupted else "", "bold yellow"),
        ("failed" if one.failed else "", "bold red"),
        ("head" if heads.get("") == one.id and not one.namespace else "", "bold green"),
    )
