"""Settings of a PostgreSQL store, from a URL and options."""

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
_OF_URLS = ("schema", "partition_by")  # parameters that are ours and not libpq's
_SCHEMES = ("postgresql", "postgres")


@dataclass(frozen=True)
class Settings:
    """Checked settings of a store.

    Args:
        conninfo: what libpq takes, without the application's name; "" for the program's own
            connections.
        schema: the schema of the tables.
        min_size: connections that a pool keeps open while idle.
        max_size: most connections of a pool.
        timeout: seconds to wait for a free connection.
        prepare_threshold: uses of a statement before it is prepared; None for never.
        statement_timeout: seconds that the server gives a statement; None for its own default.
        application_name: the name of the connections in the server's list.
        partition_by: "month": a migration partitions the checkpoints by the month of their ids,
            makes partitions ahead, and drops empty ones of past months; None: it leaves the table
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
        valid_schema = 0 < size <= _LONGEST_NAME and not set(self.schema) & set("\0%$")
        for name, valid, hint in (
            ("schema", valid_schema, "Use a name of 1 to 63 bytes, without % and $."),
            ("min_size", is_count(self.min_size, 0), "Use a number of connections, 0 or more."),
            ("timeout", is_time(self.timeout), "Use seconds, more than 0."),
            ("prepare_threshold", self._is_threshold, "Use 0 or more, or None."),
            ("statement_timeout", self._is_limit, "Use seconds, at most 2,147,483, or None."),
            ("application_name", isinstance(self.application_name, str), "Use a text."),
            ("partition_by", self.partition_by in (None, "month"), "Use 'month', or None."),
        ):
            if not valid:
                raise invalid(name, getattr(self, name), hint)
        if not is_count(self.max_size, max(1, self.min_size)):
            raise invalid("max_size", self.max_size, "Use at least 1, and no less than min_size.")

    @property
    def _is_threshold(self) -> bool:
        return self.prepare_threshold is None or is_count(self.prepare_threshold, 0)

    @property
    def _is_limit(self) -> bool:
        limit = self.statement_timeout
        return limit is None or (is_time(limit) and limit * 1000 <= _LONGEST_TIMEOUT)

    @property
    def quoted_schema(self) -> str:
        """The schema's name as SQL takes it."""
        return '"' + self.schema.replace('"', '""') + '"'

    @property
    def server(self) -> str:
        """The server's name in errors, without a password."""
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
        """Arguments of a connection, beside the conninfo."""
        return {
            "autocommit": True,
            "prepare_threshold": self.prepare_threshold,
            "application_name": self.application_name,
        }

    @property
    def pool_arguments(self) -> dict[str, Any]:
        """Arguments of a pool of our own, beside the conninfo."""
        return {
            "kwargs": self.arguments,
            "min_size": self.min_size,
            "max_size": self.max_size,
            "timeout": self.timeout,
            "name": "threadkeep",
        }


def settings_of(database: str, **options: Any) -> Settings:
    """Read the settings from a URL, or another conninfo of libpq, and options, which come first.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: an option, or a parameter of ours, is invalid.
    """
    for name in _OF_URLS:
        database, value = without(name, database)
        if value is not None:
            options.setdefault(name, value)
    scheme, separator, rest = database.partition("://")
    if separator and scheme.lower() in _SCHEMES:  # libpq knows them in lower case only
        database = f"{scheme.lower()}://{rest}"
    try:
        conninfo = make_conninfo(database)
    except (psycopg.Error, UnicodeError) as error:
        cause = _QUOTED.sub('"..."', " ".join(str(error).split()))
        raise OpenError(
            f"Invalid PostgreSQL URL: {cause}",
            hint="Use postgresql://user:password@host:5432/database.",
        ) from None  # the cause could show the password
    return Settings(conninfo, **options)
