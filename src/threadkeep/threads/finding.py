"""Threads by words of their messages, ids and metadata: the newest threads are read."""

from __future__ import annotations

import json
import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep._core import validation
from threadkeep._core.codec.codecs import PlainCodec
from threadkeep._core.engine import registration
from threadkeep._core.engine.context import Engine, named, read_channels, unless_hidden
from threadkeep._core.engine.load import Loaded, Wanted, of_thread
from threadkeep._core.engine.model import (
    Batch,
    HeadFence,
    ReadCheckpoint,
    StoredCheckpoint,
    Words,
)
from threadkeep._core.engine.operation import (
    Fetch,
    Operation,
    Progress,
    call,
    commit_many,
    external,
    no_progress,
)
from threadkeep._core.engine.shapes import AS_STORED
from threadkeep._core.engine.thread_entry import (
    WITH_CHECKPOINTS,
    Lifecycle,
    SearchThreads,
    ThreadQuery,
)
from threadkeep._core.engine.tips import Look
from threadkeep._core.parts import parts_of
from threadkeep._core.validation import LONGEST, duration
from threadkeep._core.words import CHARACTERS, joined, tokens
from threadkeep._run.driver import on
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import no_room
from threadkeep._stores.message_index import TEXT_CHARS
from threadkeep.errors import InvalidArgumentError, NotSetUpError, ThreadkeepError, invalid
from threadkeep.threads.messages import CHANNEL, Message, are_messages, message
from threadkeep.threads.registry import Filters, ThreadInfo, ThreadPage, count, search

_TOKENS = 1000
_FIRST, _MOST = 4, 64  # threads in the first read, and in any
_MOST_BYTES = 32 << 20  # of all checkpoints of these threads: about half a second
_QUICK = 0.1  # seconds: the read after a quicker one has more threads
PAGE = 128  # entries of threads in one read
_PART = 3  # characters of the shortest part of an id
_EXCERPT, _BEFORE = 120, 40  # characters of an excerpt, and of it before the match

KnownHeads: TypeAlias = "Mapping[str, HeadMessages | ThreadkeepError | None]"


@dataclass(frozen=True, slots=True)
class FoundThread:
    """A thread with a message, an id or metadata that has all words of a query.

    Args:
        thread: the thread's entry.
        found_in: "messages", or "id" or "metadata" if no message has all words.
        excerpt: about 120 characters around the first match, in one line.
        matches: the places of the words in the excerpt: first character and end.
        count: number of messages with all words.
        checkpoint_id: the head of the thread, whose newest such message the next fields name.
        channel: the channel that holds it.
        position: its place in the channel's list, counted from 0.
        message_id: its id, if it has one.
        role: "human", "ai", "tool" and so on.
    """

    thread: ThreadInfo
    found_in: Literal["messages", "id", "metadata"]
    excerpt: str
    matches: tuple[tuple[int, int], ...] = ()
    count: int = 0
    checkpoint_id: str | None = None
    channel: str | None = None
    position: int | None = None
    message_id: str | None = None
    role: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        data = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**data, "thread": self.thread.as_json(), "matches": [*map(list, self.matches)]}


@dataclass(frozen=True, slots=True)
class FoundThreads:
    """The threads that `find` has found, newest first, and how far it has read.

    Args:
        hits: the threads that match.
        threads_read: number of threads that were looked at, the newest ones.
        oldest: `updated_at` of the oldest of them. To read on, find with `updated_before=oldest`.
        complete: True if all threads were looked at, but for the messages of these two:
        archived: number of archived threads, whose messages are never read.
        skipped: threads that could not be read, with the reason.
        indexed: True if the index of messages was searched (`search="messages"`). Then only threads
            that may match were looked at.
        unindexed: number of threads, with the same filters, that are not in it. The newest of them
            were read.
    """

    hits: tuple[FoundThread, ...] = ()
    threads_read: int = 0
    oldest: datetime | None = None
    complete: bool = True
    archived: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)
    indexed: bool = False
    unindexed: int = 0

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        data = {one.name: getattr(self, one.name) for one in fields(self)}
        oldest = None if self.oldest is None else self.oldest.isoformat()
        hits = [one.as_json() for one in self.hits]
        return {**data, "hits": hits, "oldest": oldest, "skipped": {**self.skipped}}


class HeadMessages(NamedTuple):
    """The messages of a thread's head."""

    checkpoint_id: str
    channel: str
    messages: Sequence[Any]


# -- words -----------------------------------------------------------------------------

