"""Commands that show a thread's contents: show, state, versions, diff, messages, partial."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from rich.console import RenderableType
from rich.text import Text

from threadkeep._core.engine.context import not_found
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.operation import CheckpointRef
from threadkeep._core.engine.thread_summary import state_channels
from threadkeep._core.langgraph_internals import DELTA_COUNTERS, TASKS
from threadkeep._stores.message_index import ScanIndex
from threadkeep.cli.app import command
from threadkeep.cli.ids import whole_checkpoint, whole_thread
from threadkeep.cli.parameters import (
    CHECKPOINT,
    FULL,
    NAMESPACE,
    THREAD,
    YES,
    argument,
    flag,
    option,
    thread_ids,
)
from threadkeep.cli.readable import (
    cut,
    indented,
    kind,
    message_lines,
    size_as_json,
    summarize,
)
from threadkeep.cli.stores import Session
from threadkeep.cli.terminal import (
    Drawn,
    compact,
    line,
    made_by,
    moment,
    plural,
    table,
    text,
    thread_line,
    width,
)
from threadkeep.errors import InvalidArgumentError, NotFoundError
from threadkeep.memory import ArchivedMessage, Layer, LayeredCheckpointSaver
from threadkeep.savers.saver import Saver
from threadkeep.streaming import PartialStream
from threadkeep.threads import ChannelVersion, ThreadInfo
from threadkeep.threads.diff import plain
from threadkeep.threads.messages import CHANNEL, Message, conversation, message
from threadkeep.threads.transfer.reading import LangGraphReader

_NAMED = 10  # namespaces that an error names
_LAST = 10  # messages


def _config(thread: str, namespace: str | None, checkpoint: str | None) -> RunnableConfig:
    names = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}
    return {"configurable": {name: value for name, value in names.items() if value is not None}}


def _read(
    saver: Saver | LangGraphReader,
    thread: str,
    namespace: str,
    checkpoint: str | None,
    *,
    lazy: bool = False,
) -> CheckpointTuple:
    config = _config(thread, namespace, checkpoint)
    if lazy:
        found = next(saver.list(config, limit=1, values="lazy"), None)
    else:
        found = saver.get_tuple(config)
    if found is not None:
        return found
    error = not_found(CheckpointRef(thread, namespace, checkpoint))
    others: list[str] = []
    if not checkpoint:
        # A thread without a graph of its own, such as a session, has only namespaces.
        with suppress(NotFoundError):
            names = saver.threads.branches_by_ns(thread)
            others = [shlex.quote(name) for name in names if not name.startswith(OWN_NS)]
    if others:
        more = ", ..." if len(others) > _NAMED else ""
        error.hint = f"Name one of its namespaces with --ns: {', '.join(others[:_NAMED])}{more}"
    raise error


def _head_line(head: Mapping[str, Any], *, named: bool = True) -> Text:
    """Return a line about a checkpoint, with the thread's id (`named`) or without."""
    return line(
        (f"thread {head['thread']}" if named else "", "bold"),
        f"namespace {head['namespace']}" if head["namespace"] else "",
        (head["checkpoint"], "yellow"),
        moment(head["time"]),
        made_by(head["source"], head["step"]),
        f"next: {', '.join(head['next'])}" if head["next"] else "",
    )


# -- show --------------------------------------------------------------------------------


