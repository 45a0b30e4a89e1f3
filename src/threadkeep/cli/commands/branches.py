"""`threadkeep branches`: where a thread parted, and what came of it."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from threadkeep.cli.app import Panel, command
from threadkeep.cli.lookup import (
    load,
    made_by,
    moment,
    naming_modules,
)
from threadkeep.cli.parameters import AsJson, Cold, Imports, Namespace, Thread, Url
from threadkeep.cli.render import (
    line,
    size,
    table,
    text,
)
from threadkeep.cli.stores import looking, url_of
from threadkeep.cli.terminal import Output
from threadkeep.forks.branches import (
    BranchCheckpoint,
    Branches,
)


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
