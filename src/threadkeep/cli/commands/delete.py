"""`threadkeep delete`: threads, for good."""

from __future__ import annotations

from typing import Any, NamedTuple

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Cold, DryRun, ThreadIds, Url, Yes
from threadkeep.cli.render import (
    size,
    table,
    text,
)
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output, ask, clean
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import ThreadNotFoundError
from threadkeep.saver import Saver
from threadkeep.stats import all_sizes


@command(Panel.CHANGE, "threadkeep delete 42 43 --dry-run --url threads.db")
def delete(
    threads: ThreadIds,
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Delete threads, with all their checkpoints. Nothing is, if one of them is not there."""
    output = Output(as_json=as_json)
    with writing(url_of(url), cold) as saver:
        sizes = _sizes(saver, list(dict.fromkeys(threads)))
        if not dry_run and not yes:
            names = clean(", ".join(one.thread for one in sizes))
            question = f"Delete {names} for good?"
            ask(output, "delete", question, as_json=as_json, shown=[_drawn(sizes)])
        for one in sizes if not dry_run else ():
            saver.delete_thread(one.thread)
    documents = [_document(one) for one in sizes]
    what = "would be deleted" if dry_run else "deleted"
    line = f"{len(sizes)} threads {what}, {size(sum(one['bytes'] for one in documents))} bytes"
    drawn = [_drawn(sizes)] if dry_run else []
    output.tell({"threads": documents, "deleted": not dry_run}, *drawn, line)
    return 0


class _Size(NamedTuple):
    """How many rows a thread has, and its bytes as `threadkeep threads` tells them."""

    thread: str
    checkpoints: int
    writes: int
    bytes: int


def _sizes(saver: Saver, threads: list[str]) -> list[_Size]:
    """How much each takes.

    Raises:
        ThreadNotFoundError: there is none of that name.
    """
    rows = {one.thread: one for one in saver.run(all_sizes()).threads}
    found = []
    for name in threads:
        known, counted = saver.threads.get(name), rows.get(name)
        if counted is None and (known is None or known.state == ThreadStatus.DELETED):
            raise ThreadNotFoundError(thread=name, hint="Nothing was deleted.")
        counts = (counted.checkpoints, counted.writes) if counted else (0, 0)
        found.append(_Size(name, *counts, known.bytes if known else 0))
    return found


def _document(one: _Size) -> dict[str, Any]:
    return {
        "thread": one.thread,
        "checkpoints": one.checkpoints,
        "writes": one.writes,
        "bytes": one.bytes,
    }


def _drawn(sizes: list[_Size]) -> Any:
    rows = [(text(one.thread), size(one.checkpoints), size(one.bytes)) for one in sizes]
    return table(("thread", "checkpoints>", "~bytes>"), rows)
