"""Text, tables, trees and bars, made with rich.

Every text that comes from a store passes through `text`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from threadkeep.cli.terminal import clean, compact, drawing_here
from threadkeep.engine.context import not_found
from threadkeep.engine.operation import CheckpointRef
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import InvalidArgumentError, UnknownTypeError
from threadkeep.readable.checkpoints import View
from threadkeep.saver import Saver
from threadkeep.threads import ThreadInfo

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


def config(thread: str, namespace: str | None, checkpoint: str | None = None) -> RunnableConfig:
    """The config that names a checkpoint, as the saver takes it."""
    names = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}
    return {"configurable": {name: value for name, value in names.items() if value is not None}}


def found(saver: Saver, thread: str, namespace: str, checkpoint: str | None) -> CheckpointTuple:
    """The checkpoint, or the thread's head.

    Raises:
        ThreadNotFoundError, CheckpointNotFoundError: there is none.
        UnknownTypeError: it holds a class of the program, whose module was not named.
    """
    with naming_modules():
        one = saver.get_tuple(config(thread, namespace, checkpoint))
    if one is None:
        raise not_found(CheckpointRef(thread, namespace, checkpoint))
    return one


@contextmanager
def naming_modules() -> Iterator[None]:
    """Say what can be done in a shell about a class that is not known."""
    try:
        yield
    except UnknownTypeError as error:
        error.hint = "Name the module of the class: --import MODULE."
        raise


def load(modules: Iterable[str] | None) -> None:
    """Import the modules whose classes threads hold, as the program that wrote them does.

    LangGraph's own are among them wherever it is installed: an interrupt is one.

    Raises:
        InvalidArgumentError: one cannot be imported.
    """
    with suppress(ModuleNotFoundError):
        importlib.import_module("langgraph.types")
    for name in modules or ():
        if "" not in sys.path:
            sys.path.insert(0, "")  # what lies in the working directory, as `python -m` has it
        try:
            importlib.import_module(name)
        except Exception as error:  # a module of a program raises what it likes
            raise InvalidArgumentError(
                f"The module {name!r} cannot be imported: {type(error).__name__}: {error}.",
                hint="Give its full name, and run this where the program runs.",
            ) from error


def head_line(view: View, *, named: bool = True) -> Text:
    """A checkpoint in one line, which names the thread or (not `named`) does not."""
    step = "" if view.step is None else f"step {view.step}"
    return line(
        (f"thread {view.thread}" if named else "", "bold"),
        f"namespace {view.namespace}" if view.namespace else "",
        (view.id, "yellow"),
        moment(view.time),
        f"{step} ({view.source})" if view.source else step,
        f"next: {', '.join(view.next)}" if view.next else "",
    )


def moment(time: str) -> str:
    """An ISO time, to the second."""
    return time[:19].replace("T", " ")


def made_by(source: str | None, step: int | None) -> str:
    """What made a checkpoint."""
    return " ".join([str(part) for part in (source, step) if part is not None])


def place(view: View) -> dict[str, Any]:
    """The keys by which every JSON document names a checkpoint."""
    return {"thread": view.thread, "namespace": view.namespace, "checkpoint": view.id}


_STYLES = {
    ThreadStatus.SUSPENDED: "bold yellow",
    ThreadStatus.ARCHIVED: "blue",
    ThreadStatus.DELETED: "dim",
    ThreadStatus.CREATED: "cyan",
}
_AGES = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1)))


def in_a_line(one: ThreadInfo) -> Text:
    """A thread in one line."""
    cold = (one.archived_bytes or 0) + one.offloaded_bytes
    return line(
        (f"thread {one.id}", "bold"),
        (one.state, _STYLES.get(one.state, "")),
        "pinned" if one.pinned else "",
        f"updated {_ago(one)}",
        f"created {moment(one.created_at.isoformat())}",
        f"{size(one.bytes)} bytes",
        f"{size(cold)} in the cold store" if cold else "",
        f"ttl {_length(one.ttl)}" if one.ttl is not None else "",
        f"forked from {one.forked_from[0]}" if one.forked_from is not None else "",
        (f"tags: {_tags(one)}" if one.tags else "", "cyan"),
        _metadata(one),
    )


def in_a_table(threads: Iterable[ThreadInfo]) -> Table:
    """Threads, a line for each."""
    rows = [
        (
            text(one.id),
            text(one.state, _STYLES.get(one.state, "")) + text(" pinned" if one.pinned else ""),
            text(_ago(one)),
            size(one.bytes),
            text(_tags(one), "cyan"),
            text(_metadata(one)),
        )
        for one in threads
    ]
    return table(("thread", "state", "updated", "~bytes>", "tags", "metadata"), rows)


def document(one: ThreadInfo) -> dict[str, Any]:
    """What a command that changes what is known of a thread says as JSON."""
    return {"thread": one.as_json()}


def _ago(one: ThreadInfo) -> str:
    return f"{_length(max(datetime.now(UTC) - one.updated_at, timedelta()))} ago"


def _length(given: timedelta) -> str:
    """A length of time in the largest unit that it has two of, or in seconds."""
    for name, unit in _AGES:
        if given >= 2 * unit:
            return f"{given // unit} {name}"
    return f"{given.total_seconds():.0f} s"


def _tags(one: ThreadInfo) -> str:
    return ", ".join(one.tags)


def _metadata(one: ThreadInfo) -> str:
    pairs = one.metadata.items()
    return ", ".join(f"{k}={v if isinstance(v, str) else compact(v)}" for k, v in pairs)
