"""Reads of items as SQL, with `%s` for each value and `i` for the table.

The columns are path, key, version, updated, expires and pending: a database replaces the names that
it has otherwise. A path is the labels of a namespace, each followed by a period.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from threadkeep._stores.items import records
from threadkeep._stores.items.records import Namespace

IN_PLACE = "i.path, i.key"
ALIVE = "(i.expires IS NULL OR i.expires > %s)"


@lru_cache(maxsize=4096)
def path_of(namespace: Namespace) -> str:
    """Return the path of a namespace."""
    return "".join([f"{label}." for label in namespace])


@lru_cache(maxsize=4096)
def namespace_of(path: str) -> Namespace:
    """Return the namespace of a path."""
    return tuple(path[:-1].split("."))


def key_of(namespace: Namespace, key: str) -> tuple[str, str]:
    """Return the key of an item's row."""
    return path_of(namespace), key


def stored(namespace: Namespace, key: str, row: Sequence[Any]) -> records.StoredVersion:
    """Return an earlier version, of a row that begins with its number."""
    number, updated, replaced, deleted, patch = row
    version = records.VersionRow(number, updated, replaced, bool(deleted), patch)
    return records.StoredVersion(namespace, key, version)


class Dialect(NamedTuple):
    """The parts of SQL in which databases differ."""

    key: Callable[[Namespace, str], tuple[str, str]]
    """Returns the values of the columns path and key."""
    after_all: Any
    """A value after all paths."""
    bare: str
    """The condition of items without vectors."""
    test: Callable[[records.Condition], tuple[str, Sequence[Any]] | None]
    """Returns the SQL of a hint and its values, or None."""

    def bounds(self, prefix: Namespace) -> tuple[str, Any]:
        """Return the first path of a prefix, and the first path after all of them."""
        path, _ = self.key(prefix, "")
        return path, (path[:-1] + "/" if path else self.after_all)  # (/ is after the period)

    def tests(self, read: Any) -> tuple[list[str], list[Any]]:
        """Return the conditions on prefix, lifetime and hints, and their values."""
        tests: list[str] = []
        values: list[Any] = []
        if read.prefix:
            tests.append("i.path >= %s AND i.path < %s")
            values += self.bounds(read.prefix)
        if read.now is not None:
            tests.append(ALIVE)
            values.append(read.now)
        for found in map(self.test, getattr(read, "where", ())):
            if found is not None:
                tests.append(found[0])
                values += found[1]
        return tests, values

    def find(self, read: records.FindItems) -> tuple[str, str, list[Any]]:
        """Return the end of the query of `FindItems`, its order, and its values."""
        tests, values = self.tests(read)
        order, after = IN_PLACE, "(i.path, i.key) > (%s, %s)"
        if read.newest:
            order, after = "i.updated DESC, i.version DESC", "(i.updated, i.version) < (%s, %s)"
        if read.after is not None:
            tests.append(after)
            values += read.after
        if read.bare:
            tests.append(self.bare)
        if read.pending:
            tests.append("i.pending IS NOT NULL")
        values += (read.limit, 0 if read.where else read.offset)
        return f"{where(tests)} ORDER BY {order} LIMIT %s OFFSET %s", order, values

    def versions(self, read: records.FindVersions) -> tuple[str, list[Any]]:
        """Return the end of the query of `FindVersions`, and its values."""
        tests: list[str] = []
        values: list[Any] = []
        if read.item is not None:
            tests.append("i.path = %s AND i.key = %s")
            values += self.key(*read.item)
        if read.after is not None:
            tests.append("(i.path, i.key, i.version) > (%s, %s, %s)")
            values += (*self.key(*read.after[:2]), read.after.row.version)
        return f"{where(tests)} ORDER BY {IN_PLACE}, i.version LIMIT %s", [*values, read.limit]


def where(tests: Sequence[str]) -> str:
    """Return a clause of conditions, if there are any."""
    return f"WHERE {' AND '.join(tests)}" if tests else ""
