"""Commands for forks and branches: fork, branches, history, merge."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Cold, Imports, Namespace, Thread, Url, thread_ids
from threadkeep.cli.render import (
    document,
    in_a_line,
    line,
    load,
    made_by,
    moment,
    naming_modules,
    size,
    table,
    text,
)
from threadkeep.cli.stores import looking, url_of, writing
from threadkeep.cli.terminal import Output
from threadkeep.errors import MergeConflictError
from threadkeep.forks.branches import (
    BranchCheckpoint,
    Branches,
)
from threadkeep.readable.ancestry import Branch, Spot, layout
from threadkeep.saver import Saver
from threadkeep.threads import Merge


@command(Panel.CHANGE, "threadkeep fork 42 --as 'what if' --url threads.db")
def fork(
    thread: Thread,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT", help="the checkpoint to begin with; default: the head"
        ),
    ] = None,
    *,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="the id of the fork; default: a new UUID"),
    ] = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Begin a thread with a checkpoint of another, and with all that led there."""
    with writing(url_of(url), cold) as saver:
        one = saver.threads.fork(thread, checkpoint, name)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0


@command(Panel.LOOK, "threadkeep branches 42 --url threads.db")
def branches(
    thread: Thread,
    *,
    namespace: Namespace = "",
    imports: Imports = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """List the tips of a thread's branches, and where they part; `history` draws the tree."""
    load(imports)
    with looking(url_of(url), cold) as saver, naming_modules():
        tree = saver.threads.branches(thread, namespace)
    document = {
        "thread": thread,
        "namespace": namespace,
        "head": tree.head,
        "checkpoints": len(tree.checkpoints),
        "roots": tree.roots,
        "tips": [_tip(tree, id) for id in tree.tips],
        "forks": [_fork(tree, id) for id in tree.forks],
    }
    head = line(
        (f"thread {thread}", "bold"),
        f"namespace {namespace}" if namespace else "",
        f"{size(len(tree.checkpoints))} checkpoints, {size(len(tree.tips))} tips",
    )
    Output(as_json=as_json).tell(document, head, "", _tips(tree), *_forks(tree))
    return 0


def _checkpoint(one: BranchCheckpoint) -> dict[str, Any]:
    return {"checkpoint": one.id, "time": one.time, "source": one.source, "step": one.step}


def _tip(tree: Branches, id: str) -> dict[str, Any]:
    one, own = tree.checkpoints[id], tree.since_fork(id)
    return {
        **_checkpoint(one),
        "next": one.next,
        "sends": one.sends,
        "waiting": len(one.waiting),
        "failed": len(one.failed),
        "head": one.is_head,
        "parted_at": tree.checkpoints[own[0]].above,
        "checkpoints": len(own),
    }


def _fork(tree: Branches, id: str) -> dict[str, Any]:
    one = tree.checkpoints[id]
    return {**_checkpoint(one), "children": one.children}


def _tips(tree: Branches) -> Table:
    rows = []
    for id in reversed(tree.tips):
        one, told = tree.checkpoints[id], _tip(tree, id)
        parted = text(told["parted_at"] or "")
        rows.append((*_beginning(one), size(told["checkpoints"]), parted, _stands(one)))
    return table(("tip", "time", "made by", "checkpoints>", "parted at", ""), rows)


def _forks(tree: Branches) -> list[Table | str]:
    if not tree.forks:
        return []
    found = [tree.checkpoints[id] for id in reversed(tree.forks)]
    rows = [(*_beginning(one), size(len(one.children))) for one in found]
    return ["", table(("fork", "time", "made by", "ways>"), rows)]


def _beginning(one: BranchCheckpoint) -> tuple[Text, Text, Text]:
    """What a row of either table begins with."""
    return text(one.id, "yellow"), text(moment(one.time)), text(made_by(one.source, one.step))


def _stands(one: BranchCheckpoint) -> Text:
    """How it stands with a tip."""
    return line(
        ("head" if one.is_head else "", "bold green"),
        ("waits" if one.waiting else "", "bold yellow"),
        ("failed" if one.failed else "", "bold red"),
    )


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
    trees = _read_history(url_of(url), cold, thread, namespace)
    seen = _newest(trees, limit)
    more = sum(len(tree.checkpoints) for tree in trees.values()) > limit
    document = {
        "thread": thread,
        "checkpoints": [_history_document(spot, trees) for spot in seen],
        "more": more,
    }
    drawn = [_draw_history(branch) for branch in layout(trees.values(), set(seen))]
    missing = [Text("... older ones are not shown (--limit)", "dim")] if more else []
    Output(as_json=as_json).tell(document, text(f"thread {thread}", "bold"), *drawn, *missing)
    return 0


def _read_history(
    url: str, cold: str | None, thread: str, namespace: str | None
) -> dict[str, Branches]:
    """The trees that are meant, by namespace."""
    with looking(url, cold) as saver, naming_modules():  # (metadata may hold anything)
        if namespace is None:
            return saver.threads.branches_by_ns(thread)
        return {namespace: saver.threads.branches(thread, namespace)}


def _newest(trees: dict[str, Branches], limit: int) -> list[Spot]:
    """The newest checkpoints of all trees, newest first."""
    found = [(ns, id) for ns, tree in trees.items() for id in tree.checkpoints]
    return sorted(found, key=lambda spot: (spot[1], spot[0]), reverse=True)[:limit]


def _history_document(spot: Spot, trees: dict[str, Branches]) -> dict[str, Any]:
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


def _draw_history(branch: Branch) -> Tree:
    """A branch as a tree: its steps one below the other, what begins at one inside of it."""
    root = Tree("", hide_root=True)
    waiting = [_Begun(branch, _beginning_history(root, branch))]
    while waiting:
        branch, place = waiting.pop()
        for step in branch.steps:
            spot = place.add(_history_line(step.namespace, step.checkpoint))
            for inner in step.branches:
                other = inner.namespace != branch.namespace
                label = f"namespace {inner.namespace}" if other else "fork"
                waiting.append(_Begun(inner, spot.add(text(label, "blue"))))
    return root


def _beginning_history(root: Tree, branch: Branch) -> Tree:
    """Where a branch that begins at no checkpoint of the tree is drawn, and why it begins there."""
    place, first = root, branch.steps[0].checkpoint
    if branch.namespace:
        place = root.add(text(f"namespace {branch.namespace}", "blue"))
    if first.above is not None:
        place.add(text(f"... after {first.above}, which is not shown", "dim"))
    elif first.is_cut or first.hidden:
        place.add(text(f"... after {first.parent}, which was pruned", "dim"))
    return place


def _history_line(ns: str, one: BranchCheckpoint) -> Text:
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


Side = Literal["theirs", "ours"]


@command(Panel.CHANGE, "threadkeep merge 'what if' 42 --dry-run --url threads.db")
def merge(
    fork: Annotated[str, typer.Argument(help="the fork's id", autocompletion=thread_ids)],
    into: Annotated[
        str, typer.Argument(help="the thread that it was forked from", autocompletion=thread_ids)
    ],
    *,
    strategy: Annotated[
        Side | None,
        typer.Option(
            "--strategy",
            help="for channels that both have changed: theirs (the fork's value) or ours. A"
            " function, or a graph's reducers: only in Python, saver.threads.merge_fork",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only tell what would be merged")
    ] = False,
    imports: Imports = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Merge a fork, channel by channel. Exit code 1: both have changed some, nothing is merged."""
    load(imports)
    opened = looking if dry_run else writing
    with opened(url_of(url), cold) as saver, naming_modules():
        found = _merged(saver, fork, into, strategy, dry_run=dry_run)
    stands = strategy is None and bool(found.conflicts)
    document = _merge_document(found, resolved=not stands)
    Output(as_json=as_json).tell(document, *_draw_merge(found, dry_run=dry_run, stands=stands))
    return 1 if stands else 0


def _merged(saver: Saver, fork: str, into: str, strategy: Side | None, *, dry_run: bool) -> Merge:
    """What was merged; where a conflict stands in the way, what would be."""
    try:
        return saver.threads.merge_fork(fork, into, strategy, dry_run=dry_run)
    except MergeConflictError:
        return saver.threads.merge_fork(fork, into, dry_run=True)


def _merge_document(found: Merge, *, resolved: bool) -> dict[str, Any]:
    return {
        "fork": found.fork,
        "into": found.into,
        "base": found.base,
        "taken": found.taken,
        "conflicts": [
            {"channel": one.channel, "resolution": one.resolution if resolved else None}
            for one in found.conflicts
        ],
        "checkpoint": found.checkpoint,
    }


def _draw_merge(found: Merge, *, dry_run: bool, stands: bool) -> Iterator[RenderableType]:
    if found.taken or found.conflicts:
        yield _channels(found, stands=stands)
    if stands:
        yield "nothing was merged: give --strategy theirs or ours for what both have changed"
        names = shlex.quote(found.into), shlex.quote(found.fork)
        yield text("(to compare them: threadkeep diff {} --other {})".format(*names), "dim")
    elif found.checkpoint is not None:
        yield text(f"{found.fork} was merged into {found.into}: {found.checkpoint}")
    elif dry_run and (found.taken or "theirs" in dict(found.conflicts).values()):
        yield text(f"{found.fork} would be merged into {found.into}")
    else:
        yield text(f"{found.into} has all that {found.fork} would bring")


def _channels(found: Merge, *, stands: bool) -> Table:
    taken = [(text(name), "the fork", "theirs") for name in found.taken]
    both = [(text(c), "both", "" if stands else text(how)) for c, how in found.conflicts]
    return table(("channel", "changed by", "taken"), [*taken, *both])
