"""Commands for forks and branches: fork, merge, branches, history."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal, TypeAlias

from rich.text import Text
from rich.tree import Tree

from threadkeep._core.texts import lasting
from threadkeep.cli.app import command
from threadkeep.cli.ids import whole_checkpoint, whole_thread
from threadkeep.cli.parameters import DRY_RUN, NAMESPACE, THREAD, argument, option, thread_argument
from threadkeep.cli.stores import Session
from threadkeep.cli.terminal import Drawn, line, made_by, moment, plural, print_thread, table, text
from threadkeep.errors import MergeConflictError
from threadkeep.threads import MergeReport
from threadkeep.threads.forks import BranchCheckpoint, Branches
from threadkeep.threads.steps import seconds_between


@command("threadkeep fork threads.db 42 --as 'what if'", cold=True)
def fork(
    session: Session,
    thread: str = THREAD,
    checkpoint: str | None = argument("CHECKPOINT", "Checkpoint id. Default: the head.", None),
    *,
    name: str | None = option("--as NAME", "Thread id of the fork. Default: a new UUID."),
) -> None:
    """Start a new thread from a checkpoint of another."""
    with session.open() as saver:
        origin = whole_thread(saver, thread)
        info = saver.threads.fork(origin, whole_checkpoint(saver, origin, "", checkpoint), name)
    print_thread(session, info)


# -- merge -------------------------------------------------------------------------------

MergeSide = Literal["theirs", "ours"]


@command("threadkeep merge threads.db 'what if' 42 --dry-run", cold=True, imports=True)
def merge(
    session: Session,
    fork: str = thread_argument("Thread id of the fork.", name="FORK"),
    into: str = thread_argument("Thread that it was forked from.", name="INTO"),
    *,
    strategy: MergeSide | None = option(
        "--strategy theirs|ours",
        "Resolve conflicts: theirs takes the fork's values, ours keeps those of INTO."
        " For a function or a graph's reducers, use saver.threads.merge_fork in Python.",
    ),
    dry_run: bool = DRY_RUN,
) -> int:
    """Merge a fork into its origin, channel by channel.

    Exit code 1: there are conflicts, and nothing was merged.
    """
    with session.open_to_read() if dry_run else session.open() as saver:
        fork, into = whole_thread(saver, fork), whole_thread(saver, into)
        try:
            found = saver.threads.merge_fork(fork, into, strategy, dry_run=dry_run)
        except MergeConflictError:
            found = saver.threads.merge_fork(fork, into, dry_run=True)
    is_conflict = strategy is None and bool(found.conflicts)
    conflicts = [
        {"channel": one.channel, "resolution": None if is_conflict else one.resolution}
        for one in found.conflicts
    ]
    document = {**asdict(found), "conflicts": conflicts}
    session.print(document, *_merge_lines(found, dry_run=dry_run, is_conflict=is_conflict))
    return 1 if is_conflict else 0


def _merge_lines(found: MergeReport, *, dry_run: bool, is_conflict: bool) -> Iterator[Drawn]:
    rows = [(name, "fork", "theirs") for name in found.channels]
    rows += [
        (one.channel, "both", "conflict" if is_conflict else str(one.resolution))
        for one in found.conflicts
    ]
    yield table(("channel", "changed by", "taken"), rows)
    if is_conflict:
        yield f"Nothing was merged: {plural(len(found.conflicts), 'conflict')}"
        yield "To resolve: --strategy theirs, or --strategy ours"
        into, fork = shlex.quote(found.into), shlex.quote(found.fork)
        yield f"To compare: threadkeep diff {into} --other {fork}"
    elif found.checkpoint is not None:
        yield text(f"Merged {found.fork} into {found.into}: {found.checkpoint}")
    elif dry_run and (found.channels or "theirs" in dict(found.conflicts).values()):
        yield text(f"Would merge {found.fork} into {found.into}")
    else:
        yield text(f"Nothing to merge: {found.into} is up to date with {found.fork}")


# -- branches ----------------------------------------------------------------------------


@command("threadkeep branches threads.db 42", cold=True, imports=True, raw=True)
def branches(
    session: Session,
    thread: str = THREAD,
    *,
    namespace: str = NAMESPACE,
) -> None:
    """List a thread's branches: their tips, and where they fork."""
    with session.open_to_look() as saver:
        thread = whole_thread(saver, thread)
        tree = saver.threads.branches(thread, namespace)
    tips = {id: _tip(tree, id) for id in reversed(tree.tips)}
    forks = [tree.checkpoints[id] for id in reversed(tree.forks)]
    document = {
        "thread": thread,
        "namespace": namespace,
        "head": tree.head,
        "checkpoints": len(tree.checkpoints),
        "roots": tree.roots,
        "tips": list(reversed(tips.values())),
        "forks": [{**_step(one), "children": one.children} for one in reversed(forks)],
    }
    counts = f"{plural(len(tree.checkpoints), 'checkpoint')}, {plural(len(tips), 'tip')}"
    head = line((f"thread {thread}", "bold"), namespace and f"namespace {namespace}", counts)
    rows = [
        (*_cells(one), tips[one.id]["checkpoints"], tips[one.id]["parted_at"] or "", _status(one))
        for one in [tree.checkpoints[id] for id in tips]
    ]
    drawn: list[Drawn] = [table(("tip", "time", "checkpoints>", "forked at", ""), rows)]
    if forks:
        parted = [(*_cells(one), len(one.children)) for one in forks]
        drawn += ["", table(("fork", "time", "branches>"), parted)]
    session.print(document, head, "", *drawn)


