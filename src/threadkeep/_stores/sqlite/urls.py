"""URLs of SQLite files."""

from __future__ import annotations

import os
from urllib.parse import unquote_to_bytes

from threadkeep._stores.urls import FORMS, is_public, shown
from threadkeep.errors import OpenError


def path_in(url: str) -> str:
    """Return the path of the file that a URL names."""
    rest = url.partition("://")[2]
    if not rest.startswith("/"):
        hint = f"Use sqlite:///{rest if is_public(rest) else 'path'}."
        raise OpenError(f"{shown(url)} names a host, but SQLite has none.", hint=hint)
    if "?" in rest or "#" in rest:
        raise OpenError(
            f"{shown(url)} has a query or a fragment.",
            hint="Use arguments for options; in a file's name write %3F for ? and %23 for #.",
        )
    path = os.fsdecode(unquote_to_bytes(rest[1:]))
    if not path:
        raise OpenError(f"{shown(url)} names no file.", hint=FORMS)
    return path
