"""`threadkeep mirror`: the threads of one store into another, as far as they are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated, TypeAlias

import typer
from rich.console import RenderableType
from rich.text import Text

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import STORE, AsJson, DryRun, Full, Replace
from threadkeep.cli.render import (
    some,
    table,
    text,
)
from threadkeep.cli.stores import as_if_made, made, reading, same, shown
from threadkeep.cli.terminal import Output
from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import Synced

_ROWS = 20  # of what needs no answer

_Row: TypeAlias = tuple[Text, Text | str, Text | str]

Threads = Annotated[list[str] | None, typer.Argument(metavar="[THREAD...]", help="only these")]
Delete = Annotated[
    bool, typer.Option("--delete", help="delete threads in B that were deleted in A")
]


@command(Panel.MOVE, "threadkeep mirror threads.db postgresql://agent@db/app --dry-run")
def mirror(
    a: Annotated[str, typer.Argument(metavar="A", help=f"from where: {STORE}; only read")],
    b: Annotated[str, typer.Argument(metavar="B", help="where to")],
    threads: Threads = None,
    *,
    delete: Delete = False,
    replace: Replace = False,
    dry_run: DryRun = False,
    full: Full = False,
    as_json: AsJson = False,
) -> int:
    """Bring to B what it lacks of A's threads. Exit code 1: some went another way there.

    Cut off anywhere, it goes on when it is done again.
    """
    if same(a, b):
        raise InvalidArgumentError("Both stores are the same one.", hint="Name another one.")
    output = Output(as_json=as_json)
    with ExitStack() as stack:
        here = stack.enter_context(reading(a))
        there = stack.enter_context(as_if_made(b) if dry_run else made(b))
        told = stack.enter_context(output.progress())
        done = here.threads.mirror(
            there, threads or None, replace=replace, delete=delete, dry_run=dry_run, progress=told
        )
    document = {"from": shown(a), "to": shown(b), "dry_run": dry_run, **asdict(done)}
    output.tell(document, *_drawn(done, dry_run=dry_run, full=full))
    return 1 if done.conflicts else 0


def _drawn(done: Synced, *, dry_run: bool, full: bool) -> Iterator[RenderableType]:
    rows = list(_rows(done))
    conflicts: list[_Row] = [
        (text(name), Text("conflict", "bold red"), text(why))
        for name, why in done.conflicts.items()
    ]
    left_out = 0 if full else max(0, len(rows) - _ROWS)
    drawn = [*rows[: len(rows) - left_out], *conflicts]
    if drawn:
        yield table(("thread", "in B", ""), drawn)
    if left_out:
        yield f"... {left_out} more threads (--full)"
    yield _summary(done, dry_run=dry_run)
    if conflicts:
        yield "conflicts are left as they are in B. To have A's there: --replace, with their ids"
        yield "to have B's in A instead: threadkeep mirror B A --replace, with their ids"


def _rows(done: Synced) -> Iterator[_Row]:
    for names, what, why in (
        (done.put, "put", ""),
        (done.completed, "completed", ""),
        (done.replaced, "replaced", ""),
        (done.deleted, "deleted", ""),
        (done.archived, "left out", "It is archived in A. Name it to have it brought back."),
        (done.ahead, "left alone", "It has more there, or was deleted here (--delete)."),
    ):
        yield from ((text(name), what, why) for name in names)


def _summary(done: Synced, *, dry_run: bool) -> str:
    counts = {
        "put": len(done.put),
        "completed": len(done.completed),
        "replaced": len(done.replaced),
        "deleted": len(done.deleted),
        "left alone": len(done.ahead),
        "archived": len(done.archived),
        "the same": done.same,
    }
    told = [f"{count:,} {what}" for what, count in counts.items() if count]
    told += [some(len(done.conflicts), "conflict")] if done.conflicts else []
    line = ", ".join(told) or "there are no threads"
    return f"would be done: {line}" if dry_run else line
