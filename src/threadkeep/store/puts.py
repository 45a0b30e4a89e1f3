"""Puts of items (packed, embedded and committed), and the earlier versions of an item."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from time import sleep
from typing import Any

import orjson
from langgraph.store.base import PutOp

from threadkeep._core.engine.operation import Commit, External, Fetch, Operation
from threadkeep._core.words import tokens
from threadkeep._stores.items import records
from threadkeep._stores.items.records import ItemPut, ItemRow, Namespace
from threadkeep.errors import CodecError, ConflictError, CorruptionError, EmbeddingError, invalid
from threadkeep.store.embedding import Index, Text
from threadkeep.store.items import (
    ItemEngine,
    ItemVersion,
    ask,
    has_expired,
    is_sound,
    readable,
    time_of,
    value_of,
)

_MINUTE = 60_000_000
_TRIES = 100  # of a put that conflicts with others, with pauses
_LONGEST_PAUSE = 0.05  # seconds
_PENDING = 100  # pending items that are embedded together
_EVERY = 2**31
_WORDS = 200_000  # characters of an item's words (a tsvector is limited to 1 MB)
_RANDOM = Random()  # noqa: S311 - for pauses
_log = logging.getLogger("threadkeep")


def put(
    engine: ItemEngine, puts: Collection[tuple[PutOp, int | None]], now: int
) -> Operation[None]:
    """Put items in one transaction, each with the version that it must replace, if any."""
    prepared = [_prepared(engine, op, expects) for op, expects in puts]
    if engine.index is not None:
        prepared = yield from _indexed(engine.index, prepared, [op for op, _ in puts])
    yield from _commit(engine, prepared, now)


def _commit(engine: ItemEngine, puts: Sequence[ItemPut], now: int) -> Operation[None]:
    for left in reversed(range(_TRIES)):
        changed = puts
        if engine.history or (engine.omit_expired and any(put.expects == 0 for put in puts)):
            changed = yield from _over_present(engine, puts, now)
        try:
            change: Any = records.PutItems(tuple(changed), now)
            yield Commit(change)
        except ConflictError as error:
            # (retry after another put, unless the caller's own condition failed)
            conditional = [put for put in puts if put.expects is not None]
            if conditional:
                names = ", ".join([f"{put.key!r} in {put.namespace}" for put in conditional[:3]])
                raise ConflictError(
                    f"The item has another version, or does not exist: {names}.",
                    hint="Get the item, and put it again with its present version.",
                ) from error
            if not left:
                raise
            pause = _RANDOM.uniform(0, _LONGEST_PAUSE)
            yield External(partial(sleep, pause), partial(asyncio.sleep, pause))
        else:
            return


def put_rows(engine: ItemEngine, rows: Sequence[ItemPut], *, index: bool) -> Operation[None]:
    """Put exported items, packed and indexed as this store does."""
    values = [engine.packer.unpack(row.value) for row in rows if row.value is not None]
    puts = [
        row._replace(value=engine.seal(engine.packer.pack(value), row.namespace, row.key))
        for row, value in zip(rows, values, strict=True)
    ]
    if index and engine.index is not None:
        ops = [
            PutOp(row.namespace, row.key, value) for row, value in zip(rows, values, strict=True)
        ]
        puts = yield from _indexed(engine.index, puts, ops)
    last = {(put.namespace, put.key): put for put in puts}
    yield from _commit(engine, list(last.values()), engine.now())


def _prepared(engine: ItemEngine, op: PutOp, expects: int | None) -> ItemPut:
    if op.value is None:
        return ItemPut(tuple(op.namespace), op.key, None, expects=expects)
    ttl = None
    if op.ttl is not None:
        if isinstance(op.ttl, bool) or not isinstance(op.ttl, int | float) or not inf > op.ttl > 0:
            raise invalid("ttl", op.ttl, "Use minutes, more than 0, or None.")
        ttl = min(round(op.ttl * _MINUTE), 2**61)
    namespace = tuple(op.namespace)
    value = engine.seal(engine.packer.pack(op.value), namespace, op.key)
    return ItemPut(namespace, op.key, value, ttl, expects=expects)


def _indexed(
    index: Index, puts: Sequence[ItemPut], ops: Sequence[PutOp]
) -> Operation[list[ItemPut]]:
    """Add vectors and words to puts. If the model fails, add the fields to embed later."""
    texts = [
        [] if op.value is None or op.index is False else index.texts(op.value, op.index)
        for op in ops
    ]
    vectors: dict[str, bytes] = {}
    if index.embedder is not None:
        try:
            vectors = yield from index.embedder.documents(
                text for each in texts for _, text in each
            )
        except EmbeddingError as error:
            _log.warning("Items were stored without vectors, to be embedded later: %s", error)
    done = []
    for put, op, each in zip(puts, ops, texts, strict=True):
        words = _words(index, [text for _, text in each])
        if index.embedder is None or all(text in vectors for _, text in each):
            done.append(put._replace(words=words, vectors=_vectors(each, vectors)))
        else:
            fields = list(op.index) if op.index else None
            done.append(put._replace(words=words, pending=orjson.dumps(fields).decode()))
    return done


def _vectors(texts: Iterable[Text], vectors: Mapping[str, bytes]) -> tuple[records.Vector, ...]:
    return tuple([records.Vector(path, vectors[text]) for path, text in texts if text in vectors])


def _words(index: Index, texts: Iterable[str]) -> str | None:
    if index.search == "semantic":
        return None
    return " ".join(tokens("\n".join(texts)[:_WORDS]))[:_WORDS] or None


def embed_pending(engine: ItemEngine, between: Callable[[], None] | None = None) -> Operation[int]:
    """Embed pending items, except items that the model refuses, and return the number embedded.

    `between` is called after each page, and may raise.

    Raises:
        EmbeddingError: the model fails.
    """
    index = engine.index
    if index is None or index.embedder is None:
        return 0
    embedded = 0
    after = None
    while True:
        read = records.FindItems((), _PENDING, after=after, pending=True)
        waiting: list[ItemRow] = yield from ask(read)
        if not waiting:
            return embedded
        after = waiting[-1].place
        texts = [_waiting_texts(engine, index, row) for row in waiting]
        vectors = yield from index.embedder.documents(text for each in texts for _, text in each)
        done = []
        for row, each in zip(waiting, texts, strict=True):
            if all(text in vectors for _, text in each):
                found = _vectors(each, vectors)
                done.append(records.EmbedItem(row.namespace, row.key, row.version, found))
            else:
                _log.warning("The model refuses item %r in %s.", row.key, row.namespace)
        if done:
            change: Any = records.EmbedItems(tuple(done))
            yield Commit(change)
        embedded += len(done)
        if between is not None:
            between()


def _waiting_texts(engine: ItemEngine, index: Index, row: ItemRow) -> list[Text]:
    """Return the texts of a pending item, of all fields if its own list of fields is damaged."""
    try:
        names = orjson.loads(row.pending or "")
    except orjson.JSONDecodeError:
        names = None
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return index.texts(readable(engine, row) or {}, names if is_list else None)


def _over_present(
    engine: ItemEngine, puts: Sequence[ItemPut], now: int
) -> Operation[list[ItemPut]]:
    """Read the items to replace, add the versions that `history` keeps, and expect these.

    A put that expects no item may replace an expired item, which reads no longer return.
    """
    keys = tuple([(put.namespace, put.key) for put in puts])
    rows: list[ItemRow | None] = yield from ask(records.GetItems(keys))
    return [_over(engine, *pair, now) for pair in zip(puts, rows, strict=True)]


def _over(engine: ItemEngine, put: ItemPut, row: ItemRow | None, now: int) -> ItemPut:
    if row is None:
        return put._replace(expects=0) if engine.history and put.expects is None else put
    if put.expects == 0 and engine.omit_expired and has_expired(row, now):
        put = put._replace(expects=row.version)
    if not engine.history or not is_sound(row):  # (a damaged version is not kept)
        return put
    kept = records.patch(row.value, put.value)
    replaced = records.VersionRow(row.version, row.updated_at, now, put.value is None, kept)
    expects = row.version if put.expects is None else put.expects
    return put._replace(expects=expects, earlier=records.Earlier(replaced, engine.history))


def versions(engine: ItemEngine, namespace: Namespace, key: str) -> Operation[list[ItemVersion]]:
    """Return the versions of an item, newest first."""
    item = (namespace, key)
    reads: list[Any] = [records.GetItems((item,)), records.FindVersions(_EVERY, item)]
    (current,), earlier = yield Fetch(reads)
    found = []
    newer = None
    if current is not None:
        if not (engine.omit_expired and has_expired(current, engine.now())):
            value = value_of(engine, current)
            found.append(ItemVersion(current.version, value, time_of(current.updated_at)))
        newer = records.opened(current.value)
    for *_, row in reversed(earlier):
        try:
            records.opened(row.patch)
        except CodecError as error:
            error.message = f"Version {row.version} of item {key!r} cannot be read: {error.message}"
            raise
        try:
            newer = records.patched(row.patch, None if row.deleted else newer)
            plain = engine.unseal(newer, namespace, key)
        except CorruptionError:  # (a store without history put the item in between)
            _log.warning("Versions of item %r before %d cannot be read.", key, row.version + 1)
            break
        value = engine.packer.unpack(plain)
        times = (time_of(row.updated_at), time_of(row.replaced_at))
        found.append(ItemVersion(row.version, value, *times, row.deleted))
    return found
