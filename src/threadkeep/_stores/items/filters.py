"""Filters and ranking of a search. Filters are parsed once and tested in Python.

Databases get conditions as hints.

The rules follow LangGraph's `InMemoryStore`: a dict without operators is compared key by key, a
list element by element, and a missing field is None. Added are `$and`, `$or` and paths
("user.name", as in LangGraph's `SqliteStore`). An ordering of values that cannot be compared is
false instead of an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from math import log
from operator import eq, ge, gt, le, lt, ne
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from threadkeep._core.engine.listing import field, is_path
from threadkeep._core.texts import is_unicode
from threadkeep._stores.external import extra
from threadkeep._stores.items.records import Condition, ItemPlace, ItemRow, Scored, VectorMetric
from threadkeep.errors import InvalidArgumentError, invalid

Test: TypeAlias = Callable[[Any], bool]

_EQUALITY: dict[str, Callable[[Any, Any], Any]] = {"$eq": eq, "$ne": ne}
_ORDER: dict[str, Callable[[Any, Any], Any]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
_LOGIC: dict[str, Callable[[Any], bool]] = {"$and": all, "$or": any}
_KNOWN = ", ".join((*_EQUALITY, *_ORDER, *_LOGIC))
_NUMBERS = (int, float)
_DEEP = 32


class Filter:
    """A parsed filter.

    Attributes:
        holds: returns True if a value passes.
        hints: conditions that every passing value fulfils.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        if not isinstance(given, Mapping):
            raise invalid("filter", given, "Use a dict that maps fields to values or operators.")
        self.holds = _fields(given, 0)
        self.hints = tuple(_hints(given, ()))


def parse(given: Mapping[str, Any] | None) -> Filter | None:
    """Parse a filter; None for none.

    Raises:
        InvalidArgumentError: an operator is unknown, or its value is invalid.
    """
    return Filter(given) if given else None


# -- tests -------------------------------------------------------------------------------


def _fields(given: Mapping[str, Any], depth: int) -> Test:
    """Return the test of a dict by its fields."""
    tests = [_field(name, wanted, depth) for name, wanted in given.items()]
    return lambda value: isinstance(value, dict) and all(test(value) for test in tests)


def _field(name: str, wanted: Any, depth: int) -> Test:
    if name in _LOGIC:
        return _logic(name, wanted, _fields, depth)
    if isinstance(name, str) and name.startswith("$"):
        raise _unknown(name)
    test = _value(wanted, depth + 1)
    return lambda value: test(field(value, name))


def _value(wanted: Any, depth: int) -> Test:
    """Return the test of a field."""
    if depth > _DEEP:
        raise InvalidArgumentError(
            f"The filter is nested more than {_DEEP} levels deep.", hint="Use fewer levels."
        )
    if isinstance(wanted, Mapping):
        if any(isinstance(key, str) and key.startswith("$") for key in wanted):
            tests = [_operator(name, operand, depth) for name, operand in wanted.items()]
            return lambda value: all(test(value) for test in tests)
        return _fields(wanted, depth)
    if isinstance(wanted, list | tuple):
        elements = [_value(one, depth + 1) for one in wanted]
        return lambda value: (
            isinstance(value, list | tuple)
            and len(value) == len(elements)
            and all(test(one) for test, one in zip(elements, value, strict=True))
        )
    return lambda value: _compared(eq, value, wanted)


def _operator(name: str, operand: Any, depth: int) -> Test:
    if name in _EQUALITY:
        compare = _EQUALITY[name]
        return lambda value: _compared(compare, value, operand)
    if name in _ORDER:
        if operand is None or (isinstance(operand, Iterable) and not isinstance(operand, str)):
            raise invalid(name, operand, "Use a number, a text or a date.")
        order = _ORDER[name]
        return lambda value: _ordered(order, value, operand)
    if name in _LOGIC:
        return _logic(name, operand, _value, depth)
    raise _unknown(name)


def _logic(name: str, operands: Any, parts: Callable[[Any, int], Test], depth: int) -> Test:
    if isinstance(operands, str) or not isinstance(operands, Sequence) or not operands:
        raise invalid(name, operands, "Use a list of filters, with one or more.")
    if depth > _DEEP or not all(isinstance(one, Mapping) for one in operands):
        raise invalid(name, operands, f"Use a list of filters, at most {_DEEP} levels deep.")
    tests = [parts(one, depth + 1) for one in operands]
    combine = _LOGIC[name]
    return lambda value: combine([test(value) for test in tests])


def _ordered(order: Callable[[Any, Any], Any], value: Any, operand: Any) -> bool:
    """Compare numbers, and texts of numbers, as numbers; others as Python does."""
    a, b = _number(value), _number(operand)
    if a is not None and b is not None:
        return _compared(order, a, b)
    return _compared(order, value, operand)


def _compared(compare: Callable[[Any, Any], Any], value: Any, operand: Any) -> bool:
    try:
        return bool(compare(value, operand))
    except (TypeError, ValueError):  # (values of types that have no order, or arrays)
        return compare is ne


def _number(value: Any) -> float | int | None:
    if isinstance(value, _NUMBERS):
        return value
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _unknown(name: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"Unknown operator: {name!s:.60}.", hint=f"Known are {_KNOWN}.")


