"""`threadkeep archive`: threads into the cold store."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli import parsing
from threadkeep.cli.app import Panel, command
from threadkeep.cli.completion import thread_ids
from threadkeep.cli.parameters import AsJson, Cold, DryRun, Url
from threadkeep.cli.registered import in_a_table
from threadkeep.cli.render import (
    size,
    some,
)
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output
from threadkeep.engine.thread_entry import (
    TRANSITIONS,
    Cause,
    ThreadStatus,
    allows,
)
from threadkeep.errors import InvalidArgumentError, StateError, ThreadNotFoundError
from threadkeep.saver import Saver
from threadkeep.threads import ThreadInfo


@command(Panel.CHANGE, "threadkeep archive --idle 30d --cold s3://bucket/agents --url threads.db")
def archive(
    threads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[THREAD...]",
            help="the threads' ids",
            autocompletion=thread_ids,
        ),
    ] = None,
    *,
    idle: Annotated[
        str | None,
        typer.Option(
            "--idle",
            metavar="TIME",
            help="all that were not written for so long: 30d, 12h",
        ),
    ] = None,
    dry_run: DryRun = False,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Move threads into the cold store. They are found as before; reading one brings it back."""
    if bool(threads) == bool(idle):
        hint = "Give the ids of threads, or --idle and a time."
        raise InvalidArgumentError("It is not clear which threads are meant.", hint=hint)
    output, gone = Output(as_json=as_json), list[ThreadInfo]()
    with writing(url_of(url), cold) as saver:
        meant = _meant(saver, threads, idle)
        with output.progress() as told:
            for one in meant if not dry_run else ():
                gone.append(saver.threads.archive(one.id))
                told("threads archived", len(gone), len(meant))
    shown = meant if dry_run else gone
    what = "would be archived" if dry_run else "archived"
    line = f"{some(len(shown), 'thread')} {what}, {size(sum(one.bytes for one in meant))} bytes"
    if not dry_run:
        line += f"; {size(sum(one.archived_bytes or 0 for one in gone))} in the cold store"
    document = {"threads": [one.as_json() for one in shown], "archived": not dry_run}
    output.tell(document, *([in_a_table(shown)] if shown else []), line)
    return 0


def _meant(saver: Saver, threads: list[str] | None, idle: str | None) -> list[ThreadInfo]:
    """The threads that are to go: those named, or all that have rested.

    Raises:
        ThreadNotFoundError, StateError: one of those named cannot go.
    """
    if idle:
        states = list(TRANSITIONS[Cause.ARCHIVE].sources)
        rested = parsing.age("--idle", idle)
        return list(saver.threads.scan(state=states, updated_before=rested))
    found = []
    for name in dict.fromkeys(threads or ()):
        one = saver.threads.get(name)
        if one is None or one.state == ThreadStatus.DELETED:
            raise ThreadNotFoundError(thread=name, hint="Nothing was archived.")
        if not allows(Cause.ARCHIVE, one.state):
            problem = f"A thread that is {one.state} cannot be archived."
            raise StateError(problem, thread=name, hint="Nothing was archived.")
        found.append(one)
    return found
