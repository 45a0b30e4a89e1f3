"""Reads that span threads, and the index of threads.

An entry is stored in its thread's own row, which decides. The index, in another slot, is a hint:
sorted sets of ids by time, and a set of ids for each *term* (a state, a label, an origin). It is
updated before a move and again after it, so a crash leaves ids too many at worst. Reads remove
these. A reply shows each thread in one state, but not all threads at the same instant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from math import inf
from operator import itemgetter
from typing import Any, TypeAlias

from threadkeep._core.engine import model
from threadkeep._core.engine.heads import Head, Move
from threadkeep._core.engine.thread_entry import (
    CountThreads,
    Lifecycle,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    is_record_label,
)
from threadkeep._core.engine.usage import ReadUsage
from threadkeep._stores.records import first_entries, matches, run_id
from threadkeep._stores.redis import usage
from threadkeep._stores.redis.heads import unpack_entry
from threadkeep._stores.redis.rows import (
    Word,
    key_of,
    pack_text,
    place,
    stored_rows,
    term_of,
    times_of,
    unpack_checkpoint,
    unpack_text,
)
from threadkeep._stores.redis.scripts import Question, RedisCommand, before, bounds, filter_texts
from threadkeep._stores.redis.server import Server

_TIMES = ("created_at", "updated_at")
_MANY = 64  # threads read in one round trip
_MANY_ENTRIES = 256  # entries read in one round trip
_FEW = 5000  # threads with a term (if there are no more, all are read)


async def answer(read: model.Read, server: Server) -> Any:
    """Answer a read that spans threads."""
    return await _ANSWERS[type(read)](read, server)


# -- changes of the index ---------------------------------------------------------------


def index_calls(move: Move, server: Server) -> tuple[list[RedisCommand], list[RedisCommand]]:
    """Return the calls that update the index: those before a move, and those before and after it.

    They are harmless if the move is refused.
    """
    old, new, prefix = move.old, move.new, server.prefix
    first: list[RedisCommand] = []
    if None not in (old.state, new.state) and new.updated_at != old.updated_at:
        first.append(_timed(prefix, "updated_at", new, "GT"))
    if _keeps_terms(move):
        return first, []
    again = [_added(prefix, term, new.thread) for term in _searched(move.labels)]
    again += [_added(prefix, term, new.thread) for term in _terms(new) - _terms(old)]
    if not old.number:
        again.append(RedisCommand(("ZADD", server.index, 0, new.thread.encode())))
    if new.state is not None:
        if old.state is None or new.created_at != old.created_at:
            again.append(_timed(prefix, "created_at", new, "NX"))
        if old.state is None:
            again.append(_timed(prefix, "updated_at", new, "GT"))
    return first, again


def _keeps_terms(move: Move) -> bool:
    """Return True if a move leaves the index as it is, except perhaps `updated_at`."""
    old, new = move.old, move.new
    return (
        not (move.labels or move.clears_labels)
        and bool(old.number)
        and (old.state, old.created_at, old.origin) == (new.state, new.created_at, new.origin)
        and old.status == new.status
        and (old.lease_until is None) == (new.lease_until is None)
    )


async def complete_index(
    moves: Sequence[Move], answers: Sequence[Sequence[bytes] | None], server: Server
) -> None:
    """Complete the index after moves, by the script's answers: exact times, and terms to remove."""
    calls: list[RedisCommand] = []
    strays: list[tuple[bytes, str]] = []
    for move, gone in zip(moves, answers, strict=True):
        if gone is None or _keeps_terms(move):
            continue
        old, new, prefix = move.old, move.new, server.prefix
        labels = {label.decode(errors="replace") for label in gone}.difference(move.labels)
        terms = [*(_terms(old) - _terms(new)), *_searched(labels)]
        strays += [(term_of(prefix, term), new.thread) for term in terms]
        if new.state is None:
            if old.state is not None:
                strays += [(times_of(prefix, name).encode(), new.thread) for name in _TIMES]
        elif old.state is None or new.created_at != old.created_at:
            calls += [_timed(prefix, name, new) for name in _TIMES]
    if calls:
        await server.sent(calls)
    if strays:
        await _take_out(strays, server)


def _terms(entry: Head | ThreadEntry) -> set[str]:
    """Return the terms of an entry, without its labels' terms."""
    terms = set() if entry.state is None else {f"state:{entry.state}"}
    if entry.status is not None:
        terms.add(f"status:{entry.status}")
    if entry.lease_until is not None:
        terms.add("lease:")
    return terms if entry.origin is None else {*terms, f"origin:{entry.origin[0]}"}


