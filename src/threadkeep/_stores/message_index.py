"""Full-text search over archived messages: the parts of all indexes, and the index in memory.

An index is derived data: it can be removed, and made again from the records that hold the messages.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from threadkeep._core.texts import Messages, text_of
from threadkeep._core.words import joined, tokens
from threadkeep._stores.process_forks import ResetInChild
from threadkeep.errors import invalid

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

TEXT_CHARS = 100_000  # of one message
_QUERY_TOKENS = 1000

Edits: TypeAlias = "Mapping[int, BaseMessage]"
NO_EDITS: Edits = MappingProxyType({})


def indexed(message: BaseMessage) -> str:
    """Return the distinct tokens of a message and its tool calls, with spaces between them."""
    text = text_of(message)[:TEXT_CHARS]
    for call in getattr(message, "tool_calls", ()):
        arguments = json.dumps(call["args"], ensure_ascii=False, default=str)
        text = f"{text} {call['name']} {arguments}"[:TEXT_CHARS]
    return joined(text)


def wanted(query: str) -> list[str]:
    """Return the distinct tokens of a query.

    Raises:
        InvalidArgumentError: there are too many.
    """
    found = list(dict.fromkeys(tokens(query)))
    if len(found) > _QUERY_TOKENS:
        raise invalid("query", query, f"Use at most {_QUERY_TOKENS} different words.")
    return found


class Hit(NamedTuple):
    """A message as a record archives or changes it: the record, the message's position and id."""

    record: str
    position: int
    id: str | None


class IndexedMessage(NamedTuple):
    """A message to index: its position, its id, and its words."""

    position: int
    id: str | None
    words: str


Key: TypeAlias = tuple[str, str]  # a thread and a record
IndexRows: TypeAlias = Sequence[IndexedMessage]


class ArchiveIndex(ABC):
    """An index of the messages in a thread's archive records. Its methods block.

    Any number of threads of the program may use it. Hits come with the highest position first, and
    at one position with the last one added.
    """

    def add(
        self,
        thread: str,
        record: str,
        start: int,
        messages: Messages,
        *,
        edits: Edits = NO_EDITS,
        after: str | None = None,
    ) -> bool:
        """Add a record: its messages, the first one at `start`, and edits by position.

        Idempotent, and atomic: all of a record is there, or nothing.

        With `after`, the record that this one continues, nothing is added unless that one is there.
        So each record of an index comes with all that it continues, even if another process removes
        the thread meanwhile.

        Returns:
            True if the record is there now.
        """
        first, then = [
            [IndexedMessage(at, message.id, indexed(message)) for at, message in some]
            for some in (enumerate(messages, start), edits.items())
        ]
        return self._add((thread, record), start, first, then, after)

    def _add(
        self, key: Key, start: int, messages: IndexRows, edits: IndexRows, after: str | None
    ) -> bool:
        """See `add`, which finds the words."""
        raise NotImplementedError

    @abstractmethod
    def has(self, thread: str, record: str) -> bool:
        """Return True if a record was added, and the thread not removed since."""

    @abstractmethod
    def search(
        self, thread: str, query: str, *, after: int | None = None, limit: int | None = None
    ) -> list[Hit]:
        """Return the messages that have all words of a query, which knows no operators.

        With `after`, only messages at positions below it. A query without words finds nothing.

        Raises:
            InvalidArgumentError: the query has too many words.
        """

    @abstractmethod
    def find(self, thread: str, ids: Iterable[str]) -> dict[str, list[Hit]]:
        """Return the messages with these ids. An id that no message has is left out."""

    @abstractmethod
    def remove(self, *threads: str) -> None:
        """Remove threads. An index in a database also removes the threads that a saver deletes."""

    @abstractmethod
    def threads(self) -> set[str]:
        """Return the threads with records in the index."""

    @abstractmethod
    def close(self) -> None:
        """Close connections. Idempotent."""


