"""Queue of calls to another saver, with values as bytes.

Each value is serialized by itself: LangGraph's serializer keeps a `bytearray` alone, and not
within another value. Calls of a thread are made in order; one that fails keeps those behind it
queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core import arguments
from threadkeep._core.engine.operation import External
from threadkeep._run.layers.driver import Workflow
from threadkeep._run.write_behind import WriteBehind
from threadkeep._run.write_behind.commit_queue import CommitQueue, Outcome, Threads
from threadkeep.errors import BackendError, InvalidArgumentError, ThreadkeepError

AnySaver: TypeAlias = BaseCheckpointSaver[Any]
Typed: TypeAlias = tuple[str, bytes]

OVERHEAD = 500  # bytes that a call takes beside its values, about
_LOOK = 0.5  # seconds between two looks at a loop that may have ended


class Frozen(NamedTuple):
    """A value, and the values that belong into it, as bytes."""

    rest: Typed
    values: tuple[Typed, ...]

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return OVERHEAD + sum(len(data) for _, data in (self.rest, *self.values))


def freeze(serde: SerializerProtocol, rest: Any, values: Sequence[Any]) -> Frozen:
    """Serialize. Raises what the serializer raises."""
    return Frozen(serde.dumps_typed(rest), tuple(serde.dumps_typed(value) for value in values))


def thaw(serde: SerializerProtocol, frozen: Frozen) -> tuple[Any, list[Any]]:
    """Load fresh objects."""
    return serde.loads_typed(frozen.rest), [serde.loads_typed(value) for value in frozen.values]


class Call(NamedTuple):
    """One `put` or `put_writes`: `data` has the values of `channels`, `rest` is what comes last."""

    saver: AnySaver
    name: str
    config: RunnableConfig
    data: Frozen
    channels: Sequence[str]
    rest: tuple[Any, ...]
    serde: SerializerProtocol  # of `data`: the saver may be assigned another one meanwhile

    @property
    def thread(self) -> str:
        """The thread of the call."""
        return str(self.config["configurable"]["thread_id"])

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments, as fresh objects."""
        beside, values = thaw(self.serde, self.data)
        named = list(zip(self.channels, values, strict=True))
        if self.name == "put_writes":
            return (self.config, named, *self.rest)
        checkpoint, metadata = beside
        checkpoint["channel_values"] = dict(named)
        return (self.config, checkpoint, metadata, *self.rest)


def put(
    saver: AnySaver, config: Any, checkpoint: Any, metadata: Any, new_versions: Any
) -> tuple[Call, RunnableConfig]:
    """Return a `put` to be queued, and its result."""
    ns = arguments.place(config).ns
    thread = config["configurable"]["thread_id"]
    ids = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint["id"]}
    values = checkpoint["channel_values"]
    beside = [{**checkpoint, "channel_values": {}}, dict(metadata)]
    serde = saver.serde
    data = freeze(serde, beside, list(values.values()))
    rest = (dict(new_versions or {}),)
    call = Call(saver, "put", _copied(config), data, list(values), rest, serde)
    return call, {"configurable": ids}


def put_writes(saver: AnySaver, config: Any, writes: Any, task_id: str, task_path: str) -> Call:
    """Return a `put_writes` to be queued. Raises as `put`."""
    pairs = arguments.put_writes(config, writes, task_id, task_path).writes
    serde = saver.serde
    data = freeze(serde, None, [value for _, value in pairs])
    channels, rest = [channel for channel, _ in pairs], (task_id, task_path)
    return Call(saver, "put_writes", _copied(config), data, channels, rest, serde)


def _copied(config: RunnableConfig) -> RunnableConfig:
    """Return the config with copies of the containers that savers read."""
    configurable = {"checkpoint_ns": "", **config["configurable"]}
    copied: RunnableConfig = {**config, "configurable": configurable}
    if copied.get("metadata"):
        copied["metadata"] = dict(copied["metadata"])
    return copied


