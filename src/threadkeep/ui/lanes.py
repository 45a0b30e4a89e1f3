"""Lanes of a tree of checkpoints, drawn newest first as `git log --graph` draws commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST = 64
"""Branches that are drawn at once; further ones end where they begin."""


class Lanes(NamedTuple):
    """The lines in the row of a checkpoint, by lane.

    Attributes:
        lane: where the checkpoint is; -1 in a subgraph.
        joins: lanes of its children, which end here. Empty for a tip.
        passing: lanes of other branches, which lead through the row.
    """

    lane: int
    joins: tuple[int, ...]
    passing: tuple[int, ...]


def draw(
    rows: Iterable[tuple[str, str]], waiting: Sequence[str] = ()
) -> tuple[list[Lanes], list[str]]:
    """Return the lanes of checkpoints, and the parents that lanes wait for below the last one.

    Rows are ids and parents, by falling id; the id of a subgraph's checkpoint is empty. Of
    `waiting`, the parents that lanes wait for above the first row, a free lane is empty.
    """
    lanes, drawn = list(waiting), []
    for id, parent in rows:
        joins = [n for n, wanted in enumerate(lanes) if wanted == id != ""]
        if id:  # (a lane ends if its parent was removed)
            lanes = [wanted if wanted < id else "" for wanted in lanes]
        passing, lane = tuple(n for n, wanted in enumerate(lanes) if wanted), -1
        if id:
            lanes += [""] * (len(lanes) < MOST)
            lane = joins[0] if joins else lanes.index("") if "" in lanes else MOST - 1
            lanes[lane] = parent
        drawn.append(Lanes(lane, tuple(joins), passing))
    return drawn, lanes
