"""Lanes of a tree of checkpoints, drawn newest first as `git log --graph` draws commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST = 64
"""Branches that are drawn at once; further ones end where they begin."""


class Lanes(NamedTuple):
    """The lines in the row of a checkpoint, by lane.

    Attributes:
        lane: where the checkpoint is.
        joins: lanes of its children, which end here. Empty for a tip.
        passing: lanes of other branches, which lead through the row.
        cut: lanes that end above the row, because the parent was removed.
        after: lanes that lead on below the row.
    """

    lane: int
    joins: tuple[int, ...]
    passing: tuple[int, ...]
    cut: tuple[int, ...]
    after: tuple[int, ...]


def draw(
    rows: Iterable[tuple[str, str | None]], waiting: Sequence[str | None] = ()
) -> tuple[list[Lanes], list[str | None]]:
    """Return the lanes of checkpoints, and the parents that lanes wait for below the last one.

    Args:
        rows: ids and parents, by falling id.
        waiting: the parents that lanes wait for above the first row; None for a free lane.
    """
    lanes, drawn = list(waiting), []
    for id, parent in rows:
        cut = [n for n, wanted in enumerate(lanes) if wanted is not None and wanted > id]
        for n in cut:
            lanes[n] = None
        joins = [n for n, wanted in enumerate(lanes) if wanted == id]
        lane = joins[0] if joins else _free(lanes)
        for n in joins:
            lanes[n] = None
        passing = _taken(lanes)
        lanes[lane] = parent
        while lanes and lanes[-1] is None:
            lanes.pop()
        drawn.append(Lanes(lane, tuple(joins), passing, tuple(cut), _taken(lanes)))
    return drawn, lanes


def _free(lanes: list[str | None]) -> int:
    if None in lanes:
        return lanes.index(None)
    if len(lanes) < MOST:
        lanes.append(None)
    return len(lanes) - 1


def _taken(lanes: Sequence[str | None]) -> tuple[int, ...]:
    return tuple(n for n, wanted in enumerate(lanes) if wanted is not None)
