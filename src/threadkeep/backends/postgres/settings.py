"""How a PostgreSQL store is reached: everything that a URL and the options say.

Only the checks of these values live here. Invariant: settings that were made have been
checked, and hold nothing that is read from the network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from threadkeep.backends.given import is_count, is_time, without
from threadkeep.errors import OpenError, invalid

_QUOTED = re.compile(r'".*"', re.DOTALL)  # what libpq quotes of a conninfo may be its password
_LONGEST_TIMEOUT = 2**31 - 1  # milliseconds, as the server counts
_LONGEST_NAME = 63  # bytes of an identifier, as PostgreSQL is built


@dataclass(frozen=True)
class Settings:
    """How to reach the server, and how to speak to it.

    Args:
        conninfo: what libpq takes, without the application's name; "" where connections
            are given.
        schema: where the tables lie.
        min_size: connections that a pool keeps open, even while they are idle.
        max_size: connections that a pool opens at most.
        timeout: seconds to wait for a free connection.
        prepare_threshold: after how many times a statement is prepared; None for never.
        statement_timeout: seconds that the server gives a statement; None for its own default.
        application_name: as which the server lists the connections.
        partition_by: "month": a migration parts the checkpoints by the month of their ids, and
            makes partitions ahead, and drops empty ones of the past; None: it leaves the table
            as it is.

    Raises:
        InvalidArgumentError: a value is invalid.
        OpenError: the conninfo cannot be read.
    """

    conninfo: str
    schema: str = "threadkeep"
    min_size: int = 1
    max_size: int = 16
    timeout: float = 30.0
    prepare_threshold: int | None = 5
    statement_timeout: float | None = None
    application_name: str = "threadkeep"
    partition_by: Literal["month"] | None = None

    def __post_init__(self) -> None:
        size = len(self.schema.encode()) if isinstance(self.schema, str) else 0
        if not 0 < size <= _LONGEST_NAME or set(self.schema) & set("\0%$"):
            raise invalid("schema", self.schema, "Use a name of 1 to 63 bytes, without % and $.")
        if not is_count(self.min_size, 0):
            raise invalid("min_size", self.min_size, "Use a number of connections, 0 or more.")
        if not is_count(self.max_size, max(1, self.min_size)):
            raise invalid("max_size", self.max_size, "Use at least 1, and no less than min_size.")
        if not is_time(self.timeout):
            raise invalid("timeout", self.timeout, "Use seconds, more than 0.")
        if self.prepare_threshold is not None and not is_count(self.prepare_threshold, 0):
            raise invalid("prepare_threshold", self.prepare_threshold, "Use 0 or more, or None.")
        if self.statement_timeout is not None and not is_time(self.statement_timeout):
            raise invalid("statement_timeout", self.statement_timeout, "Use seconds, or None.")
        if (self.statement_timeout or 0) * 1000 > _LONGEST_TIMEOUT:
            raise invalid("statement_timeout", self.statement_timeout, "Use 2,147,483 at most.")
        if not isinstance(self.application_name, str):
            raise invalid("application_name", self.application_name, "Use a text.")
        if self.partition_by not in (None, "month"):
            raise invalid("partition_by", self.partition_by, "Use 'month', or None.")

    @property
    def quoted_schema(self) -> str:
        """The schema's name as SQL takes it."""
        return '"' + self.schema.replace('"', '""') + '"'

    @property
    def server(self) -> str:
        """The server as errors name it: without a password."""
        try:
            parts = conninfo_to_dict(self.conninfo)
        except psycopg.Error:
            parts = {}
        hosts = str(parts.get("host") or parts.get("hostaddr") or "localhost").split(",")
        ports = str(parts.get("port") or "5432").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        places = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
        return f"PostgreSQL at {places}"

    @property
    def arguments(self) -> dict[str, Any]:
        """What each connection is opened with, beside the conninfo."""
        return {
            "autocommit": True,
            "prepare_threshold": self.prepare_threshold,
            "application_name": self.application_name,
        }

    @property
    def pool_arguments(self) -> dict[str, Any]:
        """What a pool of our own is made with, beside the conninfo."""
        return {
            "kwargs": self.arguments,
            "min_size": self.min_size,
            "max_size": self.max_size,
            "timeout": self.timeout,
            "name": "threadkeep",
        }


_OF_URLS = ("schema", "partition_by")  # parameters that are ours and not libpq's
_SCHEMES = ("postgresql", "postgres")


def settings_of(database: str, **options: Any) -> Settings:
    """What a URL, or another conninfo of libpq, and options say; an option before the URL.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: an option, or a parameter of ours, is invalid.
    """
    for name in _OF_URLS:
        database, value = without(name, database)
        if value is not None:
            options.setdefault(name, value)
    return Settings(_checked_conninfo(database), **options)


def _checked_conninfo(text: str) -> str:
    """The text, if libpq can read it.

    Raises:
        OpenError: it cannot.
    """
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() in _SCHEMES:  # libpq knows them in lower case only
        text = f"{scheme.lower()}://{rest}"
    try:
        return make_conninfo(text)
    except (psycopg.Error, UnicodeError) as error:
        said = _QUOTED.sub('"..."', " ".join(str(error).split()))
        raise OpenError(
            f"This is not how a PostgreSQL database is named: {said}",
            hint="Write postgresql://user:password@host:5432/database.",
        ) from None  # the cause could show the password
