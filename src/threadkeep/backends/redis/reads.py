"""Reads of one thread as what `read.lua` is given, and its answers as records.

Only this pair for each read lives here. Invariant: a read is answered by one run of the
script, and so from one state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from threadkeep.backends.records import first_children
from threadkeep.backends.redis import salvage
from threadkeep.backends.redis.entries import unpack_entry
from threadkeep.backends.redis.packing import pack_number, pack_text, place
from threadkeep.backends.redis.rows import (
    Keyframes,
    unpack_checkpoint,
    unpack_info,
    unpack_place,
    unpack_stored,
    unpack_write,
)
from threadkeep.backends.redis.scripts import Word
from threadkeep.engine.model import (
    Read,
    ReadCheckpoint,
    ReadPath,
    ReadSegments,
    ReadThread,
    ScanCheckpoints,
    Segment,
    StoredCheckpoint,
    ThreadRows,
    ThreadState,
)
from threadkeep.engine.thread_entry import ReadEntry

_MOST_WORDS = 3_000  # of one question: Lua's stack has room for some 8,000


_USES = {"head", "one", "path", "segments", "page", "rows"}


class Question(NamedTuple):
    """One read of `read.lua`: its name and arguments."""

    name: str
    words: tuple[Word, ...] = ()

    @property
    def is_use(self) -> bool:
        """Whether the thread is read to be used, not merely looked after."""
        return self.name in _USES


class Inquiry(NamedTuple):
    """The questions that answer a read of a thread, and what makes its reply of the answers."""

    thread: str
    questions: tuple[Question, ...]
    reply: Callable[[Sequence[Any]], Any]


def is_of_thread(read: Read) -> bool:
    """Whether the read is of one thread, and can be answered by one question or a few."""
    if isinstance(read, ScanCheckpoints):
        return read.thread is not None and read.ns is not None
    return type(read) in _INQUIRIES


def words_of(questions: Sequence[Question]) -> list[Word]:
    """What `read.lua` is given."""
    return [word for q in questions for word in (q.name, len(q.words), *q.words)]


def inquiry(read: Read) -> Inquiry:
    """What answers one read as its docstring says."""
    return _INQUIRIES[type(read)](read)


def _checkpoint(read: ReadCheckpoint) -> Inquiry:
    if read.id is None:
        question = Question("head", (pack_text(read.ns),))
    else:
        question = Question("one", (place(read.ns, read.id),))

    def reply(answers: Sequence[Any]) -> ThreadState:
        ((generation, deleted_at, found, keyframes),) = answers
        rows = stored_rows(read.thread, found, keyframes)
        return ThreadState(int(generation), int(deleted_at), rows[0] if rows else None)

    return Inquiry(read.thread, (question,), reply)


def stored_rows(thread: str, found: Any, keyframes: Any) -> list[StoredCheckpoint]:
    """The checkpoints of an answer."""
    known = Keyframes(keyframes)
    return [unpack_stored(thread, known, row) for row in found]


def _path(read: ReadPath) -> Inquiry:
    words = (pack_text(read.ns), pack_text(read.id), read.limit)
    return Inquiry(
        read.thread,
        (Question("path", words),),
        lambda answers: stored_rows(read.thread, *answers[0]),
    )


def _segments(read: ReadSegments) -> Inquiry:
    spans = [
        (pack_number(log), pack_number(start), pack_number(stop))
        for log, start, stop in read.spans
        if start < stop
    ]
    generation = "" if read.generation is None else read.generation
    questions = tuple(
        Question("segments", (generation, *(word for span in some for word in span)))
        for some in _parts(spans, _MOST_WORDS // 3)
    )

    def reply(answers: Sequence[Any]) -> list[Segment]:
        found = {at: data for flat in answers for at, data in _pairs(flat)}
        return [Segment(*unpack_place(at), found[at]) for at in sorted(found)]

    return Inquiry(read.thread, questions, reply)


def _parts(spans: Sequence[tuple[bytes, ...]], size: int) -> Iterator[Sequence[tuple[bytes, ...]]]:
    return (spans[at : at + size] for at in range(0, len(spans), size))


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _thread(read: ReadThread) -> Inquiry:
    if read.skip:
        return Inquiry(
            read.thread,
            (Question("bare"),),
            lambda answers: salvage.thread_rows(read.thread, answers[0]),
        )

    def reply(answers: Sequence[Any]) -> ThreadRows:
        ((generation, deleted_at, members, keys, flat, writes, places, sizes),) = answers
        rows = [unpack_checkpoint(member) for member in members]
        first, keyframes = first_children(rows), Keyframes(flat)
        by_place = {
            at: tuple(group)
            for at, group in groupby(map(unpack_write, writes), attrgetter("ns", "checkpoint_id"))
        }
        checkpoints = tuple(
            StoredCheckpoint(
                read.thread,
                row,
                keyframes.at(key),
                by_place.pop((row.ns, row.id), ()),
                first.get((row.ns, row.id)),
            )
            for row, key in zip(rows, keys, strict=True)
        )
        orphans = tuple(row for group in by_place.values() for row in group)
        infos = tuple(map(unpack_info, places, sizes))
        return ThreadRows(int(generation), int(deleted_at), checkpoints, orphans, infos)

    return Inquiry(read.thread, (Question("thread"),), reply)


def _entry(read: ReadEntry) -> Inquiry:
    question = Question("entry")
    return Inquiry(read.thread, (question,), lambda found: unpack_entry(read.thread, found[0]))


# -- scans ---------------------------------------------------------------------------


def _page(read: ScanCheckpoints) -> Inquiry:
    """A scan of one namespace of one thread."""
    assert read.thread is not None  # noqa: S101 - other scans are in spanning.py
    assert read.ns is not None  # noqa: S101
    thread, ns = read.thread, read.ns
    upper, lower = bounds(read)
    if read.after is not None and (thread, ns) <= read.after[1:]:
        upper = _smaller(upper, before(read.after[0]))
    words = (pack_text(ns), upper, lower, read.limit, *filter_texts(read.filter))
    return Inquiry(
        thread, (Question("page", words),), lambda answers: stored_rows(thread, *answers[0])
    )


def before(key: str) -> bytes:
    """The bound below which all smaller ids are."""
    return pack_text(key) + b"\x00"


def up_to(key: str) -> bytes:
    """The bound below which this id is too."""
    return pack_text(key) + b"\x01"


def bounds(read: ScanCheckpoints) -> tuple[bytes, bytes]:
    """Below which and from which on ids are wanted; nothing where there is no bound.

    Of `after` only the id is looked at, which may be wanted in other places still.
    """
    upper = b""
    if read.before is not None:
        upper = before(read.before)
    if read.id is not None:
        upper = _smaller(upper, up_to(read.id))
    if read.after is not None:
        upper = _smaller(upper, up_to(read.after[0]))
    return upper, before(read.id) if read.id is not None else b""


def _smaller(one: bytes, other: bytes) -> bytes:
    return min(one, other) if one else other


def filter_texts(wanted: Mapping[str, Any]) -> list[Word]:
    """Texts that the JSON of a match must have in it: of values that it can write in one way."""
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
