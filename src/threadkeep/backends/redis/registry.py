"""The index of entries: finding and counting threads.

An entry lies in its thread's own row (`entries.py`), which alone is right. The index, in another
slot, says where to look: sorted sets of ids by time, and a set of ids for each *term* (a state, a
label, an origin). Invariant: the index is told of a change before it is made, and once more
after it; and taken out of a set is what is not so any more. So what a crash leaves are ids too
many, which are taken out when they are met.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from heapq import nlargest, nsmallest
from operator import attrgetter
from typing import Any, Protocol

from threadkeep.backends.records import matches
from threadkeep.backends.redis.entries import unpack_entry
from threadkeep.backends.redis.keys import keys_of, term_of, times_of
from threadkeep.backends.redis.reads import Question
from threadkeep.backends.redis.scripts import Call
from threadkeep.engine.model import Batch, Change, CopyThread, DropThread
from threadkeep.engine.thread_entry import (
    CountThreads,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    ThreadStatus,
    Touch,
    is_record_label,
)

_TIMES = ("created_at", "updated_at")
_MANY = 256  # entries that are read together
_FEW = 5000  # threads with a term; so few are all looked at


# -- the index: kept -------------------------------------------------------------------


def beforehand(change: Change, prefix: str) -> list[Call]:
    """What the index is told before a change is made."""
    if isinstance(change, CopyThread):
        return []
    thread, calls = change.thread, []
    put = change.rows if isinstance(change, DropThread) else change
    touch = (put.touch if isinstance(put, Batch) else None) or Touch()
    entry = change.entry if put is None or change.entry is not None else put.entry
    if isinstance(change, DropThread) and change.now:
        calls.append(_added(prefix, f"state:{ThreadStatus.DELETED}", thread))
    if entry is not None:
        calls += _listed(prefix, thread, entry.created_at, entry.updated_at, "NX")
        calls += [_added(prefix, term, thread) for term in _terms(entry)]
    if touch.at is not None:
        calls += _listed(prefix, thread, touch.at, touch.at, "GT")
        calls += [_added(prefix, f"state:{move.target}", thread) for move in touch.moves]
    return calls + [_added(prefix, term, thread) for term in _searched(touch.labels)]


def _terms(entry: ThreadEntry) -> Iterator[str]:
    yield f"state:{entry.state}"
    yield from _searched(entry.labels)
    if entry.origin is not None:
        yield f"origin:{entry.origin[0]}"


def _searched(labels: Iterable[str]) -> Iterator[str]:
    return (f"label:{label}" for label in labels if not is_record_label(label))


def _listed(prefix: str, thread: str, created: int, updated: int, how: str) -> list[Call]:
    member = thread.encode()
    return [
        Call(("ZADD", times_of(prefix, "created_at"), "NX", created, member)),
        Call(("ZADD", times_of(prefix, "updated_at"), how, updated, member)),
    ]


def _added(prefix: str, term: str, thread: str) -> Call:
    return Call(("SADD", term_of(prefix, term), thread.encode()))


def _removed(prefix: str, term: str | bytes, thread: str) -> Call:
    return Call(("SREM", term_of(prefix, term), thread.encode()))


def afterwards(change: Change, answer: Sequence[bytes], prefix: str) -> list[Call]:
    """What the index is told when a change was made, of what only its script knew."""
    if len(answer) <= 2:  # noqa: PLR2004 - it was refused, or done before
        return []
    before, after, created_at, updated_at, *gone = answer[2:]
    thread = change.thread
    calls = [_removed(prefix, term, thread) for term in gone]
    if before == after and isinstance(change, Batch):
        return calls
    if before and before != after:
        calls.append(_removed(prefix, b"state:" + before, thread))
    if after:
        calls.append(_added(prefix, f"state:{after.decode()}", thread))
    if after and (before in (b"", b"deleted") or not isinstance(change, Batch)):
        for name, at in zip(_TIMES, (created_at, updated_at), strict=True):
            calls.append(Call(("ZADD", times_of(prefix, name), at, thread.encode())))
    if not after:
        calls += [Call(("ZREM", times_of(prefix, name), thread.encode())) for name in _TIMES]
    return calls


# -- the index: asked --------------------------------------------------------------------


class Store(Protocol):
    """What these reads ask."""

    @property
    def prefix(self) -> str:
        """What the names of all keys begin with."""

    async def said(self, calls: Sequence[Call]) -> list[Any]:
        """The server's answers to some commands."""

    async def threads(
        self, after: str | None, limit: int, *, descending: bool = False
    ) -> list[str]:
        """Ids of all threads, in order, from behind `after` on."""

    async def ask(self, asked: Sequence[tuple[str, Question]]) -> list[Any]:
        """The answer to each question about a thread."""


async def search(read: SearchThreads, store: Store) -> list[ThreadEntry]:
    """Answer a `SearchThreads` as its docstring says."""
    place = attrgetter(read.order, "thread")

    def is_behind(entry: ThreadEntry) -> bool:
        if read.after is None:
            return True
        return bool(place(entry) < read.after if read.descending else place(entry) > read.after)

    pages = await _few(read.query, store)
    if pages is None and read.order in _TIMES:
        return await _in_time(read, store, is_behind)
    if pages is None and read.order == "thread":
        return await _in_name(read, store)
    best: list[ThreadEntry] = []
    first = nlargest if read.descending else nsmallest
    async for found in pages or _all(read.query, store):
        best = first(read.limit, [*best, *filter(is_behind, found)], key=place)
    return best


