"""Commands that look into a thread: show, state, versions, diff."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import (
    AsJson,
    Checkpoint,
    Cold,
    Full,
    Imports,
    Namespace,
    Thread,
    Url,
    thread_ids,
)
from threadkeep.cli.render import (
    config,
    cut,
    found,
    head_line,
    in_a_line,
    indented,
    line,
    load,
    made_by,
    moment,
    naming_modules,
    place,
    size,
    table,
    text,
    tree_of,
)
from threadkeep.cli.stores import looking, url_of
from threadkeep.cli.terminal import Output, compact, drawing_here
from threadkeep.diff import StateDiff
from threadkeep.engine.thread_summary import own
from threadkeep.errors import InvalidArgumentError, NotFoundError
from threadkeep.readable.checkpoints import View, view
from threadkeep.readable.messages import Message, conversation
from threadkeep.readable.values import Summary, kind, plain, summary
from threadkeep.threads import ChannelVersion


@command(Panel.LOOK, "threadkeep show 42 --url threads.db")
def show(
    thread: Thread,
    *,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    full: Full = False,
    imports: Imports = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Show a thread: its messages and tool calls, its other channels in short, what waits."""
    load(imports)
    with looking(url_of(url), cold) as saver:
        one = found(saver, thread, namespace, checkpoint)
        info = saver.threads.get(thread)
    seen, values = view(one), one.checkpoint["channel_values"]
    messages = conversation(values)
    others = [name for name in own(values) if messages is None or name != "messages"]
    channels = {name: summary(values[name]) for name in others}
    Output(as_json=as_json).tell(
        {**_show_document(seen, messages, channels), "registry": info and info.as_json()},
        *([in_a_line(info)] if info else []),
        head_line(seen, named=info is None),
        *_draw_show(messages or [], full=full),
        *_short(channels),
        *_asked(seen),
    )
    return 0


def _show_document(
    seen: View, messages: list[Message] | None, channels: dict[str, Summary]
) -> dict[str, Any]:
    return {
        **place(seen),
        "time": seen.time,
        "step": seen.step,
        "source": seen.source,
        "next": seen.next,
        "messages": None if messages is None else [_of_message(one) for one in messages],
        "channels": {name: short._asdict() for name, short in channels.items()},
        "waiting": [one._asdict() for one in seen.waiting],
        "failed": seen.failed,
    }


def _of_message(message: Message) -> dict[str, Any]:
    calls = [call._asdict() for call in message.tool_calls]
    return {**message._asdict(), "tool_calls": calls}


def _draw_show(messages: list[Message], *, full: bool) -> Iterator[RenderableType]:
    for message in messages:
        yield ""
        yield line(
            (message.role, _STYLES.get(message.role, "bold")),
            message.name or "",
            (f"[{message.tool_call_id}]" if message.tool_call_id else "", "dim"),
            (message.status if message.status not in (None, "success") else "", "red"),
        )
        if message.text:
            yield indented(cut(message.text, full=full))
        for call in message.tool_calls:
            asked = cut(compact(call.args), full=full)
            yield indented(f"calls {call.name} {asked}" + (f" [{call.id}]" if call.id else ""))


_STYLES = {"human": "bold green", "user": "bold green", "ai": "bold cyan", "tool": "bold magenta"}


def _short(channels: dict[str, Summary]) -> Iterator[RenderableType]:
    if channels:
        rows = [(text(name), text(one.kind), size(one.bytes)) for name, one in channels.items()]
        yield ""
        yield table(("channel", "value", "bytes as JSON>"), rows)


def _asked(seen: View) -> Iterator[RenderableType]:
    for one in seen.waiting:
        asked = one.value if isinstance(one.value, str) else compact(one.value)
        yield ""
        yield Text("waits for an answer to", "bold yellow") + text(f" {one.id}" if one.id else "")
        yield indented(asked)
    for error in seen.failed:
        yield ""
        yield Text("failed", "bold red")
        yield indented(error)