def _step(one: BranchCheckpoint) -> dict[str, Any]:
    return {"checkpoint": one.id, "time": one.time, "source": one.source, "step": one.step}


def _tip(tree: Branches, id: str) -> dict[str, Any]:
    one, own = tree.checkpoints[id], tree.since_fork(id)
    return {
        **_step(one),
        "next": one.next,
        "has_sends": one.has_sends,
        **_pending(one),
        "parted_at": tree.checkpoints[own[0]].visible_parent,
        "checkpoints": len(own),
    }


def _pending(one: BranchCheckpoint) -> dict[str, int | bool]:
    return {"waiting": len(one.waiting), "failed": len(one.failed), "head": one.is_head}


def _cells(one: BranchCheckpoint) -> tuple[Text, str]:
    return text(one.id, "yellow"), moment(one.time)


def _status(one: BranchCheckpoint) -> Text:
    return line(
        ("head" if one.is_head else "", "bold green"),
        ("waiting" if one.waiting else "", "bold yellow"),
        ("failed" if one.failed else "", "bold red"),
    )


# -- history -----------------------------------------------------------------------------

Spot: TypeAlias = tuple[str, str]
"""A namespace, and a checkpoint's id."""


@command("threadkeep history threads.db 42 --limit 20", cold=True, imports=True, raw=True)
def history(
    session: Session,
    thread: str = THREAD,
    *,
    limit: int = option("--limit N", "Show the newest N.", 50, min=1),
    namespace: str | None = option(
        "--ns NAMESPACE", 'Only this namespace; "" for the graph itself. Default: all.'
    ),
) -> None:
    """Draw a thread's checkpoints as a tree."""
    with session.open_to_look() as saver:
        thread = whole_thread(saver, thread)
        if namespace is None:
            trees = saver.threads.branches_by_ns(thread)
        else:
            trees = {namespace: saver.threads.branches(thread, namespace)}
    spots = [(ns, id) for ns, tree in trees.items() for id in tree.checkpoints]
    shown = sorted(spots, key=lambda spot: (spot[1], spot[0]), reverse=True)[:limit]
    more = len(spots) > limit
    checkpoints = []
    for ns, id in shown:
        one = trees[ns].checkpoints[id]
        place = {"namespace": ns, "checkpoint": id}
        counts = {
            "interrupted": bool(one.interrupted),
            **_pending(one),
            "seconds": _seconds(trees[ns], one),
        }
        checkpoints.append({**place, **{name: getattr(one, name) for name in _FIELDS}, **counts})
    document = {"thread": thread, "checkpoints": checkpoints, "more": more}
    drawn = draw(trees.values(), set(shown))
    missing = text("... older checkpoints not shown (--limit)", "dim") if more else None
    session.print(document, text(f"thread {thread}", "bold"), *drawn, missing)


