"""Operations of a store of items: LangGraph's `batch` as reads and changes.

No I/O and no clock: like the engine's operations, they yield requests (`_core.engine.operation`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
    validate_op_namespace,
)

from threadkeep._core.engine.operation import Fetch, Operation, call
from threadkeep._core.validation import is_count
from threadkeep._core.words import tokens
from threadkeep._stores.items import filters
from threadkeep._stores.items.filters import fuse
from threadkeep._stores.items.records import (
    FindItems,
    FindNamespaces,
    FindNearest,
    FindText,
    GetItems,
    ItemKey,
    ItemRow,
    Namespace,
    RefreshItems,
    Scored,
)
from threadkeep.errors import BackendError, EmbeddingError, invalid
from threadkeep.store import puts as putting
from threadkeep.store.embedding import Index
from threadkeep.store.items import (
    FoundItem,
    ItemEngine,
    StoredItem,
    ask,
    readable,
    time_of,
    value_of,
)

T = TypeVar("T")

_PAGE = 256  # rows read at once for a filter that is tested in Python
_REFRESH = 100  # a read renews a lifetime after a hundredth of it
_FUSED = 100  # least number of items of each ranking that are fused
_QUERY_WORDS = 200
_GETS = -1  # key of all gets, among positions of other reads
_MOST = 2**31  # items in an answer: the limit of databases
Vectors: TypeAlias = Mapping[str, bytes | EmbeddingError]  # of queries
_log = logging.getLogger("threadkeep")


# -- batches -----------------------------------------------------------------------------


def batch(
    engine: ItemEngine, ops: Sequence[Op], expects: Mapping[int, int] | None = None
) -> Operation[list[Any]]:
    """Run operations. Reads see the store as it was before the puts.

    Of several puts of one key, the last one counts. `expects` has the version that the item of a
    put must have, by the position of the put in `ops`.
    """
    now = engine.now()
    alive = now if engine.omit_expired else None
    results: list[Any] = [None] * len(ops)
    puts: dict[ItemKey, tuple[PutOp, int | None]] = {}
    gets: dict[int, GetOp] = {}
    reads: dict[int, Operation[Any]] = {}
    vectors = {} if engine.index is None else (yield from _queries(engine.index, ops))
    for at, op in enumerate(ops):
        validate_op_namespace(op)
        if isinstance(op, PutOp):
            puts[_key(op)] = (op, expects.get(at) if expects else None)
        elif isinstance(op, GetOp):
            gets[at] = op
        else:
            reads[at] = _other(engine, op, alive, vectors)
    if gets:
        reads[_GETS] = _get(engine, gets.values(), alive)
    if reads:
        replies = dict(zip(reads, (yield from together([*reads.values()])), strict=True))
        yield from _refresh([row for _, rows in replies.values() for row in rows], now)
        items, _ = replies.pop(_GETS, ((), ()))
        for at, item in zip(gets, items, strict=True):
            results[at] = item
        for at, (answer, _) in replies.items():
            results[at] = answer
    if puts:
        yield from putting.put(engine, puts.values(), now)
    return results


def _queries(index: Index, ops: Sequence[Op]) -> Operation[Vectors]:
    """Embed the queries of all searches at once."""
    if index.embedder is None:
        return {}
    queries = [op.query for op in ops if isinstance(op, SearchOp) and isinstance(op.query, str)]
    return (yield from index.embedder.queries(query for query in queries if query))


def _other(engine: ItemEngine, op: Op, alive: int | None, vectors: Vectors) -> Operation[Any]:
    if isinstance(op, SearchOp):
        return _search(engine, op, alive, vectors)
    if isinstance(op, ListNamespacesOp):
        return _namespaces(op, alive)
    raise invalid("op", op, "Use GetOp, PutOp, SearchOp or ListNamespacesOp.")


def together(operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Run operations that only fetch side by side: simultaneous fetches take one round trip."""
    if len(operations) == 1:  # (as most, and quicker)
        return [(yield from operations[0])]
    results: dict[int, T] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(operations)))
    while replies:
        fetches: dict[int, Fetch] = {}
        for at, reply in replies.items():
            try:
                fetches[at] = operations[at].send(reply)  # type: ignore[assignment]  # it only fetches
            except StopIteration as stop:
                results[at] = stop.value
        replies = {}
        if fetches:
            answers = iter((yield Fetch([read for one in fetches.values() for read in one.reads])))
            replies = {at: [next(answers) for _ in one.reads] for at, one in fetches.items()}
    return [results[at] for at in range(len(operations))]


def _key(op: GetOp | PutOp) -> ItemKey:
    if not isinstance(op.key, str):
        raise invalid("key", op.key, "Use a text.")
    if not op.key and isinstance(op, PutOp) and op.value is not None:
        raise invalid("key", op.key, "Use a text that is not empty.")
    if not op.namespace:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    return labels(op.namespace), op.key