class CallQueue(CommitQueue[Call]):
    """Calls that wait, made in the event loop of the saver if it has one.

    `changed` is called with the threads of a call just before it is queued.
    """

    def __init__(
        self, how: WriteBehind, saver: AnySaver, changed: Callable[[Threads], None]
    ) -> None:
        loop = getattr(saver, "loop", None)  # as LangGraph's own async savers call it
        self._loop = loop if isinstance(loop, asyncio.AbstractEventLoop) else None
        self._is_async = type(saver).put is BaseCheckpointSaver.put
        self._changed = changed
        super().__init__(how)

    # -- for workflows ---------------------------------------------------------------

    def push(self, call: Call) -> Workflow[None]:
        """Queue a call. Raises as `CommitQueue.add`."""
        yield External(partial(self._push, call), partial(self._apush, call))

    def _push(self, call: Call) -> None:
        if not self.try_add(call.thread, call):
            self._refuse_in_loop()
            self.add(call.thread, call)

    async def _apush(self, call: Call) -> None:
        if self._is_async:  # it belongs to the loop that awaits it
            self._loop = asyncio.get_running_loop()
        await self.aadd(call.thread, call)

    def settle(self, threads: Threads) -> Workflow[None]:
        """Make the queued calls of these threads. Raises as `CommitQueue.flush`."""
        return self._in_turn(threads, partial(self.flush, threads))

    def delete(self, thread: str) -> Workflow[None]:
        """Make the queued calls of a thread; drop those that fail."""
        return self._in_turn([thread], partial(self._delete, thread))

    def _delete(self, thread: str) -> None:
        try:
            self.flush([thread])
        except ThreadkeepError:
            self.forget(thread)

    def end(self) -> Workflow[None]:
        """Make all calls, and refuse more. Raises as `CommitQueue.close`."""
        yield External(self._close_here, partial(self.in_turn, self.close))

    def _close_here(self) -> None:
        if not self.is_settled(None):
            self._refuse_in_loop()
        self.close()

    def _in_turn(self, threads: Threads, call: Callable[[], None]) -> Workflow[None]:
        if self.is_settled(threads):
            return
        yield External(partial(self._here, call), partial(self.in_turn, call))

    def _here(self, call: Callable[[], None]) -> None:
        self._refuse_in_loop()
        call()

    def _refuse_in_loop(self) -> None:
        """Refuse to block the loop that has to make the calls."""
        with suppress(RuntimeError):  # there is no running loop
            if asyncio.get_running_loop() is self._loop:
                raise InvalidArgumentError(
                    "Queued saves are stored by the event loop that this call would block.",
                    hint="Use the async methods there: await aflush(), aget_tuple(), aclose(), ...",
                )

    # -- see `CommitQueue` -----------------------------------------------------------

    def size(self, item: Call) -> int:
        """See `CommitQueue.size`."""
        return item.data.size

    def admit(self, item: Call) -> Call:
        """See `CommitQueue.admit`."""
        self._changed([item.thread])
        return item

    def store(self, items: Mapping[str, Sequence[Call]]) -> Mapping[str, Outcome]:
        """See `CommitQueue.store`."""
        return {thread: self._each(thread, calls) for thread, calls in items.items()}

    def _each(self, thread: str, calls: Sequence[Call]) -> Outcome:
        for done, call in enumerate(calls):
            try:
                self._make(call)
            except Exception as error:  # noqa: BLE001 - another saver may raise anything
                return Outcome(done, _failure(thread, call, error))
        return Outcome(len(calls))

    def _make(self, call: Call) -> None:
        if self._loop is None:
            getattr(call.saver, call.name)(*call.arguments())
        else:
            _in_loop(self._loop, getattr(call.saver, f"a{call.name}"), call.arguments())


def _in_loop(
    loop: asyncio.AbstractEventLoop,
    method: Callable[..., Coroutine[Any, Any, Any]],
    arguments: tuple[Any, ...],
) -> None:
    """Call an async method in a loop that another thread runs."""
    if loop.is_running():
        future = asyncio.run_coroutine_threadsafe(method(*arguments), loop)
        while not wait([future], _LOOK).done and loop.is_running():
            pass
        if future.done():
            future.result()
            return
    raise BackendError(
        "The event loop of the saver is not running.",
        hint="Call aclose() or aflush() before it ends: queued saves cannot be stored now.",
    )


def _failure(thread: str, call: Call, cause: Exception) -> ThreadkeepError:
    """Return the error of a failed call, to be raised at the next one."""
    if isinstance(cause, ThreadkeepError):
        return cause.at(thread=thread)
    error = BackendError(
        f"{type(call.saver).__name__}.{call.name} failed: {type(cause).__name__}: {cause}",
        hint="The save is kept, and retried with those behind it; delete_thread drops it.",
        thread=thread,
    )
    error.__cause__ = cause
    return error
