"""What the driver's errors mean to a user of threadkeep, and which of them pass.

The only place that looks at Redis' error codes, and at what our scripts refuse with. Invariant:
every driver error that leaves this package went through `mapped`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from redis import exceptions

from threadkeep.backends.redis.packing import unpack_text
from threadkeep.errors import (
    BackendError,
    ClosedError,
    ConflictError,
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    ReadOnlyError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadkeepError,
    UnreachableError,
)

DRIVER_ERRORS = (
    exceptions.RedisError,
    exceptions.RedisClusterException,
    OSError,
    UnicodeError,
)

_REFUSALS: dict[bytes, type[ThreadkeepError]] = {
    b"deleted": ThreadDeletedError,
    b"stale": StaleThreadError,
    b"taken": SegmentTakenError,
    b"exists": ThreadExistsError,
}
_REACH = "Look whether the server runs and can be reached."
_LET_IN = "Check the user and the password in the URL."
_MEANINGS: dict[str, tuple[type[ThreadkeepError], str]] = {
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
    "NOAUTH": (UnreachableError, _LET_IN),
    "WRONGPASS": (UnreachableError, _LET_IN),
    "LOADING": (UnreachableError, "The server is starting: do it again later."),
    "MASTERDOWN": (UnreachableError, "The replica has lost its server: do it again later."),
    "CLUSTERDOWN": (UnreachableError, "Some of the cluster's nodes are missing: see CLUSTER INFO."),
    "TRYAGAIN": (UnreachableError, "The thread's slot is being moved: do it again later."),
    "BUSY": (UnreachableError, "A script of another program runs for too long."),
    "MOVED": (InvalidArgumentError, "This is a cluster: write redis+cluster://host:port."),
    "CROSSSLOT": (InvalidArgumentError, "This is a cluster: write redis+cluster://host:port."),
    "WRONGTYPE": (BackendError, "Another program uses keys of these names: give another prefix."),
}
DAMAGED = "`threadkeep check URL` says what is damaged, `threadkeep repair` takes it out."
_TORN = ": attempt to "  # what Lua says where a member lacks what every member has
_CODE = re.compile(rf"(?:^|[\s-])({'|'.join(_MEANINGS)})\b")
_NAMED: tuple[tuple[type[Exception], str], ...] = (
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
    """The error's code; it stands before the text, or inside where a script was running."""
    for kind, code in _NAMED:
        if isinstance(error, kind):
            return code
    found = _CODE.search(str(error)) if isinstance(error, exceptions.ResponseError) else None
    return found[1] if found else ""


def passes(error: BaseException) -> bool:
    """Whether the same may succeed when it is done again: connections lost, nodes missing."""
    return _code(error) in _PASSING_CODES or lost(error)


def lost(error: BaseException) -> bool:
    """Whether there was no connection, or it broke."""
    return isinstance(error, _LOST) and not _code(error) and not _is_crowded(error)


def _is_crowded(error: BaseException) -> bool:
    """Whether a pool has no free connection; it has been waited for already."""
    text = str(error)
    return isinstance(error, exceptions.ConnectionError) and (
        "No connection available" in text or "Too many connections" in text
    )


def refused(answer: Sequence[bytes], thread: str) -> ThreadkeepError | None:
    """What a script refused to do; None where it has done it."""
    kind, *where = answer
    if kind == b"conflict":
        if not where:
            return ConflictError(thread=thread)
        namespace, checkpoint = map(unpack_text, where[0].split(b"\x00"))
        return ConflictError(thread=thread, namespace=namespace, checkpoint=checkpoint)
    return _REFUSALS[kind](thread=thread) if kind in _REFUSALS else None


def mapped(error: Exception, server: str) -> ThreadkeepError:
    """Say what the driver's error means.

    Args:
        error: one of `DRIVER_ERRORS`.
        server: shown in the message: which one it was.
    """
    if isinstance(error, UnicodeError):
        return InvalidArgumentError(
            f"Redis cannot store this text: {error}", hint="Ids must be valid Unicode."
        )
    kind, hint = _meaning(error)
    text = (kind.__doc__ or "").strip().splitlines()[0].rstrip(".")
    if kind is DiskFullError:
        text = "There is no memory left for the database"
    return kind(f"{text}: {server} says {' '.join(str(error).split())!r}.", hint=hint)


def _meaning(error: Exception) -> tuple[type[ThreadkeepError], str]:
    code = _code(error)
    if code:
        return _MEANINGS[code]
    if isinstance(error, exceptions.ResponseError) and _TORN in str(error):
        return CorruptionError, DAMAGED
    if _is_crowded(error):
        return UnreachableError, "Raise max_connections, or look for what keeps them busy."
    if isinstance(error, _LOST):
        return UnreachableError, _REACH
    return BackendError, "Look into the server's log."


def closed() -> ClosedError:
    """What a backend says once it was closed."""
    return ClosedError(hint="Open a new saver.")
