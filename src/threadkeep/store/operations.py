"""Operations of a store of items: what LangGraph's `batch` asks, as reads and changes.

No I/O and no clock: they yield requests, as those of the engine do (`engine.operation`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import orjson
from langgraph.store.base import (
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from threadkeep.engine.operation import Commit, Fetch, Request, Requests
from threadkeep.errors import ConflictError, EmbeddingError, invalid
from threadkeep.store import filters
from threadkeep.store.embedding import Index
from threadkeep.store.ranking import fuse
from threadkeep.store.records import (
    Earlier,
    EmbedItem,
    EmbedItems,
    FindItems,
    FindNamespaces,
    FindNearest,
    FindPending,
    FindText,
    FindVersions,
    GetItems,
    ItemKey,
    ItemPut,
    ItemRow,
    Namespace,
    PutItems,
    RefreshItems,
    Scored,
    Vector,
    VersionRow,
)
from threadkeep.store.values import Packer, patch, patched
from threadkeep.validation import is_count
from threadkeep.words import tokens

T = TypeVar("T")

_MINUTE = 60_000_000
_PAGE = 256  # rows read at once where a filter is tested in Python
_REFRESH = 100  # a lifetime begins anew once a hundredth of it has passed
_TRIES = 8  # of a put that others overtake
_PENDING = 100  # items that are embedded together later
_FUSED = 100  # items of each ranking that are fused, at least
_WORDS = 200_000  # characters of an item's words: a tsvector has 1 MB
_QUERY_WORDS = 200
_log = logging.getLogger("threadkeep")


class StoredItem(Item):
    """An item of a store.

    Attributes:
        version: a number that each put of the item raises; for `put(..., if_version=)`.
    """

    __slots__ = ("version",)
    version: int


class FoundItem(SearchItem):
    """An item that a search found.

    Attributes:
        version: see `StoredItem`.
    """

    __slots__ = ("version",)
    version: int


class ItemVersion(NamedTuple):
    """A version of an item.

    Attributes:
        version: its number; a later version has a higher one.
        value: its value.
        updated_at: the time at which it was put.
        replaced_at: the time at which it was replaced or deleted; None for the current version.
        deleted: True if it was deleted, and not replaced.
    """

    version: int
    value: dict[str, Any]
    updated_at: datetime
    replaced_at: datetime | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """All that operations of one store share.

    `history` is the number of earlier versions that are kept of an item.
    """

    packer: Packer
    index: Index | None
    now: Callable[[], int]
    omit_expired: bool
    history: int


# -- batches -----------------------------------------------------------------------------


def batch(
    engine: Engine, ops: Sequence[Op], expects: Mapping[int, int] | None = None
) -> Requests[list[Any]]:
    """Carry out operations. Reads see the store as it is before the puts.

    Of several puts of one key the last one counts. `expects` has the versions that the items of
    some puts must have, by the number of the put.
    """
    now = engine.now()
    alive = now if engine.omit_expired else None
    results: list[Any] = [None] * len(ops)
    puts: dict[ItemKey, tuple[PutOp, int | None]] = {}
    gets: dict[int, GetOp] = {}
    others: dict[int, Requests[Any]] = {}
    for at, op in enumerate(ops):
        validate_op_namespace(op)
        if isinstance(op, PutOp):
            puts[tuple(op.namespace), _checked_key(op)] = (op, expects.get(at) if expects else None)
        elif isinstance(op, GetOp):
            gets[at] = op
        else:
            others[at] = _other(engine, op, alive)
    if gets or others:
        reads = [_get(engine, gets.values(), alive), *others.values()] if gets else others.values()
        replies = yield from together(list(reads))
        if gets:
            for at, item in zip(gets, replies[0][0], strict=True):
                results[at] = item
        for at, (answer, _) in zip(reversed(others), reversed(replies), strict=False):
            results[at] = answer
        yield from _refresh([row for _, rows in replies for row in rows], now)
    if puts:
        yield from _put(engine, puts.values(), now)
    return results


def _other(engine: Engine, op: Op, alive: int | None) -> Requests[Any]:
    if isinstance(op, SearchOp):
        return _search(engine, op, alive)
    if isinstance(op, ListNamespacesOp):
        return _namespaces(op, alive)
    raise invalid("op", op, "Use GetOp, PutOp, SearchOp or ListNamespacesOp.")


def together(operations: Sequence[Requests[Any]]) -> Requests[list[Any]]:
    """Run operations side by side: what they fetch at the same time takes one round trip."""
    if len(operations) == 1:
        return [(yield from operations[0])]
    results: list[Any] = [None] * len(operations)
    replies: dict[int, Any] = dict.fromkeys(range(len(operations)))
    while replies:
        fetches: dict[int, Fetch] = {}
        for at, reply in replies.items():
            request = yield from _until_fetch(operations[at], reply, results, at)
            if request is not None:
                fetches[at] = request
        replies = {}
        if fetches:
            hot = all(request.hot for request in fetches.values())
            reads = [read for request in fetches.values() for read in request.reads]
            answers = iter((yield Fetch(reads, hot)))
            for at, request in fetches.items():
                replies[at] = [next(answers) for _ in request.reads]
    return results


def _until_fetch(
    operation: Requests[Any], reply: Any, results: list[Any], at: int
) -> Requests[Fetch | None]:
    """Continue an operation until it fetches (return that), or ends (note its result)."""
    try:
        request: Request = operation.send(reply)
        while not isinstance(request, Fetch):
            try:
                reply = yield request
            except Exception as error:  # noqa: BLE001 - it is the operation's to handle
                request = operation.throw(error)
            else:
                request = operation.send(reply)
    except StopIteration as stop:
        results[at] = stop.value
        return None
    return request


def _fetch(read: Any, *, hot: bool = False) -> Generator[Request, Any, Any]:
    (reply,) = yield Fetch((read,), hot)
    return reply


def _checked_key(op: GetOp | PutOp) -> str:
    if not isinstance(op.key, str):
        raise invalid("key", op.key, "Use a text.")
    return op.key


# -- reads -------------------------------------------------------------------------------


def _get(
    engine: Engine, gets: Collection[GetOp], alive: int | None
) -> Requests[tuple[list[StoredItem | None], list[ItemRow]]]:
    keys = tuple([(tuple(op.namespace), _checked_key(op)) for op in gets])
    rows: list[ItemRow | None] = yield from _fetch(GetItems(keys, alive), hot=True)
    items = [None if row is None else _item(engine, row) for row in rows]
    refreshed = [row for row, op in zip(rows, gets, strict=True) if row and op.refresh_ttl]
    return items, refreshed


def _item(engine: Engine, row: ItemRow) -> StoredItem:
    item = StoredItem.__new__(StoredItem)  # (a third of the time of `__init__`, which checks)
    _fill(item, row, engine.packer.unpack(row.value))
    return item


def _found(engine: Engine, row: ItemRow, value: dict[str, Any] | None, score: Any) -> FoundItem:
    item = FoundItem.__new__(FoundItem)
    _fill(item, row, engine.packer.unpack(row.value) if value is None else value)
    item.score = score
    return item


def _fill(item: StoredItem | FoundItem, row: ItemRow, value: dict[str, Any]) -> None:
    item.value = value
    item.key = row.key
    item.namespace = row.namespace
    item.updated_at = time_of(row.updated_at)
    is_new = row.created_at == row.updated_at
    item.created_at = item.updated_at if is_new else time_of(row.created_at)
    item.version = row.version


def time_of(micros: int) -> datetime:
    """Return a time, given in microseconds since 1970."""
    return datetime.fromtimestamp(micros / 1e6, UTC)


class _Match(NamedTuple):
    row: ItemRow
    score: float | None = None
    value: dict[str, Any] | None = None  # where it was needed already


def _search(
    engine: Engine, op: SearchOp, alive: int | None
) -> Requests[tuple[list[FoundItem], list[ItemRow]]]:
    for name in ("limit", "offset"):
        if not is_count(getattr(op, name), 0):
            raise invalid(name, getattr(op, name), "Use a number, 0 or more.")
    wanted = filters.parse(op.filter)
    if op.query and engine.index is not None:
        matches = yield from _ranked(engine, engine.index, op, wanted, alive)
    elif wanted is None:
        read = FindItems(tuple(op.namespace_prefix), op.limit, op.offset, now=alive)
        rows = yield from _fetch(read)
        matches = [_Match(row) for row in rows]
    else:
        read = FindItems(tuple(op.namespace_prefix), 0, where=wanted.hints, now=alive)
        found = yield from _passing(engine, read, wanted, op.offset + op.limit)
        matches = found[op.offset :]
    items = [_found(engine, match.row, match.value, match.score) for match in matches]
    return items, [match.row for match in matches] if op.refresh_ttl else []


def _passing(
    engine: Engine, read: FindItems, wanted: filters.Filter | None, limit: int
) -> Requests[list[_Match]]:
    """Return the first items that pass a filter, page by page."""
    found: list[_Match] = []
    page = limit
    while len(found) < limit:
        rows: list[ItemRow] = yield from _fetch(read._replace(limit=page))
        found += _tested(engine, [Scored(row, 0.0) for row in rows], wanted, bare=True)
        if len(rows) < page:
            break
        read = read._replace(after=rows[-1].place)
        page = max(2 * page, _PAGE)
    return found[:limit]


def _tested(
    engine: Engine, scored: Iterable[Scored], wanted: filters.Filter | None, *, bare: bool = False
) -> list[_Match]:
    found = []
    for row, score in scored:
        shown = None if bare else score
        if wanted is None:
            found.append(_Match(row, shown))
        else:
            value = engine.packer.unpack(row.value)
            if wanted.holds(value):
                found.append(_Match(row, shown, value))
    return found


def _ranked(
    engine: Engine, index: Index, op: SearchOp, wanted: filters.Filter | None, alive: int | None
) -> Requests[list[_Match]]:
    """Return the best items; behind them, as LangGraph does, those that have no vector."""
    query, prefix = op.query or "", tuple(op.namespace_prefix)
    words = tuple(dict.fromkeys(tokens(query)))[:_QUERY_WORDS]
    hints = wanted.hints if wanted else ()
    vector = None
    if index.embedder is not None:
        try:
            vector = (yield from index.embedder.queries([query]))[query]
        except EmbeddingError:
            if index.search == "semantic":
                raise
            _log.warning("The query could not be embedded: words alone are used.", exc_info=True)
    last = op.offset + op.limit
    # (a longer list may change the order of the fused one: pages should not differ)
    size = last if index.search != "hybrid" else max(last, _FUSED)
    while True:
        reads: list[Any] = []
        if vector is not None:
            reads.append(FindNearest(prefix, vector, size, hints, alive))
        if index.search != "semantic" and words:
            reads.append(FindText(prefix, words, size, hints, alive))
        rankings: list[list[Scored]] = (yield Fetch(reads)) if reads else []
        scored = rankings[0] if len(rankings) == 1 else fuse(*rankings)
        found = _tested(engine, scored, wanted)
        if len(found) >= last or all(len(ranking) < size for ranking in rankings):
            break
        size = 4 * size
    matches = found[op.offset : last]
    if index.embedder is not None and len(matches) < op.limit:
        known = {match.row.place for match in found}
        bare = FindItems(prefix, 0, where=hints, now=alive, bare=True)
        rest = yield from _passing(engine, bare, wanted, op.limit + len(known))
        rest = [match for match in rest if match.row.place not in known]
        matches += rest[: op.limit - len(matches)]
    return matches


def _refresh(rows: Iterable[ItemRow], now: int) -> Requests[None]:
    """Let lifetimes begin anew, of rows that were read."""
    keys = {
        (row.namespace, row.key): None
        for row in rows
        if row.ttl is not None
        and row.expires_at is not None
        and now + row.ttl - row.expires_at >= row.ttl // _REFRESH
    }
    if keys:
        change: Any = RefreshItems(tuple(keys), now)
        yield Commit(change)


def _namespaces(
    op: ListNamespacesOp, alive: int | None
) -> Requests[tuple[list[Namespace], list[ItemRow]]]:
    conditions = op.match_conditions or ()
    for one in conditions:
        if one.match_type not in ("prefix", "suffix"):
            raise invalid("match_type", one.match_type, 'Use "prefix" or "suffix".')
    prefix = max((_literal(one) for one in conditions), key=len, default=())
    found: Iterable[Namespace] = yield from _fetch(FindNamespaces(prefix, alive))
    if conditions:
        found = [name for name in found if all(_matches(one, name) for one in conditions)]
    if op.max_depth is not None:
        found = {name[: op.max_depth] for name in found}
    return sorted(found)[op.offset : op.offset + op.limit], []


def _literal(condition: MatchCondition) -> Namespace:
    """Return the labels that a namespace begins with."""
    path = tuple(condition.path)
    if condition.match_type != "prefix":
        return ()
    return path[: path.index("*")] if "*" in path else path


def _matches(condition: MatchCondition, name: Namespace) -> bool:
    path = tuple(condition.path)
    if len(name) < len(path):
        return False
    part = name[: len(path)] if condition.match_type == "prefix" else name[len(name) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


# -- puts --------------------------------------------------------------------------------


def _put(engine: Engine, puts: Collection[tuple[PutOp, int | None]], now: int) -> Requests[None]:
    prepared = [_prepared(engine, op, expects) for op, expects in puts]
    if engine.index is not None:
        prepared = yield from _indexed(engine.index, prepared, [op for op, _ in puts])
    for left in reversed(range(_TRIES)):
        changed = prepared
        if engine.history:
            changed = yield from _with_earlier(engine, prepared, now)
        try:
            change: Any = PutItems(tuple(changed), now)
            yield Commit(change)
        except ConflictError:
            # (overtaken by another put, unless it is the caller's own condition that fails)
            if not left or any(put.expects is not None for put in prepared):
                raise
        else:
            return


def put_rows(engine: Engine, rows: Sequence[ItemPut]) -> Requests[None]:
    """Put items that were exported, as this store packs and indexes them."""
    values = [engine.packer.unpack(row.value) for row in rows if row.value is not None]
    puts = [
        row._replace(value=engine.packer.pack(value))
        for row, value in zip(rows, values, strict=True)
    ]
    if engine.index is not None:
        ops = [
            PutOp(row.namespace, row.key, value) for row, value in zip(rows, values, strict=True)
        ]
        puts = yield from _indexed(engine.index, puts, ops)
    last = {(put.namespace, put.key): put for put in puts}
    change: Any = PutItems(tuple(last.values()), engine.now())
    yield Commit(change)


def _prepared(engine: Engine, op: PutOp, expects: int | None) -> ItemPut:
    if op.value is None:
        return ItemPut(tuple(op.namespace), op.key, None, expects=expects)
    ttl = None
    if op.ttl is not None:
        if isinstance(op.ttl, bool) or not isinstance(op.ttl, int | float) or not op.ttl > 0:
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
    """Embed items that wait for it; return how many were embedded.

    Raises:
        EmbeddingError: the model fails.
    """
    index = engine.index
    if index is None or index.embedder is None:
        return 0
    waiting: list[tuple[ItemRow, str]] = yield from _fetch(FindPending(_PENDING))
    texts = [
        index.texts(engine.packer.unpack(row.value), orjson.loads(fields))
        for row, fields in waiting
    ]
    vectors = yield from index.embedder.documents(text for each in texts for _, text in each)
    if waiting:
        items = [
            EmbedItem(
                row.namespace,
                row.key,
                row.version,
                tuple([Vector(path, vectors[text]) for path, text in each]),
            )
            for (row, _), each in zip(waiting, texts, strict=True)
        ]
        change: Any = EmbedItems(tuple(items))
        yield Commit(change)
    return len(waiting)


# -- history -----------------------------------------------------------------------------


def _with_earlier(engine: Engine, puts: Sequence[ItemPut], now: int) -> Requests[list[ItemPut]]:
    """Add the versions that puts replace, on the condition that these are still there."""
    keys = tuple([(put.namespace, put.key) for put in puts])
    rows: list[ItemRow | None] = yield from _fetch(GetItems(keys))
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
        value = engine.packer.unpack(newer)
        found.append(ItemVersion(current.version, value, time_of(current.updated_at)))
    for row in earlier:
        newer = patched(row.patch, None if row.deleted else newer)
        value = engine.packer.unpack(newer)
        times = (time_of(row.updated_at), time_of(row.replaced_at))
        found.append(ItemVersion(row.version, value, *times, row.deleted))
    return found
