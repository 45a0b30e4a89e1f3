"""The checkpoint id that a load hands out: text that remembers its load.

LangGraph carries the id of the checkpoint it loaded, by reference, into the first `put`
and into every `put_writes` on that checkpoint, for graphs, subgraphs and state updates
alike. So the id itself tells which load a call belongs to, with no key in the config and
no internals of LangGraph. Everywhere else it is an ordinary `str`; a plain one in a later
`put` means that the run that put the parent goes on.

Only this class and the creation time of ids live here.
"""

from __future__ import annotations

from typing import Any, Self

from threadkeep.codec.kinds import PLAIN_TEXT

# Microseconds between 1582-10-15 (the epoch of UUID version 6) and 1970-01-01.
UUID6_OFFSET = 0x01B21DD213814000 // 10
_VERSION_AT = 14
_UUID_LENGTH = 36


class LoadedId(str):
    """A checkpoint id as one load returned it.

    `run` is the load's token (never 0), `seen` the `seq` of the newest write it
    returned, `flags` (see `model`) how what comes of it is to be fenced.
    """

    __slots__ = ("__weakref__", "flags", "run", "seen")

    run: int
    seen: int
    flags: int

    def __new__(cls, text: str, run: int, seen: int, flags: int) -> Self:
        """Make `text` remember its load."""
        self = super().__new__(cls, text)
        self.run, self.seen, self.flags = run, seen, flags
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return LoadedId, (str(self), self.run, self.seen, self.flags)


PLAIN_TEXT.add(LoadedId)  # in a state, an id is just an id


def created_at(checkpoint_id: str | None) -> int | None:
    """When the id was made, in microseconds since 1970; None if it does not tell.

    LangGraph's ids are UUIDs of version 6 (RFC 9562, section 5.6).
    """
    if (
        checkpoint_id is None
        or len(checkpoint_id) != _UUID_LENGTH
        or checkpoint_id[_VERSION_AT] != "6"
    ):
        return None
    digits = checkpoint_id[:8] + checkpoint_id[9:13] + checkpoint_id[15:18]
    try:
        return int(digits, 16) // 10 - UUID6_OFFSET
    except ValueError:
        return None
