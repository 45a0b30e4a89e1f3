"""Entries of the registry: a thread as a whole, its states, and its labels.

A label is a JSON text that every store can look up: `"urgent"` is a tag, `["user_id","u1"]` an item
of metadata, `{"at":[ns,id],"tag":"best"}` a tag of one checkpoint (without a "tag": its pin), and
`{"kept":...}` an internal record, one per kind and thread. The last two are not indexed.
Equal tags and metadata are the same text. 1 is neither 1.0 nor true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard

from threadkeep._core.engine.records import quick
from threadkeep.errors import CorruptionError

_DAMAGE = "its entry in the registry is damaged: "
MAX_LABEL_BYTES = 1000  # limit of all stores' indexes
MAX_LABELS = 200  # of one thread
_DIGEST = 32  # characters
ARCHIVE_RECORD = "archive"  # kind of the record that locates a thread's archive
_TAKEN_RECORD = "taken"  # kind of the record of a thread that was copied from LangGraph's store


class ThreadEntry(NamedTuple):
    """The entry of a thread. Times are microseconds since 1970."""

    thread: str
    state: str  # a `Lifecycle`
    created_at: int
    updated_at: int
    size: int = 0  # estimated bytes of its rows and segments
    labels: tuple[str, ...] = ()  # in order
    pinned: bool = False
    ttl: int | None = None  # microseconds that the thread may be idle
    origin: tuple[str, str] | None = None  # the thread and checkpoint that it was forked from
    deleted_at: int = 0  # the tombstone
    revision: int = 0  # grows with every change except of times, size and status
    status: str | None = None  # of its head: a `ThreadStatus`, None for done
    status_at: str | None = None  # the checkpoint of a failure or a question
    failed_node: str | None = None
    holder: str | None = None  # name and random token of the guard that holds it
    lease_until: int | None = None  # by the store's clock (see `LeaseThread`)
    attempts: int = 0  # deaths and failures since the last checkpoint
    damage: str = ""  # names the fields whose stored values are damaged (see `checked`)

    def hides(self, name: str) -> bool:
        """Return True if the stored value of this field is damaged."""
        return name in self.damage.removeprefix(_DAMAGE).split(", ")


@quick
class StatusEvent(NamedTuple):
    """The status of a thread as one save shows it, at a checkpoint of the root namespace."""

    status: str | None  # as in `ThreadEntry`
    at: str
    node: str | None = None  # that failed, if known


@quick
class EntryUpdate(NamedTuple):
    """The effect of a batch on the entry of its thread. It cannot be refused.

    If it `saves` rows, a thread that is only created becomes active, and one without an entry, or a
    deleted one, gets a new entry as of `at` (None: the batch's `now`). A fork becomes active if the
    root namespace changes, so with an `event`. An event sets the status, unless that is of a newer
    checkpoint. Of one checkpoint, the last question or failure counts, and its save does not, which
    may arrive later. Then `at`
    raises `updated_at`, and each of `labels` replaces the label with the same `label_prefix`.
    `size` is added to the thread's size, which is stored even before there is an entry.

    With `whole`, the update comes from all rows: the size is replaced, and the status by that of an
    event. Forks stay forks, and archived threads keep their status.
    """

    size: int = 0
    whole: bool = False
    at: int | None = None
    labels: tuple[str, ...] = ()
    saves: bool = False
    event: StatusEvent | None = None


class ReadClock(NamedTuple):
    """The time of the store. Reply: microseconds since 1970.

    Leases of a thread begin and end by it. Hosts of a store without a server use their own clocks.
    """

    thread: str


class ReadEntry(NamedTuple):
    """The entry of a thread. Reply: one `ThreadEntry`, as `checked`, or None."""

    thread: str


class ThreadQuery(NamedTuple):
    """A filter of entries. An entry must match all of its parts.

    Only a backend with `indexes_messages` gets `words` or `unindexed`. It raises `NotSetUpError` if
    nothing was ever indexed.
    """

    states: tuple[str, ...] = ()  # one of these, by default all except "deleted"
    labels: tuple[str, ...] = ()  # each of these
    created: tuple[int | None, int | None] = (None, None)  # from (inclusive), to (exclusive)
    updated: tuple[int | None, int | None] = (None, None)
    statuses: tuple[str, ...] = ()  # one of these `ThreadStatus`es, at `now` by the store's clock
    now: int = 0
    due: int | None = None  # a time of the store at which a worker should resume it
    failed_node: str | None = None
    pinned: bool | None = None
    size: int | None = None  # least bytes
    origin: str | None = None  # forked from this thread
    rested: int | None = None  # a time that is later than its last write by more than its ttl
    prefix: str = ""  # its thread's id begins with this
    words: tuple[str, ...] = ()  # an indexed message has all of these, or it is `unindexed`
    unindexed: bool = False  # it may hold checkpoints, and its newest one is not indexed

    @property
    def states_alone(self) -> frozenset[str] | None:
        """The states that match if it filters by nothing else, otherwise None."""
        if self != ThreadQuery(self.states):
            return None
        return frozenset(self.states or _STATES - {Lifecycle.DELETED})


Order: TypeAlias = Literal["updated_at", "created_at", "size", "thread"]


class SearchThreads(NamedTuple):
    """A page of the registry: entries by `order`, then by thread id, in one direction.

    `after` continues after an entry: its value of `order`, and its thread id. Reply: at most
    `limit` `ThreadEntry`s, as `checked`. Entries whose value of `order` is damaged may be left out.
    """

    query: ThreadQuery
    order: Order
    descending: bool
    after: tuple[int | str, str] | None
    limit: int


class CountThreads(NamedTuple):
    """The number of entries that match. Reply: one `int`."""

    query: ThreadQuery


class EntryFence(NamedTuple):
    """Holds if the thread's entry has this revision (0: there is no entry)."""

    revision: int


class Lifecycle(StrEnum):
    """The states of a thread."""

    CREATED = "created"  # by name, before anything is saved
    ACTIVE = "active"
    FORKED = "forked"  # before anything is saved in the fork
    ARCHIVED = "archived"  # its rows are in the cold store
    DELETED = "deleted"  # only its tombstone remains


class ThreadStatus(StrEnum):
    """The status of a thread's newest checkpoint."""

    DONE = "done"  # nothing runs next
    WAITING = "waiting"  # a task has asked, and the question is unanswered
    FAILED = "failed"  # a task has raised an error
    UNFINISHED = "unfinished"  # a task runs next: without a guard, it may be running
    RUNNING = "running"  # a guard holds it
    HELD = "held"  # too many attempts failed: it must be released first


UNSAVED = (None, Lifecycle.CREATED, Lifecycle.DELETED)
"""States of threads without rows. None: not in the registry."""
WITH_CHECKPOINTS = ("active", "forked")
"""States of threads that may hold checkpoints in the store."""
WITH_STATUS = (*WITH_CHECKPOINTS, "archived")
AFTER_ALL = "\U0010ffff"  # sorts after every checkpoint's id


def is_of_a_task(status: str | None) -> bool:
    """Return True for a status that a task of the checkpoint has caused."""
    return status in ("waiting", "failed")


DUE = 1
"""`lease_until` of a thread without a holder that a worker should resume at once."""
HELD_UNTIL = 253_402_300_799_999_999
"""`lease_until` of a thread that is held: the end of the year 9999."""


def worker_of(holder: str) -> str:
    """Return the name of the worker, without the random token."""
    return holder.rpartition(" ")[0]


def status_of(entry: ThreadEntry, now: int) -> ThreadStatus | None:
    """Return the status of an entry, by the store's clock, or None if nothing was saved."""
    if entry.holder is None and entry.lease_until == HELD_UNTIL:
        return ThreadStatus.HELD
    if entry.holder is not None and (entry.lease_until or 0) > now:
        return ThreadStatus.RUNNING
    if entry.state not in WITH_STATUS:
        return None
    if entry.lease_until is not None and entry.status is None:  # (an input is stored, perhaps)
        return ThreadStatus.UNFINISHED
    return ThreadStatus(entry.status or "done")


def is_there(entry: ThreadEntry | None) -> TypeGuard[ThreadEntry]:
    """Return True if the registry knows the thread, and not as deleted."""
    return entry is not None and entry.state != Lifecycle.DELETED


def is_archived(entry: ThreadEntry | None) -> TypeGuard[ThreadEntry]:
    """Return True if the thread's rows are in an archive, and not in the store."""
    return entry is not None and entry.state == Lifecycle.ARCHIVED


# -- damage --------------------------------------------------------------------------

EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999
LARGEST = 2**62 - 1  # limit of counts, so that sums fit in 64 bits
REPAIR = "Run `threadkeep check` to see the damage, and `threadkeep repair` to mend it."
"""Hint for a thread with damaged rows."""


def is_time(value: object) -> bool:
    """Return True for microseconds since 1970 that a datetime can represent."""
    return type(value) is int and EARLIEST <= value <= LATEST


def is_count(value: object) -> bool:
    """Return True for a number that can grow within 64 bits."""
    return type(value) is int and 0 <= value <= LARGEST


class RowField(NamedTuple):
    """A field of a thread's own row: its types, the value in place of a damaged one, its values."""

    kinds: tuple[type, ...]
    safe: Any = None
    among: Container[Any] | None = None


_NONE = type(None)
_STATES = frozenset(map(str, Lifecycle))
_COUNT = RowField((int,), 0, range(LARGEST + 1))
_TIME = RowField((int, _NONE), 0, range(EARLIEST, LATEST + 1))
ID = RowField((str, _NONE))
"""A text that is often a UUID."""
FIELDS = {
    "tips": RowField((tuple,), ()),
    "heap": RowField((int, str), 0),
    "generation": _COUNT,
    "life": _COUNT,
    "deleted_at": RowField((int,), 0, range(LATEST + 1)),
    "seq": _COUNT,
    "newest": ID,
    "logs": RowField((dict,), {}),
    "size": RowField((int,), 0, range(-LARGEST, LARGEST + 1)),
    "revision": _COUNT,
    "state": RowField((str, Lifecycle, _NONE), "", _STATES),
    "created_at": _TIME,
    "updated_at": _TIME,
    "status": RowField((str, _NONE), None, frozenset(("waiting", "failed", "unfinished"))),
    "status_at": ID,
    "failed_node": RowField((str, _NONE)),
    "holder": RowField((str, _NONE)),
    "lease_until": RowField((int, _NONE), None, range(LATEST + 1)),
    "attempts": _COUNT,
    "pinned": RowField((bool,), safe=True),  # (safer than being deleted)
    "ttl": RowField((int, _NONE), None, range(LARGEST + 1)),
    "origin": RowField((tuple, _NONE)),
}
"""The fields of heads and entries that stores return as they are, also if damaged."""
TIMES = ("deleted_at", "created_at", "updated_at")
_NEEDED = ("state", "created_at", "updated_at")


def wrong_in(record: Any) -> list[str]:
    """Return the names of the damaged fields of a `Head` or a `ThreadEntry`."""
    wrong = []
    for name, field in FIELDS.items():
        value = getattr(record, name, field.safe)
        if type(value) not in field.kinds or not (
            field.among is None or value is None or value in field.among
        ):
            wrong.append(name)
    if type(record.origin) is tuple and [*map(type, record.origin)] != [str, str]:
        wrong.append("origin")
    return wrong


_ORDERED = ("created_at", "updated_at", "size")


def checked(entry: ThreadEntry) -> ThreadEntry:
    """Return an entry read from a store, with each field of its type and in its range.

    A damaged field gets a safe value (no ttl, pinned) and is named in `damage`. Damaged labels are
    left out. Fields that entries are sorted by keep values that are only out of range.
    """
    wrong = wrong_in(entry)
    wrong += [name for name in _NEEDED if getattr(entry, name) is None]
    labels = tuple([label for label in entry.labels if _is_label(label)])
    if len(labels) != len(entry.labels):
        wrong.append("labels")
    if not wrong:
        return entry
    safe = {
        name: FIELDS[name].safe
        for name in wrong
        if name != "labels" and not (name in _ORDERED and type(getattr(entry, name)) is int)
    }
    return entry._replace(**safe, labels=labels, damage=_DAMAGE + ", ".join(wrong))


def without_labels(entry: ThreadEntry) -> ThreadEntry:
    """Return an entry whose labels are damaged, without them."""
    damage = f"{entry.damage}, labels" if entry.damage else f"{_DAMAGE}labels"
    return entry._replace(labels=(), damage=damage)


@lru_cache(maxsize=4096)
def _is_label(label: object) -> bool:
    try:
        value = json.loads(label) if isinstance(label, str) else None
    except (ValueError, RecursionError):
        return False
    match value:
        case str() | [str(), _]:
            return True
        case {"at": [str(), str()], **rest}:
            return not rest or (len(rest) == 1 and isinstance(rest.get("tag"), str))
        case dict():
            return len(value) == 1 and "at" not in value
    return False


def sound(entry: ThreadEntry | None) -> ThreadEntry | None:
    """Return the entry. Raises `CorruptionError` if it is damaged."""
    if entry is not None and entry.damage:
        raise damaged(entry)
    return entry


def damaged(entry: ThreadEntry) -> CorruptionError:
    """Return the error of a damaged entry."""
    sentence = f"{entry.damage[:1].upper()}{entry.damage[1:]}."
    return CorruptionError(sentence, hint=REPAIR, thread=entry.thread)


# -- labels --------------------------------------------------------------------------

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000").search  # (after an even number of backslashes)
_CANONICAL = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True
)


