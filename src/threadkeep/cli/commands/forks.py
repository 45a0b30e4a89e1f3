"""Commands for forks and branches: fork, merge, branches, history."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from threadkeep.cli.app import command
from threadkeep.cli.parameters import DryRun, Namespace, Thread, thread_ids
from threadkeep.cli.stores import Session
from threadkeep.cli.terminal import (
    line,
    made_by,
    moment,
    plural,
    print_thread,
    table,
    text,
)
from threadkeep.errors import MergeConflictError
from threadkeep.forks.branches import BranchCheckpoint, Branches
from threadkeep.saver import Saver
from threadkeep.threads import Merge


@command("threadkeep fork 42 --as 'what if' --url threads.db", cold=True)
def fork(
    session: Session,
    thread: Thread,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help="Checkpoint id. Default: the head.")
    ] = None,
    *,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Thread id of the fork. Default: a new UUID."),
    ] = None,
) -> None:
    """Start a new thread from a checkpoint of another."""
    with session.open() as saver:
        info = saver.threads.fork(thread, checkpoint, name)
    print_thread(session, info)


# -- merge -------------------------------------------------------------------------------

Side = Literal["theirs", "ours"]


@command("threadkeep merge 'what if' 42 --dry-run --url threads.db", cold=True, imports=True)
def merge(
    session: Session,
    fork: Annotated[
        str,
        typer.Argument(metavar="FORK", help="Thread id of the fork.", autocompletion=thread_ids),
    ],
    into: Annotated[
        str,
        typer.Argument(
            metavar="INTO", help="Thread that it was forked from.", autocompletion=thread_ids
        ),
    ],
    *,
    strategy: Annotated[
        Side | None,
        typer.Option(
            "--strategy",
            help="Resolve conflicts with the fork's values (theirs) or with the other's (ours)."
            " For a function or a graph's reducers, use saver.threads.merge_fork in Python.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Merge a fork into its origin, channel by channel.

    Exit code 1: there are conflicts, and nothing was merged.
    """
    with session.open_to_read() if dry_run else session.open() as saver:
        found = _merge(saver, fork, into, strategy, dry_run=dry_run)
    is_conflict = strategy is None and bool(found.conflicts)
    conflicts = [
        {"channel": one.channel, "resolution": None if is_conflict else one.resolution}
        for one in found.conflicts
    ]
    document = {**asdict(found), "conflicts": conflicts}
    session.print(document, *_merge_lines(found, dry_run=dry_run, is_conflict=is_conflict))
    return 1 if is_conflict else 0


def _merge(saver: Saver, fork: str, into: str, strategy: Side | None, *, dry_run: bool) -> Merge:
    """Merge, or return what a merge without conflicts would take."""
    try:
        return saver.threads.merge_fork(fork, into, strategy, dry_run=dry_run)
    except MergeConflictError:
        return saver.threads.merge_fork(fork, into, dry_run=True)


def _merge_lines(found: Merge, *, dry_run: bool, is_conflict: bool) -> Iterator[RenderableType]:
    rows = [(text(name), "fork", "theirs") for name in found.channels]
    rows += [
        (text(one.channel), "both", "conflict" if is_conflict else str(one.resolution))
        for one in found.conflicts
    ]
    if rows:
        yield table(("channel", "changed by", "taken"), rows)
    if is_conflict:
        yield f"Nothing was merged: {plural(len(found.conflicts), 'conflict')}"
        names = shlex.quote(found.into), shlex.quote(found.fork)
        yield "To resolve: --strategy theirs, or --strategy ours"
        yield text("To compare: threadkeep diff {} --other {}".format(*names))
    elif found.checkpoint is not None:
        yield text(f"Merged {found.fork} into {found.into}: {found.checkpoint}")
    elif dry_run and (found.channels or "theirs" in dict(found.conflicts).values()):
        yield text(f"Would merge {found.fork} into {found.into}")
    else:
        yield text(f"Nothing to merge: {found.into} is up to date with {found.fork}")


# -- branches ----------------------------------------------------------------------------


