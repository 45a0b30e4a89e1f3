"""What the registry knows of threads, drawn: a line of one, a table of many.

Only what several commands share lives here. Invariant: times are UTC, ages are rounded down.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.table import Table
from rich.text import Text

from threadkeep.cli.lookup import moment
from threadkeep.cli.render import (
    line,
    size,
    table,
    text,
)
from threadkeep.cli.terminal import compact
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.threads import ThreadInfo

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
