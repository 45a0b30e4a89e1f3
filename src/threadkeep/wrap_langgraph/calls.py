"""Calls to another saver that are queued, with their values as bytes.

Each value is serialized by itself: LangGraph's serializer keeps a `bytearray` alone, and not within
another value. Calls of a thread are made in order; one that fails keeps those behind it queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep import arguments
from threadkeep.errors import BackendError, InvalidArgumentError, ThreadkeepError
from threadkeep.write_behind.commit_queue import Outcome

Typed: TypeAlias = tuple[str, bytes]


class Frozen(NamedTuple):
    """A value, and the values that belong into it, as bytes."""

    rest: Typed
    values: tuple[Typed, ...]

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(len(data) for _, data in (self.rest, *self.values))


def freeze(serde: SerializerProtocol, rest: Any, values: Sequence[Any]) -> Frozen:
    """Serialize. Raises what the serializer raises."""
    return Frozen(serde.dumps_typed(rest), tuple(serde.dumps_typed(value) for value in values))


def thaw(serde: SerializerProtocol, frozen: Frozen) -> tuple[Any, list[Any]]:
    """Load fresh objects."""
    return serde.loads_typed(frozen.rest), [serde.loads_typed(value) for value in frozen.values]


AnySaver: TypeAlias = BaseCheckpointSaver[Any]

_OVERHEAD = 500  # bytes that a call takes beside its values, about
_LOOK = 0.5  # seconds after which it is looked whether a loop still runs


class SaverLoop:
    """The event loop that a saver's calls must be made in, if there is one."""

    def __init__(self, saver: AnySaver) -> None:
        loop = getattr(saver, "loop", None)  # as LangGraph's own async savers call it
        self._loop = loop if isinstance(loop, asyncio.AbstractEventLoop) else None
        self._is_async = type(saver).put is BaseCheckpointSaver.put

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop; None if blocking methods can be called, in any thread."""
        return self._loop

    def note(self) -> None:
        """Note the running loop, if the saver can only be awaited."""
        if self._is_async:
            self._loop = asyncio.get_running_loop()

    def refuse_here(self) -> None:
        """Refuse to block the loop that has to make the calls.

        Raises:
            InvalidArgumentError: this is that thread.
        """
        if self._loop is not None and _running() is self._loop:
            raise InvalidArgumentError(
                "Queued saves are stored by the event loop that this call would block.",
                hint="Use the async methods there: await aflush(), aget_tuple(), aclose(), ...",
            )


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@dataclass(frozen=True, slots=True)
class Call:
    """One `put` or `put_writes`, whose values are bytes."""

    saver: AnySaver
    name: str
    config: RunnableConfig
    data: Frozen
    rest: tuple[Any, ...]

    @property
    def thread(self) -> str:
        """The thread of the call."""
        return str(self.config["configurable"]["thread_id"])

    @property
    def size(self) -> int:
        """About how many bytes the call takes."""
        return self.data.size + _OVERHEAD

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments, as fresh objects."""
        given, values = thaw(self.saver.serde, self.data)
        channels, *rest = self.rest
        named = list(zip(channels, values, strict=True))
        if self.name == "put_writes":
            return (self.config, named, *rest)
        checkpoint, metadata = given
        return (self.config, {**checkpoint, "channel_values": dict(named)}, metadata, *rest)


def put(
    saver: AnySaver,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> tuple[Call, RunnableConfig]:
    """Return a `put` to be queued, and its result.

    Raises:
        InvalidConfigError: the config has no thread_id.
        Exception: whatever the saver's `serde` raises for a value that it cannot take.
    """
    place = arguments.place(config)
    thread = config["configurable"]["thread_id"]
    ids = {"thread_id": thread, "checkpoint_ns": place.ns, "checkpoint_id": checkpoint["id"]}
    values = dict(checkpoint["channel_values"])
    rest = [{**checkpoint, "channel_values": {}}, dict(metadata)]
    data = freeze(saver.serde, rest, list(values.values()))
    more = (list(values), dict(new_versions or {}))
    return Call(saver, "put", _snapshot(config), data, more), {"configurable": ids}


def put_writes(
    saver: AnySaver,
    config: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> Call:
    """Return a `put_writes` to be queued. Raises as `put`.

    Raises:
        InvalidConfigError: the config names no checkpoint.
        InvalidArgumentError: the task's id or a channel's name is no text.
    """
    given = arguments.put_writes(config, writes, task_id, task_path)
    data = freeze(saver.serde, None, [value for _, value in given.writes])
    channels = [channel for channel, _ in given.writes]
    return Call(saver, "put_writes", _snapshot(config), data, (channels, task_id, task_path))


def _snapshot(config: RunnableConfig) -> RunnableConfig:
    """Return the config with copies of the containers that savers read."""
    configurable = {"checkpoint_ns": "", **config["configurable"]}
    copied: RunnableConfig = {**config, "configurable": configurable}
    if copied.get("metadata"):
        copied["metadata"] = dict(copied["metadata"])
    return copied


class CallSink:
    """Makes queued calls. See `Sink`.

    Args:
        home: the event loop to make them in.
        changed: called with the thread just before a call is queued.
    """

    together = False

    def __init__(self, home: SaverLoop, changed: Callable[[str], None]) -> None:
        self._home = home
        self._changed = changed

    def size(self, call: Call) -> int:
        """See `Sink.size`."""
        return call.size

    def admit(self, call: Call) -> Call:
        """See `Sink.admit`."""
        self._changed(call.thread)
        return call

    def lost(self, thread: str, items: Sequence[Call], *, deleted: bool) -> None:
        """See `Sink.lost`."""

    def store(self, items: Mapping[str, Sequence[Call]]) -> Mapping[str, Outcome]:
        """See `Sink.store`."""
        return {thread: self._each(thread, calls) for thread, calls in items.items()}

    def _each(self, thread: str, calls: Sequence[Call]) -> Outcome:
        for done, call in enumerate(calls):
            try:
                self._carry_out(call)
            except Exception as error:  # noqa: BLE001 - whatever another saver raises, it is told
                return Outcome(done, _failure(thread, call, error))
        return Outcome(len(calls))

    def _carry_out(self, call: Call) -> None:
        loop, arguments = self._home.loop, call.arguments()
        if loop is None:
            getattr(call.saver, call.name)(*arguments)
        else:
            awaiting = getattr(call.saver, f"a{call.name}")
            _in_loop(loop, lambda: awaiting(*arguments))


def _in_loop(
    loop: asyncio.AbstractEventLoop, begin: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    """Run a coroutine in a loop that another thread runs."""
    if not loop.is_running():
        raise _ended()
    future = asyncio.run_coroutine_threadsafe(begin(), loop)
    while not wait([future], _LOOK).done:
        if not loop.is_running():
            raise _ended()
    future.result()


def _ended() -> BackendError:
    return BackendError(
        "The event loop of the saver is not running.",
        hint="Call aclose() or aflush() before it ends: queued saves cannot be stored now.",
    )


def _failure(thread: str, call: Call, cause: Exception) -> ThreadkeepError:
    """Return the error of a failed call, to be raised at the next one."""
    if isinstance(cause, ThreadkeepError):
        return cause.at(thread=thread)
    what = f"{type(call.saver).__name__}.{call.name} failed: {type(cause).__name__}: {cause}"
    error = BackendError(
        what,
        hint="The save is kept, and retried with those behind it; delete_thread drops it.",
        thread=thread,
    )
    error.__cause__ = cause
    return error
