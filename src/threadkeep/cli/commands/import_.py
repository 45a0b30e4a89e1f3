"""`threadkeep import`: threads out of a file that `threadkeep export` has written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, DryRun, Replace, Url
from threadkeep.cli.render import (
    some,
    text,
)
from threadkeep.cli.stores import as_if_made, made, url_of
from threadkeep.cli.terminal import Output
from threadkeep.threads import Imported
from threadkeep.transfer.kinds import check_is_bundle


@command(Panel.MOVE, "threadkeep import refunds.tkb --url redis://localhost:6379/0")
def import_(
    file: Annotated[Path, typer.Argument(help="what threadkeep export has written")],
    *,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="another id, where the file has one thread"),
    ] = None,
    replace: Replace = False,
    dry_run: DryRun = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Put the threads of a file into the store. Done again, it completes what was cut off."""
    place, output = url_of(url), Output(as_json=as_json)
    check_is_bundle(file)
    opened = as_if_made if dry_run else made
    with opened(place) as saver, output.progress() as told:
        done = saver.threads.import_bundle(
            file, name, replace=replace, dry_run=dry_run, progress=told
        )
    document = {"file": str(file), "dry_run": dry_run, **done._asdict()}
    output.tell(document, *_drawn(done, dry_run=dry_run))
    return 0


def _drawn(done: Imported, *, dry_run: bool) -> Iterator[Text]:
    would = "would be " if dry_run else ""
    for name in done.replaced:
        yield text(f"{name} {would or 'was '}replaced")
    known = f", {some(len(done.known), 'thread')} had all of theirs" if done.known else ""
    yield text(f"{some(len(done.put), 'thread')} {would}put{known}")
