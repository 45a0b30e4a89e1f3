"""How a Redis store is reached: everything that a URL and the options say.

Only the checks of these values live here. Invariant: settings that were made have been
checked, and hold nothing that is read from the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from redis.connection import parse_url

from threadkeep.backends.given import is_time
from threadkeep.errors import InvalidArgumentError, OpenError, invalid

CLUSTER_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_FORM = "Write redis://user:password@host:6379/0, rediss://... or redis+cluster://host:6379."
_LONGEST_TTL = 10**9  # seconds: some thirty years


@dataclass(frozen=True)
class Settings:
    """How to reach the server, and how to keep threads there.

    Args:
        url: as redis-py takes it, or with the scheme `redis+cluster` (`rediss+cluster`);
            "" where a client is given.
        prefix: what the names of all keys begin with.
        ttl: seconds that a thread lives on from each write; None for ever.
        ttl_refresh_on_read: whether it lives on from each read as well (but for reads that
            look after all threads: sizes, checks, searches for runs).
        max_connections: of a pool (on a cluster: of each node), opened as they are needed.
        timeout: seconds to wait for a free connection, for a server to let us in, and for
            each answer.
        indexed: whether there is a list of all threads; without, none can be searched for.
        patient: whether to try again for a while where a failure passes.

    Raises:
        InvalidArgumentError: a value is invalid.
        OpenError: the URL cannot be read.
    """

    url: str = field(repr=False)  # it may have a password
    prefix: str = "tk"
    ttl: float | None = None
    ttl_refresh_on_read: bool = False
    max_connections: int = 16
    timeout: float = 30.0
    indexed: bool = True
    patient: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not self.prefix or set(self.prefix) & set("{}"):
            raise invalid("prefix", self.prefix, "Use a text, without { and }.")
        if self.ttl is not None and not (is_time(self.ttl) and self.ttl <= _LONGEST_TTL):
            raise invalid(
                "ttl", self.ttl, f"Use seconds, above 0, at most {_LONGEST_TTL}, or None."
            )
        if type(self.ttl_refresh_on_read) is not bool:
            raise invalid("ttl_refresh_on_read", self.ttl_refresh_on_read, "Use True or False.")
        if type(self.max_connections) is not int or self.max_connections < 1:
            raise invalid("max_connections", self.max_connections, "Use a number of 1 or more.")
        if not is_time(self.timeout):
            raise invalid("timeout", self.timeout, "Use seconds, more than 0.")
        if self.url:
            _check_url(self.redis_url)

    @property
    def is_cluster(self) -> bool:
        """Whether the URL names a cluster."""
        return self.url.partition("://")[0].lower() in CLUSTER_SCHEMES

    @property
    def redis_url(self) -> str:
        """The URL as redis-py takes it."""
        scheme, _, rest = self.url.partition("://")
        return f"{CLUSTER_SCHEMES.get(scheme.lower(), scheme.lower())}://{rest}"

    @property
    def server(self) -> str:
        """The server as errors name it: without a password."""
        if not self.url:
            return "Redis"
        parts = urlsplit(self.redis_url)
        if parts.scheme == "unix":
            return f"Redis at {parts.path}"
        return f"Redis at {parts.hostname or 'localhost'}:{parts.port or 6379}"

    @property
    def ttl_milliseconds(self) -> int | str:
        """The ttl as the scripts take it."""
        return "" if self.ttl is None else max(round(1000 * self.ttl), 1)

    @property
    def arguments(self) -> dict[str, Any]:
        """What each connection is made with, beside the URL."""
        return {
            "socket_timeout": self.timeout,
            "socket_connect_timeout": self.timeout,
            "decode_responses": False,
            "protocol": 2,
        }


def _check_url(url: str) -> None:
    try:
        found = parse_url(url)  # type: ignore[no-untyped-call]
        _ = urlsplit(url).port
    except (ValueError, TypeError) as error:
        # (the cause could show the password)
        raise OpenError("This is not how a Redis server is named.", hint=_FORM) from (
            None if "@" in url else error
        )
    if found.get("decode_responses"):
        refuse_decoding()


def refuse_decoding() -> None:
    """Refuse a client that takes bytes for text.

    Raises:
        InvalidArgumentError: always.
    """
    raise InvalidArgumentError(
        "decode_responses=True turns bytes into text, and what is stored is no text.",
        hint="Give a client without decode_responses, or a URL.",
    )
