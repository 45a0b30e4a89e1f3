"""`threadkeep diff`: what changed between two checkpoints."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer
from rich.text import Text

from threadkeep.cli.app import Panel, command
from threadkeep.cli.completion import thread_ids
from threadkeep.cli.lookup import (
    config,
    load,
    naming_modules,
)
from threadkeep.cli.parameters import AsJson, Cold, Full, Imports, Namespace, Thread, Url
from threadkeep.cli.render import text
from threadkeep.cli.stores import looking, url_of
from threadkeep.cli.terminal import Output, drawing_here
from threadkeep.diff import StateDiff
from threadkeep.errors import InvalidArgumentError

_STYLES = {"+": "green", "-": "red", "~": "yellow"}
_WIDE, _CHANGES = 100, 20  # characters, where no terminal says; changes of a channel
_ALL = 1 << 62


@command(Panel.LOOK, "threadkeep diff 42 CHECKPOINT --url threads.db")
def diff(  # noqa: PLR0913 - most are given by name
    thread: Thread,
    before: Annotated[str | None, typer.Argument(metavar="A", help="the checkpoint before")] = None,
    after: Annotated[
        str | None, typer.Argument(metavar="B", help="the checkpoint after; default: the head")
    ] = None,
    *,
    other: Annotated[
        str | None,
        typer.Option(
            "--other",
            metavar="THREAD",
            help="B is of this thread; A may then be left out, for the head",
            autocompletion=thread_ids,
        ),
    ] = None,
    namespace: Namespace = "",
    internal: Annotated[
        bool, typer.Option("--internal", help="also channels that LangGraph made")
    ] = False,
    full: Full = False,
    imports: Imports = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Tell what changed from one checkpoint to another, channel by channel."""
    if before is None and other is None:
        raise InvalidArgumentError(
            "There is nothing to compare the head with.",
            hint="Give a checkpoint (threadkeep history THREAD lists them), or --other THREAD.",
        )
    load(imports)
    places = config(thread, namespace, before), config(other or thread, namespace, after)
    with looking(url_of(url), cold) as saver, naming_modules():
        found = saver.threads.diff_places(*places)
    document = {"same": found.is_same, **found.as_data()}
    Output(as_json=as_json).tell(document, _drawn(found, internal=internal, full=full))
    return 0


def _drawn(found: StateDiff, *, internal: bool, full: bool) -> Text:
    width = _ALL if full else shutil.get_terminal_size().columns if drawing_here() else _WIDE
    told = found.as_text(internal=internal, changes=_ALL if full else _CHANGES, width=width)
    return Text("\n").join([text(line, _style(line)) for line in told.split("\n")])


def _style(line: str) -> str:
    """The style of a line: of a channel's name, or by the sign of a change."""
    if line[:1] not in ("", " ", *_STYLES):
        return "bold"
    return _STYLES.get(line.lstrip()[:1], "")