def tag_label(tag: str) -> str:
    """Return the label of a tag. Raises ValueError if it is too long, or has a NUL or surrogate."""
    return _checked(_CANONICAL.encode(tag))


def metadata_label(key: str, value: Any) -> str:
    """Return the label of an item of metadata.

    Raises:
        ValueError, TypeError, RecursionError: it is not JSON, too long, or holds a character
            that stores refuse.
    """
    label = _checked(_CANONICAL.encode([key, value]))
    _check_keys(value)
    return label


def record_label(kind: str, value: Any) -> str:
    """Return the label of an internal record. Raises ValueError as `tag_label` does."""
    return _checked(_CANONICAL.encode({kind: value}))


def taken_label(thread: str, source: Sequence[str]) -> str:
    """Return the label of a thread that was copied from a store of LangGraph's.

    It names the thread, as copies of it under another name were not, and the store: see
    `LangGraphSource.place`.
    """
    parts = [sha256(part.encode(errors="surrogatepass")) for part in (thread, *source)]
    return record_label(_TAKEN_RECORD, [part.hexdigest()[:_DIGEST] for part in parts])


def is_taken(labels: Iterable[str], thread: str, source: Sequence[str], *, exact: bool) -> bool:
    """Return True if a thread was copied from there, without `exact`, perhaps by another host."""
    label = taken_label(thread, source)
    if not exact:
        label = label.rpartition(",")[0]
    return any(one.startswith(label) for one in labels)


