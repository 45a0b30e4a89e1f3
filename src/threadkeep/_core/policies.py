"""Policies that programs set: tiering, retention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal, get_args

from threadkeep._core.engine.cold_references import LEAST, OFFLOAD_OVER
from threadkeep._core.langgraph_internals import is_internal
from threadkeep._core.validation import LONGEST, duration, flag, is_count
from threadkeep.errors import CorruptionError, InvalidArgumentError, NewerFormatError, invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmTier:
    """Threads that stay in the store whole, because they were used recently.

    Args:
        max_age: time since a thread was last written, or came back from the cold store, in seconds
            or as a timedelta. Values of these threads that only older checkpoints need may be
            offloaded.

    Raises:
        InvalidArgumentError: the value is invalid.
    """

    max_age: timedelta | float = timedelta(days=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_age", duration("max_age", self.max_age))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdTier:
    """Limits for moving data into the cold store when it is no longer warm.

    Args:
        archive: whether threads are archived.
        offload_over: bytes. In threads that are not archived, larger stored values are offloaded
            if only checkpoints that are not warm use them. None offloads nothing.

    Raises:
        InvalidArgumentError: a value is invalid.
    """

    archive: bool = True
    offload_over: int | None = OFFLOAD_OVER

    def __post_init__(self) -> None:
        flag("archive", self.archive)
        if self.offload_over is not None:
            check_over("offload_over", self.offload_over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiering:
    """Tiers of threads: in the store, or in the cold store.

    Args:
        warm: threads that stay in the store.
        cold: handling of the others.

    Raises:
        InvalidArgumentError: a value is invalid.
    """

    warm: WarmTier = field(default_factory=WarmTier)
    cold: ColdTier = field(default_factory=ColdTier)

    def __post_init__(self) -> None:
        for name, kind in (("warm", WarmTier), ("cold", ColdTier)):
            if not isinstance(getattr(self, name), kind):
                raise invalid(name, getattr(self, name), f"Use a threadkeep.{kind.__name__}.")


def check_over(name: str, value: object) -> int:
    """Return a size from which values can be offloaded."""
    if not is_count(value, LEAST) or not isinstance(value, int) or value >= LONGEST:
        raise invalid(name, value, f"Use a number of bytes, {LEAST} or more.")
    return value


Ends = Literal["all", "run_ends", "turn_ends"]

_VERSION = 1
RECORD = "retention"
"""Kind of the record of a thread's own policy (see `thread_entry.find_record`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retention policy: the checkpoints of each thread, and the threads of a store, to keep.

    A checkpoint is removed if any limit says so and nothing protects it. Limits apply to each
    checkpoint namespace, in this order: `keep` selects checkpoints, `keep_last` and `max_age`
    remove some of those, then `max_bytes` removes the oldest of the whole thread. These are
    protected:

    - the head of each namespace,
    - a checkpoint that is pinned, or tagged (with `keep_tagged`), and the checkpoints under which
      a protected checkpoint of a subgraph was made,
    - a checkpoint at which an interrupt waits,
    - the tip of a branch that is younger than an hour, and its parent, as a run may continue there,
    - everything of a pinned thread.

    Checkpoints through which the DeltaChannels of kept ones are rebuilt stay too, hidden. Subgraph
    checkpoints without tag or pin are removed together with their parent task's checkpoint, unless
    the subgraph has its own checkpointer (`checkpointer=True`).

    A thread is deleted by `ttl` and `max_count`, unless it is pinned, tagged (with `keep_tagged`),
    waiting (an interrupt waits in it), or to be resumed (it has stored inputs, or a guarded run
    that is not done). The thread's own ttl (`threads.create(ttl=)`) takes precedence, and only a
    pin protects from it.

    Args:
        keep_last: number of newest checkpoints to keep.
        max_age: keep younger checkpoints, in seconds or as a timedelta. A checkpoint whose time
            cannot be read is never too old.
        keep: "all" checkpoints, or only "run_ends", the last of each run (by the metadata's
            `run_id`, or else of each turn), or "turn_ends", the last of each turn: the one
            before the next of source "input", or before a gap left by removed checkpoints.
        keep_tagged: whether a tag protects, as a pin does.
        ttl: idle time after which a thread is deleted, in seconds or as a timedelta.
        max_bytes: limit of a thread's size. Protected checkpoints stay even if they take more.
        max_count: limit of a store's threads. The least recently updated are deleted.
        channels: channels that keep only the "latest" value: `{"scratch": "latest"}`. Older
            unprotected checkpoints lose their values of them. A DeltaChannel, whose values are
            rebuilt through older ones, is left whole, and the report says so.

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
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not least <= value < LONGEST):
                raise invalid(name, value, f"Use a whole number, {least} or more, or leave it out.")
        for name in ("max_age", "ttl"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, duration(name, value))
        if self.keep not in get_args(Ends):
            raise invalid("keep", self.keep, f"Use one of {', '.join(get_args(Ends))}.")
        flag("keep_tagged", self.keep_tagged)
        object.__setattr__(self, "channels", _channels(self.channels))

    def as_json(self) -> dict[str, Any]:
        """Return the version and all non-default values as JSON values, times in seconds."""
        found: dict[str, Any] = {"v": _VERSION}
        for one in fields(self):
            value = getattr(self, one.name)
            if value != getattr(EVERYTHING, one.name):
                is_time = isinstance(value, timedelta)
                found[one.name] = value.total_seconds() if is_time else value
        return found


def read(found: Any) -> Retention:
    """Return the policy of its JSON."""
    if not isinstance(found, dict) or not isinstance(found.get("v"), int):
        raise CorruptionError("The retention of a thread cannot be read.")
    if found["v"] > _VERSION:
        raise NewerFormatError(
            "The retention of a thread was written by a newer release of threadkeep.",
            hint="Install that release, or set the policy again with threads.retain.",
        )
    try:
        return Retention(**{name: value for name, value in found.items() if name != "v"})
    except (TypeError, InvalidArgumentError) as error:
        raise CorruptionError("The retention of a thread cannot be read.") from error


def _channels(value: object) -> dict[str, Literal["latest"]]:
    hint = 'Use a dict of names, each with "latest", such as {"scratch": "latest"}.'
    if not isinstance(value, Mapping):
        raise invalid("channels", value, hint)
    for name, what in value.items():
        if not isinstance(name, str) or what != "latest":
            raise invalid(f"channels[{name!r}]", what, hint)
        if is_internal(name):
            raise invalid(
                "channels", name, "LangGraph needs this channel to know which nodes run next."
            )
    return dict(sorted(value.items()))


def check_policy(value: object) -> Retention:
    """Return the value, which must be a Retention."""
    if not isinstance(value, Retention):
        hint = "Use a threadkeep.Retention, such as Retention(keep_last=10)."
        raise invalid("policy", value, hint)
    return value


EVERYTHING = Retention()
"""The policy that removes nothing."""
