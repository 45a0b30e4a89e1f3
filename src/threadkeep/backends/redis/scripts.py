"""Scripts that run in the server, and what they are given.

The text of a script depends only on the files beside this module, so that a server keeps few of
them. Arguments are packed here, in the order in which `commit.lua`, `drop.lua` and `fork.lua` take
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from threadkeep.backends.redis.rows import (
    Word,
    entry_words,
    pack_checkpoint,
    pack_child,
    pack_number,
    pack_place,
    pack_text,
    pack_write,
    place,
    registry_words,
    unpack_checkpoint,
    unpack_write,
)
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

# -- calls of scripts ------------------------------------------------------------------

_FILES = {  # by the name of the script
    "read": ("common", "read"),
    "commit": ("common", "writing", "rows", "commit"),
    "drop": ("common", "writing", "rows", "drop"),
    "copy": ("common", "writing", "founding", "copy"),
    "fork": ("common", "writing", "founding", "fork"),
}


class Call(NamedTuple):
    """A command as it is sent; for one that runs a script, `anew` brings the script's text."""

    words: tuple[Word, ...]
    anew: tuple[Word, ...] | None = None


@cache
def _script(name: str) -> tuple[str, str]:
    """Return a script's text, and the digest by which a server knows it."""
    folder = files(__package__)
    text = "\n".join(folder.joinpath(f"{one}.lua").read_text("utf-8") for one in _FILES[name])
    # SHA-1 is how Redis names scripts: it protects nothing.
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def call(name: str, keys: Sequence[str], arguments: Sequence[Word]) -> Call:
    """Call a script: "read", "commit", "drop", "copy" or "fork"."""
    text, digest = _script(name)
    rest = (len(keys), *keys, *arguments)
    return Call(("EVALSHA", digest, *rest), ("EVAL", text, *rest))


# -- arguments of changes --------------------------------------------------------------


def waves(
    changes: Sequence[Change], goes_alone: Callable[[Change], bool]
) -> Iterator[list[Change]]:
    """Yield the changes in order, those together that need not wait for others."""
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


def script_of(changes: Sequence[Change]) -> tuple[str, list[Word]]:
    """Return the script that makes a drop, or batches of one thread, and its arguments."""
    first = changes[0]
    if isinstance(first, DropThread):
        return "drop", list(_drop_words(first))
    words: list[Word] = [len(changes)]
    for batch in changes:
        assert isinstance(batch, Batch)  # noqa: S101 - copies and forks go alone, see `fork_words`
        of_batch = list(_batch_words(batch))
        words += (len(of_batch), *of_batch)
    return "commit", words


def _batch_words(batch: Batch) -> Iterator[Word]:
    segments = sorted(set(batch.segments), key=attrgetter("log", "start"))
    yield from _expected(batch)
    yield from _counted([(pack_place(*at),) for at in batch.drop_segments])
    yield int(_overlap(segments))
    yield from _rows(batch, segments)
    yield from _counted([(place(*key),) for key in batch.drop_checkpoints])
    yield from _counted(
        [(place(ns, id_) + b"\x00" + pack_number(seq),) for ns, id_, seq in batch.drop_writes]
    )
    yield from _counted([(place(*key),) for key in batch.hide_checkpoints])
    yield from _counted([(row.table, row.key) for row in batch.drop_unreadable])
    yield int(batch.bump)
    yield from registry_words(batch)


def _drop_words(change: DropThread) -> Iterator[Word]:
    yield from _expected(change.expected)
    yield from (change.now, int(change.entry is not None))
    if change.entry is not None:
        yield from entry_words(change.entry)
    rows = change.rows
    yield int(rows is not None)
    if rows is not None:
        yield from _rows(rows, rows.segments)
        yield int(rows.bump)
        yield from registry_words(rows)


def fork_words(change: ForkThread, found: Sequence[Any]) -> Iterator[Word]:
    """Yield the arguments of `fork.lua`, of the source as `READS.whole` gives it."""
    _, members, writes, *dumps = found
    rows = [(member, unpack_checkpoint(member)) for member in members]
    checkpoints, wanted = set(change.checkpoints), set(change.writes)
    chosen = [(member, row) for member, row in rows if (row.ns, row.id) in checkpoints]
    yield from _counted([(member, pack_child(row)) for member, row in chosen])
    made = [(member, unpack_write(member)) for member in writes]
    yield from _counted(
        [(member,) for member, row in made if (row.ns, row.checkpoint_id, row.seq) in wanted]
    )
    yield from dumps
    yield from entry_words(change.entry)
    yield change.entry.size


def _rows(batch: Batch, segments: Sequence[Segment]) -> Iterator[Word]:
    """Yield what a batch adds, its segments in this order."""
    yield from _counted([(pack_place(s.log, s.start, s.count), s.data) for s in segments])
    yield from _counted(
        [(place(r.ns, r.id), pack_checkpoint(r), pack_child(r)) for r in batch.checkpoints]
    )
    yield from _counted([(place(w.ns, w.checkpoint_id), pack_write(w)) for w in batch.writes])


def _expected(batch: Batch) -> Iterator[Word]:
    """Yield what `rows.lua` checks."""
    for number in (batch.born, batch.generation):
        yield "" if number is None else number
    yield from _counted([_fence(fence, batch) for fence in batch.fences])


def _counted(rows: Sequence[Sequence[Word]]) -> Iterator[Word]:
    yield len(rows)
    for row in rows:
        yield from row


def _overlap(segments: Sequence[Segment]) -> bool:
    """Return True if segments, in order, overlap."""
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
