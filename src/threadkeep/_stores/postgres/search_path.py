"""A search_path of the program's connections, which LangGraph's savers follow and ours do not."""

from __future__ import annotations

import os
import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from threadkeep.errors import InvalidArgumentError, OpenError

SET = """
SELECT setting FROM pg_settings
WHERE name = 'search_path' AND source IN ('client', 'session', 'user', 'database user')
"""
"""Selects a search_path set by a pool's `configure=` or for a role, which no conninfo shows."""

_PUBLIC = "public"
_OPTION = re.compile(r"(?:-c\s*|--)search[-_]path\s*=\s*((?:\\.|\S)*)")


def check(conninfo: str) -> None:
    """Refuse the search_path that a conninfo or the environment sets (see `refuse`)."""
    options = conninfo_to_dict(conninfo).get("options") or os.environ.get("PGOPTIONS", "")
    for path in _OPTION.findall(str(options))[-1:]:
        refuse(path.replace("\\", ""))


def refuse(path: str) -> None:
    """Raise InvalidArgumentError if a search_path begins with a schema of the program's.

    Programs keep tenants apart in this way.
    """
    names = [name.strip().strip('"') for name in path.split(",")]
    first = next((name for name in names if name and name != "$user"), _PUBLIC)
    if first != _PUBLIC:
        raise InvalidArgumentError(
            f"The connections have search_path={path}, which does not decide where threadkeep"
            " keeps its tables.",
            hint=f"Name a schema for them, such as schema='threadkeep_{first}' (?schema= in a URL):"
            " one for each search_path whose threads are apart.",
        )


def conninfo_of(connection: Any) -> str:
    """Return the conninfo of a connection or pool of psycopg, sync or async."""
    try:
        if hasattr(connection, "conninfo"):
            known = {one.keyword.decode() for one in psycopg.pq.Conninfo.get_defaults()}
            given = {k: v for k, v in (connection.kwargs or {}).items() if k in known}
            return make_conninfo(connection.conninfo, **given)
        info = connection.info
        parameters = {**info.get_parameters(), "password": info.password or None}
        return make_conninfo(**parameters)
    except (AttributeError, TypeError, psycopg.Error) as error:
        raise OpenError(
            "The saver's connection does not name its database.",
            hint="Use the database's URL as the source.",
        ) from error