def _terms_of(status: str) -> tuple[str, ...]:
    """Return terms: each thread with a status has one of them."""
    if status in ("running", "held"):
        return ("lease:",)
    return ("lease:", "status:unfinished") if status == "unfinished" else (f"status:{status}",)


def _searched(labels: Iterable[str]) -> Iterator[str]:
    return (f"label:{label}" for label in labels if not is_record_label(label))


def _timed(prefix: str, name: str, head: Head, *how: str) -> RedisCommand:
    time = getattr(head, name)
    return RedisCommand(("ZADD", times_of(prefix, name), *how, time or 0, head.thread.encode()))


def _added(prefix: str, term: str, thread: str) -> RedisCommand:
    return RedisCommand(("SADD", term_of(prefix, term), thread.encode()))


# -- entries ---------------------------------------------------------------------------


async def _search(read: SearchThreads, server: Server) -> list[ThreadEntry]:
    pages = await _few(read.query, server, _FEW)
    if pages is None and read.order != "size" and not read.query.prefix:
        return await _in_order(read, server)
    best: list[ThreadEntry] = []
    async for found in pages or _all(read.query, server):
        best = first_entries(read, [*best, *found])
    return best


async def _count(read: CountThreads, server: Server) -> int:
    states = read.query.states_alone
    few = await _few(read.query, server, inf if states is None else _FEW)
    if few is None and states is not None:
        return await _count_states(states, read.query, server)
    return sum([len(found) async for found in few or _all(read.query, server)])


async def _count_states(states: frozenset[str], query: ThreadQuery, server: Server) -> int:
    """Count the matches of a query for states, which are read without the rest of the entries."""
    known = {state.encode() for state in Lifecycle}
    total = 0
    async for names, page in usage.counted(server, rows=False):
        counts = Counter(page.states)
        total += sum([counts[state.encode()] for state in states])
        if not counts.keys() <= known:  # without an entry, or with a damaged one
            some = zip(names, page.states, strict=True)
            others = await _entries([name for name, state in some if state not in known], server)
            total += len(_matching(others, query))
    return total


async def _few(
    query: ThreadQuery, server: Server, most: float
) -> AsyncIterator[list[ThreadEntry]] | None:
    """Return all matches, if a term of the query has at most `most` threads."""
    choices = [[f"label:{label}"] for label in query.labels]
    if query.states and not query.prefix:
        choices.append([f"state:{state}" for state in query.states])
    if query.statuses and "done" not in query.statuses:
        choices.append(sorted({term for one in query.statuses for term in _terms_of(one)}))
    choices += [["lease:"]] if query.due is not None else []
    choices += [[f"origin:{query.origin}"]] if query.origin is not None else []
    terms = [term for choice in choices for term in choice]
    counts = await server.sent(
        [RedisCommand(("SCARD", term_of(server.prefix, term))) for term in terms]
    )
    sizes = dict(zip(terms, counts, strict=True))
    weights = [sum(sizes[term] for term in choice) for choice in choices]
    if not weights or min(weights) > most:
        return None
    return _with_terms(choices[weights.index(min(weights))], query, server)


async def _with_terms(
    terms: Sequence[str], query: ThreadQuery, server: Server
) -> AsyncIterator[list[ThreadEntry]]:
    """Yield the matches among the threads of some terms, and remove stale ids from the sets."""
    keys = [term_of(server.prefix, term) for term in terms]
    members: dict[bytes, list[bytes]] = {}
    sets = await server.sent([RedisCommand(("SMEMBERS", key)) for key in keys])
    for key, found in zip(keys, sets, strict=True):
        for member in found:
            members.setdefault(member, []).append(key)
    names = sorted(members)
    for at in range(0, len(names), _MANY_ENTRIES):
        part = [name.decode() for name in names[at : at + _MANY_ENTRIES]]
        entries = await _entries(part, server)
        await _take_out(
            [
                (key, name)
                for name, entry in zip(part, entries, strict=True)
                for key in members[name.encode()]
                if entry is None or key not in _places_of(entry, server)
            ],
            server,
        )
        yield _matching(entries, query)