class PrefixedIndex(ArchiveIndex):
    """An index that shows the threads whose names begin with a prefix, without it."""

    def __init__(self, below: ArchiveIndex, prefix: str) -> None:
        self._below = below
        self._prefix = prefix

    def add(self, thread: str, *args: Any, **options: Any) -> bool:
        return self._below.add(self._prefix + thread, *args, **options)

    def has(self, thread: str, record: str) -> bool:
        return self._below.has(self._prefix + thread, record)

    def search(self, thread: str, *args: Any, **options: Any) -> list[Hit]:
        return self._below.search(self._prefix + thread, *args, **options)

    def find(self, thread: str, ids: Iterable[str]) -> dict[str, list[Hit]]:
        return self._below.find(self._prefix + thread, ids)

    def remove(self, *threads: str) -> None:
        self._below.remove(*[self._prefix + one for one in threads])

    def threads(self) -> set[str]:
        found = [one for one in self._below.threads() if one.startswith(self._prefix)]
        return {one[len(self._prefix) :] for one in found}

    def close(self) -> None:
        self._below.close()


# -- in memory -------------------------------------------------------------------------

_SCAN_CHARS = 64 << 20


class _Message(NamedTuple):
    position: int
    added: int
    hit: Hit
    words: str  # with a space before and after each


class _IndexedThread:
    def __init__(self) -> None:
        self.records: set[str] = set()
        self.messages: list[_Message] = []  # in order
        self.ids: dict[str, list[_Message]] = {}
        self.chars = 0


class ScanIndex(ArchiveIndex, ResetInChild):
    """An index in this process's memory: it looks through all messages of a thread.

    While it holds more than `max_chars`, it drops the threads that were not used for the longest
    time, all but the last one.
    """

    def __init__(self, max_chars: int = _SCAN_CHARS) -> None:
        self._max_chars = max_chars
        super().__init__()

    def _reset(self) -> None:
        self._lock = Lock()
        self._threads: OrderedDict[str, _IndexedThread] = OrderedDict()

    @contextmanager
    def _thread(self, thread: str) -> Iterator[_IndexedThread]:
        with self._lock:
            yield self._threads.get(thread) or _IndexedThread()
            if thread in self._threads:
                self._threads.move_to_end(thread)

    def _add(
        self, key: Key, start: int, messages: IndexRows, edits: IndexRows, after: str | None
    ) -> bool:
        del start
        thread, record = key
        with self._thread(thread) as known:
            if record in known.records or (after is not None and after not in known.records):
                return record in known.records
            self._threads[thread] = known
            for position, id, words in (*messages, *edits):
                hit = Hit(record, position, id)
                one = _Message(position, len(known.records), hit, f" {words} ")
                insort(known.messages, one)
                known.chars += len(one.words)
                if id is not None:
                    known.ids.setdefault(id, []).append(one)
            known.records.add(record)
            self._threads.move_to_end(thread)
            total = sum(each.chars for each in self._threads.values())
            while total > self._max_chars and len(self._threads) > 1:
                total -= self._threads.popitem(last=False)[1].chars
        return True

    def has(self, thread: str, record: str) -> bool:
        with self._thread(thread) as known:
            return record in known.records

    def search(
        self, thread: str, query: str, *, after: int | None = None, limit: int | None = None
    ) -> list[Hit]:
        words = [f" {word} " for word in wanted(query)]
        with self._thread(thread) as known:
            messages = known.messages[:] if words else []
        found = [
            each.hit
            for each in reversed(messages)
            if (after is None or each.position < after) and all(map(each.words.__contains__, words))
        ]
        return found[:limit]

    def find(self, thread: str, ids: Iterable[str]) -> dict[str, list[Hit]]:
        with self._thread(thread) as known:
            found = {id: sorted(known.ids[id], reverse=True) for id in ids if id in known.ids}
        return {id: [message.hit for message in messages] for id, messages in found.items()}

    def remove(self, *threads: str) -> None:
        with self._lock:
            for thread in threads:
                self._threads.pop(thread, None)

    def threads(self) -> set[str]:
        with self._lock:
            return set(self._threads)

    def close(self) -> None:
        self._reset()
