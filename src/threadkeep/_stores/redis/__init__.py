"""Rows in a Redis or Valkey server or cluster, and its options.

Needs the extra `threadkeep[redis]`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from threadkeep._core.validation import is_count, is_time
from threadkeep._stores.options import Option, optional, switch

_LONGEST_TTL = 10**9  # seconds: some thirty years


def _is_prefix(value: Any) -> bool:
    return isinstance(value, str) and value != "" and not set(value) & set("{}")


def _is_ttl(value: Any) -> bool:
    return value is None or (is_time(value) and value <= _LONGEST_TTL)


class RedisOptions(TypedDict, total=False):
    """Options of a Redis server and its connections."""

    prefix: Annotated[
        str,
        Option("tk", "The beginning of all keys.", _is_prefix, "Use a text, without { and }."),
    ]
    max_connections: Annotated[
        int,
        Option(
            16,
            "Connections of a pool at most (on a cluster, to each node).",
            lambda value: is_count(value, 1),
            "Use a number of 1 or more.",
            int,
        ),
    ]
    timeout: Annotated[
        float,
        Option(
            30.0,
            "Seconds to wait for a free connection, for a new one, and for each answer.",
            is_time,
            "Use seconds, more than 0.",
            float,
        ),
    ]


class RedisThreadOptions(RedisOptions, total=False):
    """Options of a Redis server that holds threads."""

    ttl: Annotated[
        float | None,
        Option(
            None,
            "Seconds from its last write until a thread expires; None for never.",
            _is_ttl,
            f"Use seconds, above 0, at most {_LONGEST_TTL}, or None.",
            optional(float),
        ),
    ]
    ttl_refresh_on_read: Annotated[
        bool,
        switch(
            "Reads of a thread (but not of sizes, checks and searches) restart its ttl as well.",
        ),
    ]


OPTIONS = RedisThreadOptions
