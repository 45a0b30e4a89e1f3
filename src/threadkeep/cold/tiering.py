"""Where threads lie, as somebody has said it: `Tiering` and its tiers.

Only these records live here; `moving` has the steps. Invariant: one that was made has a meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from threadkeep.backends.given import is_count
from threadkeep.cache import HotTier
from threadkeep.cold.offloaded import LEAST
from threadkeep.errors import invalid
from threadkeep.retention.policy import (
    LONGEST,
    MICROSECOND,
    duration,
)

OFFLOAD_OVER = 64 * 1024
"""Bytes of a stored run of values from which it is worth an object store's while."""


def check_over(name: str, given: object) -> int:
    """Refuse what is no size from which values can be offloaded.

    Raises:
        InvalidArgumentError: it is invalid.
    """
    if not is_count(given, LEAST) or not isinstance(given, int) or given >= LONGEST:
        raise invalid(name, given, f"Use a number of bytes, {LEAST} or more.")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmTier:
    """Which threads stay in the store whole: those in use of late.

    Args:
        max_age: how long ago a thread was written last, or brought back from the cold store, in
            seconds or as a timedelta. So old are the checkpoints of a thread in use whose values
            go as well.

    Raises:
        InvalidArgumentError: it is invalid.
    """

    max_age: timedelta | float = timedelta(days=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_age", duration("max_age", self.max_age))

    @property
    def age(self) -> int:
        """`max_age` in microseconds."""
        return duration("max_age", self.max_age) // MICROSECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdTier:
    """What goes into the cold store of all that is not warm.

    Args:
        archive: whether threads go whole.
        offload_over: bytes; of a thread that stays, stored runs of values that are larger go, if
            only checkpoints that are not warm need them. None: none does.

    Raises:
        InvalidArgumentError: a value is invalid.
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
    """Where threads lie: at hand, in the store, or in the cold store.

    Args:
        hot: which threads are kept at hand, where the saver has a `cache` or `hot`; None for all.
        warm: which threads stay in the store.
        cold: what goes of the others.

    Raises:
        InvalidArgumentError: one of them is no such thing.
    """

    hot: HotTier | None = field(default_factory=HotTier)
    warm: WarmTier = field(default_factory=WarmTier)
    cold: ColdTier = field(default_factory=ColdTier)

    def __post_init__(self) -> None:
        for name, kind in (("hot", HotTier), ("warm", WarmTier), ("cold", ColdTier)):
            if not isinstance(getattr(self, name), kind | None if name == "hot" else kind):
                raise invalid(name, getattr(self, name), f"Use a threadkeep.{kind.__name__}.")
