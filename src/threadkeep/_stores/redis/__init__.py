"""Rows in a Redis or Valkey server or cluster, and its options.

Needs the extra `threadkeep[redis]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from threadkeep._core.validation import is_time
from threadkeep._stores.options import ConnectionOptions, Option, optional, switch

_LONGEST_TTL = 10**9  # seconds: some thirty years


def _is_prefix(value: Any) -> bool:
    return isinstance(value, str) and value != "" and not set(value) & set("{}")


def _is_ttl(value: Any) -> bool:
    if isinstance(value, Mapping):
        wrong = value.keys() - {"default_ttl", "refresh_on_read"}
        refreshes = value.get("refresh_on_read", False)
        value = value.get("default_ttl")
        if wrong or type(refreshes) is not bool or not isinstance(value, int | float | None):
            return False
        value = value and 60 * value
    return value is None or (is_time(value) and value <= _LONGEST_TTL)


def in_seconds(options: RedisThreadOptions) -> RedisThreadOptions:
    """Return options with LangGraph's form of a `ttl`, a dict with minutes, in ours."""
    ttl = options["ttl"]
    if not isinstance(ttl, Mapping):
        return options
    minutes = ttl.get("default_ttl")
    refreshes = options["ttl_refresh_on_read"] or ttl.get("refresh_on_read", False)
    return {
        **options,
        "ttl": None if minutes is None else 60 * minutes,
        "ttl_refresh_on_read": refreshes,
    }


class RedisOptions(ConnectionOptions, total=False):
    """Options of a Redis server and its connections."""

    prefix: Annotated[
        str,
        Option("tk", "The beginning of all keys.", _is_prefix, "Use a text, without { and }."),
    ]


class RedisThreadOptions(RedisOptions, total=False):
    """Options of a Redis server that holds threads."""

    ttl: Annotated[
        float | Mapping[str, Any] | None,
        Option(
            None,
            "Seconds from its last write until a thread expires; None for never. LangGraph's dict"
            ' has minutes: `{"default_ttl": 60, "refresh_on_read": True}`.',
            _is_ttl,
            f"Use seconds, above 0, at most {_LONGEST_TTL}, or None; or LangGraph's dict, with"
            ' minutes: {"default_ttl": 60, "refresh_on_read": True}.',
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
