"""The parameters that commands have in common, so that each has one name and one help.

Only declarations live here.
"""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli.completion import thread_ids

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
