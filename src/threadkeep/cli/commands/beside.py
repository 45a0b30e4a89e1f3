"""Commands for what is stored beside a thread's checkpoints: messages, partial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from rich.console import RenderableType
from rich.text import Text

from threadkeep._core.engine.context import not_found
from threadkeep._core.engine.operation import CheckpointRef
from threadkeep._stores.message_index import ScanIndex
from threadkeep.cli.app import command
from threadkeep.cli.parameters import FULL, THREAD, flag, option
from threadkeep.cli.readable import message
from threadkeep.cli.stores import Session
from threadkeep.cli.terminal import Drawn, line, moment, plural, text
from threadkeep.cli.texts import cut, message_lines
from threadkeep.errors import InvalidArgumentError, NotFoundError
from threadkeep.memory import ArchivedMessage, Layer, LayeredCheckpointSaver
from threadkeep.savers.saver import Saver
from threadkeep.streaming import PartialStream
from threadkeep.threads.diff.records import plain

CHANNEL = "messages"


def _layered(saver: Saver, channel: str) -> LayeredCheckpointSaver:
    """Return what reads a thread's layers; it writes nothing, and is not to be closed."""
    return LayeredCheckpointSaver(saver, channel=channel, index=ScanIndex())


def older_layers(saver: Saver, found: CheckpointTuple) -> list[Layer]:
    """Return the layers of older messages beside those that a checkpoint has in full."""
    if CHANNEL not in found.checkpoint["channel_values"]:
        return []
    with suppress(InvalidArgumentError, NotFoundError):  # (its values are no messages)
        layers = _layered(saver, CHANNEL).layers(found.config)
        return [one for one in layers if one.layer != "full"]
    return []


# -- messages ----------------------------------------------------------------------------


@command(
    "threadkeep messages 42 --search 'refund order' --url threads.db",
    cold=True,
    imports=True,
    raw=True,
)
def messages(
    session: Session,
    thread: str = THREAD,
    *,
    search: str | None = option("--search WORDS", "Only archived messages with all these words."),
    channel: str = option("--channel", "Channel of the messages.", CHANNEL),
    last: int | None = option("--last N", "Only the newest N.", min=1),
    full: bool = FULL,
) -> None:
    """Show archived messages of layered memory, as they were written, or search them."""
    with session.open_to_read() as saver:
        if saver.get_tuple({"configurable": {"thread_id": thread}}) is None:
            raise not_found(CheckpointRef(thread, "", None))
        found: list[ArchivedMessage] = []
        with suppress(InvalidArgumentError, NotFoundError):  # (its values are no messages)
            found = _layered(saver, channel).search_messages(thread, query=search)
    found.sort(key=lambda one: one.position)
    shown = found[-last:] if last else found
    document = {"thread": thread, "messages": [*map(_document, shown)], "found": len(found)}
    count = plural(len(found), "archived message") if found else "No archived messages"
    matching = f"{count} with {search}" if search else count
    session.print(
        document, line((f"thread {thread}", "bold"), matching), *_archived_lines(shown, full=full)
    )


def _document(one: ArchivedMessage) -> dict[str, Any]:
    said = asdict(message(one.message))
    return {**said, "position": one.position, "archived_at": one.archived_at.isoformat()}


def _archived_lines(found: Iterable[ArchivedMessage], *, full: bool) -> Iterator[RenderableType]:
    for one in found:
        yield from message_lines([message(one.message)], full=full, note=f"position {one.position}")


# -- partial -----------------------------------------------------------------------------


@command("threadkeep partial 42 --url threads.db", cold=True, imports=True, raw=True)
def partial(
    session: Session,
    thread: str = THREAD,
    *,
    stream: str | None = option("--stream ID", "Only this stream. Default: all."),
    discard: bool = flag("--discard", "Discard the output of pending streams."),
    full: bool = FULL,
) -> None:
    """Show the output of streams that did not end, or discard it."""
    with session.open() if discard else session.open_to_read() as saver:
        found = [one for one in saver.partial(thread) if stream in (None, one.id)]
        if not found:
            saver.threads.get(thread)  # (raises if there is no such thread)
        if stream is not None and not found:
            raise NotFoundError("The thread has no such stream.", thread=thread)
        discarded = saver.discard_partial(thread, stream) if discard else 0
    document = {
        "thread": thread,
        "streams": [*map(stream_document, found)],
        "discarded": discarded,
    }
    if discard:
        session.print(document, f"Discarded {plural(discarded, 'stream')}")
        return
    lines: list[Drawn] = [part for one in found for part in stream_lines(one, full=full)]
    count = plural(len(found), "stream") if found else "No streams"
    session.print(document, line((f"thread {thread}", "bold"), count), *lines)


def stream_document(one: PartialStream) -> dict[str, Any]:
    """Return a stream as JSON; its messages as `show` has them."""
    return {
        "id": one.id,
        "status": one.status,
        "created_at": one.created_at.isoformat(),
        "saved_at": one.saved_at.isoformat(),
        "checkpoint": one.checkpoint_id,
        "messages": [asdict(message(part.message)) for part in one.messages],
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
