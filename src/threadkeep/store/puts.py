"""Puts of items: packed, embedded, and committed; and the earlier versions of an item."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from math import inf
from random import Random
from time import sleep
from typing import Any

import orjson
from langgraph.store.base import (
    PutOp,
)

from threadkeep.engine.operation import Aside, Commit, Fetch, Requests
from threadkeep.errors import ConflictError, CorruptionError, EmbeddingError, invalid
from threadkeep.store.embedding import Index
from threadkeep.store.items import Engine, ItemVersion, ask, has_expired, time_of, value_of
from threadkeep.store.records import (
    Earlier,
    EmbedItem,
    EmbedItems,
    FindPending,
    FindVersions,
    GetItems,
    ItemPut,
    ItemRow,
    Namespace,
    PutItems,
    Vector,
    VersionRow,
)
from threadkeep.store.values import patch, patched
from threadkeep.words import tokens

_MINUTE = 60_000_000
_TRIES = 100  # of a put that others overtake, each with a pause
_LONGEST_PAUSE = 0.05  # seconds
_PENDING = 100  # items that are embedded together later
_FAILURES = 5  # texts in a row that the model refuses
_WORDS = 200_000  # characters of an item's words: a tsvector has 1 MB
_RANDOM = Random()  # noqa: S311 - of pauses
_log = logging.getLogger("threadkeep")


def put(engine: Engine, puts: Collection[tuple[PutOp, int | None]], now: int) -> Requests[None]:
    """Put items, each with the version that it must have, if any; all or none."""
    prepared = [_prepared(engine, op, expects) for op, expects in puts]
    if engine.index is not None:
        prepared = yield from _indexed(engine.index, prepared, [op for op, _ in puts])
    if engine.omit_expired and any(put.expects == 0 for put in prepared):
        prepared = yield from _over_expired(prepared, now)
    yield from _commit(engine, prepared, now)


def _over_expired(puts: Sequence[ItemPut], now: int) -> Requests[list[ItemPut]]:
    """Let puts that expect no item replace expired ones, which nobody sees any more."""
    keys = tuple([(put.namespace, put.key) for put in puts])
    rows: list[ItemRow | None] = yield from ask(GetItems(keys))
    return [
        put._replace(expects=row.version)
        if put.expects == 0 and row is not None and has_expired(row, now)
        else put
        for put, row in zip(puts, rows, strict=True)
    ]


def _commit(engine: Engine, puts: Sequence[ItemPut], now: int) -> Requests[None]:
    for left in reversed(range(_TRIES)):
        changed = puts
        if engine.history:
            changed = yield from _with_earlier(engine, puts, now)
        try:
            change: Any = PutItems(tuple(changed), now)
            yield Commit(change)
        except ConflictError:
            # (overtaken by another put, unless it is the caller's own condition that fails)
            if not left or any(put.expects is not None for put in puts):
                raise
            pause = _RANDOM.uniform(0, _LONGEST_PAUSE)
            yield Aside(partial(sleep, pause), partial(asyncio.sleep, pause))
        else:
            return


def put_rows(engine: Engine, rows: Sequence[ItemPut], *, index: bool) -> Requests[None]:
    """Put items that were exported, as this store packs and indexes them."""
    values = [engine.packer.unpack(row.value) for row in rows if row.value is not None]
    puts = [
        row._replace(value=engine.packer.pack(value))
        for row, value in zip(rows, values, strict=True)
    ]
    if index and engine.index is not None:
        ops = [
            PutOp(row.namespace, row.key, value) for row, value in zip(rows, values, strict=True)
        ]
        puts = yield from _indexed(engine.index, puts, ops)
    last = {(put.namespace, put.key): put for put in puts}
    yield from _commit(engine, list(last.values()), engine.now())


def _prepared(engine: Engine, op: PutOp, expects: int | None) -> ItemPut:
    if op.value is None:
        return ItemPut(tuple(op.namespace), op.key, None, expects=expects)
    ttl = None
    if op.ttl is not None:
        if isinstance(op.ttl, bool) or not isinstance(op.ttl, int | float) or not inf > op.ttl > 0:
            raise invalid("ttl", op.ttl, "Use minutes, more than 0, or None.")
        ttl = min(round(op.ttl * _MINUTE), 2**61)
    value = engine.packer.pack(op.value)
    return ItemPut(tuple(op.namespace), op.key, value, ttl, expects=expects)


def _indexed(
    index: Index, puts: Sequence[ItemPut], ops: Sequence[PutOp]
) -> Requests[list[ItemPut]]:
    """Add vectors and words; where the model fails, the fields to embed later."""
    texts = [
        index.texts(op.value, op.index if isinstance(op.index, list) else None)
        if op.value is not None and op.index is not False
        else []
        for op in ops
    ]
    vectors: dict[str, bytes] | None = {}
    if index.embedder is not None:
        try:
            vectors = yield from index.embedder.documents(
                text for each in texts for _, text in each
            )
        except EmbeddingError as error:
            _log.warning("Items are stored without vectors, and embedded later: %s", error)
            vectors = None
    done = []
    for put, op, each in zip(puts, ops, texts, strict=True):
        words = _words(index, [text for _, text in each])
        if vectors is None and each:
            pending = orjson.dumps(op.index).decode()
            done.append(put._replace(words=words, pending=pending))
        elif each:
            found = tuple([Vector(path, vectors[text]) for path, text in each]) if vectors else ()
            done.append(put._replace(words=words, vectors=found))
        else:
            done.append(put)
    return done


def _words(index: Index, texts: Iterable[str]) -> str | None:
    if index.search == "semantic":
        return None
    return " ".join(tokens("\n".join(texts)[:_WORDS]))[:_WORDS] or None


def embed_pending(engine: Engine) -> Requests[int]:
    """Embed items that wait for it, all that the model takes; return how many were embedded.

    Raises:
        EmbeddingError: the model takes none of them.
    """
    index = engine.index
    if index is None or index.embedder is None:
        return 0
    embedded = 0
    while True:
        waiting: list[tuple[ItemRow, str]] = yield from ask(FindPending(_PENDING))
        if not waiting:
            return embedded
        done, failure = yield from _embedded(engine, index, waiting)
        embedded += len(done)
        if done:
            change: Any = EmbedItems(tuple(done))
            yield Commit(change)
        if failure is not None:
            if not embedded:
                raise failure
            return embedded


def _embedded(
    engine: Engine, index: Index, waiting: Sequence[tuple[ItemRow, str]]
) -> Requests[tuple[list[EmbedItem], EmbeddingError | None]]:
    """Embed items together; where that fails, one by one: the model may refuse a single text."""
    failure = None
    done: list[EmbedItem] = []
    try:
        done = yield from _vectors_of(engine, index, waiting)
    except EmbeddingError as error:
        failure = error
    failed = 0
    for row, fields in waiting if failure is not None else ():
        try:
            done += yield from _vectors_of(engine, index, [(row, fields)], tries=1)
            failed = 0
        except EmbeddingError as error:
            _log.warning("Item %r in %s cannot be embedded: %s", row.key, row.namespace, error)
            failed += 1
            if failed == _FAILURES:  # (it is the model)
                break
    return done, failure


def _vectors_of(
    engine: Engine, index: Index, waiting: Sequence[tuple[ItemRow, str]], tries: int = 3
) -> Requests[list[EmbedItem]]:
    texts = [index.texts(value_of(engine, row), orjson.loads(fields)) for row, fields in waiting]
    wanted = [text for each in texts for _, text in each]
    vectors = {} if index.embedder is None else (yield from index.embedder.documents(wanted, tries))
    return [
        EmbedItem(
            *(row.namespace, row.key, row.version),
            tuple([Vector(path, vectors[text]) for path, text in each]),
        )
        for (row, _), each in zip(waiting, texts, strict=True)
    ]


def _with_earlier(engine: Engine, puts: Sequence[ItemPut], now: int) -> Requests[list[ItemPut]]:
    """Add the versions that puts replace, on the condition that these are still there."""
    keys = tuple([(put.namespace, put.key) for put in puts])
    rows: list[ItemRow | None] = yield from ask(GetItems(keys))
    return [
        put._replace(expects=0 if row is None and put.expects is None else put.expects)
        if row is None
        else put._replace(
            expects=row.version if put.expects is None else put.expects,
            earlier=Earlier(
                VersionRow(
                    row.version, row.updated_at, now, put.value is None, patch(row.value, put.value)
                ),
                engine.history,
            ),
        )
        for put, row in zip(puts, rows, strict=True)
    ]


def versions(engine: Engine, namespace: Namespace, key: str) -> Requests[list[ItemVersion]]:
    """Return the versions of an item, newest first."""
    reads: list[Any] = [GetItems(((namespace, key),)), FindVersions(namespace, key)]
    (current,), earlier = yield Fetch(reads)
    found = []
    newer = None
    if current is not None:
        newer = current.value
        if not (engine.omit_expired and has_expired(current, engine.now())):
            value = engine.packer.unpack(newer)
            found.append(ItemVersion(current.version, value, time_of(current.updated_at)))
    for row in earlier:
        try:
            newer = patched(row.patch, None if row.deleted else newer)
        except CorruptionError:  # (a store without history has put the item in between)
            _log.warning("Versions of item %r before %d cannot be read.", key, row.version + 1)
            break
        value = engine.packer.unpack(newer)
        times = (time_of(row.updated_at), time_of(row.replaced_at))
        found.append(ItemVersion(row.version, value, *times, row.deleted))
    return found
