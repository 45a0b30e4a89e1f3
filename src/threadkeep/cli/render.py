"""Text, tables and bars, made with rich. All text that comes from a store passes through `text`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from threadkeep.cli.terminal import Output, clean
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.threads import ThreadInfo

_BAR = 24  # characters


def text(value: Any, style: str = "") -> Text:
    """Return printable text of what a store holds."""
    return Text(clean(str(value)), style)


def line(*parts: tuple[str, str] | str) -> Text:
    """Return a line of texts, each with a style or without; empty ones are left out."""
    styled = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text("  ").join([text(what, style) for what, style in styled if what])


def table(columns: Sequence[str], rows: Iterable[Sequence[Text | str]]) -> Table:
    """Return a table; columns whose names end in `>` hold numbers."""
    style = box.SIMPLE_HEAD if sys.stdout.isatty() else None
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
    """Return a bar for a part of a whole."""
    filled = round(_BAR * part / whole) if whole else 0
    return Text(("\u2588" if sys.stdout.isatty() else "#") * filled, "cyan")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 thread", "2,000 threads"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def compact(value: Any) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def moment(time: str) -> str:
    """Return an ISO time, to the second."""
    return time[:19].replace("T", " ")


def made_by(source: str | None, step: int | None) -> str:
    """Return the source and step of a checkpoint."""
    return " ".join([str(part) for part in (source, step) if part is not None])


# -- threads -----------------------------------------------------------------------------

_STYLES = {
    ThreadStatus.SUSPENDED: "bold yellow",
    ThreadStatus.ARCHIVED: "blue",
    ThreadStatus.DELETED: "dim",
    ThreadStatus.CREATED: "cyan",
}
_AGES = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1)))


def print_thread(output: Output, thread: ThreadInfo) -> None:
    """Print a thread: the result of a command that changes one."""
    output.print({"thread": thread.as_json()}, thread_line(thread))


def thread_line(thread: ThreadInfo) -> Text:
    """Return a line about a thread."""
    cold = (thread.archived_bytes or 0) + thread.offloaded_bytes
    return line(
        (f"thread {thread.id}", "bold"),
        (thread.state, _STYLES.get(thread.state, "")),
        "pinned" if thread.pinned else "",
        f"updated {_ago(thread)}",
        f"created {moment(thread.created_at.isoformat())}",
        plural(thread.bytes, "byte"),
        f"{cold:,} in the cold store" if cold else "",
        f"ttl {_duration(thread.ttl)}" if thread.ttl is not None else "",
        f"forked from {thread.forked_from[0]}" if thread.forked_from is not None else "",
        (f"tags: {', '.join(thread.tags)}" if thread.tags else "", "cyan"),
        _metadata(thread),
    )


def thread_table(threads: Iterable[ThreadInfo]) -> Table:
    """Return a table of threads."""
    rows = [
        (
            text(one.id),
            text(one.state, _STYLES.get(one.state, "")) + text(" pinned" if one.pinned else ""),
            text(_ago(one)),
            f"{one.bytes:,}",
            text(", ".join(one.tags), "cyan"),
            text(_metadata(one)),
        )
        for one in threads
    ]
    return table(("thread", "state", "updated", "~bytes>", "tags", "metadata"), rows)


def _ago(thread: ThreadInfo) -> str:
    return f"{_duration(max(datetime.now(UTC) - thread.updated_at, timedelta()))} ago"


def _duration(length: timedelta) -> str:
    """Return a length of time in the largest unit of which there are two, or in seconds."""
    for name, unit in _AGES:
        if length >= 2 * unit:
            return f"{length // unit} {name}"
    return f"{length.total_seconds():.0f} s"


def _metadata(thread: ThreadInfo) -> str:
    pairs = thread.metadata.items()
    return ", ".join(f"{k}={v if isinstance(v, str) else compact(v)}" for k, v in pairs)