def labels(namespace: Iterable[str]) -> Namespace:
    """Return a namespace as a tuple. A single text or a NUL raises `InvalidNamespaceError`."""
    if isinstance(namespace, str):
        raise InvalidNamespaceError(
            f"Invalid namespace: {namespace!a:.60}. Use a tuple of texts, such as ('users', '1')."
        )
    found = tuple(namespace)
    # (as langgraph-checkpoint 4.3.2 does)
    if any("\0" in label for label in found if isinstance(label, str)):
        raise InvalidNamespaceError(
            f"Invalid namespace: {found!a:.60}. Labels must not contain NUL."
        )
    return found


def checked(namespace: Iterable[str]) -> Namespace:
    """Validate a namespace, or the beginning of one, and return it as a tuple."""
    found = labels(namespace)
    validate_op_namespace(SearchOp(found))
    return found


# -- reads -------------------------------------------------------------------------------


def _get(
    engine: ItemEngine, gets: Collection[GetOp], alive: int | None
) -> Operation[tuple[list[StoredItem | None], list[ItemRow]]]:
    keys = tuple([_key(op) for op in gets])
    rows: list[ItemRow | None] = yield from ask(GetItems(keys, alive))
    items = [None if row is None else _item(engine, row) for row in rows]
    refreshed = [row for row, op in zip(rows, gets, strict=True) if row and op.refresh_ttl]
    return items, refreshed


def _item(engine: ItemEngine, row: ItemRow) -> StoredItem:
    item = StoredItem.__new__(StoredItem)  # (three times as fast as `__init__`)
    _fill(item, row, value_of(engine, row))
    return item


def _found(engine: ItemEngine, match: _Match) -> FoundItem | None:
    value = readable(engine, match.row) if match.value is None else match.value
    if value is None:
        return None
    item = FoundItem.__new__(FoundItem)
    _fill(item, match.row, value)
    item.score = match.score
    return item


def _fill(item: StoredItem | FoundItem, row: ItemRow, value: dict[str, Any]) -> None:
    item.value = value
    item.key = row.key
    item.namespace = row.namespace
    item.created_at = item.updated_at = time_of(row.created_at)
    if row.updated_at > row.created_at:  # (a clock may have been put back in between)
        item.updated_at = time_of(row.updated_at)
    item.version = row.version


class _Match(NamedTuple):
    row: ItemRow
    score: float | None = None
    value: dict[str, Any] | None = None  # if already decoded


def _search(
    engine: ItemEngine, op: SearchOp, alive: int | None, vectors: Vectors
) -> Operation[tuple[list[FoundItem], list[ItemRow]]]:
    _check_counts(op, "limit", "offset")
    if not isinstance(op.query, str | None):
        raise invalid("query", op.query, "Use a text.")
    op = op._replace(limit=min(op.limit, _MOST), offset=min(op.offset, _MOST))
    wanted = filters.parse(op.filter)
    read = FindItems(labels(op.namespace_prefix), 0, now=alive, newest=engine.newest)
    if op.query and engine.index is not None:
        matches = yield from _ranked(engine, engine.index, op, wanted, alive, vectors.get(op.query))
    elif wanted is None:
        rows = yield from ask(read._replace(limit=op.limit, offset=op.offset))
        matches = [_Match(row) for row in rows]
    else:
        read = read._replace(where=wanted.hints)
        found = yield from _passing(engine, read, wanted, op.offset + op.limit)
        matches = found[op.offset :]
    pairs = [(item, match.row) for match in matches if (item := _found(engine, match))]
    return [item for item, _ in pairs], [row for _, row in pairs] if op.refresh_ttl else []


def _check_counts(op: SearchOp | ListNamespacesOp, *names: str) -> None:
    for name in names:
        if not is_count(getattr(op, name), 0):
            raise invalid(name, getattr(op, name), "Use a number, 0 or more.")


def _passing(
    engine: ItemEngine, read: FindItems, wanted: filters.Filter | None, limit: int
) -> Operation[list[_Match]]:
    """Return the first items that pass a filter, page by page."""
    found: list[_Match] = []
    page = limit
    while len(found) < limit:
        rows: list[ItemRow] = yield from ask(read._replace(limit=page))
        found += _tested(engine, [(row, None) for row in rows], wanted)
        if len(rows) < page:
            break
        last = rows[-1]
        read = read._replace(after=last.age if read.newest else last.place)
        page = max(2 * page, _PAGE)
    return found[:limit]