@command(Panel.LOOK, "threadkeep state 42 --channel plan --url threads.db")
def state(  # noqa: PLR0913 - they are given by name
    thread: Thread,
    *,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", help="only this channel; may be repeated")
    ] = None,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    full: Full = False,
    imports: Imports = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Show the values of channels: as a tree, or with --json as JSON (types are lost in it)."""
    load(imports)
    with looking(url_of(url), cold) as saver:
        one = found(saver, thread, namespace, checkpoint)
    seen, values = view(one), one.checkpoint["channel_values"]
    for name in channel or ():
        if name not in values:
            raise NotFoundError(f"There is no channel {name!r} here.", thread=thread)
    chosen = {name: values[name] for name in channel or values}
    readable = {name: plain(value) for name, value in chosen.items()}
    trees = [
        tree_of(text(name, "bold") + Text(f" ({kind(chosen[name])})", "dim"), value, full=full)
        for name, value in readable.items()
    ]
    Output(as_json=as_json).tell({**place(seen), "values": readable}, head_line(seen), *trees)
    return 0


@command(Panel.LOOK, "threadkeep versions 42 messages --limit 5 --url threads.db")
def versions(
    thread: Thread,
    channel: Annotated[str, typer.Argument(help="the channel's name")],
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="how many, newest first")] = 10,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """List the versions of a channel on the way to the head, or to a checkpoint."""
    with looking(url_of(url), cold) as saver:
        found = saver.threads.versions(thread, channel, namespace, limit + 1, checkpoint=checkpoint)
    if not found:
        raise NotFoundError("The thread never had this channel.", thread=thread, channel=channel)
    seen, more = found[:limit], len(found) > limit
    document = {
        "thread": thread,
        "namespace": namespace,
        "channel": channel,
        "versions": [asdict(one) for one in seen],
        "more": more,
    }
    head = line((f"thread {thread}", "bold"), (channel, "bold"))
    missing = ["... older ones are not shown (--limit)"] if more else []
    Output(as_json=as_json).tell(document, head, "", _draw_versions(seen), *missing)
    return 0


def _draw_versions(found: list[ChannelVersion]) -> Table:
    rows = [
        (
            text(one.version),
            text(one.checkpoint, "yellow"),
            text(moment(one.time)),
            text(made_by(one.source, one.step)),
            text(", ".join(_notes(one)), "dim"),
        )
        for one in found
    ]
    return table(("version", "first in", "time", "made by", ""), rows)


def _notes(one: ChannelVersion) -> list[str]:
    empty = [] if one.has_value else ["empty"]
    return empty if one.is_first else [*empty, "older ones with it were pruned"]


_STYLES_DIFF = {"+": "green", "-": "red", "~": "yellow"}
_WIDE, _CHANGES = 100, 20  # characters, where no terminal says; changes of a channel
_ALL = 1 << 62


@command(Panel.LOOK, "threadkeep diff 42 CHECKPOINT --url threads.db")
def diff(  # noqa: PLR0913 - most are given by name
    thread: Thread,
    before: Annotated[str | None, typer.Argument(metavar="A", help="the checkpoint before")] = None,
    after: Annotated[
        str | None, typer.Argument(metavar="B", help="the checkpoint after; default: the head")
    ] = None,
    *,
    other: Annotated[
        str | None,
        typer.Option(
            "--other",
            metavar="THREAD",
            help="B is of this thread; A may then be left out, for the head",
            autocompletion=thread_ids,
        ),
    ] = None,
    namespace: Namespace = "",
    internal: Annotated[
        bool, typer.Option("--internal", help="also channels that LangGraph made")
    ] = False,
    full: Full = False,
    imports: Imports = None,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Tell what changed from one checkpoint to another, channel by channel."""
    if before is None and other is None:
        raise InvalidArgumentError(
            "There is nothing to compare the head with.",
            hint="Give a checkpoint (threadkeep history THREAD lists them), or --other THREAD.",
        )
    load(imports)
    places = config(thread, namespace, before), config(other or thread, namespace, after)
    with looking(url_of(url), cold) as saver, naming_modules():
        found = saver.threads.diff_places(*places)
    document = {"same": found.is_same, **found.as_data()}
    Output(as_json=as_json).tell(document, _draw_diff(found, internal=internal, full=full))
    return 0


def _draw_diff(found: StateDiff, *, internal: bool, full: bool) -> Text:
    width = _ALL if full else shutil.get_terminal_size().columns if drawing_here() else _WIDE
    told = found.as_text(internal=internal, changes=_ALL if full else _CHANGES, width=width)
    return Text("\n").join([text(line, _style(line)) for line in told.split("\n")])


def _style(line: str) -> str:
    """The style of a line: of a channel's name, or by the sign of a change."""
    if line[:1] not in ("", " ", *_STYLES_DIFF):
        return "bold"
    return _STYLES_DIFF.get(line.lstrip()[:1], "")
