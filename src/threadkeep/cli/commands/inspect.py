"""Commands that show what a thread holds: show, state, versions, diff."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from threadkeep.cli.app import command
from threadkeep.cli.parameters import Checkpoint, Full, Namespace, Thread, thread_ids
from threadkeep.cli.readable import (
    CheckpointSummary,
    Message,
    Summary,
    conversation,
    kind,
    summarize,
    summary,
)
from threadkeep.cli.stores import Session
from threadkeep.cli.terminal import (
    compact,
    line,
    made_by,
    moment,
    plural,
    table,
    text,
    thread_line,
)
from threadkeep.diff import StateDiff
from threadkeep.diff.records import plain
from threadkeep.engine.context import not_found
from threadkeep.engine.operation import CheckpointRef
from threadkeep.engine.thread_summary import own
from threadkeep.errors import InvalidArgumentError, NotFoundError
from threadkeep.saver import Saver
from threadkeep.threads import ChannelVersion

_LINES, _CHARACTERS = 20, 2_000  # shown of one text, unless --full
_ITEMS, _LEAF = 20, 200  # shown of one container, and characters of one value in a tree
_ROLES = {"human": "bold green", "user": "bold green", "ai": "bold cyan", "tool": "bold magenta"}


def _config(thread: str, namespace: str | None, checkpoint: str | None) -> RunnableConfig:
    names = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}
    return {"configurable": {name: value for name, value in names.items() if value is not None}}


def _read(saver: Saver, thread: str, namespace: str, checkpoint: str | None) -> CheckpointTuple:
    """Return a checkpoint, or the thread's head.

    Raises:
        ThreadNotFoundError, CheckpointNotFoundError: there is none.
    """
    found = saver.get_tuple(_config(thread, namespace, checkpoint))
    if found is None:
        raise not_found(CheckpointRef(thread, namespace, checkpoint))
    return found


def _place(head: CheckpointSummary) -> dict[str, Any]:
    return {"thread": head.thread, "namespace": head.namespace, "checkpoint": head.id}


def _head_line(head: CheckpointSummary, *, named: bool = True) -> Text:
    """Return a line about a checkpoint, with the thread's id (`named`) or without."""
    step = "" if head.step is None else f"step {head.step}"
    return line(
        (f"thread {head.thread}" if named else "", "bold"),
        f"namespace {head.namespace}" if head.namespace else "",
        (head.id, "yellow"),
        moment(head.time),
        f"{step} ({head.source})" if head.source else step,
        f"next: {', '.join(head.next)}" if head.next else "",
    )


def _cut(value: str, lines: int, characters: int, *, full: bool) -> str:
    """Shorten a long text, and say by how much."""
    shown = "\n".join(value[:characters].split("\n")[:lines])
    if full or shown == value:
        return value
    end = " " if lines == 1 else "\n"
    return f"{shown}{end}... {plural(len(value) - len(shown), 'more character')} (--full)"


def _indented(value: str) -> Padding:
    return Padding(text(value), (0, 0, 0, 2))


# -- show --------------------------------------------------------------------------------


@command("threadkeep show 42 --url threads.db", cold=True, imports=True)
def show(
    session: Session,
    thread: Thread,
    *,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    full: Full = False,
) -> None:
    """Show a thread's conversation, other channels and interrupts."""
    with session.open_to_read() as saver:
        found = _read(saver, thread, namespace, checkpoint)
        info = saver.threads.get(thread)
    head, values = summarize(found), found.checkpoint["channel_values"]
    messages = conversation(values)
    others = [name for name in own(values) if messages is None or name != "messages"]
    channels = {name: summary(values[name]) for name in others}
    document = {
        **_place(head),
        "time": head.time,
        "step": head.step,
        "source": head.source,
        "next": head.next,
        "messages": None if messages is None else [one.as_json() for one in messages],
        "channels": {name: short._asdict() for name, short in channels.items()},
        "waiting": [one._asdict() for one in head.waiting],
        "failed": head.failed,
        "registry": info and info.as_json(),
    }
    session.print(
        document,
        *([thread_line(info)] if info else []),
        _head_line(head, named=info is None),
        *_message_lines(messages or [], full=full),
        *_channel_table(channels),
        *_pending_lines(head),
    )


def _message_lines(messages: list[Message], *, full: bool) -> Iterator[RenderableType]:
    for message in messages:
        yield ""
        yield line(
            (message.role, _ROLES.get(message.role, "bold")),
            message.name or "",
            (f"[{message.tool_call_id}]" if message.tool_call_id else "", "dim"),
            (message.status if message.status not in (None, "success") else "", "red"),
        )
        if message.text:
            yield _indented(_cut(message.text, _LINES, _CHARACTERS, full=full))
        for call in message.tool_calls:
            arguments = _cut(compact(call.args), _LINES, _CHARACTERS, full=full)
            yield _indented(f"calls {call.name} {arguments}" + (f" [{call.id}]" if call.id else ""))


def _channel_table(channels: dict[str, Summary]) -> Iterator[RenderableType]:
    if channels:
        yield ""
        rows = [(text(name), text(one.kind), f"{one.bytes:,}") for name, one in channels.items()]
        yield table(("channel", "type", "bytes as JSON>"), rows)


def _pending_lines(head: CheckpointSummary) -> Iterator[RenderableType]:
    for one in head.waiting:
        yield ""
        yield Text("Waiting for an answer", "bold yellow") + text(f" to {one.id}" if one.id else "")
        yield _indented(one.value if isinstance(one.value, str) else compact(one.value))
    for error in head.failed:
        yield ""
        yield Text("Failed", "bold red")
        yield _indented(error)


