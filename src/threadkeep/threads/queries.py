"""What callers ask of the registry, checked, as the engine's records.

Pure functions. Invariant: what passes here has a meaning in every store; all else is an
`InvalidArgumentError` that says which argument is meant, and what to give.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from threadkeep import validation
from threadkeep.engine import thread_entry
from threadkeep.engine.operation import CheckpointRef
from threadkeep.engine.thread_entry import (
    Order,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    ThreadStatus,
)
from threadkeep.errors import InvalidArgumentError
from threadkeep.retention.policy import (
    LONGEST,
    MICROSECOND,
    duration,
)
from threadkeep.threads.info import micros

When: TypeAlias = datetime | timedelta
"""A moment with a time zone, or how long ago."""

MOST = 1000  # threads on a page

# fmt: off
OrderName: TypeAlias = Literal[
    "updated_at", "-updated_at", "created_at", "-created_at", "bytes", "-bytes", "thread", "-thread"
]
# fmt: on
_ORDERS: dict[str, Order] = {
    "updated_at": "updated_at",
    "created_at": "created_at",
    "bytes": "size",
    "thread": "thread",
}


def thread(given: object) -> str:
    """A thread's name."""
    name = validation.text("thread", given)
    if not name:
        validation.refuse("thread", given, "Give the thread's name.")
    return name


def query(  # noqa: PLR0913 - they are given by name
    now: int,
    *,
    state: str | Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    created_after: When | None = None,
    created_before: When | None = None,
    updated_after: When | None = None,
    updated_before: When | None = None,
    has_interrupt: bool | None = None,
    pinned: bool | None = None,
    min_bytes: int | None = None,
    forked_from: str | None = None,
) -> ThreadQuery:
    """Which threads are meant; see `Registry.search`."""
    for name, flag in (("has_interrupt", has_interrupt), ("pinned", pinned)):
        if flag is not None and type(flag) is not bool:
            validation.refuse(name, flag, "Give True or False, or leave it out.")
    if min_bytes is not None and (type(min_bytes) is not int or not 0 <= min_bytes < LONGEST):
        validation.refuse("min_bytes", min_bytes, "Give a whole number of bytes, 0 or more.")
    return ThreadQuery(
        states=_states(state),
        labels=metadata_labels(metadata or {}) + tag_labels(tags),
        created=(
            _moment("created_after", created_after, now),
            _moment("created_before", created_before, now),
        ),
        updated=(
            _moment("updated_after", updated_after, now),
            _moment("updated_before", updated_before, now),
        ),
        waits=has_interrupt,
        pinned=pinned,
        size=min_bytes,
        origin=None if forked_from is None else thread(forked_from),
    )


def _states(given: str | Iterable[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    found = (given,) if isinstance(given, str) else tuple(given)
    for one in found:
        if one not in tuple(ThreadStatus):
            validation.refuse("state", one, f"States are {', '.join(ThreadStatus)}.")
    return tuple(dict.fromkeys(map(str, found)))


def _moment(name: str, given: When | None, now: int) -> int | None:
    if given is None:
        return None
    if isinstance(given, timedelta):
        return now - given // MICROSECOND
    if not isinstance(given, datetime) or given.tzinfo is None:
        validation.refuse(
            name, given, "Give a datetime with a time zone, or a timedelta: how long ago."
        )
    return micros(given)


# -- labels and ttl ------------------------------------------------------------------


def tag_labels(given: Iterable[str]) -> tuple[str, ...]:
    """The labels of tags."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        validation.refuse("tags", given, "Give a list of texts, for a single one too.")
    return tuple(
        dict.fromkeys([_label("A tag", thread_entry.tag_label, _tag(tag)) for tag in given])
    )


def _tag(given: object) -> str:
    text = validation.text("A tag", given)
    if not text:
        validation.refuse("A tag", given, "It is a text of a character or more.")
    return text


def mark_labels(at: CheckpointRef, tags: Iterable[str] | None) -> tuple[str, ...]:
    """The labels of a checkpoint's tags, or (None) of its pin."""
    id = at.id or ""
    if tags is None:
        return (_label("A pin", thread_entry.mark_label, at.ns, id),)
    given = [_label("A tag", thread_entry.mark_label, at.ns, id, _tag(tag)) for tag in tags]
    return tuple(dict.fromkeys(given))


def metadata_labels(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of metadata."""
    if not validation.is_mapping(given):
        validation.refuse("metadata", given, 'It is a dict, such as {"user_id": "u1"}.')
    names = [validation.text("A key of metadata", key) for key in given]
    return tuple(
        [
            _label(f"metadata[{name!r}]", thread_entry.metadata_label, name, value)
            for name, value in zip(names, given.values(), strict=True)
        ]
    )


def _label(what: str, make: Callable[..., str], *given: Any) -> str:
    try:
        return make(*given)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{what} cannot be kept: {error}.",
            hint="Give JSON values without NUL characters, of at most"
            f" {thread_entry.MAX_LABEL_BYTES} bytes with their key;"
            " larger ones belong into the state.",
        ) from None


def checked_labels(found: Iterable[str], name: str) -> tuple[str, ...]:
    """All labels of a thread, if they are not too many."""
    together = tuple(sorted({thread_entry.label_prefix(label): label for label in found}.values()))
    said = [
        one
        for one in together
        if thread_entry.is_mark_label(one) or not thread_entry.is_record_label(one)
    ]
    if len(said) > thread_entry.MAX_LABELS:
        raise InvalidArgumentError(
            f"A thread has at most {thread_entry.MAX_LABELS} tags and pieces of metadata,"
            " with the tags and pins of its checkpoints.",
            thread=name,
        )
    return together


def ttl(given: timedelta | float | None) -> int | None:
    """How long a thread may rest, in microseconds."""
    return None if given is None else duration("ttl", given) // MICROSECOND


# -- pages ---------------------------------------------------------------------------


def page(asked: ThreadQuery, order: OrderName, limit: int, cursor: str | None) -> SearchThreads:
    """A page of what is asked for.

    Raises:
        InvalidArgumentError: there is no such order, or the cursor is of another search.
    """
    name = _ORDERS.get(order.removeprefix("-")) if isinstance(order, str) else None
    if name is None:
        validation.refuse(
            "order", order, f"Orders are {', '.join(_ORDERS)}, and these with a minus."
        )
    if type(limit) is not int or not 1 <= limit <= MOST:
        validation.refuse("limit", limit, f"Give a number from 1 to {MOST}, and go on by cursor.")
    after = None if cursor is None else _place(cursor, order)
    return SearchThreads(asked, name, order.startswith("-"), after, limit)


def cursor_after(entry: ThreadEntry, order: OrderName) -> str:
    """What goes on behind an entry."""
    place = [order, getattr(entry, _ORDERS[order.removeprefix("-")]), entry.thread]
    return urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _place(cursor: object, order: str) -> tuple[int | str, str]:
    kind: type = str if order.removeprefix("-") == "thread" else int
    try:
        text = validation.text("cursor", cursor)
        own, value, name = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        is_ours = own == order and type(value) is kind and type(name) is str
    except (ValueError, TypeError):
        is_ours = False
    if not is_ours:
        validation.refuse(
            "cursor", cursor, "Give the cursor of the page before, with the same order."
        )
    return value, name
