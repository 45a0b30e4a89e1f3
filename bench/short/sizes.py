"""Sizes of the suite: the full run, a quick one, a smoke test. Only numbers live here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bench.measures import crowd


class Load(NamedTuple):
    """So many runs at once, each of the first `turns` turns of a conversation."""

    runs: int
    turns: int | None


@dataclass(frozen=True)
class ShortSizes:
    """The full run. `None` means all that the data holds."""

    name: str = "full"
    rounds: int = 5
    loads: tuple[Load, ...] = (Load(8, None), Load(64, None), Load(512, 2))
    conversations: int | None = 100  # one after the other
    replays: int = 20  # threads on which the recorded calls are replayed
    counted: int = 3  # of them while instructions are counted
    lanes: int = 3  # long threads of each saver
    reads: int = 20  # cold reads a round
    openings: int = 3  # fresh processes a round
    new: int = 100  # threads that a process does not know
    many: int = 100_000  # threads in a file
    open: tuple[int, int] = (3_000, 100)  # async threads, at once
    first: tuple[str, ...] = ()  # methods whose first call is timed; () for all
    traced: int = 32  # async runs at once, while statements are counted
    crowds: tuple[crowd.Load, ...] = (
        crowd.Load(4, 1, 8, 10),
        crowd.Load(8, 1, 4, 10),
        crowd.Load(4, 4, 2, 10),
        crowd.Load(8, 4, 1, 10),
    )


SIZES = {
    sizes.name: sizes
    for sizes in (
        ShortSizes(),
        ShortSizes(
            name="quick",
            rounds=3,
            loads=(Load(8, None), Load(64, 3), Load(512, 1)),
            conversations=10,
            replays=6,
            counted=2,
            lanes=1,
            reads=10,
            openings=1,
            new=30,
            many=2_000,
            open=(1_000, 100),
            crowds=(crowd.Load(4, 1, 2, 10), crowd.Load(8, 4, 1, 5)),
        ),
        ShortSizes(
            name="smoke",
            rounds=1,
            loads=(Load(2, 1),),
            conversations=2,
            replays=2,
            counted=1,
            lanes=1,
            reads=2,
            openings=1,
            new=2,
            many=50,
            open=(4, 2),
            first=("put", "threads.count"),
            traced=2,
            crowds=(crowd.Load(2, 1, 1, 2),),
        ),
    )
}
