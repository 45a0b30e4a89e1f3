"""Scripts that run in the server, and what they are given.

The text of a script depends only on the files beside this module, so that a server keeps few of
them. Arguments are packed here, in the order in which `commit.lua`, `drop.lua` and `fork.lua` take
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pkgutil import get_data
from typing import Any, NamedTuple

from threadkeep._core.engine.model import (
    THREADS,
    Batch,
    DropThread,
    Fence,
    ForkThread,
    HeadFence,
    RowsFence,
    Segment,
    WritesFence,
)
from threadkeep._core.engine.thread_entry import EntryFence
from threadkeep._stores.redis.rows import (
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

# -- calls of scripts ------------------------------------------------------------------

_FILES = {  # by the name of the script
    "read": ("common", "read"),
    "commit": ("common", "writing", "rows", "commit"),
    "drop": ("common", "writing", "rows", "drop"),
    "copy": ("common", "writing", "founding", "copy"),
    "fork": ("common", "writing", "founding", "fork"),
    "items": ("items",),
    "item_page": ("item_page",),
    "item_namespaces": ("item_namespaces",),
    "item_usage": ("sampled", "item_usage"),
    "cache_usage": ("sampled", "cache_usage"),
}


class RedisCommand(NamedTuple):
    """A command as it is sent; for one that runs a script, `whole` brings its text."""

    words: tuple[Word, ...]
    whole: tuple[Word, ...] | None = None


def _script(name: str) -> tuple[str, str]:
    """Return a script's text, and the digest by which a server knows it."""
    found = [get_data(__package__, f"{one}.lua") or b"" for one in _FILES[name]]
    text = b"\n".join(found).decode()
    # SHA-1 is how Redis names scripts: it protects nothing.
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


# Read as the modules are: blockbuster lets event loops import, but not open other files.
_SCRIPTS = {name: _script(name) for name in _FILES}


def call(name: str, keys: Sequence[str], arguments: Sequence[Word]) -> RedisCommand:
    """Call a script, named as in `_FILES`."""
    text, digest = _SCRIPTS[name]
    rest = (len(keys), *keys, *arguments)
    return RedisCommand(("EVALSHA", digest, *rest), ("EVAL", text, *rest))


# -- arguments of changes --------------------------------------------------------------


def batch_words(batches: Sequence[Batch]) -> Iterator[Word]:
    """Yield the arguments of `commit.lua`: batches of one thread."""
    yield len(batches)
    for batch in batches:
        words = list(_batch_words(batch))
        yield len(words)
        yield from words


def _batch_words(batch: Batch) -> Iterator[Word]:
    segments = sorted(set(batch.segments))
    yield from _expected(batch)
    yield from _counted([(pack_place(*at),) for at in batch.drop_segments])
    overlap = any(a.log == b.log and a.stop > b.start for a, b in pairwise(segments))
    yield int(overlap)
    yield from _rows(batch, segments)
    yield from _counted([(place(*key),) for key in batch.drop_checkpoints])
    yield from _counted(
        [(place(ns, id_) + b"\x00" + pack_number(seq),) for ns, id_, seq in batch.drop_writes]
    )
    yield from _counted([(place(*key),) for key in batch.hide_checkpoints])
    members = [row for row in batch.drop_unreadable if row.table != THREADS]
    yield from _counted([(row.table, row.key) for row in members])
    yield int(batch.bump_generation)
    yield int(batch.removes)
    yield from registry_words(batch)


def drop_words(change: DropThread) -> Iterator[Word]:
    """Yield the arguments of `drop.lua`."""
    yield from _expected(change.expected)
    yield from (change.now, int(change.entry is not None))
    if change.entry is not None:
        yield from entry_words(change.entry)
    rows = change.rows
    yield int(rows is not None)
    if rows is not None:
        yield from _rows(rows, rows.segments)
        yield int(rows.bump_generation)
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
