"""What the keys are called.

Only names live here. Invariants: a thread has the same few keys however much it holds, all
with one hash tag, so that they lie on one node of a cluster and can be given one time to
expire; no id of a thread, whatever is in it, makes a name that is another one's.

    t  hash         the thread's own row: generation, deleted_at, ttl (milliseconds), copy, and
                    its entry in the registry (see registry.lua)
    c  sorted set   checkpoints, by namespace and id
    x  sorted set   children, by namespace, parent and id
    w  sorted set   writes, by namespace, checkpoint and seq
    p  sorted set   where segments lie: log, start, stop
    s  hash         the segments' data, by log and start
"""

from __future__ import annotations

from urllib.parse import quote

_KINDS = "tcxwps"


def keys_of(prefix: str, thread: str) -> list[str]:
    """The keys of a thread, in the order in which the scripts name them."""
    # Redis takes empty braces for no tag at all.
    tag = quote(thread, safe="") or "%"
    return [f"{prefix}:{{{tag}}}:{kind}" for kind in _KINDS]


def beginning_of(prefix: str, beginning: str) -> str:
    """What the names of all keys begin with whose thread's id begins so."""
    return f"{prefix}:{{{quote(beginning, safe='')}"


def index_of(prefix: str) -> str:
    """The sorted set of all threads' ids."""
    return f"{prefix}:threads"


def identity_of(prefix: str) -> str:
    """The text that names the store."""
    return f"{prefix}:identity"


def times_of(prefix: str, name: str) -> str:
    """The sorted set of the ids of registered threads by `created_at` or `updated_at`."""
    return f"{prefix}:{{threads}}:{name}"


def term_of(prefix: str, term: str | bytes) -> bytes:
    """The set of the ids of threads that have a label, a state or an origin in common."""
    text = term.encode() if isinstance(term, str) else term
    return f"{prefix}:{{threads}}:term:".encode() + text
