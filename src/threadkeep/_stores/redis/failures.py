"""Errors of the driver and refusals of the scripts, as errors of threadkeep.

Every driver error that leaves this package went through `mapped`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from redis import exceptions

from threadkeep._stores.failures import REFUSALS, Meaning, store_error
from threadkeep._stores.redis.rows import unpack_text
from threadkeep.errors import (
    BackendError,
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    ReadOnlyError,
    ThreadkeepError,
    UnreachableError,
)

DRIVER_ERRORS = (
    exceptions.RedisError,
    exceptions.RedisClusterException,
    OSError,
    UnicodeError,
)
DAMAGED = "`threadkeep check URL` says what is damaged, `threadkeep repair` takes it out."
"""Hint for a thread with rows that cannot be read."""

_LET_IN = (UnreachableError, "Check the user and the password in the URL.")
_IS_CLUSTER = (InvalidArgumentError, "This is a cluster: use redis+cluster://host:port.")
_MEANINGS: dict[str, Meaning] = {
    "OOM": (
        DiskFullError,
        "Its maxmemory is reached, and nothing changed: raise it, or prune or delete threads.",
    ),
    "READONLY": (ReadOnlyError, "This is a replica: name the server that it follows."),
    "NOREPLICAS": (ReadOnlyError, "min-replicas-to-write asks for more replicas than there are."),
    "MISCONF": (
        BackendError,
        "Redis could not save its data and so refuses writes: look into its log, and at its disk.",
    ),
    "NOPERM": (
        BackendError,
        "Grant this user ~tk:* (or another prefix) +@all -@dangerous +restore.",
    ),
    "NOAUTH": _LET_IN,
    "WRONGPASS": _LET_IN,
    "LOADING": (UnreachableError, "The server is starting: retry later."),
    "MASTERDOWN": (UnreachableError, "The replica has lost its server: retry later."),
    "CLUSTERDOWN": (UnreachableError, "Some of the cluster's nodes are missing: see CLUSTER INFO."),
    "TRYAGAIN": (UnreachableError, "The thread's slot is being moved: retry later."),
    "BUSY": (UnreachableError, "A script of another program runs for too long."),
    "MOVED": _IS_CLUSTER,
    "CROSSSLOT": _IS_CLUSTER,
    "WRONGTYPE": (BackendError, "Another program uses keys of these names: use another prefix."),
}
_TORN = ": attempt to "  # what Lua says where a member lacks what every member has
_CODE = re.compile(rf"(?:^|[\s-])({'|'.join(_MEANINGS)})\b")
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)
_PASSING_CODES = {"LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY"}
_LOST = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
    OSError,
)


def _code(error: BaseException) -> str:
    """Return the error's code; it stands before the text, or inside where a script was running."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    found = _CODE.search(str(error)) if isinstance(error, exceptions.ResponseError) else None
    return found[1] if found else ""


def passes(error: BaseException) -> bool:
    """Return True if a retry may succeed: a lost connection, a missing node."""
    return _code(error) in _PASSING_CODES or lost(error)


def lost(error: BaseException) -> bool:
    """Return True if there was no connection, or it broke."""
    return isinstance(error, _LOST) and not _code(error) and not _is_crowded(error)


def _is_crowded(error: BaseException) -> bool:
    """Return True if a pool has no free connection, after waiting for one."""
    text = str(error)
    return isinstance(error, exceptions.ConnectionError) and (
        "No connection available" in text or "Too many connections" in text
    )


def mapped(error: Exception, server: str) -> ThreadkeepError:
    """Map a driver's error.

    Args:
        error: one of `DRIVER_ERRORS`.
        server: the server's name, for the message.
    """
    if isinstance(error, UnicodeError):
        return InvalidArgumentError(
            f"Redis cannot store this text: {error}", hint="Ids must be valid Unicode."
        )
    meaning = _meaning(error)
    text = "There is no memory left for the database" if meaning[0] is DiskFullError else ""
    return store_error(meaning, server, " ".join(str(error).split()), text)


def _meaning(error: Exception) -> Meaning:
    code = _code(error)
    if code:
        return _MEANINGS[code]
    if isinstance(error, exceptions.ResponseError) and _TORN in str(error):
        return CorruptionError, DAMAGED
    if _is_crowded(error):
        return UnreachableError, "Raise max_connections, or look for what keeps them busy."
    if isinstance(error, _LOST):
        return UnreachableError, "Look whether the server runs and can be reached."
    return BackendError, "Look into the server's log."


def refusal(answer: Sequence[bytes], thread: str) -> ThreadkeepError | None:
    """Return the error that a script answered with; None if it made the change."""
    word, *rest = answer
    kind = REFUSALS.get(word.decode(errors="replace"))
    if kind is None:
        return None
    ns, checkpoint = map(unpack_text, rest[0].split(b"\x00")) if rest else (None, None)
    return kind(thread=thread, namespace=ns, checkpoint=checkpoint)
