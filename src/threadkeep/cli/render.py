"""Small things to look at, made of rich's: tables, trees, bars, sizes.

Invariant: every text that comes from a store has passed through `text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from threadkeep.cli.terminal import clean, drawing_here

_BAR = 24  # characters
_LINES, _CHARACTERS = 20, 2_000  # of one text, unless all of it is asked for
_ITEMS, _LEAF = 20, 200  # of one container, and characters of one value in a tree


def text(value: Any, style: str = "") -> Text:
    """What a store holds, as it may be shown."""
    return Text(clean(str(value)), style)


def line(*parts: tuple[str, str] | str) -> Text:
    """One line of texts, each with a style or without; empty ones are left out."""
    styled = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text("  ").join([text(what, style) for what, style in styled if what])


def indented(value: Any, by: int = 2) -> Padding:
    """A text, line for line, a little to the right."""
    return Padding(text(value), (0, 0, 0, by))


def cut(value: str, *, full: bool) -> str:
    """A long text's beginning, and how much is missing."""
    lines = value[:_CHARACTERS].split("\n")[:_LINES]
    shown = "\n".join(lines)
    if full or shown == value:
        return value
    return f"{shown}\n... {len(value) - len(shown)} more characters (--full)"


def table(columns: Sequence[str], rows: Iterable[Sequence[Text | str]]) -> Table:
    """A table; of its columns, those whose names end in `>` are of numbers."""
    style = box.SIMPLE_HEAD if drawing_here() else None
    drawn = Table(box=style, pad_edge=False, header_style="bold")
    for name in columns:
        drawn.add_column(
            name.removesuffix(">"),
            justify="right" if name.endswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        drawn.add_row(*row)
    return drawn


def bar(part: float, whole: float) -> Text:
    """How much of the whole it is."""
    filled = round(_BAR * part / whole) if whole else 0
    return Text(("\u2588" if drawing_here() else "#") * filled, "cyan")


def some(count: int, what: str) -> str:
    """How many there are of it."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def size(count: int) -> str:
    """Bytes, for people."""
    return f"{count:,}"


def tree_of(label: Text, value: Any, *, full: bool) -> Tree:
    """What JSON knows, as a tree of names and values."""
    if not isinstance(value, dict | list) or not value:
        return Tree(label + Text(": ") + text(_leaf(value, full=full)))
    root = Tree(label)
    waiting = [(root, value)]
    while waiting:
        place, inside = waiting.pop()
        items = list(_items(inside))
        for name, item in items if full else items[:_ITEMS]:
            if isinstance(item, dict | list) and item:
                waiting.append((place.add(text(name, "bold")), item))
            else:
                place.add(text(name, "bold") + Text(": ") + text(_leaf(item, full=full)))
        if not full and len(items) > _ITEMS:
            place.add(Text(f"... {len(items) - _ITEMS} more (--full)", "dim"))
    return root


def _items(value: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    else:
        yield from ((str(number), item) for number, item in enumerate(value))


def _leaf(value: Any, *, full: bool) -> str:
    shown = value if isinstance(value, str) else str(value)
    if full or len(shown) <= _LEAF:
        return shown
    return f"{shown[:_LEAF]} ... {len(shown) - _LEAF} more characters (--full)"
