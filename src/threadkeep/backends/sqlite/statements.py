"""SQL statements that take many rows at once.

The driver releases the interpreter's lock once a statement, not once a row. The number of
distinct texts is small, so that SQLite keeps all of them prepared.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

CACHED = 256
"""Prepared statements that a connection which writes keeps."""

_SIZES = (64, 32, 16)  # and all below: rows of one statement


class ManyRows:
    """A statement whose text repeats a part for each row.

    Args:
        text: with `{rows}` where the rows stand.
        row: the part for one row.
    """

    def __init__(self, text: str, row: str) -> None:
        self._text = text
        self._row = row
        self._texts: dict[int, str] = {}

    def run(self, db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> None:
        """Execute it for the rows, some at a time."""
        if len(rows) == 1:
            db.execute(self.text(1), rows[0])
            return
        for part in _parts(rows):
            db.execute(self.text(len(part)), tuple(chain.from_iterable(part)))

    def ask(self, db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Execute it for the rows, some at a time; return all that it found."""
        found: list[Any] = []
        for part in _parts(rows):
            values = tuple(chain.from_iterable(part))
            found += db.execute(self.text(len(part)), values).fetchall()
        return found

    def text(self, count: int) -> str:
        """Return the SQL for so many rows."""
        text = self._texts.get(count)
        if text is None:
            rows = ", ".join([self._row] * count)
            text = self._texts[count] = self._text.replace("{rows}", rows)
        return text


def _parts(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    start = 0
    while left := len(rows) - start:
        size = next((size for size in _SIZES if size <= left), left)
        yield rows[start : start + size]
        start += size
