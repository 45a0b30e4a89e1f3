"""Parameters of commands, completion of thread ids, and parsers of typed values.

Invalid values raise `InvalidArgumentError`, which names the option or key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from threadkeep._core.engine.model import FindThreads
from threadkeep._core.engine.operation import fetch
from threadkeep._run.layered_backend import store_of
from threadkeep._stores.open import file_of
from threadkeep.cli.stores import Session, url_of
from threadkeep.errors import invalid

_MAX_COMPLETIONS = 50


def thread_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a thread id from a SQLite file. Servers are not asked, as they may be slow."""
    found: list[str] = []
    with suppress(Exception):  # completion shows no errors
        url = url_of(context.params.get("store"))
        if file_of(url) is not None:
            tenant = context.params.get("tenant")
            with Session(store=url, tenant=tenant, as_json=False).open(read_only=True) as saver:
                wanted = fetch(FindThreads(incomplete or None, _MAX_COMPLETIONS))
                found = store_of(saver).run(wanted)
    return [name for name in found if name.startswith(incomplete)]


# -- parameters --------------------------------------------------------------------------


def option(names: str, help: str, default: Any = None, **more: Any) -> Any:
    """Return an option. `names` has its flags and its value: "--yes -y", or "--as NAME"."""
    words = names.split()
    flags = [word for word in words if word.startswith("-")]
    metavar = next((word for word in words if word not in flags), None)
    return typer.Option(default, *flags, metavar=metavar, help=help, **more)


def flag(names: str, help: str) -> Any:
    """Return an option without a value."""
    return option(names, help, default=False)


def argument(name: str, help: str, default: Any = ..., **more: Any) -> Any:
    """Return an argument of a command, required if it has no default."""
    return typer.Argument(default, metavar=name, help=help, **more)


def thread_argument(help: str, default: Any = ..., name: str = "THREAD") -> Any:
    """Return an argument for thread ids, which the shell completes."""
    return argument(name, help, default, autocompletion=thread_ids)


STORE = "a URL (sqlite:///, postgresql://, redis://, mysql://), or the path of a SQLite file"

STORE_FIRST = argument(
    "STORE",
    f"{STORE[0].upper()}{STORE[1:]}. Default: THREADKEEP_URL, else url in threadkeep.toml.",
    None,
)
COLD = option(
    "--cold URL",
    "Cold store: file:///folder, s3://bucket/path, gs:// or az://. Default: THREADKEEP_COLD,"
    " else cold in threadkeep.toml.",
)
TENANT = option(
    "--tenant NAME",
    "Only the threads of this tenant. Default: THREADKEEP_TENANT, else all threads.",
    envvar="THREADKEEP_TENANT",
    show_envvar=False,
)
AS_JSON = flag("--json", "Print one JSON document to stdout, and errors to stderr.")
IMPORTS = option(
    "--import MODULE", "Import this module first, for its classes in the thread. Repeatable."
)
MIGRATIONS = option(
    "--migrations MODULE:NAME", "Import this module, and apply its threadkeep.Migrations NAME."
)
RAW = flag("--raw", "Show objects of unknown classes by their stored fields.")
THREAD = thread_argument("Thread id.")
THREAD_IDS = thread_argument("Thread ids.")
OPTIONAL_THREAD_IDS = thread_argument("Thread ids. Default: all.", None)
NAMESPACE = option("--ns NAMESPACE", "Namespace of a subgraph. Default: the graph itself.", "")
CHECKPOINT = option("--checkpoint ID", "Checkpoint id. Default: the head.")
WITH_TAGS = option("--tag TAG", "Only threads with this tag. Repeatable.")
WITH_METADATA = option(
    "--metadata KEY=VALUE", "Only threads with this metadata. VALUE is JSON, else text. Repeatable."
)
TTL = option(
    "--ttl TIME",
    "Idle time after which gc deletes the thread, such as 30d or 12h. never: keep it.",
)
YES = flag("--yes -y", "Do not ask for confirmation.")
DRY_RUN = flag("--dry-run", "Show the effect, and change nothing.")
PLAIN = flag("--plain", "Do not encrypt the file with the store's keys.")
FULL = flag("--full", "Do not shorten the output.")
PROGRAMS = option(
    "--pg-bin FOLDER",
    "Folder of pg_dump and pg_restore. Default: THREADKEEP_PG_BIN, else PATH.",
    "",
)

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
    """Parse an ISO time (UTC without a time zone), or a time ago such as `7d`."""
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
    """Parse an idle time. 0 stands for `never`, as in `saver.threads`."""
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