async def count(read: CountThreads, store: Store) -> int:
    """Answer a `CountThreads` as its docstring says."""
    total = 0
    async for found in await _few(read.query, store) or _all(read.query, store):
        total += len(found)
    return total


async def _few(query: ThreadQuery, store: Store) -> AsyncIterator[list[ThreadEntry]] | None:
    """All that are meant, where a term of theirs is so rare that they can be looked at."""
    choices = [[f"label:{label}"] for label in query.labels]
    choices += [[f"state:{state}" for state in query.states]] if query.states else []
    choices += [[f"origin:{query.origin}"]] if query.origin is not None else []
    terms = [term for choice in choices for term in choice]
    asked = [Call(("SCARD", term_of(store.prefix, term))) for term in terms]
    sizes = dict(zip(terms, await store.said(asked), strict=True)) if asked else {}
    weights = [sum(sizes[term] for term in choice) for choice in choices]
    if not weights or min(weights) > _FEW:
        return None
    return _with_terms(choices[weights.index(min(weights))], query, store)


async def _with_terms(
    terms: Sequence[str], query: ThreadQuery, store: Store
) -> AsyncIterator[list[ThreadEntry]]:
    """Those that are meant among the threads of some terms; the others are taken out."""
    keys = [term_of(store.prefix, term) for term in terms]
    sets = await store.said([Call(("SMEMBERS", key)) for key in keys])
    members: dict[bytes, list[bytes]] = {}
    for key, found in zip(keys, sets, strict=True):
        for member in found:
            members.setdefault(member, []).append(key)
    names = sorted(members)
    for at in range(0, len(names), _MANY):
        part = [name.decode() for name in names[at : at + _MANY]]
        entries = await _entries(part, store)
        await _take_out(
            [
                (key, name)
                for name, entry in zip(part, entries, strict=True)
                for key in members[name.encode()]
                if entry is None or key not in _keys(entry, store)
            ],
            store,
        )
        yield [entry for entry in entries if entry is not None and matches(entry, query)]


async def _take_out(strays: Sequence[tuple[bytes, str]], store: Store) -> None:
    """Take threads out of sets that they do not belong to, but for those that now do."""
    if not strays:
        return
    await store.said([Call(("SREM", key, name.encode())) for key, name in strays])
    entries = await _entries([name for _, name in strays], store)
    back = [
        Call(("SADD", key, name.encode()))
        for (key, name), entry in zip(strays, entries, strict=True)
        if entry is not None and key in _keys(entry, store)
    ]
    if back:
        await store.said(back)


def _keys(entry: ThreadEntry, store: Store) -> list[bytes]:
    return [term_of(store.prefix, term) for term in _terms(entry)]


async def _all(query: ThreadQuery, store: Store) -> AsyncIterator[list[ThreadEntry]]:
    """Those that are meant among all threads."""
    after: str | None = None
    while True:
        names = await store.threads(after, _MANY)
        entries = await _entries(names, store)
        yield [entry for entry in entries if entry is not None and matches(entry, query)]
        if len(names) < _MANY:
            return
        after = names[-1]


async def _in_time(
    read: SearchThreads, store: Store, is_behind: Callable[[ThreadEntry], bool]
) -> list[ThreadEntry]:
    """The first that are meant in the order of their times."""
    key, found = times_of(store.prefix, read.order), list[ThreadEntry]()
    bound: bytes = b"+inf" if read.descending else b"-inf"
    if read.after is not None:
        bound = str(read.after[0]).encode()
    offset, size = 0, max(read.limit + 1, 2)
    while len(found) < read.limit:
        way = ("ZREVRANGEBYSCORE", key, bound, "-inf")
        if not read.descending:
            way = ("ZRANGEBYSCORE", key, bound, "+inf")
        (flat,) = await store.said([Call((*way, "LIMIT", offset, size))])
        entries = await _entries([name.decode() for name in flat], store)
        found += [one for one in entries if one and matches(one, read.query) and is_behind(one)]
        await _unlist(
            key, [name for name, one in zip(flat, entries, strict=True) if one is None], store
        )
        if len(flat) < size:
            break
        offset, size = offset + size, _MANY
    return found[: read.limit]


async def _in_name(read: SearchThreads, store: Store) -> list[ThreadEntry]:
    """The first that are meant in the order of their names."""
    found: list[ThreadEntry] = []
    after = None if read.after is None else read.after[1]
    size = read.limit
    while len(found) < read.limit:
        names = await store.threads(after, size, descending=read.descending)
        entries = await _entries(names, store)
        found += [one for one in entries if one is not None and matches(one, read.query)]
        if len(names) < size:
            break
        after, size = names[-1], _MANY
    return found[: read.limit]


async def _unlist(key: str, names: Sequence[bytes], store: Store) -> None:
    """Take threads that have no entry out of an order, but for those that now have one."""
    if not names:
        return
    await store.said([Call(("ZREM", key, name)) for name in names])
    entries = await _entries([name.decode() for name in names], store)
    name = key.rpartition(":")[2]
    back = [
        Call(("ZADD", key, getattr(entry, name), entry.thread.encode()))
        for entry in entries
        if entry is not None
    ]
    if back:
        await store.said(back)


async def _entries(names: Sequence[str], store: Store) -> list[ThreadEntry | None]:
    # (no script: of this one key a command tells one state, and is three times as fast)
    keys = [keys_of(store.prefix, name)[0] for name in names]
    rows = await store.said([Call(("HGETALL", key)) for key in keys])
    return [unpack_entry(name, row) for name, row in zip(names, rows, strict=True)]