_PHRASE = re.compile(f"[{CHARACTERS}]+")


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


class QueryWords:
    """The words of a query. A text must have all of them.

    Characters of Chinese, Japanese or Korean that the query writes together must be together.

    Raises:
        InvalidArgumentError: the query is no text, or has no words or too many.
    """

    def __init__(self, query: str) -> None:
        self._terms = _normal(validation.text("query", query)).split()
        self.tokens = [*dict.fromkeys(tokens(query))]
        if not 0 < len(self.tokens) <= _TOKENS:
            raise invalid("query", query, f"Use at least one word, and at most {_TOKENS}.")
        self._parts = [*self.tokens, *_PHRASE.findall(" ".join(self._terms))]
        words = sorted({one for term in self._terms for one in _shown(term)}, key=len, reverse=True)
        self._shown = re.compile("|".join(words), re.IGNORECASE)
        self._loose = re.compile("|".join(map(re.escape, self._terms)), re.IGNORECASE)

    def match(self, text: str) -> bool:
        """Return True if a text has all words."""
        normal = _normal(text)
        # (a word is a part of the text, which is a cheaper question)
        return all(part in normal for part in self._parts) and {*tokens(text)}.issuperset(
            self.tokens
        )

    def match_id(self, id: str) -> bool:
        """Return True if an id has all words, or longer parts of words."""
        normal = _normal(id)
        are_parts = all(len(one) >= _PART and one in normal for one in self._terms)
        return are_parts or self.match(id)

    def find_in(self, thread: ThreadInfo) -> FoundThread | None:
        """Look at a thread's id and metadata."""
        if self.match_id(thread.id):
            return FoundThread(thread, "id", *self.excerpt(thread.id))
        for key, value in thread.metadata.items():
            if self.match(text := _flat(value)):
                return FoundThread(thread, "metadata", *self.excerpt(f"{key}={text}"))
        return None

    def excerpt(self, text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
        """Return the part of a text around its first match, in one line, and all matches in it."""
        whole = " ".join(text.split())
        shows = self._shown if self._shown.search(whole) else self._loose
        first = shows.search(whole)
        start = max(0, min(first.start() - _BEFORE, len(whole) - _EXCERPT)) if first else 0
        if start:  # (not in the middle of a word, unless it is long)
            start = whole.find(" ", start, start + _BEFORE // 2) + 1 or start
        stop = start + _EXCERPT
        shown = f"{'…' if start else ''}{whole[start:stop]}{'…' if stop < len(whole) else ''}"
        return shown, tuple(one.span() for one in shows.finditer(shown))


def _shown(term: str) -> Iterator[str]:
    """Yield patterns that find a term of a query in a text: phrases, and whole words."""
    for phrase in _PHRASE.findall(term):
        yield re.escape(phrase)
    for word in re.findall(r"\w(?:.*\w)?", _PHRASE.sub(" ", term)):
        yield rf"(?<![^\W_]){re.escape(word)}(?![^\W_])"


def said(one: Message) -> str:
    """Return the text of a message by which it is found, with names and arguments of its tools."""
    calls = [f"{call.name} {_flat(call.args)}" for call in one.tool_calls]
    return "\n".join(filter(None, [one.text, *calls, one.name]))


_ESCAPE = re.compile(r"\\(?:[nrtbf]|(.))")


def _flat(value: Any) -> str:
    """Return a value as JSON, with spaces in place of line breaks, and no backslashes."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _ESCAPE.sub(lambda found: found[1] or " ", text)


# -- reading ---------------------------------------------------------------------------


def heads(engine: Engine, threads: Sequence[str]) -> Operation[KnownHeads]:
    """Read the messages of the heads of threads, without a class or code of a program.

    They are those of the channel "messages", else of the first channel that holds messages. A
    thread that cannot be read has an error instead.
    """
    plain = engine._replace(codec=PlainCodec(), shapes=AS_STORED)
    replies = yield Fetch([ReadCheckpoint(name, "") for name in threads])
    found: dict[str, HeadMessages | ThreadkeepError] = {}
    for thread, reply in zip(threads, replies, strict=True):
        stored = unless_hidden(reply.found)
        try:
            if stored is not None:
                found[thread] = yield from _head(plain, stored, Look.of(reply))
        except ThreadkeepError as error:
            found[thread] = error
    return found


def _head(engine: Engine, stored: StoredCheckpoint, look: Look) -> Operation[HeadMessages]:
    with named(stored):
        entries = read_channels(engine, stored)[0].entries
    wanted = (CHANNEL,) if CHANNEL in entries else [*entries]
    (loaded,) = yield from of_thread(engine, stored.thread, [stored], Wanted(wanted, look=look))
    return head_of(loaded)


def head_of(loaded: Loaded) -> HeadMessages:
    """Return the messages of a loaded checkpoint."""
    return HeadMessages(loaded.id, *messages_in(loaded.checkpoint["channel_values"]))


def messages_in(values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """Return the channel "messages", else the first channel that holds messages, and its messages.

    A channel that does not hold any has none.
    """
    for name in (CHANNEL, *sorted(values)):
        value: Any = values.get(name)
        value = value.value if isinstance(value, _DeltaSnapshot) else value
        if are_messages(value):
            return name, value
    return CHANNEL, ()


# -- finding ---------------------------------------------------------------------------

PageAfter: TypeAlias = Callable[[str | None], Operation[ThreadPage]]
ReadHeads: TypeAlias = Callable[[Sequence[str]], Operation[KnownHeads]]


def find(
    page: PageAfter, read: ReadHeads, words: QueryWords, limit: int, seconds: timedelta | float
) -> Operation[FoundThreads]:
    """Look through threads, newest first, until enough are found or the time is over."""
    if type(limit) is not int or not 1 <= limit < LONGEST:
        raise invalid("limit", limit, "Use a number of threads, 1 or more.")
    end = time.monotonic() + duration("seconds", seconds) / timedelta(seconds=1)
    hits: list[FoundThread] = []
    skipped: dict[str, str] = {}
    count, archived, oldest, cursor, size = 0, 0, None, None, _FIRST

    def read_so_far(*, complete: bool) -> FoundThreads:
        return FoundThreads(tuple(hits), count, oldest, complete, archived, skipped)

    while True:
        found, at = (yield from page(cursor)), 0
        while at < len(found):
            start = time.monotonic()
            if count and start >= end:
                return read_so_far(complete=False)
            part = found[at : at + size]
            some = next(parts_of(part, attrgetter("bytes"), most_bytes=_MOST_BYTES))
            names = [one.id for one in some if one.state in WITH_CHECKPOINTS]
            known: KnownHeads = (yield from read(names)) if names else {}
            made = yield from external(partial(_look, words, some, known))
            for one, hit in zip(some, made, strict=True):
                if len(hits) == limit:
                    return read_so_far(complete=False)
                count, oldest = count + 1, one.updated_at
                archived += one.state == Lifecycle.ARCHIVED
                if isinstance(error := known.get(one.id), ThreadkeepError):
                    skipped[one.id] = error.message
                hits += [hit] if hit is not None else []
            at += len(some)
            is_quick = time.monotonic() - start < _QUICK
            size = min(2 * size, _MOST) if is_quick else max(size // 2, 1)
        cursor = found.cursor
        if cursor is None:
            return read_so_far(complete=True)


def in_store(
    store: LayeredBackend,
    engine: Engine,
    query: str,
    limit: int,
    seconds: timedelta | float,
    filters: Filters,
) -> Operation[FoundThreads]:
    """Find threads of a store. See `Threads.find`."""
    wanted, unindexed, named = QueryWords(query), None, dict[str, ThreadInfo]()
    if store.backend.indexes_messages:
        with suppress(NotSetUpError):  # (no saver has had the option)
            unindexed = yield from on(store, count(engine, filters, unindexed=True))
    words = () if unindexed is None else (*wanted.tokens,)
    if words:
        newest = yield from on(store, search(engine, "-updated_at", _NEWEST, None, filters))
        named = {one.id: one for one in newest if wanted.find_in(one) is not None}

    def page(cursor: str | None) -> Operation[ThreadPage]:
        found = yield from on(store, search(engine, "-updated_at", PAGE, cursor, filters, words))
        return _with_named(found, named)

    def read(threads: Sequence[str]) -> Operation[KnownHeads]:
        return on(store, heads(engine, threads))

    result = yield from find(page, read, wanted, limit, seconds)
    return replace(result, indexed=unindexed is not None, unindexed=unindexed or 0)


_place = attrgetter("updated_at", "id")


def _with_named(page: ThreadPage, named: dict[str, ThreadInfo]) -> ThreadPage:
    """Return a page with the named threads that belong into it, and remove those from `named`."""
    for one in page:
        named.pop(one.id, None)
    place = _place(page[-1]) if page else (datetime.max.replace(tzinfo=UTC),)
    is_last = page.cursor is None
    here = [one for one in named.values() if is_last or _place(one) > place]
    for one in here:
        del named[one.id]
    return ThreadPage(tuple(sorted((*page, *here), key=_place, reverse=True)), page.cursor)


# -- the index -------------------------------------------------------------------------

_GROUP = 16  # threads that `index` reads and commits together
_LISTED = 1000  # such threads that `index` lists at once
_UNINDEXED = ThreadQuery(unindexed=True)
_NEWEST = 200  # threads whose ids and metadata are looked through


def check_index(store: LayeredBackend) -> None:
    """Raise InvalidArgumentError if a store has no room for an index of messages."""
    backend = store.backend
    hint = 'Leave out search="messages": threads.find reads the newest threads without it.'
    if backend.keys is not None:
        text = "An encrypted store has no index of messages: it would hold their words unencrypted."
        raise InvalidArgumentError(text, hint=hint)
    if not backend.indexes_messages:
        raise no_room(backend, "has no index of messages", hint)


def words_of(
    thread: str, values: Mapping[str, Any], added: Callable[[str], Sequence[int] | None]
) -> tuple[str, ...]:
    """Return the words of the messages that a checkpoint adds, and of a thread's id, if given.

    `added` gives the indexes of the elements that are new in a channel, or None for all.
    """
    name, messages = messages_in(values)
    at = added(name) if messages else ()
    some = messages if at is None else [messages[n] for n in at if n < len(messages)]
    texts = [thread, *[said(message(one))[:TEXT_CHARS] for one in some]]
    return tuple([one for one in map(joined, texts) if one])


def index(
    store: LayeredBackend, engine: Engine, progress: Progress | None, *, again: bool
) -> Operation[int]:
    """Index the threads that are not indexed, newest first. See `Threads.index`."""
    check_index(store)
    if validation.flag("again", again):
        if store.names is not None:
            hint = "Use the store's own saver."
            raise InvalidArgumentError("All tenants have one index of messages.", hint=hint)
        yield from on(store, call("keep_words", kept=False))
    tell, done, left = progress or no_progress, 0, set[str]()
    newest = SearchThreads(_UNINDEXED, "updated_at", descending=True, after=None, limit=_LISTED)
    while True:
        total = done + (count := (yield from _count(store)))
        tell("threads indexed", done, total)
        some = registration.search(newest._replace(limit=_LISTED + len(left)))
        entries = (yield from on(store, some)) if count else []
        names = [one.thread for one in entries if one.thread not in left]
        if not names:
            return done
        for part in parts_of(names, len, _GROUP):
            refused = yield from on(store, _index(engine, part))
            left.update(refused)
            done += len(part) - len(refused)
            tell("threads indexed", done, total)


def _count(store: LayeredBackend) -> Operation[int]:
    """Count the threads that are not indexed: all, if there is no index yet."""
    with suppress(NotSetUpError):
        return (yield from on(store, registration.count(_UNINDEXED)))
    yield from on(store, call("keep_words", kept=True))
    return (yield from on(store, registration.count(_UNINDEXED)))


def _index(engine: Engine, threads: Sequence[str]) -> Operation[list[str]]:
    """Index the heads of threads. Return the threads that could not be read, or have moved on."""
    known = yield from heads(engine, threads)
    batches = list[Batch]()
    for name, head in known.items():
        if isinstance(head, HeadMessages):
            values = {head.channel: head.messages}
            words = Words(words_of(name, values, lambda _: None), whole=True)
            fence = HeadFence("", head.checkpoint_id)
            batches.append(Batch(name, engine.now(), fences=(fence,), words=words))
    refusals = yield from commit_many(batches)
    done = {one.thread for one, no in zip(batches, refusals, strict=True) if no is None}
    return [one for one in threads if one not in done]


def _look(
    words: QueryWords, threads: Sequence[ThreadInfo], known: KnownHeads
) -> list[FoundThread | None]:
    return [_hit(words, one, known.get(one.id)) for one in threads]


def _hit(
    words: QueryWords, thread: ThreadInfo, head: HeadMessages | ThreadkeepError | None
) -> FoundThread | None:
    if isinstance(head, HeadMessages):
        messages = [message(one) for one in head.messages]
        at = [n for n, one in enumerate(messages) if words.match(said(one))]
        if at:
            newest = messages[at[-1]]
            return FoundThread(
                *(thread, "messages", *words.excerpt(said(newest)), len(at), head.checkpoint_id),
                *(head.channel, at[-1], newest.id, newest.role),
            )
    return words.find_in(thread)