_FIELDS = ("parent", "visible_parent", "time", "source", "step", "next", "has_sends", "written")


def draw(trees: Iterable[Branches], shown: Collection[Spot]) -> list[Tree]:
    """Draw checkpoints as trees, the graph's own first. Each is drawn once.

    Of several children, the one with the newest descendant continues its parent's branch.
    """
    drawn: list[Tree] = []
    nodes: dict[Spot, Tree] = {}
    branches: dict[Spot, Tree] = {}
    for tree in sorted(trees, key=lambda tree: (len(tree.checkpoint_ns), tree.checkpoint_ns)):
        main = _main_children(tree, shown)
        for id, one in tree.checkpoints.items():  # (parents come first)
            spot, above = (tree.checkpoint_ns, id), (tree.checkpoint_ns, one.visible_parent or "")
            if spot not in shown:
                continue
            if above not in nodes:
                branches[spot] = _begin(one, tree.checkpoint_ns, nodes, drawn)
            elif id in main:
                branches[spot] = branches[above]
            else:
                branches[spot] = nodes[above].add(text("fork", "blue"))
            nodes[spot] = branches[spot].add(_history_line(tree, one))
    return drawn


def _main_children(tree: Branches, shown: Collection[Spot]) -> set[str]:
    """Return the checkpoints that continue their parent's branch."""
    main: set[str] = set()
    newest: dict[str, str] = {}
    for id in reversed(list(tree.checkpoints)):
        one = tree.checkpoints[id]
        newest[id] = max([id, *[newest[child] for child in one.children]])
        children = [child for child in one.children if (tree.checkpoint_ns, child) in shown]
        if children:
            main.add(max(children, key=lambda child: newest[child]))
    return main


def _begin(one: BranchCheckpoint, ns: str, nodes: Mapping[Spot, Tree], drawn: list[Tree]) -> Tree:
    """Begin a branch at the step in which a subgraph ran, else a new tree."""
    outer = nodes.get(_outer(ns, one))
    if outer is not None:
        return outer.add(text(f"namespace {ns}", "blue"))
    place = Tree("", hide_root=True)
    drawn.append(place)
    if ns:
        place = place.add(text(f"namespace {ns}", "blue"))
    if one.visible_parent is not None:
        place.add(text(f"... after {one.visible_parent} (not shown)", "dim"))
    elif one.is_cut or one.hidden:
        place.add(text(f"... after {one.parent} (pruned)", "dim"))
    return place


def _outer(ns: str, one: BranchCheckpoint) -> Spot:
    """Return the checkpoint in whose step a subgraph ran: the innermost of its parents."""
    parents = one.metadata.get("parents")
    known = dict(parents) if isinstance(parents, Mapping) else {}
    outer = [name for name in map(str, known) if len(name) < len(ns)]
    name = max(outer, key=len, default="")
    return name, str(known[name]) if outer else ""


def _seconds(tree: Branches, one: BranchCheckpoint) -> float | None:
    """Return the time that the step of a checkpoint ran, or None if no node ran, or one waited."""
    above = tree.checkpoints.get(one.visible_parent or "")
    ran = above is not None and one.source == "loop" and not above.interrupted
    return seconds_between(above.time, one.time) if above and ran else None


def _history_line(tree: Branches, one: BranchCheckpoint) -> Text:
    seconds = _seconds(tree, one)
    following = [*one.next, *(["sent tasks"] if one.has_sends else [])]
    return line(
        (one.id, "yellow"),
        moment(one.time),
        made_by(one.source, one.step),
        "" if seconds is None else lasting(seconds),
        f"wrote: {', '.join(one.written)}" if one.written else "",
        (f"next: {', '.join(following)}" if following else "", "cyan"),
        ("waiting" if one.waiting else "interrupted" if one.interrupted else "", "bold yellow"),
        ("failed" if one.failed else "", "bold red"),
        ("head" if one.is_head and not tree.checkpoint_ns else "", "bold green"),
    )
