"""Scripts that run in the server: their calls, their arguments, and their answers as records.

The text of a script depends only on the files beside this module, so a server caches few. Arguments
are packed in the order in which `commit.lua`, `drop.lua` and `fork.lua` take them. One run of
`read.lua` answers the reads of a thread, so they see one state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pkgutil import get_data
from typing import Any, NamedTuple, TypeVar

from threadkeep._core.engine import model
from threadkeep._core.engine.thread_entry import EntryFence, ReadEntry
from threadkeep._stores.records import overlap, tip_of, with_writes
from threadkeep._stores.redis.rows import (
    Word,
    damaged_row,
    entry_words,
    keyframes_of,
    pack_checkpoint,
    pack_child,
    pack_number,
    pack_place,
    pack_text,
    pack_write,
    pairs,
    place,
    registry_words,
    stored_rows,
    unpack_checkpoint,
    unpack_entry,
    unpack_place,
    unpack_state,
    unpack_write,
)

T = TypeVar("T")

# -- calls of scripts ------------------------------------------------------------------

_FILES = {  # by the name of the script
    "read": ("common", "read"),
    "commit": ("common", "writing", "rows", "commit"),
    "drop": ("common", "writing", "rows", "drop"),
    "copy": ("common", "writing", "founding", "copy"),
    "fork": ("common", "writing", "founding", "fork"),
    "items": ("items",),
    "cache": ("cache",),
    "item_page": ("item_page",),
    "item_namespaces": ("item_namespaces",),
    "census": ("census",),
    "item_usage": ("sampled", "item_usage"),
    "cache_usage": ("sampled", "cache_usage"),
}


class RedisCommand(NamedTuple):
    """A command. If it runs a script, `whole` is the same command with the script's text."""

    words: tuple[Word, ...]
    whole: tuple[Word, ...] | None = None


def _script(name: str) -> tuple[str, str]:
    """Return a script's text and digest."""
    found = [get_data(__package__, f"{one}.lua") or b"" for one in _FILES[name]]
    text = b"\n".join(found).decode()
    # (Redis names scripts by SHA-1)
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


# (read at import: event loops must not open files)
_SCRIPTS = {name: _script(name) for name in _FILES}


def call(name: str, keys: Sequence[str], arguments: Sequence[Word]) -> RedisCommand:
    """Call a script, named as in `_FILES`."""
    text, digest = _SCRIPTS[name]
    rest = (len(keys), *keys, *arguments)
    return RedisCommand(("EVALSHA", digest, *rest), ("EVAL", text, *rest))


# -- arguments of changes --------------------------------------------------------------


def batch_words(batches: Sequence[model.Batch]) -> Iterator[Word]:
    """Yield the arguments of `commit.lua`: batches of one thread."""
    yield len(batches)
    for batch in batches:
        words = list(_batch_words(batch))
        yield len(words)
        yield from words


def _batch_words(batch: model.Batch) -> Iterator[Word]:
    segments = sorted(set(batch.segments))
    yield from _expected(batch)
    yield from _counted([(pack_place(*at),) for at in batch.drop_segments])
    yield int(overlap(segments))
    yield from _added(batch, segments)
    yield from _counted([(place(*key),) for key in batch.drop_checkpoints])
    yield from _counted(
        [(place(ns, id_) + b"\x00" + pack_number(seq),) for ns, id_, seq in batch.drop_writes]
    )
    yield from _counted([_replacement(row) for row in batch.replace_writes])
    yield from _counted([(place(*key),) for key in batch.hide_checkpoints])
    members = [row for row in batch.drop_unreadable if row.table != model.THREADS]
    yield from _counted([(row.table, row.key) for row in members])
    yield int(batch.bump_generation)
    yield int(batch.removes)
    yield pack_number(tip_of(batch))
    yield from registry_words(batch)


def _replacement(row: model.WriteRow) -> tuple[bytes, bytes]:
    """Return the part of a write's member that finds it, and the rest of its new member."""
    return place(row.ns, row.checkpoint_id) + b"\x00" + pack_number(row.seq), pack_write(row)


def drop_words(change: model.DropThread) -> Iterator[Word]:
    """Yield the arguments of `drop.lua`."""
    tip = tip_of(change)
    yield tip if change.ends else ""
    yield from _expected(change.expected)
    yield from (change.now, pack_number(tip))
    yield int(change.entry is not None)
    if change.entry is not None:
        yield from entry_words(change.entry)
    rows = change.rows
    yield int(rows is not None)
    if rows is not None:
        yield from _added(rows, rows.segments)
        yield int(rows.bump_generation)
        yield pack_number(tip_of(rows))
        yield from registry_words(rows)


def fork_words(change: model.ForkThread, found: Sequence[Any]) -> Iterator[Word]:
    """Yield the arguments of `fork.lua`; `found` is the answer to "whole" for the source."""
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


