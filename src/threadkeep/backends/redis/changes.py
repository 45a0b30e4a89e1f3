"""Changes as what a script is given.

Only the arguments of the scripts that write live here, in the order in which they take them
(`commit.lua`, `drop.lua`, `fork.lua`). Invariant: everything is packed here, so that the
scripts need not know how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from threadkeep.backends.redis.entries import arguments, entry_words
from threadkeep.backends.redis.packing import pack_number, pack_text, place
from threadkeep.backends.redis.rows import (
    pack_checkpoint,
    pack_child,
    pack_place,
    pack_write,
    unpack_checkpoint,
    unpack_write,
)
from threadkeep.backends.redis.scripts import Word
from threadkeep.engine.model import (
    Batch,
    Change,
    DropThread,
    Fence,
    ForkThread,
    HeadFence,
    RowsFence,
    Segment,
    WritesFence,
)
from threadkeep.engine.thread_entry import EntryFence


def waves(
    changes: Sequence[Change], goes_alone: Callable[[Change], bool]
) -> Iterator[list[Change]]:
    """The changes in order, those together that may be sent without waiting for others."""
    wave: list[Change] = []
    last: dict[str, Change] = {}  # of each thread
    for change in changes:
        alone = goes_alone(change)
        waits = change.thread in last and not (
            isinstance(change, Batch) and isinstance(last[change.thread], Batch)
        )
        if wave and (alone or waits):
            yield wave
            wave, last = [], {}
        if alone:
            yield [change]
        else:
            wave.append(change)
            last[change.thread] = change
    if wave:
        yield wave


def script(changes: Sequence[Change]) -> tuple[str, Sequence[Word]]:
    """The script that carries out a drop, or batches of one thread, and what it is given."""
    first = changes[0]
    if isinstance(first, Batch):
        return "commit", batches_arguments(changes)
    assert isinstance(first, DropThread)  # noqa: S101 - the others need to be read first
    return "drop", drop_arguments(first)


def batches_arguments(batches: Sequence[Any]) -> list[Word]:
    """Arguments of `commit.lua`."""
    words: list[Word] = [len(batches)]
    for batch in batches:
        of_batch = batch_arguments(batch)
        words += (len(of_batch), *of_batch)
    return words


def batch_arguments(batch: Batch) -> list[Word]:
    """Arguments of `commit.lua` for one batch."""
    segments = sorted(set(batch.segments), key=_start)
    return [
        *_expected(batch),
        *_counted([(pack_place(*at),) for at in batch.drop_segments]),
        int(_overlap(segments)),
        *_rows(batch, segments),
        *_counted([(place(*key),) for key in batch.drop_checkpoints]),
        *_counted([(_row_place(*key),) for key in batch.drop_writes]),
        *_counted([(place(*key),) for key in batch.hide_checkpoints]),
        *_counted([(row.table, row.key) for row in batch.drop_unreadable]),
        int(batch.bump),
        *arguments(batch),
    ]


def drop_arguments(change: DropThread) -> list[Word]:
    """What `drop.lua` is given."""
    left = () if change.entry is None else entry_words(change.entry)
    dropped = [*_expected(change.expected), change.now, int(change.entry is not None), *left]
    if change.rows is None:
        return [*dropped, 0]
    rows = change.rows
    return [*dropped, 1, *_rows(rows, rows.segments), int(rows.bump), *arguments(rows)]


def _rows(batch: Batch, segments: Sequence[Segment]) -> Iterator[Word]:
    """What a batch adds, its segments in order."""
    yield from _counted([(pack_place(s.log, s.start, s.count), s.data) for s in segments])
    yield from _counted(
        [(place(r.ns, r.id), pack_checkpoint(r), pack_child(r)) for r in batch.checkpoints]
    )
    yield from _counted([(place(w.ns, w.checkpoint_id), pack_write(w)) for w in batch.writes])


def _expected(batch: Batch) -> Iterator[Word]:
    """What `checks.lua` takes."""
    yield from (_or_nothing(batch.born), _or_nothing(batch.generation))
    yield from _counted([_fence(fence, batch) for fence in batch.fences])


def fork_arguments(change: ForkThread, found: Sequence[Any]) -> Iterator[Word]:
    """What `fork.lua` is given of the source as it was read (`READS.whole`), behind its name."""
    _, members, writes, *dumps = found
    rows = [(member, unpack_checkpoint(member)) for member in members]
    checkpoints, wanted = set(change.checkpoints), set(change.writes)
    kept = [(member, row) for member, row in rows if (row.ns, row.id) in checkpoints]
    yield from _counted([(member, pack_child(row)) for member, row in kept])
    yield from _counted([(member,) for member in writes if _seq_of(member) in wanted])
    yield from dumps
    yield from entry_words(change.entry)
    yield change.entry.size


def _seq_of(member: bytes) -> tuple[str, str, int]:
    row = unpack_write(member)
    return row.ns, row.checkpoint_id, row.seq


def _counted(rows: Sequence[Sequence[Word]]) -> Iterator[Word]:
    yield len(rows)
    for row in rows:
        yield from row


def _or_nothing(number: int | None) -> Word:
    return "" if number is None else number


def _row_place(ns: str, checkpoint: str, seq: int) -> bytes:
    return place(ns, checkpoint) + b"\x00" + pack_number(seq)


def _start(segment: Segment) -> tuple[int, int]:
    return segment.log, segment.start


def _overlap(segments: Sequence[Segment]) -> bool:
    """Whether segments, in order, lie over each other."""
    return any(one.log == other.log and one.stop > other.start for one, other in pairwise(segments))


def _fence(fence: Fence, batch: Batch) -> tuple[Word, ...]:
    match fence:
        case HeadFence(ns, expected):
            first = b"[" + pack_text(ns) + b"\x00"
            if expected is not None:
                first += pack_text(expected) + b"\x01"
            own = [place(row.ns, row.id) for row in batch.checkpoints if row.ns == ns]
            return ("head", pack_text(ns), first, len(own), *own)
        case WritesFence(ns, checkpoint, run, seen):
            unseen = pack_number(max(seen + 1, 0))
            return ("writes", place(ns, checkpoint), unseen, pack_number(run))
        case RowsFence():
            return ("rows", fence.checkpoints, fence.writes)
        case EntryFence():
            return ("entry", fence.revision)
