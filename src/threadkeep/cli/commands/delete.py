"""`threadkeep delete`: threads, for good."""

from __future__ import annotations

from typing import Any

from threadkeep.cli.app import Panel, command
from threadkeep.cli.drawing import size, table, text
from threadkeep.cli.parameters import AsJson, DryRun, ThreadIds, Url, Yes
from threadkeep.cli.stores import url_of, writing
from threadkeep.cli.terminal import Output, ask, clean
from threadkeep.engine.lifecycle import State
from threadkeep.engine.model import ThreadSize
from threadkeep.engine.operations.inspection import all_sizes
from threadkeep.errors import ThreadNotFoundError
from threadkeep.saver import Saver


@command(Panel.CHANGE, "threadkeep delete 42 43 --dry-run --url threads.db")
def delete(
    threads: ThreadIds,
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Delete threads, with all their checkpoints. Nothing is, if one of them is not there."""
    output = Output(as_json=as_json)
    with writing(url_of(url)) as saver:
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


def _sizes(saver: Saver, threads: list[str]) -> list[ThreadSize]:
    """How much each takes.

    Raises:
        ThreadNotFoundError: there is none of that name.
    """
    found = {one.thread: one for one in saver.run(all_sizes()).threads}
    for name in threads:
        if name not in found:
            known = saver.threads.get(name)
            if known is None or known.state == State.DELETED:
                raise ThreadNotFoundError(thread=name, hint="Nothing was deleted.")
            found[name] = ThreadSize(name, 0, 0, 0, 0, 0)  # (created, and nothing saved yet)
    return [found[name] for name in threads]


def _document(one: ThreadSize) -> dict[str, Any]:
    return {
        "thread": one.thread,
        "checkpoints": one.checkpoints,
        "writes": one.writes,
        "bytes": one.row_bytes + one.segment_bytes,
    }


def _drawn(sizes: list[ThreadSize]) -> Any:
    rows = [
        (text(one.thread), size(one.checkpoints), size(one.row_bytes + one.segment_bytes))
        for one in sizes
    ]
    return table(("thread", "checkpoints>", "bytes>"), rows)
