"""Batches of one thread that wait for each other, put together.

Only that pure reckoning lives here, for batches whose logs nobody else writes to. Invariant:
what they do together is what they would do one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from threadkeep.engine import thread_summary
from threadkeep.engine.model import Batch, CheckpointRow, Segment

_Place = tuple[int, int, int]  # log, start, count


def only_adds(batch: Batch) -> bool:
    """Whether the batch may wait: it depends on nothing, and removes nothing that is seen.

    Small segments that it joins to larger ones are not seen.
    """
    return not (
        batch.fences
        or batch.drop_checkpoints
        or batch.drop_writes
        or batch.hide_checkpoints
        or batch.bump
        or batch.entry
    )


def merged(batches: Sequence[Batch]) -> list[Batch]:
    """The same in as few batches as can be: one for each generation that is named."""
    together: list[list[Batch]] = []
    for batch in batches:
        names = {one.generation for one in together[-1]} if together else set()
        if together and len((names | {batch.generation}) - {None}) <= 1:
            together[-1].append(batch)
        else:
            together.append([batch])
    return [joined(group) if len(group) > 1 else group[0] for group in together]


def joined(batches: Sequence[Batch]) -> Batch:
    """The same in one batch, under the first generation that is named."""
    borns = [batch.born for batch in batches if batch.born is not None]
    named = [batch.generation for batch in batches if batch.generation is not None]
    checkpoints: dict[tuple[str, str], CheckpointRow] = {}
    segments: dict[_Place, Segment] = {}
    drops: dict[_Place, None] = {}
    for batch in batches:
        for place in batch.drop_segments:
            segments.pop(place, None)
            # Also where it was to be added here: that may have been done, and its answer lost.
            drops[place] = None
        added = {(s.log, s.start, s.count): s for s in batch.segments}
        # One that was joined to others before is there with them.
        segments |= {place: s for place, s in added.items() if place not in drops}
        checkpoints |= {(row.ns, row.id): row for row in batch.checkpoints}
    return batches[-1]._replace(
        generation=named[0] if named else None,
        born=min(borns, default=None),
        segments=tuple(segments.values()),
        checkpoints=tuple(checkpoints.values()),
        writes=tuple(row for batch in batches for row in batch.writes),
        drop_segments=tuple(drops),
        touch=thread_summary.merged(tuple([b.touch for b in batches if b.touch is not None])),
        made=None,
    )