def _added(batch: model.Batch, segments: Sequence[model.Segment]) -> Iterator[Word]:
    """Yield the rows that a batch adds, with its segments in this order."""
    yield from _counted([(pack_place(s.log, s.start, s.count), s.data) for s in segments])
    yield from _counted(
        [(place(r.ns, r.id), pack_checkpoint(r), pack_child(r)) for r in batch.checkpoints]
    )
    yield from _counted([(place(w.ns, w.checkpoint_id), pack_write(w)) for w in batch.writes])


def _expected(batch: model.Batch) -> Iterator[Word]:
    """Yield what `rows.lua` checks first."""
    for number in (batch.life, batch.generation):
        yield "" if number is None else number
    yield from _counted([(pack_number(tip),) for tip in batch.base])
    yield from _counted([_fence(fence, batch) for fence in batch.fences])


def _counted(rows: Sequence[Sequence[Word]]) -> Iterator[Word]:
    yield len(rows)
    for row in rows:
        yield from row


def _fence(fence: model.Fence, batch: model.Batch) -> tuple[Word, ...]:
    match fence:
        case model.HeadFence(ns, expected):
            first = b"[" + pack_text(ns) + b"\x00"
            if expected is not None:
                first += pack_text(expected) + b"\x01"
            own = [place(row.ns, row.id) for row in batch.checkpoints if row.ns == ns]
            return ("head", pack_text(ns), first, len(own), *own)
        case model.WritesFence(ns, checkpoint, run, seen):
            unseen = pack_number(max(seen + 1, 0))
            return ("writes", place(ns, checkpoint), unseen, pack_number(run))
        case model.RowsFence():
            return ("rows", fence.checkpoints, fence.writes)
        case EntryFence():
            return ("entry", fence.revision)


# -- reads -----------------------------------------------------------------------------

_MOST_SPANS = 1_000  # in one question: Lua's stack holds about 8,000 words
USES = {"head", "one", "path", "segments", "page", "rows"}
"""Questions of programs that use a thread, so `ttl_refresh_on_read` applies."""


class Question(NamedTuple):
    """A question to `read.lua`: its name and arguments."""

    name: str
    words: tuple[Word, ...] = ()


class Inquiry(NamedTuple):
    """The questions for a read of a thread, and a function from the answers to the reply."""

    thread: str
    questions: tuple[Question, ...]
    reply: Callable[[Sequence[Any]], Any]


def inquiry(read: model.Read) -> Inquiry | None:
    """Return the questions for a read, or None if it spans threads or namespaces."""
    if isinstance(read, model.ScanCheckpoints) and (read.thread is None or read.ns is None):
        return None
    ask = _INQUIRIES.get(type(read))
    return None if ask is None else ask(read)


def _checkpoint(read: model.ReadCheckpoint) -> Inquiry:
    if read.id is None:
        question = Question("head", (pack_text(read.ns),))
    else:
        question = Question("one", (place(read.ns, read.id),))

    def reply(answers: Sequence[Any]) -> model.ThreadState:
        ((now, *found),) = answers
        generation, deleted_at, tips, life = unpack_state(now)
        rows = stored_rows(read.thread, *found)
        return model.ThreadState(generation, deleted_at, rows[0] if rows else None, tips, life)

    return Inquiry(read.thread, (question,), reply)


def _path(read: model.ReadPath) -> Inquiry:
    return _rows(read.thread, "path", pack_text(read.ns), pack_text(read.id), read.limit)


def _rows(thread: str, name: str, *words: Word) -> Inquiry:
    """Return the inquiry of one question for checkpoints."""
    question = Question(name, words)
    return Inquiry(thread, (question,), lambda answers: stored_rows(thread, *answers[0]))


def _segments(read: model.ReadSegments) -> Inquiry:
    spans = [tuple(map(pack_number, span)) for span in read.spans if span[1] < span[2]]
    generation = "" if read.generation is None else read.generation
    questions = tuple(
        Question(
            "segments",
            (
                *(generation, len(read.base), *map(pack_number, read.base)),
                *(word for span in spans[at : at + _MOST_SPANS] for word in span),
            ),
        )
        for at in range(0, len(spans), _MOST_SPANS)
    )

    def reply(answers: Sequence[Any]) -> list[model.Segment]:
        found = {at: data for flat in answers for at, data in pairs(flat)}
        return [model.Segment(*unpack_place(at), found[at]) for at in sorted(found)]

    return Inquiry(read.thread, questions, reply)


def _entry(read: ReadEntry) -> Inquiry:
    question = Question("entry")
    return Inquiry(read.thread, (question,), lambda found: unpack_entry(read.thread, found[0]))


# -- whole threads -------------------------------------------------------------------


def _thread(read: model.ReadThread) -> Inquiry:
    if read.skip:
        questions = (Question("bare"), Question("entry"))
        return Inquiry(read.thread, questions, lambda found: _readable_rows(read.thread, *found))

    def reply(answers: Sequence[Any]) -> model.ThreadRows:
        ((now, members, keys, flat, writes, places, sizes),) = answers
        generation, deleted_at, tips, life = unpack_state(now)
        keyframes = keyframes_of(flat)
        checkpoints, orphans = with_writes(
            read.thread,
            [unpack_checkpoint(member) for member in members],
            [keyframes[key] for key in keys],
            map(unpack_write, writes),
        )
        infos = tuple(
            [
                model.SegmentInfo(*unpack_place(at), size)
                for at, size in zip(places, sizes, strict=True)
            ]
        )
        return model.ThreadRows(
            generation, deleted_at, checkpoints, orphans, infos, tips=tips, life=life
        )

    return Inquiry(read.thread, (Question("thread"),), reply)


