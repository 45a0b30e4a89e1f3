"""Scripts that run in the server: their calls, their arguments, and their answers as records.

The text of a script depends only on the files next to this module, so a server caches few. One run
of `read.lua` answers the reads of a thread, so they see one state. `move.lua` makes moves: see
`moves`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pkgutil import get_data
from typing import Any, NamedTuple, TypeVar

from threadkeep._core.engine import model, rule_reads
from threadkeep._core.engine.heads import Head, readable, sound
from threadkeep._core.engine.thread_entry import ReadClock, ReadEntry
from threadkeep._stores.records import with_writes
from threadkeep._stores.redis.heads import (
    damaged_row,
    key_of_row,
    mended_head,
    unpack_entry,
    unpack_head,
)
from threadkeep._stores.redis.rows import (
    Word,
    keyframes_of,
    pack_checkpoint,
    pack_child,
    pack_number,
    pack_place,
    pack_text,
    pack_write,
    pairs,
    place,
    stored_rows,
    unpack_checkpoint,
    unpack_place,
    unpack_text,
    unpack_write,
)

T = TypeVar("T")

# -- calls of scripts ------------------------------------------------------------------

_FILES = {  # by the name of the script
    "read": ("common", "read"),
    "move": ("common", "move"),
    "items": ("items",),
    "cache": ("cache",),
    "item_page": ("item_page",),
    "item_namespaces": ("item_namespaces",),
    "census": ("census",),
    "item_usage": ("item_usage",),
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


# -- reads -----------------------------------------------------------------------------

_MOST_WORDS = 3_000  # of a list in one question: Lua's stack holds about 8,000
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


def _in_parts(name: str, first: tuple[Word, ...], words: Sequence[Word]) -> tuple[Question, ...]:
    """Ask a question about a list, in parts. Each begins with the words `first`."""
    parts = [words[at : at + _MOST_WORDS] for at in range(0, len(words), _MOST_WORDS)]
    return tuple([Question(name, (*first, *part)) for part in parts])


def inquiry(read: Any, found: Callable[[Head], None]) -> Inquiry | None:
    """Return the questions for a read, or None if it spans threads or namespaces.

    A reply that brings a thread's head calls `found` with it.
    """
    if isinstance(read, model.ScanCheckpoints) and (read.thread is None or read.ns is None):
        return None
    if isinstance(read, model.ReadCheckpoint):
        return _checkpoint(read, found)
    ask = _INQUIRIES.get(type(read))
    return None if ask is None else ask(read)


def _checkpoint(read: model.ReadCheckpoint, found: Callable[[Head], None]) -> Inquiry:
    if read.id is None:
        question = Question("head", (pack_text(read.ns),))
    else:
        question = Question("one", (place(read.ns, read.id),))

    def reply(answers: Sequence[Any]) -> model.ThreadState:
        ((now, *stored),) = answers
        rows = stored_rows(read.thread, *stored)
        row = rows[0] if rows else None
        stored_head = unpack_head(read.thread, now)
        head = readable(stored_head)
        if head is stored_head:
            found(head)
        state = (head.generation, head.deleted_at, row, head.tips, head.life, head.logs)
        return model.ThreadState(*state)

    return Inquiry(read.thread, (question,), reply)


def _path(read: model.ReadPath) -> Inquiry:
    return _rows(read.thread, "path", pack_text(read.ns), pack_text(read.id), read.limit)


def _rows(thread: str, name: str, *words: Word) -> Inquiry:
    """Return the inquiry of one question for checkpoints."""
    question = Question(name, words)
    return Inquiry(thread, (question,), lambda answers: stored_rows(thread, *answers[0]))


def _segments(read: model.ReadSegments) -> Inquiry:
    spans = [word for span in read.spans if span[1] < span[2] for word in map(pack_number, span)]
    generation = "" if read.generation is None else read.generation
    first = (generation, len(read.base), *map(pack_number, read.base))
    questions = _in_parts("segments", first, spans)

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
        bare = (Question("bare"),)
        return Inquiry(read.thread, bare, lambda found: _readable_rows(read.thread, *found[0]))

    def reply(answers: Sequence[Any]) -> model.ThreadRows:
        ((now, members, keys, flat, writes, places, sizes),) = answers
        head = readable(unpack_head(read.thread, now))
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
            head.generation,
            head.deleted_at,
            checkpoints,
            orphans,
            infos,
            tips=head.tips,
            life=head.life,
        )

    return Inquiry(read.thread, (Question("thread"),), reply)


def _readable_rows(
    thread: str,
    now: Sequence[bytes],
    members: Sequence[bytes],
    writes: Sequence[bytes],
    children: Sequence[bytes],
    places: Sequence[bytes],
    sizes: Sequence[int],
    stray: Sequence[bytes],
) -> model.ThreadRows:
    """Answer a `ReadThread` with `skip`.

    A member becomes a record only if the record packs to the same bytes: otherwise the scripts
    would not find the member again.
    """
    broken = list(damaged_row(thread, now))
    rows = _readable("checkpoints", members, unpack_checkpoint, pack_checkpoint, broken)
    made = _readable("writes", writes, unpack_write, pack_write, broken)
    sound = _readable("segments", places, _sound_place, lambda at: pack_place(*at), broken)
    wanted = {pack_child(row) for row in rows}
    problem = "it is the child entry of a missing checkpoint"
    broken += [model.UnreadableRow("children", m, problem, m) for m in children if m not in wanted]
    problem = "it is data of a segment without its place"
    broken += [model.UnreadableRow("data", name, problem, data) for name, data in pairs(stray)]
    checkpoints, orphans = with_writes(thread, rows, [None] * len(rows), made)
    size_of = dict(zip(places, sizes, strict=True))
    infos = tuple([model.SegmentInfo(*at, size_of[pack_place(*at)]) for at in sound])
    head = readable(unpack_head(thread, now), skip=True)
    rows_ = (checkpoints, orphans, infos, (), tuple(broken))
    return model.ThreadRows(head.generation, head.deleted_at, *rows_, head.tips, head.life)


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
    """Return the upper (exclusive) and lower (inclusive) bounds of ids, or b"" for no bound.

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