def _tested(
    engine: ItemEngine,
    scored: Iterable[tuple[ItemRow, float | None]],
    wanted: filters.Filter | None,
) -> list[_Match]:
    found = []
    for row, score in scored:
        if wanted is None:
            found.append(_Match(row, score))
        else:
            value = readable(engine, row)
            if value is not None and wanted.holds(value):
                found.append(_Match(row, score, value))
    return found


def _ranked(
    engine: ItemEngine,
    index: Index,
    op: SearchOp,
    wanted: filters.Filter | None,
    alive: int | None,
    vector: bytes | EmbeddingError | None,
) -> Operation[list[_Match]]:
    """Return the best items, then (as LangGraph does) items without a vector."""
    query, prefix = op.query or "", labels(op.namespace_prefix)
    words = tuple(dict.fromkeys(tokens(query)))[:_QUERY_WORDS]
    hints = wanted.hints if wanted else ()
    if isinstance(vector, EmbeddingError):
        if index.search == "semantic":
            raise vector
        _log.warning("The query could not be embedded: searching by words only.", exc_info=vector)
        vector = None
    last = op.offset + op.limit
    size = last if index.search != "hybrid" else _fused(last)
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


def _fused(last: int) -> int:
    """Return the number of items to fuse, the same for many pages, so that their order agrees."""
    size = _FUSED
    while size < last:
        size *= 10
    return size


def _refresh(rows: Iterable[ItemRow], now: int) -> Operation[None]:
    """Renew the lifetimes of rows that were read."""
    keys = {
        (row.namespace, row.key): None
        for row in rows
        if row.ttl is not None
        and row.expires_at is not None
        and now + row.ttl - row.expires_at >= row.ttl // _REFRESH
    }
    if keys:
        change: Any = RefreshItems(tuple(keys), now)
        try:
            yield from call("commit", change)  # (without waiting for other changes)
        except BackendError as error:  # (the store may be read-only)
            _log.info("Lifetimes of items that were read were not renewed: %s", error.message)


def _namespaces(
    op: ListNamespacesOp, alive: int | None
) -> Operation[tuple[list[Namespace], list[ItemRow]]]:
    _check_counts(op, "limit", "offset", *(() if op.max_depth is None else ("max_depth",)))
    conditions = op.match_conditions or ()
    for one in conditions:
        if isinstance(one.path, str):
            _log.warning("The path %a is a text instead of a tuple: nothing matches.", one.path)
        else:
            labels(one.path)
        if one.match_type not in ("prefix", "suffix"):
            raise invalid("match_type", one.match_type, 'Use "prefix" or "suffix".')
    prefix = max((_literal(one) for one in conditions), key=len, default=())
    found: Iterable[Namespace] = yield from ask(FindNamespaces(prefix, alive))
    if conditions:
        found = [name for name in found if all(_matches(one, name) for one in conditions)]
    if op.max_depth is not None:
        found = {name[: op.max_depth] for name in found}
    return sorted(found)[op.offset : op.offset + op.limit], []


def _literal(condition: MatchCondition) -> Namespace:
    """Return the labels that a matching namespace begins with."""
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


# -- calls in one transaction --------------------------------------------------------


class Calls:
    """Batches of the operations that tasks submit in one iteration of their event loop.

    Reads, searches with a query, other searches and puts are separate batches, so that only
    operations with texts wait for the embedding model. If a batch fails, each of its operations
    runs alone, unless the database failed.

    Args:
        run: runs a batch.
    """

    def __init__(self, run: Callable[[list[Op]], Awaitable[list[Any]]]) -> None:
        self._run = run
        self._waiting: dict[str, list[tuple[Op, asyncio.Future[Any]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, op: Op) -> asyncio.Future[Any]:
        """Submit an operation, and return the future of its result."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._start)
        kind = "put" if isinstance(op, PutOp) else "read"
        if isinstance(op, SearchOp):
            kind = "query" if op.query else "search"
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.setdefault(kind, []).append((op, future))
        return future

    def _start(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for group in waiting.values():
            task = asyncio.get_running_loop().create_task(self._serve(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, group: list[tuple[Op, asyncio.Future[Any]]]) -> None:
        group = [(op, future) for op, future in group if not future.done()]
        try:
            results = await self._run([op for op, _ in group])
        except Exception as error:  # noqa: BLE001 - every caller gets the error of its operation
            if len(group) == 1:
                _resolve(group[0][1], error=error)
            elif isinstance(error, BackendError):
                for _, future in group:
                    _resolve(future, error=error.fresh())
            else:
                for each in group:
                    await self._serve([each])
        except BaseException:
            for _, future in group:
                future.cancel()
            raise
        else:
            for (_, future), result in zip(group, results, strict=True):
                _resolve(future, result)


def _resolve(
    future: asyncio.Future[Any], result: Any = None, *, error: Exception | None = None
) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