@command("threadkeep branches 42 --url threads.db", cold=True, imports=True)
def branches(session: Session, thread: Thread, *, namespace: Namespace = "") -> None:
    """List the tips of a thread's branches, and where they fork."""
    with session.open_to_read() as saver:
        tree = saver.threads.branches(thread, namespace)
    tips = {id: _tip(tree, id) for id in tree.tips}
    document = {
        "thread": thread,
        "namespace": namespace,
        "head": tree.head,
        "checkpoints": len(tree.checkpoints),
        "roots": tree.roots,
        "tips": list(tips.values()),
        "forks": [
            {**_step(tree.checkpoints[id]), "children": tree.checkpoints[id].children}
            for id in tree.forks
        ],
    }
    head = line(
        (f"thread {thread}", "bold"),
        f"namespace {namespace}" if namespace else "",
        f"{plural(len(tree.checkpoints), 'checkpoint')}, {plural(len(tree.tips), 'tip')}",
    )
    session.print(document, head, "", _tip_table(tree, tips), *_fork_table(tree))


def _step(one: BranchCheckpoint) -> dict[str, Any]:
    return {"checkpoint": one.id, "time": one.time, "source": one.source, "step": one.step}


def _tip(tree: Branches, id: str) -> dict[str, Any]:
    one, own = tree.checkpoints[id], tree.since_fork(id)
    return {
        **_step(one),
        "next": one.next,
        "has_sends": one.has_sends,
        "waiting": len(one.waiting),
        "failed": len(one.failed),
        "head": one.is_head,
        "parted_at": tree.checkpoints[own[0]].visible_parent,
        "checkpoints": len(own),
    }