# -- hints -------------------------------------------------------------------------------


def _hints(given: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Condition]:
    for name, wanted in given.items():
        if name == "$and":
            for one in wanted:
                yield from _hints(one, path)
        elif isinstance(name, str) and not name.startswith("$") and not is_path(name):
            yield from _hints_of((*path, name), wanted)


def _hints_of(path: tuple[str, ...], wanted: Any) -> Iterator[Condition]:
    if isinstance(wanted, Mapping):
        if any(isinstance(key, str) and key.startswith("$") for key in wanted):
            for name, operand in wanted.items():
                if name == "$eq" or name in _ORDER:
                    yield from _hint(path, name, operand)
        else:
            yield from _hints(wanted, path)
    else:
        yield from _hint(path, "$eq", wanted)


def _hint(path: tuple[str, ...], name: str, operand: Any) -> Iterator[Condition]:
    """Yield a condition if databases test it as Python does."""
    if not all(label.isprintable() for label in path):  # (JSON escapes such keys)
        return
    if type(operand) is str:
        if is_unicode(operand) and (name == "$eq" or _number(operand) is None):
            yield Condition(path, name, operand)
    elif type(operand) in (bool, int, float) and abs(operand) <= 2**53:  # (nan: false)
        yield Condition(path, name, operand)


# -- ranking -------------------------------------------------------------------------


P = TypeVar("P", ItemPlace, bytes, int)

_K1, _B = 1.2, 0.75  # parameters of BM25, as in FTS5
_RANK = 60  # constant of reciprocal rank fusion: https://doi.org/10.1145/1571941.1572114


def numpy() -> ModuleType:
    """Return numpy. The import takes 0.1 seconds, so do it before an event loop searches.

    Raises:
        OpenError: it is not installed.
    """
    with extra("Semantic search", "search"):
        return import_module("numpy")


def nearest(
    metric: VectorMetric,
    vectors: Sequence[tuple[P, bytes]],
    query: bytes,
    limit: int,
    order: Callable[[P], Any] | None = None,
) -> list[tuple[P, float]]:
    """Return the best places and their scores: cosine, inner product or negative distance.

    `vectors` has places, each with one or more vectors, concatenated. See `best`.
    """
    if not vectors or not limit:
        return []
    np = numpy()
    wanted = np.frombuffer(query, "<f4")
    matrix = np.frombuffer(b"".join([data for _, data in vectors]), "<f4").reshape(-1, len(wanted))
    places = [place for place, data in vectors for _ in range(len(data) // len(query))]
    scores = matrix @ wanted
    if metric == "l2":
        scores = -np.sqrt(np.square(matrix - wanted).sum(axis=1))
    elif metric == "cosine":
        norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix)) * np.sqrt(wanted @ wanted)
        scores = np.divide(scores, norms, out=np.zeros_like(scores), where=norms > 0)
    size = limit
    while True:
        last = len(scores) - min(size, len(scores))
        some = np.flatnonzero(scores >= np.partition(scores, last)[last])  # (all of equal scores)
        found = best([(places[at], float(scores[at])) for at in some.tolist()], limit, order)
        if len(found) >= limit or size >= len(scores):
            return found
        size *= 4


def best(
    scored: Iterable[tuple[P, float]], limit: int, order: Callable[[P], Any] | None = None
) -> list[tuple[P, float]]:
    """Return the places with the best scores; a place counts with its best one.

    Equal scores are in the order of the places, or of what `order` returns for them.
    """
    highest: dict[P, float] = {}
    for place, score in scored:
        if place not in highest or score > highest[place]:
            highest[place] = score
    placed = order or (lambda place: place)
    return sorted(highest.items(), key=lambda one: (-one[1], placed(one[0])))[:limit]


def best_texts(texts: Mapping[P, str], words: Sequence[str], limit: int) -> list[tuple[P, float]]:
    """Return the places with the best texts by BM25, given as tokens with spaces between."""
    counts = [Counter(text.split(" ")) for text in texts.values()]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / len(lengths) if lengths else 1.0
    scores = [0.0] * len(texts)
    for word in words:
        having = sum(word in count for count in counts)
        rarity = log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for at, count in enumerate(counts):
            if often := count[word]:
                scale = _K1 * (1 - _B + _B * lengths[at] / mean)
                scores[at] += rarity * often * (_K1 + 1) / (often + scale)
    return best([one for one in zip(texts, scores, strict=True) if one[1]], limit)


def fuse(*rankings: Iterable[Scored]) -> list[Scored]:
    """Return the items of several rankings as one, by the sum of 1 / (60 + rank)."""
    rows: dict[ItemPlace, ItemRow] = {}
    scores: dict[ItemPlace, float] = {}
    for ranking in rankings:
        for rank, (row, _) in enumerate(ranking, 1):
            rows[row.place] = row
            scores[row.place] = scores.get(row.place, 0.0) + 1 / (_RANK + rank)
    ordered = sorted(rows, key=lambda place: (-scores[place], place))
    return [Scored(rows[place], scores[place]) for place in ordered]