@command("threadkeep show threads.db 42", cold=True, imports=True, raw=True)
def show(
    session: Session,
    thread: str = THREAD,
    *,
    checkpoint: str | None = CHECKPOINT,
    namespace: str = NAMESPACE,
    last: int | None = option(
        "--last N", f"Show the newest N messages. Default: {_LAST}, or all with --full.", min=1
    ),
    full: bool = FULL,
) -> None:
    """Show a thread's conversation, channels, interrupts and errors."""
    with session.open_to_look() as saver:
        thread = whole_thread(saver, thread)
        checkpoint = whole_checkpoint(saver, thread, namespace, checkpoint)
        found = _read(saver, thread, namespace, checkpoint)
        info = saver.threads.get(thread)
        layers: list[Layer] = []
        streams: list[PartialStream] = []
        if isinstance(saver, Saver):
            layers = [] if namespace else older_layers(saver, found)
            streams = [one for one in saver.partial(thread) if one.status == "pending"]
    head, values = summarize(found), found.checkpoint["channel_values"]
    messages = conversation(values)
    others = [name for name in state_channels(values) if messages is None or name != "messages"]
    rows = [(name, kind(values[name]), size_as_json(values[name])) for name in others]
    metadata: Mapping[str, Any] = {**found.metadata}
    deltas = sorted(set(metadata.get(DELTA_COUNTERS) or ()) - set(values))
    document = {
        **head,
        "deltas": deltas,
        "messages": None if messages is None else [one.as_json() for one in messages],
        "layers": [asdict(one) for one in layers],
        "partial": [stream_document(one) for one in streams],
        "channels": {name: {"kind": kind, "bytes": size} for name, kind, size in rows},
        "registry": info and info.as_json(),
    }
    session.print(
        document,
        thread_line(info) if info else None,
        _head_line(head, named=info is None),
        *_error_lines(head, info, full=full),
        *_layer_lines(thread, layers, full=full),
        *_shown(messages or [], last, full=full),
        "" if rows else None,
        table(("channel", "type", "bytes as JSON>"), rows),
        "" if deltas else None,
        f"Stored as writes (DeltaChannel): {', '.join(deltas)}. The graph's get_state shows them."
        if deltas
        else None,
        *_pending_lines(head),
        *[part for one in streams for part in stream_lines(one, full=full)],
        "" if streams else None,
        f"To discard it: threadkeep partial {shlex.quote(thread)} --discard" if streams else None,
    )


def _error_lines(
    head: Mapping[str, Any], info: ThreadInfo | None, *, full: bool
) -> Iterator[RenderableType]:
    """Yield lines about the errors of tasks at a checkpoint."""
    if head["failed"]:
        is_newest = info is not None and info.status_checkpoint == head["checkpoint"]
        node = info.failed_node if info and is_newest else None
        yield ""
        yield Text("Failed", "bold red") + text(f" in {node}" if node else "", "bold red")
        for error in head["failed"]:
            yield cut(error, full=full)


def _shown(messages: list[Message], last: int | None, *, full: bool) -> Iterator[RenderableType]:
    last = last or (len(messages) if full else _LAST)
    left_out = max(len(messages) - last, 0)
    if left_out:
        yield ""
        count = f"... the newest {last} of {plural(len(messages), 'message')} (--last N, --full)"
        yield text(count, "dim")
    yield from message_lines(messages[left_out:], full=full)


def _layer_lines(thread: str, layers: Sequence[Layer], *, full: bool) -> Iterator[RenderableType]:
    """Yield lines about older messages of layered memory."""
    if layers:
        count = plural(sum(one.messages for one in layers), "older message")
        yield ""
        yield line(
            ("layered memory", "bold"),
            f"{count} in {plural(len(layers), 'group')}",
            f"(threadkeep messages {shlex.quote(thread)})",
        )
        summary = next((one.summary for one in reversed(layers) if one.summary), None)
        if summary:
            yield cut(summary, full=full)


def _pending_lines(head: Mapping[str, Any]) -> Iterator[RenderableType]:
    for one in head["waiting"]:
        id, question = one["id"], one["value"]
        yield ""
        yield Text("Waiting for an answer", "bold yellow") + text(f" to {id}" if id else "")
        yield indented(question if isinstance(question, str) else compact(question))


# -- state -------------------------------------------------------------------------------


@command("threadkeep state threads.db 42 --channel plan", cold=True, imports=True, raw=True)
def state(
    session: Session,
    thread: str = THREAD,
    *,
    channel: list[str] | None = option("--channel NAME", "Only this channel. Repeatable."),
    checkpoint: str | None = CHECKPOINT,
    namespace: str = NAMESPACE,
    full: bool = FULL,
) -> None:
    """Show the values of channels as JSON."""
    with session.open_to_look() as saver:
        thread = whole_thread(saver, thread)
        checkpoint = whole_checkpoint(saver, thread, namespace, checkpoint)
        found = _read(saver, thread, namespace, checkpoint, lazy=True)
        values: Any = found.checkpoint["channel_values"]
        for name in channel or ():
            if name not in values:
                raise NotFoundError(f"There is no channel {name!r} here.", thread=thread)
        values.load(*(channel or values), TASKS)
    head = summarize(found._replace(pending_writes=[]))
    readable = {name: plain(values[name]) for name in channel or values}
    lines: list[RenderableType] = []
    for name, value in readable.items():
        lines.append(text(name, "bold") + text(f" ({kind(values[name])})", "dim"))
        lines.append(cut(json.dumps(value, ensure_ascii=False, indent=2), full=full))
    place = {name: head[name] for name in ("thread", "namespace", "checkpoint")}
    session.print({**place, "values": readable}, _head_line(head), *lines)


