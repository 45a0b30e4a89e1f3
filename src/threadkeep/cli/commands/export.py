"""`threadkeep export`: threads into a file, from which any store can be filled."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli import parsing
from threadkeep.cli.app import Panel, command
from threadkeep.cli.completion import thread_ids
from threadkeep.cli.parameters import AsJson, Cold, Url, WithMetadata, WithTags
from threadkeep.cli.render import (
    size,
    some,
    text,
)
from threadkeep.cli.stores import looking, url_of
from threadkeep.cli.terminal import Output
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError
from threadkeep.saver import Saver
from threadkeep.threads import ThreadInfo
from threadkeep.threads.registry import Filters

_SAVED = [
    state for state in ThreadStatus if state not in (ThreadStatus.CREATED, ThreadStatus.DELETED)
]


@command(Panel.MOVE, "threadkeep export 42 43 refunds.tkb --url threads.db")
def export(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[THREAD...] FILE",
            help="the threads' ids, and where to; a bundle that is there is replaced",
            autocompletion=thread_ids,
        ),
    ],
    *,
    all_threads: Annotated[bool, typer.Option("--all", help="all threads")] = False,
    tag: WithTags = None,
    metadata: WithMetadata = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Write threads to a file (a bundle), while programs use them."""
    *threads, file = places
    filters = _filters(tag, metadata)
    if sum(map(bool, (threads, all_threads, filters))) != 1:
        raise InvalidArgumentError(
            "It is not clear which threads are meant.",
            hint="Give ids before the file, or --all, or --tag and --metadata.",
        )
    output = Output(as_json=as_json)
    with looking(url_of(url), cold) as saver, output.progress() as told:
        found = _found(saver, filters) if filters else []
        archived = [one.id for one in found if one.state == ThreadStatus.ARCHIVED]
        wanted = threads or ([one.id for one in found if one.id not in archived] if found else None)
        done = saver.threads.export(wanted, file, progress=told)
    archived += done.archived
    counts = f"{some(done.threads, 'thread')}, {some(done.checkpoints, 'checkpoint')}"
    document = {"file": file, "threads": done.threads, "checkpoints": done.checkpoints}
    drawn = [text(f"{file}: {counts}, {size(done.size)} bytes")]
    if archived:
        left_out = (
            f"left out: {some(len(archived), 'archived thread')} (threadkeep restore --thread)"
        )
        drawn.append(text(left_out))
    output.tell({**document, "bytes": done.size, "archived": archived}, *drawn)
    return 0


def _filters(tags: list[str] | None, metadata: list[str] | None) -> Filters | None:
    """Which threads are meant, of those in which something is saved; None for all."""
    if not (tags or metadata):
        return None
    pairs = parsing.metadata("--metadata", metadata)
    return {"state": _SAVED, "tags": tags or (), "metadata": pairs}


def _found(saver: Saver, filters: Filters) -> list[ThreadInfo]:
    """The threads that are meant.

    Raises:
        ThreadNotFoundError: there are none.
    """
    found = list(saver.threads.scan(**filters))
    if not found:
        raise ThreadNotFoundError("There are no such threads.", hint="Nothing was written.")
    return found
