"""Reads that span threads: each asks the index for ids, then thread after thread.

Only these reads live here. Invariants: a thread's own part of a reply is of one state, the
reply as a whole is not; what is held at a time is bounded by the read's limit and by `_MANY`
threads' answers. A thread that has vanished (its time has run out) is taken out of the index
when it is met.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

from threadkeep.backends.redis import registry
from threadkeep.backends.redis.packing import pack_text, unpack_text
from threadkeep.backends.redis.reads import (
    Question,
    before,
    bounds,
    filter_texts,
    stored_rows,
)
from threadkeep.backends.redis.rows import unpack_checkpoint
from threadkeep.engine.model import (
    FindThreads,
    Read,
    ReadDamage,
    ReadSizes,
    ScanCheckpoints,
    Sizes,
    StoredCheckpoint,
    ThreadSize,
)
from threadkeep.engine.thread_entry import (
    CountThreads,
    SearchThreads,
)

_MANY = 64  # threads that are asked together

_Place: TypeAlias = tuple[str, str, str]  # id, thread, ns


class Store(registry.Store, Protocol):
    """What these reads ask."""

    async def sweep(self, thread: str) -> None:
        """Take a thread that is not there out of the index."""


async def answer(read: Read, store: Store) -> Any:
    """Answer one read as its docstring says."""
    return await _ANSWERS[type(read)](read, store)


async def _asked(
    store: Store, question: Question, after: str | None = None
) -> AsyncIterator[tuple[str, Any]]:
    """Each thread from behind `after` on, and its answer."""
    while True:
        names = await store.threads(after, _MANY)
        answers = await store.ask([(name, question) for name in names])
        for name, found in zip(names, answers, strict=True):
            yield name, found
        if len(names) < _MANY:
            return
        after = names[-1]


# -- threads -------------------------------------------------------------------------


class Counts(NamedTuple):
    """How much a thread holds, as `read.lua` counts it."""

    there: int
    checkpoints: int
    writes: int
    places: int
    data: int


async def _find(read: FindThreads, store: Store) -> list[str]:
    question = Question("runs" if read.run_ids else "counts")
    found: list[str] = []
    async for name, answered in _asked(store, question, read.after):
        if len(found) == read.limit:
            break
        if not answered[0]:
            await store.sweep(name)
        elif _wanted(read, answered):
            found.append(name)
    return found


def _wanted(read: FindThreads, answered: Any) -> bool:
    if read.run_ids:
        return any(_run_id(member) in read.run_ids for member in answered[1])
    return read.empty or Counts(*answered).checkpoints > 0


def _run_id(member: bytes) -> object:
    metadata = json.loads(unpack_checkpoint(member).metadata)
    return metadata.get("run_id") if isinstance(metadata, dict) else None


async def _sizes(read: ReadSizes, store: Store) -> Sizes:
    total = 0
    found: list[ThreadSize] = []
    async for name, counted, (rows, segments, memory) in _sized(store):
        total += memory
        wanted = read.after is None or name > read.after
        if wanted and len(found) < read.limit and any(counted[1:]):
            numbers = (counted.checkpoints, counted.writes, counted.places)
            found.append(ThreadSize(name, *numbers, rows, segments))
    return Sizes(total, tuple(found))


async def _sized(store: Store) -> AsyncIterator[tuple[str, Counts, tuple[int, int, int]]]:
    after: str | None = None
    while True:
        names = await store.threads(after, _MANY)
        asked = [(name, Question(kind)) for name in names for kind in ("counts", "bytes")]
        answers = await store.ask(asked)
        for name, counted, sizes in zip(names, answers[::2], answers[1::2], strict=True):
            yield name, Counts(*counted), tuple(sizes)
        if len(names) < _MANY:
            return
        after = names[-1]


async def _damage(_read: ReadDamage, store: Store) -> list[str]:
    findings = []
    async for name, counted in _asked(store, Question("counts")):
        counts = Counts(*counted)
        if counts.places != counts.data:
            findings.append(
                f"thread {name!r} has {counts.places} places of segments and the data of"
                f" {counts.data}"
            )
    return findings


# -- scans ---------------------------------------------------------------------------


async def _scan(read: ScanCheckpoints, store: Store) -> list[StoredCheckpoint]:
    found: list[StoredCheckpoint] = []
    after = read.after
    while len(found) < read.limit:
        wanted = read.limit - len(found)
        places = await _newest(read, after, wanted, store)
        found += await _rows(places, store)
        if len(places) < wanted:
            break
        # A row that was removed meanwhile must not make the page look like the last one.
        after = places[-1]
    return found


async def _newest(
    read: ScanCheckpoints, after: _Place | None, limit: int, store: Store
) -> list[_Place]:
    """The places of the first rows behind `after`: ids alone, merged thread by thread."""
    upper, lower = bounds(read._replace(after=after))
    which = b"" if read.ns is None else b"=" + pack_text(read.ns)
    best: list[_Place] = []
    last: str | None = None
    while True:
        names = [read.thread] if read.thread is not None else await store.threads(last, _MANY)
        # (of each namespace one row at most has the very id of `after`, and may be left out)
        words = (which, upper, lower, limit + 1, *filter_texts(read.filter))
        answers = await store.ask([(name, Question("places", words)) for name in names])
        for name, packed in zip(names, answers, strict=True):
            best += _wanted_places(after, name, packed)
        best = _in_order(best)[:limit]
        if read.thread is not None or len(names) < _MANY:
            return best
        if len(best) == limit:  # no smaller ids are wanted any more
            lower = max(lower, before(best[-1][0]))
        last = names[-1]


def _wanted_places(after: _Place | None, thread: str, packed: Sequence[bytes]) -> list[_Place]:
    found = []
    for member in packed:
        ns, key = map(unpack_text, member.split(b"\x00"))
        if after is None or key < after[0] or (thread, ns) > after[1:]:
            found.append((key, thread, ns))
    return found


def _in_order(places: list[_Place]) -> list[_Place]:
    """Newest first, then by thread and namespace."""
    return sorted(sorted(places, key=itemgetter(1, 2)), key=itemgetter(0), reverse=True)


async def _rows(places: Sequence[_Place], store: Store) -> list[StoredCheckpoint]:
    """The rows of these places that are there, in the same order."""
    by_thread: dict[str, list[_Place]] = {}
    for found in places:
        by_thread.setdefault(found[1], []).append(found)
    asked = [
        (thread, Question("rows", tuple(_packed(ns, key) for key, _, ns in some)))
        for thread, some in by_thread.items()
    ]
    stored = {
        (row.row.id, row.thread, row.row.ns): row
        for (thread, _), (rows, keyframes) in zip(asked, await store.ask(asked), strict=True)
        for row in stored_rows(thread, rows, keyframes)
    }
    return [stored[found] for found in places if found in stored]


def _packed(ns: str, key: str) -> bytes:
    return pack_text(ns) + b"\x00" + pack_text(key)


_ANSWERS: dict[type[Read], Callable[[Any, Store], Any]] = {
    FindThreads: _find,
    ReadSizes: _sizes,
    ReadDamage: _damage,
    ScanCheckpoints: _scan,
    SearchThreads: registry.search,
    CountThreads: registry.count,
}
