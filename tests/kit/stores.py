"""Stores of items for tests: random operations, vectors without a model, and the reference."""

import hashlib
import random
from typing import Any

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

DIMS = 8


def embed(texts: list[str]) -> list[list[float]]:
    """Vectors that depend on nothing but the texts."""
    found = []
    for text in texts:
        source = random.Random(hashlib.md5(text.encode()).hexdigest())
        found.append([source.gauss(0, 1) for _ in range(DIMS)])
    return found


INDEX = {"dims": DIMS, "embed": embed, "fields": ["text"]}


# -- the reference -----------------------------------------------------------------------


class _Lazy(dict):
    def __init__(self, owner, namespace):
        self._owner, self._namespace = owner, namespace

    def __setitem__(self, key, value):
        self._owner.setdefault(self._namespace, self)
        super().__setitem__(key, value)


class _Data(dict):
    def __missing__(self, namespace):
        return _Lazy(self, namespace)


def _path(item: Any, mark: str) -> str:
    return "".join(label + mark for label in item.namespace)


class Reference(InMemoryStore):
    """LangGraph's `InMemoryStore` without three defects, and in the order of the store `like`.

    To look for an item makes its namespace; a namespace outlives its last item; and an item
    that is put again keeps the vectors of texts that it no longer has.
    """

    def __init__(self, *, like: str = "memory", **options: Any) -> None:
        super().__init__(**options)
        self._data = _Data()
        self._like = like
        self._puts: dict[Any, int] = {}  # a number of each item's last put

    def _apply_put_ops(self, put_ops):
        for place in put_ops:
            self._puts[place] = len(self._puts) and max(self._puts.values()) + 1
        super()._apply_put_ops(put_ops)

    def _filter_items(self, op):
        if self._like == "memory":
            return super()._filter_items(op)
        every = super()._filter_items(op._replace(limit=10**9, offset=0))
        if self._like == "redis":
            return sorted(every, key=lambda one: _path(one[0], "\0"))
        if op.query and self.embeddings:
            return sorted(every, key=lambda one: (_path(one[0], "."), one[0].key))
        return sorted(every, key=lambda one: -self._puts[one[0].namespace, one[0].key])

    def _extract_texts(self, put_ops):
        for namespace, key in put_ops:
            self._vectors[namespace].pop(key, None)
        return super()._extract_texts(put_ops)

    def _handle_list_namespaces(self, op):
        everything = self._data
        self._data = _Data({name: items for name, items in everything.items() if items})
        try:
            return super()._handle_list_namespaces(op)
        finally:
            self._data = everything


# -- random operations -------------------------------------------------------------------

_LABELS = ["a", "b", "ab", "a-b", "A", "ä", "*x"]
_VALUES = [
    1,
    2,
    2.0,
    3.5,
    -1,
    True,
    False,
    None,
    "1",
    "b",
    "x'y",
    [1, 2],
    {"p": 1},
    {"p": {"q": 2}},
]
_WANTED = [
    *(1, True, 2, "b", None, [1, 2], {"p": 1}, {"p": {"q": 2}}, "x'y"),
    *({"$ne": 1}, {"$eq": 2}, {"$eq": "1"}, {"$ne": None}, {"$eq": True}),
    *({"p": {"$eq": 1}}, [{"$ne": 5}, 2], {"$eq": {"p": 1}}),
]
_ORDERED = [{"$gt": 1}, {"$gte": 2}, {"$lt": 3.5}, {"$lte": 2.0, "$gt": 0}, {"p": {"$gt": 0}}]


class Operations:
    """Random operations from a seed; no two values have the same text."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._texts = 0

    def batch(self) -> list[Any]:
        """A batch of operations, or one search by meaning."""
        source = self._random
        if source.random() < 0.2:
            return [self._search(query=f"query {source.randint(0, 9)}")]
        return [self._op() for _ in range(source.randint(1, 6))]

    def _op(self) -> Any:
        source = self._random
        kind = source.random()
        key = source.choice("klmn")
        if kind < 0.45:
            value = None if source.random() < 0.2 else self._value()
            return PutOp(self._namespace(), key, value, source.choice([None, None, False]))
        if kind < 0.65:
            return GetOp(self._namespace(), key)
        return self._search() if kind < 0.85 else self._listing()

    def _namespace(self, least: int = 1) -> tuple[str, ...]:
        source = self._random
        return tuple(source.choice(_LABELS) for _ in range(source.randint(least, 3)))

    def _value(self) -> dict[str, Any]:
        source = self._random
        self._texts += 1
        value: dict[str, Any] = {"n": source.choice([0, 1, 2, 3, 2.5])}
        if source.random() < 0.7:
            value["text"] = f"text {self._texts}"
        return value | {key: source.choice(_VALUES) for key in "xyz" if source.random() < 0.6}

    def _search(self, query: str | None = None) -> SearchOp:
        source = self._random
        wanted = {key: source.choice(_WANTED) for key in "xyz" if source.random() < 0.4}
        if source.random() < 0.3:  # (the reference fails where a field cannot be compared)
            wanted["n"] = source.choice(_ORDERED[:4])
        limit, offset = source.choice([1, 3, 10]), source.choice([0, 0, 1, 5])
        return SearchOp(self._namespace(0), wanted or None, limit, offset, query)

    def _listing(self) -> ListNamespacesOp:
        source = self._random
        conditions = [
            MatchCondition(
                source.choice(["prefix", "suffix"]),
                tuple(source.choice([*_LABELS, "*"]) for _ in range(source.randint(1, 2))),
            )
            for _ in range(source.randint(0, 2))
        ]
        depth, limit = source.choice([None, 1, 2]), source.choice([2, 100])
        return ListNamespacesOp(tuple(conditions) or None, depth, limit, source.choice([0, 1]))


def plain(answer: Any) -> Any:
    """An answer as what can be compared: without times, and with rounded scores."""
    if isinstance(answer, list):
        return [plain(one) for one in answer]
    if isinstance(answer, Item):
        score = getattr(answer, "score", None)
        rounded = None if score is None else round(score, 3)
        return (answer.namespace, answer.key, answer.value, rounded)
    return answer
