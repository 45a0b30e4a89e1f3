"""Records that a store of items and its backends exchange: reads, changes, and rows.

A namespace is a tuple of labels. Times and lifetimes are integers: microseconds, times since 1970.
A value is JSON text (`str`), or the codec's bytes where it is no JSON. Vectors are little-endian
float32. The counter of a store only grows; a version is its count at the put.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

Namespace: TypeAlias = tuple[str, ...]
ItemKey: TypeAlias = tuple[Namespace, str]
Packed: TypeAlias = str | bytes
Place: TypeAlias = tuple[int, int]
Metric: TypeAlias = Literal["cosine", "l2", "inner_product"]


class SearchOptions(NamedTuple):
    """The part of a store's index that its backend has to know.

    `dims` is 0 without vectors; `text`: items have words to search for.
    """

    dims: int = 0
    metric: Metric = "cosine"
    text: bool = False


# -- rows --------------------------------------------------------------------------------


class ItemRow(NamedTuple):
    """A stored item.

    `place` is the number of its namespace and its own: items are listed in the order of their
    places, which is that of their first puts, namespace by namespace.
    """

    namespace: Namespace
    key: str
    value: Packed
    created_at: int
    updated_at: int
    version: int
    place: Place
    ttl: int | None = None
    expires_at: int | None = None


class Scored(NamedTuple):
    """An item that a search found. A higher score is better."""

    row: ItemRow
    score: float


class VersionRow(NamedTuple):
    """An earlier version of an item, as a patch of the one that replaced it.

    See `values.patch`. Where it was deleted, the patch is of nothing.
    """

    version: int
    updated_at: int
    replaced_at: int
    deleted: bool
    patch: bytes


class Condition(NamedTuple):
    """A test of one field: `path` leads to it, `operator` is `$eq`, `$gt`, `$gte`, `$lt`, `$lte`.

    `value` is a str, int, float or bool.
    """

    path: tuple[str, ...]
    operator: str
    value: Any


# -- reads -------------------------------------------------------------------------------
#
# `prefix` matches the namespaces that begin with its labels. `where` is a hint: rows that fail one
# of its conditions may be left out, those whose value is no JSON never. With `now`, items that have
# expired by then are left out.


class GetItems(NamedTuple):
    """Read items. Reply: for each key its `ItemRow`, or None."""

    keys: tuple[ItemKey, ...]
    now: int | None = None


class FindItems(NamedTuple):
    """Read items in the order of their places. Reply: a list of `ItemRow`.

    `offset` is used without `where`. With `after`, those behind that place; with `bare`, those
    without vectors.
    """

    prefix: Namespace
    limit: int
    offset: int = 0
    where: tuple[Condition, ...] = ()
    after: Place | None = None
    now: int | None = None
    bare: bool = False


class FindNamespaces(NamedTuple):
    """Read the namespaces that hold items. Reply: a list of them, in any order."""

    prefix: Namespace
    now: int | None = None


class FindNearest(NamedTuple):
    """Find the items with the nearest vectors. Reply: a list of `Scored`, best first.

    The score of an item is that of its best vector; equal scores are in the order of places.
    """

    prefix: Namespace
    vector: bytes
    limit: int
    where: tuple[Condition, ...] = ()
    now: int | None = None


class FindText(NamedTuple):
    """Find the items whose texts have any of these words. Reply: a list of `Scored`, best first.

    Scores are the database's own, and comparable only with each other.
    """

    prefix: Namespace
    words: tuple[str, ...]
    limit: int
    where: tuple[Condition, ...] = ()
    now: int | None = None


class FindPending(NamedTuple):
    """Find items that wait for their vectors. Reply: a list of (`ItemRow`, `ItemPut.pending`)."""

    limit: int
    after: Place | None = None


class FindVersions(NamedTuple):
    """Read the earlier versions of an item. Reply: a list of `VersionRow`, newest first."""

    namespace: Namespace
    key: str


# -- changes -----------------------------------------------------------------------------


class Vector(NamedTuple):
    """The vector of the text at a path of a value."""

    path: str
    data: bytes


class Earlier(NamedTuple):
    """The version that a put replaces, for the history; at most `keep` of an item are kept."""

    row: VersionRow
    keep: int


class ItemPut(NamedTuple):
    """Put an item, or delete it (`value` None).

    An item that exists keeps its place and `created_at`; all else is replaced.
    """

    namespace: Namespace
    key: str
    value: Packed | None
    ttl: int | None = None
    vectors: tuple[Vector, ...] = ()
    words: str | None = None  # the tokens of its texts, with spaces between them
    pending: str | None = None  # (the fields to embed later)
    expects: int | None = None  # the version that it has, 0 for no item; None: any
    earlier: Earlier | None = None
    times: tuple[int, int, int | None] | None = None  # created, updated, expires; None: by `now`


class PutItems(NamedTuple):
    """Put items, all or none. They have different keys.

    Raises:
        ConflictError: an item has another version than expected.
    """

    puts: tuple[ItemPut, ...]
    now: int


class RefreshItems(NamedTuple):
    """Restart the lifetimes of items; items without a lifetime are not changed."""

    keys: tuple[ItemKey, ...]
    now: int


class EmbedItem(NamedTuple):
    """Add the vectors of an item that waited for them, unless it was put again since."""

    namespace: Namespace
    key: str
    version: int
    vectors: tuple[Vector, ...]


class EmbedItems(NamedTuple):
    """Add the vectors of several items."""

    items: tuple[EmbedItem, ...]


ItemRead: TypeAlias = (
    GetItems | FindItems | FindNamespaces | FindNearest | FindText | FindPending | FindVersions
)
ItemChange: TypeAlias = PutItems | RefreshItems | EmbedItems
