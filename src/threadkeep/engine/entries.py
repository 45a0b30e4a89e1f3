"""The records of the registry: what is known of a thread as a whole, and what is asked of it.

Like `model`, whose closed sets these belong to: frozen, plain records, no behaviour.
"""

from typing import Literal, NamedTuple, TypeAlias


class Entry(NamedTuple):
    """What the registry says of a thread. Times are microseconds since 1970.

    `state` is one of `lifecycle`'s; `labels` are texts in order, tags and pieces of metadata
    (see `engine/labels.py`); `ttl` is how long the thread may rest, in microseconds, `origin`
    the thread and checkpoint that it was forked from. `size` is about how many bytes its rows
    and segments hold. `waits_at` is the checkpoint of the root namespace at which an interrupt
    waits. `deleted_at` is the tombstone, 0 if there is none. `revision` grows whenever
    something else than times and size changes; 0 where there is no entry.
    """

    thread: str
    state: str
    created_at: int
    updated_at: int
    size: int = 0
    labels: tuple[str, ...] = ()
    pinned: bool = False
    ttl: int | None = None
    origin: tuple[str, str] | None = None
    waits_at: str | None = None
    deleted_at: int = 0
    revision: int = 0


class Move(NamedTuple):
    """From one of the states `sources` ("": no entry) to `target`, because of a checkpoint.

    It does not happen where an interrupt waits at a checkpoint with a greater id, or, without
    `same`, at this very one. `waits_at` becomes the checkpoint if it `waits`, else None.
    """

    sources: tuple[str, ...]
    target: str
    checkpoint: str
    waits: bool
    same: bool


class Touch(NamedTuple):
    """What a batch means for its thread's entry; nothing of it can be refused.

    `moves` come first, one after the other: one that leads from no entry, or from a deleted
    thread's, makes a new one as of `at` (None: the batch's `now`). Then `at` raises
    `updated_at`, and each of `labels` takes the place of the one with the same beginning
    (`labels.beginning_of`). `size` is added to the thread's (with `whole`: is its size from now
    on), which is kept where there is no entry, for when there is one.
    """

    size: int = 0
    whole: bool = False
    at: int | None = None
    labels: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()


# -- reads and a fence ------------------------------------------------------------------


class ReadEntry(NamedTuple):
    """What the registry says of a thread. Reply: one `Entry`, or None without one."""

    thread: str


class ThreadQuery(NamedTuple):
    """Which entries are meant: those that are as each given part says.

    `states`: one of these; none given: all but "deleted". `labels`: each of these. Times are
    from the first (inclusive) to the second (exclusive), None for no limit. `waits`: whether an
    interrupt waits. `size`: at least so many bytes. `origin`: forked from this thread. `rested`:
    has a ttl, and was last written longer ago than that, seen from this time.
    """

    states: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    created: tuple[int | None, int | None] = (None, None)
    updated: tuple[int | None, int | None] = (None, None)
    waits: bool | None = None
    pinned: bool | None = None
    size: int | None = None
    origin: str | None = None
    rested: int | None = None


Order: TypeAlias = Literal["updated_at", "created_at", "size", "thread"]


class SearchThreads(NamedTuple):
    """A page of the registry: entries by `order`, then by thread id, both in one direction.

    `after` continues behind an entry: its value of `order`, and its thread id. Reply: at most
    `limit` `Entry`s.
    """

    query: ThreadQuery
    order: Order
    descending: bool
    after: tuple[int | str, str] | None
    limit: int


class CountThreads(NamedTuple):
    """How many entries there are. Reply: one `int`."""

    query: ThreadQuery


class EntryFence(NamedTuple):
    """Holds if the thread's entry has this revision (0: there is none)."""

    revision: int