# -- reads of the rules ------------------------------------------------------------------


def _head(read: rule_reads.ReadHead) -> Inquiry:
    question = Question("entry")
    return Inquiry(
        read.thread, (question,), lambda found: sound(unpack_head(read.thread, found[0]))
    )


def _damaged(read: rule_reads.ReadDamaged) -> Inquiry:
    def reply(answers: Sequence[Any]) -> Head | None:
        ((row, members, writes, *_),) = answers
        if key_of_row(row) != read.key:
            return None
        return mended_head(read.thread, row, members, writes)

    return Inquiry(read.thread, (Question("bare"),), reply)


def _newer(read: rule_reads.ReadNewer) -> Inquiry:
    first = b"[" + pack_text(read.ns) + b"\x00"
    if read.id is not None:
        first += pack_text(read.id) + b"\x01"

    def reply(answers: Sequence[Any]) -> list[str]:
        return [unpack_text(found.split(b"\x00")[1]) for found in answers[0]]

    question = Question("newer", (pack_text(read.ns), first, read.limit))
    return Inquiry(read.head.thread, (question,), reply)


def _others(read: rule_reads.HasOthers) -> Inquiry:
    unseen = pack_number(max(read.seen + 1, 0))
    words = (place(read.ns, read.checkpoint_id), unseen, pack_number(read.run))
    return Inquiry(read.head.thread, (Question("others", words),), lambda found: bool(found[0]))


def _counts(read: rule_reads.CountRows) -> Inquiry:
    (head,) = read.heads  # (no threads share a heap)
    return Inquiry(head.thread, (Question("counts"),), lambda found: tuple(found[0][1:3]))


def _holds(read: rule_reads.HoldsCheckpoints) -> Inquiry:
    last = 4 if read.any_row else 2
    return Inquiry(read.head.thread, (Question("counts"),), lambda found: any(found[0][1:last]))


def _ends(read: rule_reads.ReadEnds) -> Inquiry:
    logs = [pack_number(log) for log in read.logs]

    def reply(answers: Sequence[Any]) -> dict[int, int]:
        places = [unpack_place(at) for found in answers for at in found]
        return {log: start + count for log, start, count in places}

    return Inquiry(read.head.thread, _in_parts("ends", (), logs), reply)


def _clock(read: ReadClock) -> Inquiry:
    def reply(answers: Sequence[Any]) -> int:
        seconds, rest = map(int, answers[0])
        return seconds * 1_000_000 + rest

    return Inquiry(read.thread, (Question("clock"),), reply)


_INQUIRIES: dict[type, Callable[[Any], Inquiry]] = {
    ReadClock: _clock,
    model.ReadSegments: _segments,
    model.ReadPath: _path,
    model.ReadThread: _thread,
    model.ScanCheckpoints: _page,
    ReadEntry: _entry,
    rule_reads.ReadHead: _head,
    rule_reads.ReadDamaged: _damaged,
    rule_reads.ReadNewer: _newer,
    rule_reads.HasOthers: _others,
    rule_reads.CountRows: _counts,
    rule_reads.HoldsCheckpoints: _holds,
    rule_reads.ReadEnds: _ends,
}