# -- versions ----------------------------------------------------------------------------


@command("threadkeep versions threads.db 42 messages --limit 5", cold=True)
def versions(
    session: Session,
    thread: str = THREAD,
    channel: str = argument("CHANNEL", "Channel name."),
    *,
    limit: int = option("--limit N", "Show the newest N.", 10, min=1),
    checkpoint: str | None = CHECKPOINT,
    namespace: str = NAMESPACE,
) -> None:
    """List the versions of a channel."""
    with session.open_to_read() as saver:
        thread = whole_thread(saver, thread)
        checkpoint = whole_checkpoint(saver, thread, namespace, checkpoint)
        found = saver.threads.versions(
            thread, channel, namespace, limit + 1, checkpoint_id=checkpoint
        )
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
            str(one.version),
            text(one.checkpoint, "yellow"),
            moment(one.time),
            made_by(one.source, one.step),
            text(_version_note(one), "dim"),
        )
        for one in shown
    ]
    session.print(
        document,
        line((f"thread {thread}", "bold"), (channel, "bold")),
        "",
        table(("version", "first in", "time", "made by", ""), rows),
        "... older versions not shown (--limit)" if more else None,
    )


def _version_note(one: ChannelVersion) -> str:
    notes = [] if one.has_value else ["empty"]
    notes += [] if one.is_first else ["older checkpoints with it were pruned"]
    return ", ".join(notes)


# -- diff --------------------------------------------------------------------------------

_SIGNS = {"+": "green", "-": "red", "~": "yellow"}
_CHANGES = 20  # shown of a channel
_UNLIMITED = 1 << 62


@command("threadkeep diff threads.db 42", cold=True, imports=True, raw=True)
def diff(
    session: Session,
    thread: str = THREAD,
    before: str | None = argument("A", "Checkpoint before. Default: the parent of the head.", None),
    after: str | None = argument("B", "Checkpoint after. Default: the head.", None),
    *,
    other: str | None = option(
        "--other THREAD",
        "Take B from this thread. A is then the head by default.",
        autocompletion=thread_ids,
    ),
    namespace: str = NAMESPACE,
    internal: bool = flag("--internal", "Include LangGraph's internal channels."),
    full: bool = FULL,
) -> None:
    """Show what changed between two checkpoints."""
    with session.open_to_look() as saver:
        a = whole_thread(saver, thread)
        b = whole_thread(saver, other) if other else a
        if before is None and other is None:
            before = _parent(_read(saver, a, namespace, None, lazy=True))
        before = whole_checkpoint(saver, a, namespace, before)
        after = whole_checkpoint(saver, b, namespace, after)
        found = saver.threads.diff_checkpoints(
            _config(a, namespace, before), _config(b, namespace, after)
        )
    document = {"same": found.is_same, **found.as_data()}
    changes, columns = (_UNLIMITED, _UNLIMITED) if full else (_CHANGES, width())
    lines = found.as_text(internal=internal, changes=changes, width=columns).split("\n")
    session.print(document, Text("\n").join([text(line, _diff_style(line)) for line in lines]))


def _parent(head: CheckpointTuple) -> str:
    if head.parent_config is None:
        raise InvalidArgumentError(
            "The head has no parent to compare it with.",
            hint="Use a checkpoint id (see threadkeep history), or --other THREAD.",
        )
    parent: str = head.parent_config["configurable"]["checkpoint_id"]
    return parent


def _diff_style(line: str) -> str:
    if line[:1] not in ("", " ", *_SIGNS):
        return "bold"  # the name of a channel
    return _SIGNS.get(line.lstrip()[:1], "")


def _layered(saver: Saver, channel: str) -> LayeredCheckpointSaver:
    """Return a reader of a thread's layers. It writes nothing, and needs no `close`."""
    return LayeredCheckpointSaver(saver, channel=channel, index=ScanIndex())


def older_layers(saver: Saver, found: CheckpointTuple) -> list[Layer]:
    """Return the layers of older messages, which the checkpoint does not hold in full."""
    if CHANNEL not in found.checkpoint["channel_values"]:
        return []
    with suppress(InvalidArgumentError, NotFoundError):  # (the channel holds no messages)
        layers = _layered(saver, CHANNEL).layers(found.config)
        return [one for one in layers if one.layer != "full"]
    return []