async def _take_out(strays: Sequence[tuple[bytes, str]], server: Server) -> None:
    """Remove threads from sets, some of them sorted, that they do not belong to.

    A thread that another process has just added is added again.
    """
    sorted_ = {times_of(server.prefix, name).encode() for name in _TIMES}
    names = [*dict.fromkeys(name for _, name in strays)]
    removing = [
        RedisCommand(("ZREM" if key in sorted_ else "SREM", key, name.encode()))
        for key, name in strays
    ]
    rows = (await server.sent([*removing, *_reading(names, server)]))[len(strays) :]
    entries = dict(zip(names, map(unpack_entry, names, rows), strict=True))
    back: list[RedisCommand] = []
    for key, name in strays:
        entry = entries[name]
        if entry is not None and key in (places := _places_of(entry, server)):
            verb = "ZADD" if key in sorted_ else "SADD"
            back.append(RedisCommand((verb, key, *places[key], name.encode())))
    await server.sent(back)


def _places_of(entry: ThreadEntry, server: Server) -> dict[bytes, tuple[int, ...]]:
    """Return the keys of a thread's sets, with its score if a set is sorted."""
    prefix = server.prefix
    times = {times_of(prefix, name).encode(): (getattr(entry, name),) for name in _TIMES}
    terms = (*_terms(entry), *_searched(entry.labels))
    return {**times, **{term_of(prefix, term): () for term in terms}}


def _matching(entries: Iterable[ThreadEntry | None], query: ThreadQuery) -> list[ThreadEntry]:
    return [entry for entry in entries if entry is not None and matches(entry, query)]


async def _all(query: ThreadQuery, server: Server) -> AsyncIterator[list[ThreadEntry]]:
    async for names in server.pages(_MANY_ENTRIES, prefix=query.prefix):
        yield _matching(await _entries(names, server), query)


async def _in_order(read: SearchThreads, server: Server) -> list[ThreadEntry]:
    """Return the first matches, ordered by time or id."""
    found: list[ThreadEntry] = []
    strays: list[tuple[bytes, str]] = []
    key = times_of(server.prefix, read.order).encode()
    async for names in _names(read, server):
        entries = await _entries(names, server)
        found += first_entries(read, _matching(entries, read.query))
        if read.order in _TIMES:
            strays += [(key, name) for name, entry in zip(names, entries, strict=True) if not entry]
        if len(found) >= read.limit:
            break
    await _take_out(strays, server)
    return found[: read.limit]


async def _names(read: SearchThreads, server: Server) -> AsyncIterator[list[str]]:
    """Yield pages of ids in the order of a search, from near its start."""
    by_name = read.order == "thread"
    key = server.index if by_name else times_of(server.prefix, read.order)
    lowest, highest = ("-", "+") if by_name else ("-inf", "+inf")
    name, end = "ZRANGEBY", highest
    begin: Word = lowest
    if read.descending:
        name, begin, end = "ZREVRANGEBY", highest, lowest
    if read.after is not None:
        begin = f"[{read.after[1]}" if by_name else str(read.after[0])
    name += "LEX" if by_name else "SCORE"
    offset, size = 0, max(read.limit + 1, 2)
    while True:
        (ids,) = await server.sent([RedisCommand((name, key, begin, end, "LIMIT", offset, size))])
        yield [member.decode() for member in ids]
        if len(ids) < size:
            return
        if by_name:  # (an offset would shift when others add or remove ids)
            begin = b"(" + ids[-1]
        else:
            offset += size
        size = _MANY_ENTRIES


async def _entries(names: Sequence[str], server: Server) -> list[ThreadEntry | None]:
    rows = await server.sent(_reading(names, server))
    return [unpack_entry(name, row) for name, row in zip(names, rows, strict=True)]


def _reading(names: Iterable[str], server: Server) -> list[RedisCommand]:
    # (a command instead of a script: it reads this one key at one instant, three times as fast)
    return [RedisCommand(("HGETALL", key_of(server.prefix, name))) for name in names]


# -- threads ---------------------------------------------------------------------------


async def _ask_all(
    server: Server, *questions: str, after: str | None = None, prefix: str = ""
) -> AsyncIterator[tuple[str, list[Any]]]:
    """Yield each thread after `after` that begins with `prefix`, and its answers."""
    async for names in server.pages(_MANY, after, prefix):
        asked = [(name, Question(question)) for name in names for question in questions]
        answers = iter(await server.ask(asked))
        for name in names:
            yield name, [next(answers) for _ in questions]


