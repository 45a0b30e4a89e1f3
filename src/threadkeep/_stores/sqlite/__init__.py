"""Rows in one SQLite file, and the file's options."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypedDict
from urllib.parse import quote, unquote_to_bytes

from threadkeep._core.texts import is_public, shown_url
from threadkeep._stores.options import Option, described, from_url, unknown
from threadkeep.errors import OpenError


def _is_timeout(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 2**31 / 1000  # milliseconds, as SQLite's


class SqliteOptions(TypedDict, total=False):
    """Options of a SQLite file."""

    synchronous: Annotated[
        Literal["full", "normal"],
        Option(
            "full",
            '"full": a commit survives a power cut. "normal": it survives a crash of the process;'
            " a power cut may lose the last commits.",
            lambda value: value in ("full", "normal"),
            'Use "full" or "normal".',
        ),
    ]
    busy_timeout: Annotated[
        float,
        Option(
            30.0,
            "Seconds to wait for another process that is writing.",
            _is_timeout,
            "Use seconds, 0 or more.",
            float,
        ),
    ]


OPTIONS = SqliteOptions
CACHE_DEFAULTS = {"synchronous": "normal"}  # a lost cache entry is computed again


def path_in(url: str) -> str:
    """Return the path of the file that a URL names."""
    rest = from_url(url, described(OPTIONS))[0].partition("://")[2]
    if not rest.startswith("/"):
        hint = f"Use sqlite:///{rest if is_public(rest) else 'path'}."
        raise OpenError(f"{shown_url(url)} names a host, but SQLite has none.", hint=hint)
    if "?" in rest or "#" in rest:
        name = re.split("[?#&]", rest, maxsplit=1)[1].partition("=")[0]
        if get_close_matches(name, described(OPTIONS), 1):
            raise unknown("SQLite", name, described(OPTIONS))
        raise OpenError(
            f"{shown_url(url)} has a query or a fragment that is not an option.",
            hint=f"Options: {', '.join(described(OPTIONS))}. In a file's name, write %3F for ? and"
            " %23 for #.",
        )
    path = os.fsdecode(unquote_to_bytes(rest[1:]))
    if not path:
        raise OpenError(f"{shown_url(url)} names no file.", hint="Use sqlite:///path.")
    return path


def url_of(path: str) -> str:
    """Return the URL of a file."""
    return f"sqlite:///{quote(os.fsencode(path))}"