# -- messages ----------------------------------------------------------------------------


@command(
    "threadkeep messages threads.db 42 --search 'refund order'",
    cold=True,
    imports=True,
    raw=True,
)
def messages(
    session: Session,
    thread: str = THREAD,
    *,
    search: str | None = option("--search WORDS", "Only archived messages with all these words."),
    channel: str = option("--channel NAME", "Channel of the messages.", CHANNEL),
    last: int | None = option("--last N", "Only the newest N.", min=1),
    full: bool = FULL,
) -> None:
    """Show or search archived messages of layered memory."""
    with session.open_to_read() as saver:
        thread = whole_thread(saver, thread)
        if saver.get_tuple({"configurable": {"thread_id": thread}}) is None:
            raise not_found(CheckpointRef(thread, "", None))
        found: list[ArchivedMessage] = []
        with suppress(InvalidArgumentError, NotFoundError):  # (the channel holds no messages)
            found = _layered(saver, channel).search_messages(thread, query=search)
    found.sort(key=lambda one: one.position)
    count = plural(len(found), "archived message") if found else "No archived messages"
    matching = f"{count} with {search}" if search else count
    lines: list[Drawn] = [line((f"thread {thread}", "bold"), matching)]
    documents = []
    for one in found[-last:] if last else found:
        said, archived_at = message(one.message), one.archived_at.isoformat()
        documents.append({**said.as_json(), "position": one.position, "archived_at": archived_at})
        lines += message_lines([said], full=full, note=f"position {one.position}")
    session.print({"thread": thread, "messages": documents, "found": len(found)}, *lines)


# -- partial -----------------------------------------------------------------------------


@command("threadkeep partial threads.db 42", cold=True, imports=True, raw=True)
def partial(
    session: Session,
    thread: str = THREAD,
    *,
    stream: str | None = option("--stream ID", "Only this stream. Default: all."),
    discard: bool = flag("--discard", "Discard the output of pending streams."),
    yes: bool = YES,
    full: bool = FULL,
) -> None:
    """Show or discard the output of unfinished streams."""
    with session.open() if discard else session.open_to_read() as saver:
        thread = thread if discard and yes else whole_thread(saver, thread)
        found = [one for one in saver.partial(thread) if stream in (None, one.id)]
        if not found:
            saver.threads.get(thread)  # (raises if there is no such thread)
        if stream is not None and not found:
            raise NotFoundError("The thread has no such stream.", thread=thread)
        count = plural(len(found), "stream") if found else "No streams"
        if discard and not yes and found:
            question = f"Discard the output of {count} of {thread}? This cannot be undone."
            session.confirm("discard", question)
        discarded = saver.discard_partial(thread, stream) if discard else 0
    streams = [stream_document(one) for one in found]
    lines: list[Drawn] = [line((f"thread {thread}", "bold"), count)]
    lines += [part for one in found for part in stream_lines(one, full=full)]
    session.print(
        {"thread": thread, "streams": streams, "discarded": discarded},
        *([f"Discarded {plural(discarded, 'stream')}"] if discard else lines),
    )


def stream_document(one: PartialStream) -> dict[str, Any]:
    """Return a stream as JSON, with messages as in `show`."""
    return {
        "id": one.id,
        "status": one.status,
        "created_at": one.created_at.isoformat(),
        "saved_at": one.saved_at.isoformat(),
        "checkpoint": one.checkpoint_id,
        "messages": [message(part.message).as_json() for part in one.messages],
        "events": [plain(event) for event in one.events],
        "values": plain(one.values),
    }


def stream_lines(one: PartialStream, *, full: bool) -> Iterator[RenderableType]:
    """Yield lines about a stream and its output."""
    yield ""
    is_pending = one.status == "pending"
    yield line(
        ("Partial output" if is_pending else "Stream", "bold yellow" if is_pending else "bold"),
        (one.id, "yellow"),
        one.status,
        f"saved {moment(one.saved_at.isoformat())}",
    )
    yield from message_lines([message(part.message) for part in one.messages], full=full)
    for event in one.events:
        yield cut(f"event {plain(event)}", full=full)
    for name, value in one.values.items():
        yield Text.assemble(text(name, "bold"), text(" (written, not in a checkpoint yet)", "dim"))
        yield cut(str(plain(value)), full=full)