def find_record(labels: Iterable[str], kind: str) -> Any:
    """Return the record of this kind, or None."""
    prefix = f'{{"{kind}":'
    return next((json.loads(label)[kind] for label in labels if label.startswith(prefix)), None)


def without_record(labels: Iterable[str], kind: str) -> tuple[str, ...]:
    """Return the labels without the record of this kind."""
    prefix = f'{{"{kind}":'
    return tuple([label for label in labels if not label.startswith(prefix)])


def is_record_label(label: str) -> bool:
    """Return True for an internal, unindexed label."""
    return label.startswith("{")


def label_prefix(label: str) -> str:
    """Return the part that is unique in a thread: the key of metadata, the kind of a record."""
    if is_mark_label(label):
        return label
    if is_record_label(label):
        return label[: label.index(":") + 1]  # (no kind has a colon in its name)
    return label if label.startswith('"') else _CANONICAL.encode(json.loads(label)[0])[1:]


ARCHIVE_SUGGESTED = "threadkeep.archive-suggested"
SPLIT_SUGGESTED = "threadkeep.split-suggested"
OWN_TAGS = frozenset({ARCHIVE_SUGGESTED, SPLIT_SUGGESTED})
"""Tags set by threadkeep itself, which do not protect a thread."""


def tags_of(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the tags among the labels."""
    return tuple([json.loads(label) for label in labels if label.startswith('"')])


def metadata_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels that are metadata."""
    return tuple([label for label in labels if label.startswith("[")])


def metadata_of(labels: Iterable[str]) -> dict[str, Any]:
    """Return the metadata among the labels."""
    return dict(map(json.loads, metadata_labels(labels)))


class Mark(NamedTuple):
    """Tags and pin of one checkpoint."""

    checkpoint_ns: str
    checkpoint: str
    tags: tuple[str, ...] = ()
    pinned: bool = False


def mark_label(ns: str, checkpoint: str, tag: str | None = None) -> str:
    """Return the label of a checkpoint's tag, or of its pin. Raises ValueError as `tag_label`."""
    mark: dict[str, Any] = {"at": [ns, checkpoint]}
    return _checked(_CANONICAL.encode(mark if tag is None else {**mark, "tag": tag}))


def is_mark_label(label: str) -> bool:
    """Return True for a tag or pin of a checkpoint."""
    return label.startswith('{"at":')


def marks_of(labels: Iterable[str]) -> tuple[Mark, ...]:
    """Return the marks of checkpoints, in order."""
    found: dict[tuple[str, str], Mark] = {}
    for mark in map(json.loads, filter(is_mark_label, sorted(labels))):
        ns, checkpoint = mark["at"]
        known = found.get((ns, checkpoint), Mark(ns, checkpoint))
        tags = (*known.tags, mark["tag"]) if "tag" in mark else known.tags
        found[ns, checkpoint] = known._replace(tags=tags, pinned=known.pinned or "tag" not in mark)
    return tuple([found[key] for key in sorted(found)])


def _checked(label: str) -> str:
    if len(label.encode()) > MAX_LABEL_BYTES:  # (a lone surrogate is a ValueError, too)
        raise ValueError(f"it takes more than {MAX_LABEL_BYTES} bytes")
    if _NUL(label):
        raise ValueError("it holds a NUL character")
    return label


def _check_keys(value: Any) -> None:
    """Refuse keys that JSON would turn into text, as they would come back changed."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key in it is no text")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            _check_keys(part)
