"""Tiering policy: the threads and values that stay in the store, by age and size."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from threadkeep._core.engine.cold_references import LEAST, OFFLOAD_OVER
from threadkeep._core.validation import LONGEST, duration, is_count
from threadkeep.errors import invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class HotTier:
    """Limits on the threads to cache: small ones, written recently, and read often.

    Only threads that meet all limits are cached. One that has become too large or too old is
    evicted when that is noticed: at the next read or save of it in this process.

    Args:
        max_bytes: size of the thread at most, in bytes of its values as they are stored: what a
            read needs and what is saved after it, as this process sees them.
        max_age: seconds, or a timedelta, since the thread was written last, by the time in its
            newest checkpoint. One whose time cannot be read is not cached.
        min_reads: how often this process must have read values of the thread within `max_age`.

    None means no limit.

    Raises:
        InvalidArgumentError: a value is invalid.
    """

    max_bytes: int | None = 10_000
    max_age: timedelta | float | None = timedelta(hours=1)
    min_reads: int | None = 3

    def __post_init__(self) -> None:
        if self.max_bytes is not None and not is_count(self.max_bytes, 1):
            raise invalid("max_bytes", self.max_bytes, "Use a number of bytes, 1 or more, or None.")
        if self.min_reads is not None and not is_count(self.min_reads, 0):
            raise invalid("min_reads", self.min_reads, "Use a whole number, 0 or more, or None.")
        if self.max_age is not None:
            object.__setattr__(self, "max_age", duration("max_age", self.max_age))


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmTier:
    """Threads that stay in the store whole: those in use of late.

    Args:
        max_age: how long ago a thread was last written, or brought back from the cold store, in
            seconds or as a timedelta. Values of a thread in use that only older checkpoints need
            may be offloaded.

    Raises:
        InvalidArgumentError: it is invalid.
    """

    max_age: timedelta | float = timedelta(days=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_age", duration("max_age", self.max_age))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdTier:
    """Limits of what moves into the cold store once it is not warm.

    Args:
        archive: whether threads are archived.
        offload_over: bytes. In threads that are not archived, larger stored values are offloaded
            if only checkpoints that are not warm use them. None offloads nothing.

    Raises:
        InvalidArgumentError: one of them is invalid.
    """

    archive: bool = True
    offload_over: int | None = OFFLOAD_OVER

    def __post_init__(self) -> None:
        if type(self.archive) is not bool:
            raise invalid("archive", self.archive, "Use True or False.")
        if self.offload_over is not None:
            check_over("offload_over", self.offload_over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiering:
    """Tiers of threads: cached, in the store, or in the cold store.

    Args:
        hot: threads that are cached, where the saver has a `cache` or `hot`; None for all.
        warm: threads that stay in the store.
        cold: what becomes of the others.

    Raises:
        InvalidArgumentError: one of them is invalid.
    """

    hot: HotTier | None = field(default_factory=HotTier)
    warm: WarmTier = field(default_factory=WarmTier)
    cold: ColdTier = field(default_factory=ColdTier)

    def __post_init__(self) -> None:
        for name, kind in (("hot", HotTier), ("warm", WarmTier), ("cold", ColdTier)):
            if not isinstance(getattr(self, name), kind | None if name == "hot" else kind):
                raise invalid(name, getattr(self, name), f"Use a threadkeep.{kind.__name__}.")


def check_over(name: str, value: object) -> int:
    """Return a size from which values can be offloaded."""
    if not is_count(value, LEAST) or not isinstance(value, int) or value >= LONGEST:
        raise invalid(name, value, f"Use a number of bytes, {LEAST} or more.")
    return value