async def _find(read: model.FindThreads, server: Server) -> list[str]:
    found: list[str] = []
    question = "runs" if read.run_ids else "counts"
    pages = _ask_all(server, question, after=read.after, prefix=read.prefix)
    async for name, ((there, rows, *_),) in pages:
        if len(found) == read.limit:
            break
        if not there:
            await server.sweep(name)
        elif read.run_ids:
            wanted = any(run_id(unpack_checkpoint(row)) in read.run_ids for row in rows)
            found += [name] if wanted else []
        elif read.empty or rows:
            found.append(name)
    return found


async def _sizes(read: model.ReadSizes, server: Server) -> model.Sizes:
    total = await usage.memory(server) if read.after is None and not read.prefix else 0
    found: list[model.StoredThreadSize] = []
    pages = _ask_all(server, "counts", "bytes", after=read.after, prefix=read.prefix)
    async for name, ((_, *counts), sizes) in pages:
        if len(found) == read.limit:
            break
        if any(counts):
            found.append(model.StoredThreadSize(name, *counts[:3], *sizes))
    return model.Sizes(total, tuple(found))


async def _damage(_read: model.ReadDamage, server: Server) -> list[str]:
    findings = []
    async for name, ((*_, places, data),) in _ask_all(server, "counts"):
        if places != data:
            findings.append(
                f"thread {name!r} has {places} places of segments and the data of {data}"
            )
    return findings


# -- scans ---------------------------------------------------------------------------

_Place: TypeAlias = tuple[str, str, str]  # id, thread, ns


async def _scan(read: model.ScanCheckpoints, server: Server) -> list[model.StoredCheckpoint]:
    found: list[model.StoredCheckpoint] = []
    after = read.after
    while len(found) < read.limit:
        wanted = read.limit - len(found)
        places = await _newest(read, after, wanted, server)
        found += await _rows(places, server)
        if len(places) < wanted:
            break
        # (rows removed meanwhile must not make this page look like the last one)
        after = places[-1]
    return found


async def _newest(
    read: model.ScanCheckpoints, after: _Place | None, limit: int, server: Server
) -> list[_Place]:
    """Return the places of the first rows after `after`: ids only, merged over threads."""
    upper, lower = bounds(read._replace(after=after))
    which = b"" if read.ns is None else b"=" + pack_text(read.ns)
    best: list[_Place] = []
    last: str | None = None
    while True:
        names = [read.thread or ""]
        if read.thread is None:
            names = await server.threads(last, _MANY, read.prefix)
        # (in each namespace, one row at most has the id of `after`, and may be left out)
        words = (which, upper, lower, limit + 1, *filter_texts(read.filter))
        answers = await server.ask([(name, Question("places", words)) for name in names])
        for name, packed in zip(names, answers, strict=True):
            best += _places_behind(after, name, packed)
        best.sort(key=itemgetter(1, 2))
        best.sort(key=itemgetter(0), reverse=True)  # newest first, then by thread and namespace
        del best[limit:]
        if read.thread is not None or len(names) < _MANY:
            return best
        if len(best) == limit:  # smaller ids are not needed
            lower = max(lower, before(best[-1][0]))
        last = names[-1]


def _places_behind(after: _Place | None, thread: str, packed: Sequence[bytes]) -> Iterator[_Place]:
    for member in packed:
        ns, key = map(unpack_text, member.split(b"\x00"))
        if after is None or key < after[0] or (thread, ns) > after[1:]:
            yield key, thread, ns


async def _rows(places: Sequence[_Place], server: Server) -> list[model.StoredCheckpoint]:
    """Return the rows at these places, in the same order. Missing ones are left out."""
    by_thread: dict[str, list[bytes]] = {}
    for key, thread, ns in places:
        by_thread.setdefault(thread, []).append(place(ns, key))
    answers = await server.ask(
        [(thread, Question("rows", tuple(words))) for thread, words in by_thread.items()]
    )
    stored = {
        (row.row.id, row.thread, row.row.ns): row
        for thread, found in zip(by_thread, answers, strict=True)
        for row in stored_rows(thread, *found)
    }
    return [stored[found] for found in places if found in stored]


_ANSWERS: dict[type[model.Read], Callable[[Any, Server], Any]] = {
    model.FindThreads: _find,
    model.ReadSizes: _sizes,
    model.ReadDamage: _damage,
    model.ScanCheckpoints: _scan,
    ReadUsage: usage.usage,
    SearchThreads: _search,
    CountThreads: _count,
}
