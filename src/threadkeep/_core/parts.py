"""Parts of limited number and size, each for one read or write."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
_MOST_BYTES = 4 << 20  # in one read or write: Redis blocks all clients meanwhile
_MOST_ROWS = 128


def parts_of(
    items: Iterable[T],
    size: Callable[[T], int],
    most_items: int | None = None,
    most_bytes: int | None = None,
) -> Generator[list[T], None, None]:
    """Group items into parts of limited number and size."""
    most_items, most_bytes = most_items or _MOST_ROWS, most_bytes or _MOST_BYTES
    part: list[T] = []
    total = 0
    for item in items:
        if part and (len(part) >= most_items or total + size(item) > most_bytes):
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part
