"""`threadkeep merge`: what a fork has become, into the thread that it was forked from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer
from rich.console import RenderableType
from rich.table import Table

from threadkeep.cli.app import Panel, command
from threadkeep.cli.completion import thread_ids
from threadkeep.cli.lookup import (
    load,
    naming_modules,
)
from threadkeep.cli.parameters import AsJson, Cold, Imports, Url
from threadkeep.cli.render import (
    table,
    text,
)
from threadkeep.cli.stores import looking, url_of, writing
from threadkeep.cli.terminal import Output
from threadkeep.errors import MergeConflictError
from threadkeep.saver import Saver
from threadkeep.threads import Merge

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
    document = _document(found, resolved=not stands)
    Output(as_json=as_json).tell(document, *_drawn(found, dry_run=dry_run, stands=stands))
    return 1 if stands else 0


def _merged(saver: Saver, fork: str, into: str, strategy: Side | None, *, dry_run: bool) -> Merge:
    """What was merged; where a conflict stands in the way, what would be."""
    try:
        return saver.threads.merge_fork(fork, into, strategy, dry_run=dry_run)
    except MergeConflictError:
        return saver.threads.merge_fork(fork, into, dry_run=True)


def _document(found: Merge, *, resolved: bool) -> dict[str, Any]:
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


def _drawn(found: Merge, *, dry_run: bool, stands: bool) -> Iterator[RenderableType]:
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