# -- state -------------------------------------------------------------------------------


@command("threadkeep state 42 --channel plan --url threads.db", cold=True, imports=True)
def state(
    session: Session,
    thread: Thread,
    *,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", help="Only this channel. Repeatable.")
    ] = None,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    full: Full = False,
) -> None:
    """Show the values of channels. JSON loses their types."""
    with session.open_to_read() as saver:
        found = _read(saver, thread, namespace, checkpoint)
    head, values = summarize(found), found.checkpoint["channel_values"]
    for name in channel or ():
        if name not in values:
            raise NotFoundError(f"There is no channel {name!r} here.", thread=thread)
    readable = {name: plain(values[name]) for name in channel or values}
    trees = [
        _tree(text(name, "bold") + Text(f" ({kind(values[name])})", "dim"), value, full=full)
        for name, value in readable.items()
    ]
    session.print({**_place(head), "values": readable}, _head_line(head), *trees)


def _tree(label: Text, value: Any, *, full: bool) -> Tree:
    """Return a JSON value as a tree of names and values."""
    if not isinstance(value, dict | list) or not value:
        return Tree(label + Text(": ") + _leaf(value, full=full))
    root = Tree(label)
    pending = [(root, value)]
    while pending:
        node, inside = pending.pop()
        items = list(inside.items() if isinstance(inside, dict) else enumerate(inside))
        for name, item in items if full else items[:_ITEMS]:
            if isinstance(item, dict | list) and item:
                pending.append((node.add(text(name, "bold")), item))
            else:
                node.add(text(name, "bold") + Text(": ") + _leaf(item, full=full))
        if not full and len(items) > _ITEMS:
            node.add(Text(f"... {len(items) - _ITEMS} more (--full)", "dim"))
    return root


def _leaf(value: Any, *, full: bool) -> Text:
    shown = str(value)
    return text(_cut(shown, 1 + shown.count("\n"), _LEAF, full=full))


# -- versions ----------------------------------------------------------------------------


@command("threadkeep versions 42 messages --limit 5 --url threads.db", cold=True)
def versions(
    session: Session,
    thread: Thread,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="Channel name.")],
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show the newest N.")] = 10,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
) -> None:
    """List versions of a channel, up to the head or to a checkpoint."""
    with session.open_to_read() as saver:
        found = saver.threads.versions(thread, channel, namespace, limit + 1, checkpoint=checkpoint)
    if not found:
        raise NotFoundError("The thread never had this channel.", thread=thread, channel=channel)
    shown, more = found[:limit], len(found) > limit
    document = {
        "thread": thread,
        "namespace": namespace,
        "channel": channel,
        "versions": [asdict(one) for one in shown],
        "more": more,
    }
    rows = [
        (
            text(one.version),
            text(one.checkpoint, "yellow"),
            text(moment(one.time)),
            text(made_by(one.source, one.step)),
            text(", ".join(_version_notes(one)), "dim"),
        )
        for one in shown
    ]
    session.print(
        document,
        line((f"thread {thread}", "bold"), (channel, "bold")),
        "",
        table(("version", "first in", "time", "made by", ""), rows),
        *(["... older versions not shown (--limit)"] if more else []),
    )


def _version_notes(one: ChannelVersion) -> list[str]:
    empty = [] if one.has_value else ["empty"]
    return empty if one.is_first else [*empty, "older checkpoints with it were pruned"]


# -- diff --------------------------------------------------------------------------------

_SIGNS = {"+": "green", "-": "red", "~": "yellow"}
_WIDTH, _CHANGES = 100, 20  # characters without a terminal; changes shown of a channel
_UNLIMITED = 1 << 62


@command("threadkeep diff 42 CHECKPOINT --url threads.db", cold=True, imports=True)
def diff(
    session: Session,
    thread: Thread,
    before: Annotated[str | None, typer.Argument(metavar="A", help="Checkpoint before.")] = None,
    after: Annotated[
        str | None, typer.Argument(metavar="B", help="Checkpoint after. Default: the head.")
    ] = None,
    *,
    other: Annotated[
        str | None,
        typer.Option(
            "--other",
            metavar="THREAD",
            help="Take B from this thread. A is then optional. Default: the head.",
            autocompletion=thread_ids,
        ),
    ] = None,
    namespace: Namespace = "",
    internal: Annotated[
        bool, typer.Option("--internal", help="Include LangGraph's internal channels.")
    ] = False,
    full: Full = False,
) -> None:
    """Show what changed between two checkpoints."""
    if before is None and other is None:
        raise InvalidArgumentError(
            "There is nothing to compare the head with.",
            hint="Use a checkpoint id (see threadkeep history), or --other THREAD.",
        )
    places = _config(thread, namespace, before), _config(other or thread, namespace, after)
    with session.open_to_read() as saver:
        found = saver.threads.diff_places(*places)
    document = {"same": found.is_same, **found.as_data()}
    session.print(document, _diff_text(found, internal=internal, full=full))


def _diff_text(found: StateDiff, *, internal: bool, full: bool) -> Text:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    changes, width = (_UNLIMITED, _UNLIMITED) if full else (_CHANGES, width)
    lines = found.as_text(internal=internal, changes=changes, width=width).split("\n")
    return Text("\n").join([text(line, _diff_style(line)) for line in lines])


def _diff_style(line: str) -> str:
    if line[:1] not in ("", " ", *_SIGNS):
        return "bold"  # the name of a channel
    return _SIGNS.get(line.lstrip()[:1], "")
