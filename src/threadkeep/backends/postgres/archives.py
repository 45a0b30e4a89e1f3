"""What `pg_restore --list` says of an archive, and the order to restore it in.

Only the reading and the sorting of that list live here. Invariant: a sorted list has the same
entries, each after those that it needs.
"""

from __future__ import annotations

import re

_SCHEMA = re.compile(r"^\d+; \d+ \d+ SCHEMA - (.+) \S+$", re.MULTILINE)
_CONSTRAINT = re.compile(r"^\d+; \d+ \d+ CONSTRAINT ")  # a primary key or the like; no foreign key
_TABLES = ("threads", "checkpoints", "writes", "segments", "thread_labels", "heaps")


def holds_tables(contents: str, schema: str) -> bool:
    """Whether the archive has tables of ours in this schema; all but one may be partitioned."""
    # (a partitioned table is there without data)
    wanted = (f" TABLE {schema} checkpoints ", f" TABLE DATA {schema} migrations ")
    return all(one in contents for one in wanted)


def schemas(contents: str) -> list[str]:
    """The names of all schemas in the archive."""
    return _SCHEMA.findall(contents)


def cleanable(contents: str, schema: str) -> str:
    """The list in an order in which what stands there can be dropped first, partitions too.

    pg_restore drops in the opposite order. The primary key of a partition cannot be dropped
    before that of its table, with which it goes: all keys are put next to each other, those
    of our tables last. A key needs nothing but its table, and tables come before all keys.
    """
    lines = contents.splitlines(keepends=True)
    keys = [line for line in lines if _CONSTRAINT.match(line)]
    if not keys:
        return contents
    first = lines.index(keys[0])
    rest = [line for line in lines[first:] if not _CONSTRAINT.match(line)]
    ours = tuple(f" CONSTRAINT {schema} {table} " for table in _TABLES)
    keys.sort(key=lambda line: any(one in line for one in ours))
    return "".join([*lines[:first], *keys, *rest])
