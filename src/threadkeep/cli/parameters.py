"""Parameters that commands share, completion of thread ids, and parsers of typed values.

Invalid values raise `InvalidArgumentError`, which names the option or key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from threadkeep.backends.open import file_of
from threadkeep.cli.stores import open_existing, url_of
from threadkeep.errors import invalid
from threadkeep.saver import store_of
from threadkeep.stats import thread_names

_MAX_COMPLETIONS = 50


def thread_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a thread in a SQLite file. Servers are not asked: they may be far."""
    try:
        return _ids(context.params.get("url"), incomplete)
    except Exception:  # noqa: BLE001 - completion must never show a failure
        return []


def _ids(option: str | None, prefix: str) -> list[str]:
    url = url_of(option)
    if file_of(url) is None:
        return []
    with open_existing(url, read_only=True) as saver:
        found = store_of(saver).run(thread_names(prefix or None, _MAX_COMPLETIONS))
    return [name for name in found if name.startswith(prefix)]


# -- parameters --------------------------------------------------------------------------

STORE = "a URL for open_saver, or the path of a SQLite file"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=f"Store: {STORE}. Default: TK_URL, else url in threadkeep.toml.",
    ),
]
UrlArgument = Annotated[str | None, typer.Argument(metavar="URL", help="Store, same as --url.")]
Cold = Annotated[
    str | None,
    typer.Option(
        "--cold",
        metavar="URL",
        help="Cold store: file:///folder, s3://bucket/path, gs:// or az://. Default: TK_COLD,"
        " else cold in threadkeep.toml.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document to stdout, and errors to stderr.")
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module first, for classes that the thread holds. Repeatable.",
    ),
]
Thread = Annotated[
    str, typer.Argument(metavar="THREAD", help="Thread id.", autocompletion=thread_ids)
]
ThreadIds = Annotated[
    list[str], typer.Argument(metavar="THREAD", help="Thread ids.", autocompletion=thread_ids)
]
OptionalThreadIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="THREAD", help="Thread ids. Default: all.", autocompletion=thread_ids),
]
Namespace = Annotated[
    str, typer.Option("--ns", help="Namespace of a subgraph. Default: the graph itself.")
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Checkpoint id. Default: the head.")
]
WithTags = Annotated[
    list[str] | None, typer.Option("--tag", help="Only threads with this tag. Repeatable.")
]
WithMetadata = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata",
        metavar="KEY=VALUE",
        help="Only threads with this metadata. VALUE is JSON, else text. Repeatable.",
    ),
]
Ttl = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="TIME",
        help="Idle time after which gc deletes the thread, such as 30d or 12h; never to keep it.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and exit.")]
Full = Annotated[bool, typer.Option("--full", help="Do not shorten the output.")]
Programs = Annotated[
    str,
    typer.Option(
        "--pg-bin",
        metavar="FOLDER",
        help="Folder of pg_dump and pg_restore. Default: TK_PG_BIN, else the PATH.",
    ),
]

# -- parsers -----------------------------------------------------------------------------

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+", re.ASCII)
_PART = re.compile(r"([\d.]+)([smhdw])")
_SIZE: TypeAdapter[int] = TypeAdapter(ByteSize)


def parse_duration(option: str, value: str) -> timedelta:
    """Parse a length of time such as `7d`, `12h`, `30m` or `1d12h`."""
    if not _DURATION.fullmatch(value):
        _refuse(option, value, "Use a time such as 30d, 12h or 30m.")
    try:
        parts = [timedelta(**{_UNITS[unit]: float(n)}) for n, unit in _PART.findall(value)]
        return sum(parts, timedelta())
    except OverflowError:
        _refuse(option, value, "Use a shorter time.")


def parse_positive(option: str, value: str) -> timedelta:
    """Parse a length of time above 0."""
    return parse_duration(option, value) or _refuse(option, value, "Use a time above 0.")


def parse_time(option: str, value: str | None) -> datetime | timedelta | None:
    """Parse an ISO time (UTC, if it names no time zone), or a time ago such as `7d`."""
    if value is None:
        return None
    if _DURATION.fullmatch(value):
        return parse_duration(option, value)
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        hint = "Use a time such as 2026-05-01T12:00, or a time ago such as 7d, 12h or 30m."
        _refuse(option, value, hint)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def parse_ttl(value: str | None) -> timedelta | int | None:
    """Parse an idle time; 0 stands for `never`, as in `saver.threads`."""
    if value is None or value == "never":
        return None if value is None else 0
    return parse_positive("--ttl", value)


def parse_size(option: str, value: str | None) -> int | None:
    """Parse a number of bytes, with or without a unit: `1000`, `10MB` or `1MiB`."""
    if value is None:
        return None
    try:
        return int(_SIZE.validate_python(value))
    except (ValidationError, OverflowError):
        _refuse(option, value, "Use a number of bytes, such as 1000 or 10MB.")


def parse_metadata(option: str, pairs: Iterable[str] | None) -> dict[str, Any]:
    """Parse `KEY=VALUE` pairs, whose values are JSON, or else text."""
    found = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not (key and equals):
            _refuse(option, pair, "Use KEY=VALUE.")
        try:
            found[key] = json.loads(value)
        except (ValueError, RecursionError):
            found[key] = value
    return found


def _refuse(option: str, value: str, hint: str) -> NoReturn:
    raise invalid(f"value for {option}", value, hint)
