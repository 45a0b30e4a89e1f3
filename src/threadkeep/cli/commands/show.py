"""`threadkeep show`: a thread as a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from threadkeep.cli.app import Panel, command
from threadkeep.cli.lookup import (
    found,
    head_line,
    load,
    place,
)
from threadkeep.cli.parameters import (
    AsJson,
    Checkpoint,
    Cold,
    Full,
    Imports,
    Namespace,
    Thread,
    Url,
)
from threadkeep.cli.registered import in_a_line
from threadkeep.cli.render import (
    cut,
    indented,
    line,
    size,
    table,
    text,
)
from threadkeep.cli.stores import looking, url_of
from threadkeep.cli.terminal import Output, compact
from threadkeep.engine.thread_summary import own
from threadkeep.errors import NotSetUpError
from threadkeep.readable.checkpoints import View, view
from threadkeep.readable.messages import Message, conversation
from threadkeep.readable.values import Summary, summary
from threadkeep.saver import Saver
from threadkeep.threads import ThreadInfo


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
        info = _known(saver, thread)
    seen, values = view(one), one.checkpoint["channel_values"]
    messages = conversation(values)
    others = [name for name in own(values) if messages is None or name != "messages"]
    channels = {name: summary(values[name]) for name in others}
    Output(as_json=as_json).tell(
        {**_document(seen, messages, channels), "registry": info and info.as_json()},
        *([in_a_line(info)] if info else []),
        head_line(seen, named=info is None),
        *_drawn(messages or [], full=full),
        *_short(channels),
        *_asked(seen),
    )
    return 0


def _known(saver: Saver, thread: str) -> ThreadInfo | None:
    """What the registry knows; a file of an earlier release has none before it is written to."""
    try:
        return saver.threads.get(thread)
    except NotSetUpError:
        return None


def _document(
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


def _drawn(messages: list[Message], *, full: bool) -> Iterator[RenderableType]:
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
