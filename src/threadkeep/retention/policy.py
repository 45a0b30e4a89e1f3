"""What a store keeps, as somebody has said it: `Retention`, and its form as JSON.

Only that record lives here; what it means for rows is in `keeping`. Invariant: one that was
made has a meaning; equal ones say the same, and come back equal from their JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal, get_args

from threadkeep.errors import CorruptionError, InvalidArgumentError, NewerFormatError, invalid
from threadkeep.langgraph_internals import is_internal

Ends = Literal["all", "run_ends", "turn_ends"]

MICROSECOND = timedelta(microseconds=1)
LONGEST = 2**62
"""Microseconds, bytes and counts that every store can hold."""

_VERSION = 1
RECORD = "retention"
"""The kind of a thread's own record; see `labels`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept of the checkpoints of each thread, and of the threads of a store.

    A checkpoint goes if any limit that is given says so, and nothing protects it. The limits
    look at each checkpoint namespace by itself. First `keep` leaves every checkpoint or only the
    ends; then `keep_last` counts and `max_age` measures what that left; last come the oldest
    that are left of the whole thread, as `max_bytes` says. Protected are

    - the head of each namespace,
    - a checkpoint that is pinned, or tagged (with `keep_tagged`), and, of a subgraph's, those
      that it was made under,
    - a checkpoint at which an interrupt waits,
    - the tip of a branch that is younger than an hour: a run may be about to go on there,
    - everything of a pinned thread.

    What DeltaChannels of kept checkpoints are rebuilt through stays too, hidden. The checkpoints
    of a subgraph go with the checkpoint whose task it was, if they have no tag or pin; those of
    one with `checkpointer=True` are no task's.

    A thread goes as `ttl` and `max_count` say, never if it is pinned, or tagged (with
    `keep_tagged`), or suspended (an interrupt waits in it). A ttl of the thread's own
    (`threads.create(ttl=)`) counts before this one, and only a pin protects from it.

    Args:
        keep_last: the newest so many stay.
        max_age: those stay that are younger, in seconds or as a timedelta. A checkpoint whose
            time cannot be read is of no age.
        keep: "all" checkpoints, or only "run_ends", the last one of each run (by the metadata's
            `run_id`, and without one of each turn), or "turn_ends", the last one of each turn:
            the one before the next of source "input", or before a gap where some were removed.
        keep_tagged: whether a tag protects, as a pin does.
        ttl: how long a thread may rest, in seconds or as a timedelta, before it is deleted.
        max_bytes: how much a thread may hold. More stays if what is protected takes more.
        max_count: how many threads a store may hold; the least recently updated go.
        channels: of which channels only the "latest" value is kept: `{"scratch": "latest"}`. Older
            checkpoints that nothing protects stay without a value of them. A DeltaChannel, whose
            values are rebuilt through older ones, is left whole, which the report says.

    Raises:
        InvalidArgumentError: a limit is invalid.
    """

    keep_last: int | None = None
    max_age: timedelta | float | None = None
    keep: Ends = "all"
    keep_tagged: bool = True
    ttl: timedelta | float | None = None
    max_bytes: int | None = None
    max_count: int | None = None
    channels: Mapping[str, Literal["latest"]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, least in (("keep_last", 1), ("max_bytes", 0), ("max_count", 0)):
            given = getattr(self, name)
            if given is not None and (type(given) is not int or not least <= given < LONGEST):
                raise invalid(name, given, f"Use a whole number, {least} or more, or leave it out.")
        for name in ("max_age", "ttl"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, duration(name, given))
        if self.keep not in get_args(Ends):
            raise invalid("keep", self.keep, f"Use one of {', '.join(get_args(Ends))}.")
        if type(self.keep_tagged) is not bool:
            raise invalid("keep_tagged", self.keep_tagged, "Use True or False.")
        object.__setattr__(self, "channels", _channels(self.channels))

    @property
    def age(self) -> int | None:
        """`max_age` in microseconds."""
        return _micros(self.max_age)

    @property
    def rest(self) -> int | None:
        """`ttl` in microseconds."""
        return _micros(self.ttl)

    @property
    def thins(self) -> bool:
        """Whether it says anything of checkpoints."""
        limits = (self.keep_last, self.max_age, self.max_bytes)
        is_limited = self.keep != "all" or any(limit is not None for limit in limits)
        return is_limited or bool(self.channels)

    def as_json(self) -> dict[str, Any]:
        """The same as values that JSON can hold: its version, and what is not the default.

        Times are in seconds.
        """
        found: dict[str, Any] = {"v": _VERSION}
        for one in fields(self):
            value, usual = getattr(self, one.name), getattr(EVERYTHING, one.name)
            if value != usual:
                is_time = isinstance(value, timedelta)
                found[one.name] = value.total_seconds() if is_time else value
        return found


def read(found: Any) -> Retention:
    """What `as_json` gave.

    Raises:
        NewerFormatError: a later release of threadkeep has written it.
        CorruptionError: it is no such thing.
    """
    if not isinstance(found, dict) or not isinstance(found.get("v"), int):
        raise CorruptionError("What a thread keeps cannot be read.")
    if found["v"] > _VERSION:
        raise NewerFormatError(
            "What a thread keeps was written by a newer release of threadkeep.",
            hint="Install that release, or set it anew with threads.retain.",
        )
    try:
        return Retention(**{name: value for name, value in found.items() if name != "v"})
    except (TypeError, InvalidArgumentError) as error:
        raise CorruptionError("What a thread keeps cannot be read.") from error


def duration(name: str, given: object) -> timedelta:
    """A length of time, given in seconds or as a timedelta.

    Raises:
        InvalidArgumentError: it is neither, or not more than 0.
    """
    if isinstance(given, int | float) and type(given) is not bool and 0 < given < LONGEST / 1e6:
        given = timedelta(seconds=given)
    if not isinstance(given, timedelta) or given < MICROSECOND:
        raise invalid(name, given, "Use seconds, more than 0, or a timedelta.")
    return given


def _channels(given: object) -> dict[str, Literal["latest"]]:
    hint = 'Use a dict of names, each with "latest", such as {"scratch": "latest"}.'
    if not isinstance(given, Mapping):
        raise invalid("channels", given, hint)
    for name, what in given.items():
        if not isinstance(name, str) or what != "latest":
            raise invalid(f"channels[{name!r}]", what, hint)
        if is_internal(name):
            raise invalid("channels", name, "It is LangGraph's own, and says what runs next.")
    return dict(sorted(given.items()))


def _micros(given: timedelta | float | None) -> int | None:
    return given // MICROSECOND if isinstance(given, timedelta) else None


EVERYTHING = Retention()
"""Nothing goes."""
