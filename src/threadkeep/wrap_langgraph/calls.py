"""Values of a checkpoint as bytes, each on its own.

Only that lives here. A serializer may keep a kind of value on its own that it does not keep
within another one (LangGraph's keeps a `bytearray` so): savers that store values one by one give
them back exactly, and so must whatever stands in front of them.

Calls to another saver that are carried out later.

Only what a call is made of lives here, and how it is carried out. Invariants: what a call holds
does not change with the objects that it was given; calls of a thread are carried out in their
order, each by the saver that it was made to; one that fails keeps those behind it waiting.
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
    """Something, and the values that belong into it, as bytes."""

    rest: Typed
    values: tuple[Typed, ...]

    @property
    def size(self) -> int:
        """How many bytes that is."""
        return sum(len(data) for _, data in (self.rest, *self.values))


def freeze(serde: SerializerProtocol, rest: Any, values: Sequence[Any]) -> Frozen:
    """Turn them into bytes. Raises what the serializer raises."""
    return Frozen(serde.dumps_typed(rest), tuple(serde.dumps_typed(value) for value in values))


def thaw(serde: SerializerProtocol, frozen: Frozen) -> tuple[Any, list[Any]]:
    """Turn them back: fresh objects."""
    return serde.loads_typed(frozen.rest), [serde.loads_typed(value) for value in frozen.values]


AnySaver: TypeAlias = BaseCheckpointSaver[Any]

_OVERHEAD = 500  # bytes that a call takes beside its values, about
_LOOK = 0.5  # seconds after which it is looked whether a loop still runs


class Home:
    """The event loop that a saver's calls must be carried out in, if there is one."""

    def __init__(self, saver: AnySaver) -> None:
        loop = getattr(saver, "loop", None)  # as LangGraph's own async savers call it
        self._loop = loop if isinstance(loop, asyncio.AbstractEventLoop) else None
        self._moves = type(saver).put is BaseCheckpointSaver.put  # it has no blocking methods

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """That loop; None where blocking methods do, in any thread."""
        return self._loop

    def note(self) -> None:
        """Note that an awaiting call is made: a saver that can only be awaited is at home here."""
        if self._moves:
            self._loop = asyncio.get_running_loop()

    def refuse_here(self) -> None:
        """Refuse to wait in the loop's own thread for what that loop has to do.

        Raises:
            InvalidArgumentError: this is that thread.
        """
        if self._loop is not None and _running() is self._loop:
            raise InvalidArgumentError(
                "What waits is stored by the event loop that this call would hold up.",
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
        """The thread that it is about."""
        return str(self.config["configurable"]["thread_id"])

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return self.data.size + _OVERHEAD

    def arguments(self) -> tuple[Any, ...]:
        """What the saver is to be called with: objects of nobody else."""
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
    """A `put` to be carried out later, and what it returns.

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
    """A `put_writes` to be carried out later. Raises as `put`.

    Raises:
        InvalidConfigError: the config names no checkpoint.
        InvalidArgumentError: the task's id or a channel's name is no text.
    """
    given = arguments.put_writes(config, writes, task_id, task_path)
    data = freeze(saver.serde, None, [value for _, value in given.writes])
    channels = [channel for channel, _ in given.writes]
    return Call(saver, "put_writes", _snapshot(config), data, (channels, task_id, task_path))


def _snapshot(config: RunnableConfig) -> RunnableConfig:
    """The config with the containers of its own that savers read copied."""
    configurable = {"checkpoint_ns": "", **config["configurable"]}
    copied: RunnableConfig = {**config, "configurable": configurable}
    if copied.get("metadata"):
        copied["metadata"] = dict(copied["metadata"])
    return copied


class Calls:
    """Carries out calls; see `Sink`.

    Args:
        home: where.
        changed: told of a thread, just before a call of it begins to wait.
    """

    together = False

    def __init__(self, home: Home, changed: Callable[[str], None]) -> None:
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
        """See `Sink.lost`: nothing has to be remembered of it."""

    def store(self, waiting: Mapping[str, Sequence[Call]]) -> Mapping[str, Outcome]:
        """See `Sink.store`."""
        return {thread: self._each(thread, calls) for thread, calls in waiting.items()}

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
    """Carry out a coroutine in a loop that another thread runs."""
    if not loop.is_running():
        raise _ended()
    future = asyncio.run_coroutine_threadsafe(begin(), loop)
    while not wait([future], _LOOK).done:
        if not loop.is_running():
            raise _ended()
    future.result()


def _ended() -> BackendError:
    return BackendError(
        "The event loop that the saver belongs to does not run any more.",
        hint="Call aclose() or aflush() before it ends: what waits now cannot be stored.",
    )


def _failure(thread: str, call: Call, cause: Exception) -> ThreadkeepError:
    """What became of a call, to be told at the next one."""
    if isinstance(cause, ThreadkeepError):
        return cause.at(thread=thread)
    what = f"{type(call.saver).__name__}.{call.name} failed: {type(cause).__name__}: {cause}"
    error = BackendError(
        what,
        hint="The save is kept, and tried again with those behind it; delete_thread lets go of it.",
        thread=thread,
    )
    error.__cause__ = cause
    return error
