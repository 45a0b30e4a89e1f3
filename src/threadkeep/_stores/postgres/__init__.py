"""Rows in a PostgreSQL database, and its options (needs the extra `threadkeep[postgres]`)."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from threadkeep._core.validation import is_count, is_time
from threadkeep._stores.options import Option, optional

_LONGEST_TIMEOUT = 2**31 - 1  # milliseconds, as the server counts
_LONGEST_NAME = 63  # bytes of an identifier, as PostgreSQL is built


def _is_schema(value: Any) -> bool:
    size = len(value.encode()) if isinstance(value, str) else 0
    return 0 < size <= _LONGEST_NAME and not set(value) & set("\0%$")


def _is_limit(value: Any) -> bool:
    return value is None or (is_time(value) and value * 1000 <= _LONGEST_TIMEOUT)


class PostgresOptions(TypedDict, total=False):
    """Options of a PostgreSQL database and its connections."""

    schema: Annotated[
        str,
        Option(
            "threadkeep",
            "The schema of the tables.",
            _is_schema,
            "Use a name of 1 to 63 bytes, without % and $.",
        ),
    ]
    min_size: Annotated[
        int,
        Option(
            1,
            "Connections that a pool keeps open.",
            lambda value: is_count(value, 0),
            "Use a number of connections, 0 or more.",
            int,
        ),
    ]
    max_size: Annotated[
        int,
        Option(
            8,
            "Connections of a pool at most: about the server's connections, divided by workers and"
            " by pools of each.",
            lambda value: is_count(value, 1),
            "Use at least 1, and no less than min_size.",
            int,
        ),
    ]
    timeout: Annotated[
        float,
        Option(
            30.0,
            "Seconds to wait for a free connection, for a new one, and for an answer of a server"
            " that does not answer new clients either.",
            is_time,
            "Use seconds, more than 0.",
            float,
        ),
    ]
    prepare_threshold: Annotated[
        int | None,
        Option(
            5,
            "Uses after which a statement is prepared; None for never.",
            lambda value: value is None or is_count(value, 0),
            "Use 0 or more, or None.",
            optional(int),
        ),
    ]
    statement_timeout: Annotated[
        float | None,
        Option(
            None,
            "Seconds after which the server cancels a statement; None for its own setting.",
            _is_limit,
            "Use seconds, at most 2,147,483, or None.",
            optional(float),
        ),
    ]
    application_name: Annotated[
        str,
        Option(
            "threadkeep",
            "The name that the server shows for the connections.",
            lambda value: isinstance(value, str),
            "Use a text.",
        ),
    ]


OPTIONS = PostgresOptions
