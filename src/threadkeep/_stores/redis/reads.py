"""Reads of one thread: the questions to `read.lua`, and its answers as records.

A read is answered by one run of the script, and so from one state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from threadkeep._core.engine.model import (
    Read,
    ReadCheckpoint,
    ReadPath,
    ReadSegments,
    ReadThread,
    ScanCheckpoints,
    Segment,
    SegmentInfo,
    ThreadRows,
    ThreadState,
    UnreadableRow,
    WriteRow,
)
from threadkeep._core.engine.thread_entry import ReadEntry
from threadkeep._stores.records import with_writes
from threadkeep._stores.redis.rows import (
    Word,
    damaged_row,
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
    unpack_entry,
    unpack_place,
    unpack_write,
)

T = TypeVar("T")

_MOST_SPANS = 1_000  # of one question: Lua's stack has room for some 8,000 words
_USES = {"head", "one", "path", "segments", "page", "rows"}


class Question(NamedTuple):
    """One read of `read.lua`: its name and arguments."""

    name: str
    words: tuple[Word, ...] = ()

    @property
    def is_use(self) -> bool:
        """True if the thread is read to be used, not merely looked after."""
        return self.name in _USES


class Inquiry(NamedTuple):
    """The questions that answer a read of a thread, and the function from answers to its reply."""

    thread: str
    questions: tuple[Question, ...]
    reply: Callable[[Sequence[Any]], Any]


def inquiry(read: Read) -> Inquiry | None:
    """Return the questions that answer a read; None where it spans threads or namespaces."""
    if isinstance(read, ScanCheckpoints) and (read.thread is None or read.ns is None):
        return None
    ask = _INQUIRIES.get(type(read))
    return None if ask is None else ask(read)


def _checkpoint(read: ReadCheckpoint) -> Inquiry:
    if read.id is None:
        question = Question("head", (pack_text(read.ns),))
    else:
        question = Question("one", (place(read.ns, read.id),))

    def reply(answers: Sequence[Any]) -> ThreadState:
        ((generation, deleted_at, *found),) = answers
        rows = stored_rows(read.thread, *found)
        return ThreadState(int(generation), int(deleted_at), rows[0] if rows else None)

    return Inquiry(read.thread, (question,), reply)


def _path(read: ReadPath) -> Inquiry:
    return _rows(read.thread, "path", pack_text(read.ns), pack_text(read.id), read.limit)


def _rows(thread: str, name: str, *words: Word) -> Inquiry:
    """Return the inquiry of a question that is answered by checkpoints."""
    question = Question(name, words)
    return Inquiry(thread, (question,), lambda answers: stored_rows(thread, *answers[0]))


def _segments(read: ReadSegments) -> Inquiry:
    spans = [tuple(map(pack_number, span)) for span in read.spans if span[1] < span[2]]
    generation = "" if read.generation is None else read.generation
    questions = tuple(
        Question(
            "segments",
            (generation, *(word for span in spans[at : at + _MOST_SPANS] for word in span)),
        )
        for at in range(0, len(spans), _MOST_SPANS)
    )

    def reply(answers: Sequence[Any]) -> list[Segment]:
        found = {at: data for flat in answers for at, data in pairs(flat)}
        return [Segment(*unpack_place(at), found[at]) for at in sorted(found)]

    return Inquiry(read.thread, questions, reply)


def _entry(read: ReadEntry) -> Inquiry:
    question = Question("entry")
    return Inquiry(read.thread, (question,), lambda found: unpack_entry(read.thread, found[0]))


# -- whole threads -------------------------------------------------------------------


def _thread(read: ReadThread) -> Inquiry:
    if read.skip:
        questions = (Question("bare"), Question("entry"))
        return Inquiry(read.thread, questions, lambda found: _readable_rows(read.thread, *found))

    def reply(answers: Sequence[Any]) -> ThreadRows:
        ((generation, deleted_at, members, keys, flat, writes, places, sizes),) = answers
        keyframes = keyframes_of(flat)
        checkpoints, orphans = with_writes(
            read.thread,
            [unpack_checkpoint(member) for member in members],
            [keyframes[key] for key in keys],
            map(unpack_write, writes),
        )
        infos = tuple(
            [SegmentInfo(*unpack_place(at), size) for at, size in zip(places, sizes, strict=True)]
        )
        return ThreadRows(int(generation), int(deleted_at), checkpoints, orphans, infos)

    return Inquiry(read.thread, (Question("thread"),), reply)


def _readable_rows(thread: str, answer: Sequence[Any], own: Sequence[bytes]) -> ThreadRows:
    """Answer a `ReadThread` with `skip`.

    A record is made only of a member that is, byte by byte, what would be written for it, so
    that the scripts find it again by its place.
    """
    generation, deleted_at, members, writes, children, places, sizes, stray = answer
    broken = list(damaged_row(thread, own))
    rows = _readable("checkpoints", members, unpack_checkpoint, pack_checkpoint, broken)
    made = _readable("writes", writes, unpack_write, _packed_write, broken)
    sound = _readable("segments", places, _sound_place, lambda at: pack_place(*at), broken)
    wanted = {pack_child(row) for row in rows}
    problem = "it is the child entry of a missing checkpoint"
    broken += [UnreadableRow("children", m, problem, m) for m in children if m not in wanted]
    problem = "it is data of a segment without its place"
    broken += [UnreadableRow("data", name, problem, data) for name, data in pairs(stray)]
    checkpoints, orphans = with_writes(thread, rows, [None] * len(rows), made)
    size_of = dict(zip(places, sizes, strict=True))
    infos = tuple([SegmentInfo(*at, size_of[pack_place(*at)]) for at in sound])
    state = (_or_zero(generation), _or_zero(deleted_at))
    return ThreadRows(*state, checkpoints, orphans, infos, unreadable=tuple(broken))


def _or_zero(number: bytes) -> int:
    try:
        return int(number)
    except ValueError:
        return 0  # (it is told by the row's damage)


def _readable(
    table: str,
    members: Sequence[bytes],
    unpack: Callable[[bytes], T],
    pack: Callable[[T], bytes],
    broken: list[UnreadableRow],
) -> list[T]:
    """Return the records of members, and add those that cannot be read to `broken`."""
    rows: list[T] = []
    for member in members:
        with suppress(ValueError, IndexError, TypeError, AttributeError):
            row = unpack(member)
            if pack(row) == member:
                rows.append(row)
                continue
        problem = f"one of its {table} cannot be decoded"
        broken.append(UnreadableRow(table, member, problem, member))
    return rows


def _sound_place(member: bytes) -> tuple[int, int, int]:
    log, start, count = unpack_place(member)
    if count < 1:
        raise ValueError(count)
    return log, start, count


def _packed_write(row: WriteRow) -> bytes:
    return place(row.ns, row.checkpoint_id) + b"\x00" + pack_number(row.seq) + pack_write(row)


# -- scans ---------------------------------------------------------------------------


def _page(read: ScanCheckpoints) -> Inquiry:
    """Ask for a page of one namespace of one thread; other scans are in `threads`."""
    assert read.thread is not None  # noqa: S101
    assert read.ns is not None  # noqa: S101
    upper, lower = bounds(read)
    if read.after is not None and (read.thread, read.ns) <= read.after[1:]:
        upper = _smaller(upper, before(read.after[0]))
    texts = filter_texts(read.filter)
    return _rows(read.thread, "page", pack_text(read.ns), upper, lower, read.limit, *texts)


def before(key: str) -> bytes:
    """Return the bound below which all smaller ids are."""
    return pack_text(key) + b"\x00"


def _up_to(key: str) -> bytes:
    """Return the bound below which this id is too."""
    return pack_text(key) + b"\x01"


def bounds(read: ScanCheckpoints) -> tuple[bytes, bytes]:
    """Return the bounds below which and from which on ids are wanted; empty where there is none.

    Of `after` only the id counts, which may still be wanted in other places.
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
    """Return texts that a match's JSON must contain: of values that it can write in one way."""
    return [
        json.dumps(value)
        for value in wanted.values()
        if isinstance(value, str) and value.isascii() and value.replace("-", "").isalnum()
    ]


_INQUIRIES: dict[type[Read], Callable[[Any], Inquiry]] = {
    ReadCheckpoint: _checkpoint,
    ReadSegments: _segments,
    ReadPath: _path,
    ReadThread: _thread,
    ScanCheckpoints: _page,
    ReadEntry: _entry,
}
