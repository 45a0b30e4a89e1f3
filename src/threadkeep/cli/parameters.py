"""Parameters that commands share, shell completion of thread ids, and `--every`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated

import typer

from threadkeep.backends.open import file_of
from threadkeep.cli import parsing
from threadkeep.cli.stores import reading, url_of
from threadkeep.cli.terminal import complain
from threadkeep.errors import BackendError
from threadkeep.saver import store_of
from threadkeep.stats import thread_names

_MOST = 50


def thread_ids(context: typer.Context, incomplete: str) -> list[str]:
    """The first ids that begin so, of a SQLite file; a server may be far, and is not asked."""
    try:
        return _ids(context.params.get("url"), incomplete)
    except Exception:  # noqa: BLE001 - whoever presses a key must never see a failure
        return []


def _ids(option: str | None, beginning: str) -> list[str]:
    url = url_of(option)
    if file_of(url) is None:
        return []
    with reading(url) as saver:
        found = store_of(saver).run(thread_names(beginning or None, _MOST))
    return [name for name in found if name.startswith(beginning)]


STORE = "a URL as open_saver takes it, or the path of a SQLite file"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=f"the store: {STORE}; default: TK_URL, else url in threadkeep.toml",
    ),
]
UrlArgument = Annotated[str | None, typer.Argument(metavar="URL", help="the same as --url")]
Cold = Annotated[
    str | None,
    typer.Option(
        "--cold",
        metavar="URL",
        help="the cold store: file:///folder, s3://bucket/path, gs:// or az://; default: TK_COLD,"
        " else cold in threadkeep.toml",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="one JSON document on stdout; errors as JSON on stderr")
]
Thread = Annotated[str, typer.Argument(help="the thread's id", autocompletion=thread_ids)]
ThreadIds = Annotated[
    list[str],
    typer.Argument(metavar="THREAD...", help="the threads' ids", autocompletion=thread_ids),
]
Namespace = Annotated[
    str, typer.Option("--ns", help="the namespace of a subgraph; default: the graph itself")
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="a checkpoint's id; default: the head")
]
WithTags = Annotated[
    list[str] | None, typer.Option("--tag", help="that have this tag; may be repeated")
]
WithMetadata = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata",
        metavar="KEY=VALUE",
        help="that have this; VALUE is JSON or else text; may be repeated",
    ),
]
Ttl = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="TIME",
        help="how long it may rest before retention removes it: 30d, 12h; never for ever",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only tell what would be done")]
Replace = Annotated[
    bool,
    typer.Option(
        "--replace", help="remove what stands in the place of a thread, and would be lost"
    ),
]
Full = Annotated[bool, typer.Option("--full", help="shorten nothing")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="import this module first, whose classes the thread holds; may be repeated",
    ),
]
Programs = Annotated[
    str,
    typer.Option(
        "--pg-bin",
        metavar="FOLDER",
        help="where pg_dump and pg_restore are; default: TK_PG_BIN, else the PATH",
    ),
]


Every = Annotated[
    str | None,
    typer.Option(
        "--every", metavar="TIME", help="again and again, such as 10m, until it is interrupted"
    ),
]


def repeated(once: Callable[[], int], every: str | None, *, as_json: bool) -> int:
    """Do it once, or as often as `--every` says; gives the exit code.

    Raises:
        InvalidArgumentError: that is no length of time.
    """
    if every is None:
        return once()
    pause = min(parsing.length("--every", every).total_seconds(), threading.TIMEOUT_MAX)
    nobody = threading.Event()
    while True:
        try:
            once()
        except BackendError as error:
            complain(error, as_json=as_json)
        nobody.wait(pause)