def _tip_table(tree: Branches, tips: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for id in reversed(tree.tips):
        one, tip = tree.checkpoints[id], tips[id]
        status = line(
            ("head" if one.is_head else "", "bold green"),
            ("waiting" if one.waiting else "", "bold yellow"),
            ("failed" if one.failed else "", "bold red"),
        )
        rows.append((*_cells(one), f"{tip['checkpoints']:,}", text(tip["parted_at"] or ""), status))
    return table(("tip", "time", "checkpoints>", "forked at", ""), rows)


def _fork_table(tree: Branches) -> list[Table | str]:
    found = [tree.checkpoints[id] for id in reversed(tree.forks)]
    rows = [(*_cells(one), f"{len(one.children):,}") for one in found]
    return ["", table(("fork", "time", "branches>"), rows)] if rows else []


def _cells(one: BranchCheckpoint) -> tuple[Text, Text]:
    return text(one.id, "yellow"), text(moment(one.time))


# -- history -----------------------------------------------------------------------------

Spot: TypeAlias = tuple[str, str]
"""A namespace, and a checkpoint's id."""


@command("threadkeep history 42 --limit 20 --url threads.db", cold=True, imports=True)
def history(
    session: Session,
    thread: Thread,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show the newest N.")] = 50,
    namespace: Annotated[
        str | None,
        typer.Option("--ns", help='Only this namespace; "" for the graph itself. Default: all.'),
    ] = None,
) -> None:
    """Draw a thread's checkpoints as a tree."""
    with session.open_to_read() as saver:
        if namespace is None:
            trees = saver.threads.branches_by_ns(thread)
        else:
            trees = {namespace: saver.threads.branches(thread, namespace)}
    spots = [(ns, id) for ns, tree in trees.items() for id in tree.checkpoints]
    shown = sorted(spots, key=lambda spot: (spot[1], spot[0]), reverse=True)[:limit]
    more = len(spots) > limit
    document = {
        "thread": thread,
        "checkpoints": [_history_document(ns, trees[ns].checkpoints[id]) for ns, id in shown],
        "more": more,
    }
    drawn = [_draw(branch) for branch in layout(trees.values(), set(shown))]
    missing = [Text("... older checkpoints not shown (--limit)", "dim")] if more else []
    session.print(document, text(f"thread {thread}", "bold"), *drawn, *missing)


def _history_document(ns: str, one: BranchCheckpoint) -> dict[str, Any]:
    return {
        "namespace": ns,
        "checkpoint": one.id,
        "parent": one.parent,
        "visible_parent": one.visible_parent,
        "time": one.time,
        "source": one.source,
        "step": one.step,
        "next": one.next,
        "has_sends": one.has_sends,
        "written": one.written,
        "interrupted": bool(one.interrupted),
        "waiting": len(one.waiting),
        "failed": len(one.failed),
        "head": one.is_head,
    }


@dataclass(slots=True)
class Step:
    """A checkpoint, and the forks and subgraphs that begin at it."""

    namespace: str
    checkpoint: BranchCheckpoint
    branches: list[Branch] = field(default_factory=list)


@dataclass(slots=True)
class Branch:
    """Successive checkpoints of one namespace, oldest first."""

    namespace: str
    steps: list[Step] = field(default_factory=list)


def layout(trees: Iterable[Branches], spots: Collection[Spot]) -> list[Branch]:
    """Lay out checkpoints as branches, the graph's own first. Each is in it once.

    Of several children, the one with the newest descendant continues its parent's branch.

    Args:
        trees: those of a thread's namespaces.
        spots: the checkpoints to lay out.
    """
    steps: dict[Spot, Step] = {}
    roots: list[Branch] = []
    for tree in sorted(trees, key=lambda tree: tree.ns):
        for id, one in tree.checkpoints.items():
            if (tree.ns, id) in spots:
                steps[tree.ns, id] = Step(tree.ns, one)
    newest: dict[Spot, str] = {}
    for ns, id in reversed(steps):  # (a tree has each checkpoint behind its parent)
        below = [newest.get((ns, child), "") for child in steps[ns, id].checkpoint.children]
        newest[ns, id] = max([id, *below])
    for (ns, _), step in steps.items():
        if (ns, step.checkpoint.visible_parent) not in steps:
            outer = _outer(ns, step.checkpoint)
            parent = None if outer is None else steps.get(outer)
            _grow(step, roots if parent is None else parent.branches, steps, newest)
    return roots


def _grow(
    root: Step, place: list[Branch], steps: Mapping[Spot, Step], newest: Mapping[Spot, str]
) -> None:
    """Add the branch that begins here, and all that begin on it."""
    pending: list[tuple[Step, list[Branch]]] = [(root, place)]
    while pending:
        step, place = pending.pop()
        ns = step.namespace
        branch = Branch(ns)
        place.append(branch)
        while True:
            branch.steps.append(step)
            below = [(ns, child) for child in step.checkpoint.children if (ns, child) in steps]
            if not below:
                break
            *forks, main = sorted(below, key=lambda spot: newest[spot])
            pending += [(steps[fork], step.branches) for fork in reversed(forks)]
            step = steps[main]


def _outer(ns: str, one: BranchCheckpoint) -> Spot | None:
    """Return the checkpoint in whose step a subgraph ran: the innermost of its parents, if any."""
    parents = one.metadata.get("parents")
    known = parents if isinstance(parents, Mapping) else {}
    outer = [name for name in map(str, known) if len(name) < len(ns)]
    if not outer:
        return None
    name = max(outer, key=len)
    return name, str(known[name])


def _draw(branch: Branch) -> Tree:
    """Draw a branch: its steps one below the other, what begins at one inside of it."""
    root = Tree("", hide_root=True)
    pending = [(branch, _draw_start(root, branch))]
    while pending:
        branch, place = pending.pop()
        for step in branch.steps:
            node = place.add(_history_line(step.namespace, step.checkpoint))
            for inner in step.branches:
                is_subgraph = inner.namespace != branch.namespace
                label = f"namespace {inner.namespace}" if is_subgraph else "fork"
                pending.append((inner, node.add(text(label, "blue"))))
    return root


def _draw_start(root: Tree, branch: Branch) -> Tree:
    """Draw the start of a branch that begins at no checkpoint of the tree."""
    place, first = root, branch.steps[0].checkpoint
    if branch.namespace:
        place = root.add(text(f"namespace {branch.namespace}", "blue"))
    if first.visible_parent is not None:
        place.add(text(f"... after {first.visible_parent} (not shown)", "dim"))
    elif first.is_cut or first.hidden:
        place.add(text(f"... after {first.parent} (pruned)", "dim"))
    return place


def _history_line(ns: str, one: BranchCheckpoint) -> Text:
    following = [*one.next, *(["sent tasks"] if one.has_sends else [])]
    return line(
        (one.id, "yellow"),
        moment(one.time),
        made_by(one.source, one.step),
        f"wrote: {', '.join(one.written)}" if one.written else "",
        (f"next: {', '.join(following)}" if following else "", "cyan"),
        ("waiting" if one.waiting else "interrupted" if one.interrupted else "", "bold yellow"),
        ("failed" if one.failed else "", "bold red"),
        ("head" if one.is_head and not ns else "", "bold green"),
    )