def _readable_rows(thread: str, answer: Sequence[Any], own: Sequence[bytes]) -> model.ThreadRows:
    """Answer a `ReadThread` with `skip`.

    A member becomes a record only if the record packs to the same bytes: otherwise the scripts
    would not find the member again.
    """
    now, members, writes, children, places, sizes, stray = answer
    broken = list(damaged_row(thread, own))
    rows = _readable("checkpoints", members, unpack_checkpoint, pack_checkpoint, broken)
    made = _readable("writes", writes, unpack_write, _packed_write, broken)
    sound = _readable("segments", places, _sound_place, lambda at: pack_place(*at), broken)
    wanted = {pack_child(row) for row in rows}
    problem = "it is the child entry of a missing checkpoint"
    broken += [model.UnreadableRow("children", m, problem, m) for m in children if m not in wanted]
    problem = "it is data of a segment without its place"
    broken += [model.UnreadableRow("data", name, problem, data) for name, data in pairs(stray)]
    checkpoints, orphans = with_writes(thread, rows, [None] * len(rows), made)
    size_of = dict(zip(places, sizes, strict=True))
    infos = tuple([model.SegmentInfo(*at, size_of[pack_place(*at)]) for at in sound])
    generation, deleted_at, tips, life = unpack_state(now, skip=True)
    rows_ = (checkpoints, orphans, infos, (), tuple(broken))
    return model.ThreadRows(generation, deleted_at, *rows_, tips, life)


def _readable(
    table: str,
    members: Sequence[bytes],
    unpack: Callable[[bytes], T],
    pack: Callable[[T], bytes],
    broken: list[model.UnreadableRow],
) -> list[T]:
    """Return the records of members, and add unreadable members to `broken`."""
    rows: list[T] = []
    for member in members:
        with suppress(ValueError, IndexError, TypeError, AttributeError):
            row = unpack(member)
            if pack(row) == member:
                rows.append(row)
                continue
        problem = f"one of its {table} cannot be decoded"
        broken.append(model.UnreadableRow(table, member, problem, member))
    return rows


def _sound_place(member: bytes) -> tuple[int, int, int]:
    log, start, count = unpack_place(member)
    if count < 1:
        raise ValueError(count)
    return log, start, count


def _packed_write(row: model.WriteRow) -> bytes:
    return place(row.ns, row.checkpoint_id) + b"\x00" + pack_number(row.seq) + pack_write(row)


# -- scans ---------------------------------------------------------------------------


def _page(read: model.ScanCheckpoints) -> Inquiry:
    """Ask for a page of one namespace of one thread. Other scans are in `threads`."""
    assert read.thread is not None  # noqa: S101
    assert read.ns is not None  # noqa: S101
    upper, lower = bounds(read)
    if read.after is not None and (read.thread, read.ns) <= read.after[1:]:
        upper = _smaller(upper, before(read.after[0]))
    texts = filter_texts(read.filter)
    return _rows(read.thread, "page", pack_text(read.ns), upper, lower, read.limit, *texts)


def before(key: str) -> bytes:
    """Return the upper bound for ids smaller than `key`."""
    return pack_text(key) + b"\x00"


def _up_to(key: str) -> bytes:
    """Return the upper bound for ids up to `key`."""
    return pack_text(key) + b"\x01"


def bounds(read: model.ScanCheckpoints) -> tuple[bytes, bytes]:
    """Return the upper (exclusive) and lower (inclusive) bounds of ids; b"" for no bound.

    The id of `after` is included: rows of other threads and namespaces may have it.
    """
    upper = b""
    if read.before is not None:
        upper = before(read.before)
    if read.id is not None:
        upper = _smaller(upper, _up_to(read.id))
    if read.after is not None:
        upper = _smaller(upper, _up_to(read.after[0]))
    return upper, before(read.id) if read.id is not None else b""


def _smaller(one: bytes, other: bytes) -> bytes:
    return min(one, other) if one else other


def filter_texts(wanted: Mapping[str, Any]) -> list[Word]:
    """Return texts that a match's JSON must contain: values that JSON writes in one way only."""
    return [
        json.dumps(value)
        for value in wanted.values()
        if isinstance(value, str) and value.isascii() and value.replace("-", "").isalnum()
    ]


_INQUIRIES: dict[type[model.Read], Callable[[Any], Inquiry]] = {
    model.ReadCheckpoint: _checkpoint,
    model.ReadSegments: _segments,
    model.ReadPath: _path,
    model.ReadThread: _thread,
    model.ScanCheckpoints: _page,
    ReadEntry: _entry,
}
