"""A stream that a worker saves while it runs, and the buffer that decides when."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Self

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core import validation
from threadkeep._core.engine.operation import External, Operation
from threadkeep._run import driver
from threadkeep._run.driver import Wake, sync_and_async, sync_or_async
from threadkeep.errors import (
    ConflictError,
    InvalidArgumentError,
    StateError,
    ThreadkeepError,
    invalid,
)
from threadkeep.threads.partial_output import (
    LIVE,
    Part,
    StreamRows,
    StreamStatus,
    is_in,
    of_event,
    of_message,
)

INTERVAL = 3.0
MAX_PENDING = 5
MAX_BYTES = 64 * 1024
_LOOK = 1.0  # seconds between two checks that the worker is alive
_FULL = 4  # times `max_bytes` that may wait before `update` waits
_SMALL = 64  # estimated bytes of a part apart from its value
_FIRST_SAVE = 0.1  # estimated seconds of the first save
_STATUSES = ("completed", "pending", "discarded")
_log = logging.getLogger("threadkeep")


def weight(value: Any, depth: int = 10) -> int:
    """Estimate the bytes of a value."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, BaseMessage):
        value = [value.content]
    elif isinstance(value, Mapping):
        value = [*value, *value.values()]
    if not depth or not isinstance(value, list | tuple | set | frozenset):
        return _SMALL
    return _SMALL + sum([weight(each, depth - 1) for each in value])


class Buffer:
    """Parts that wait for a save. Times are seconds of any monotonic clock.

    A save begins early enough to end before the oldest part is `interval` old, judged by the time
    that the last save took.
    """

    def __init__(self, interval: float, max_bytes: int) -> None:
        self._interval = interval
        self._max_bytes = max_bytes
        self._waiting: list[Part] = []
        self._taken: list[Part] = []
        self._bytes = self._taken_bytes = 0
        self._oldest = 0.0  # when the first waiting part came
        self._began = 0.0
        self._cost = min(_FIRST_SAVE, interval / 10)
        self._not_before = 0.0  # after a failure
        self._saved_values: set[str] = set()  # namespaces with saved values in no checkpoint yet

    @property
    def is_empty(self) -> bool:
        """True if nothing waits."""
        return not self._waiting and not self._taken

    @property
    def is_full(self) -> bool:
        """True if the stream has to wait."""
        return self.bytes >= _FULL * self._max_bytes

    @property
    def bytes(self) -> int:
        """Estimated bytes that wait, including the save under way."""
        return self._bytes + self._taken_bytes

    def add(self, part: Part, now: float) -> bool:
        """Add a part. Return True if the time of the next save has changed."""
        is_first, before = not self._waiting, self._bytes
        if is_first:
            self._oldest = now
        self._waiting.append(part)
        self._bytes += _SMALL + weight(part.value)
        return is_first or before < self._max_bytes <= self._bytes

    def drop_values(self, namespace: str) -> Part | None:
        """Drop values that a checkpoint of the namespace holds now, with its subgraphs'.

        Returns:
            The part that drops saved values, or None if none were saved.
        """
        before, self._waiting = self._waiting, []
        for part in before:
            if part.kind == "values" and is_in(namespace, part.namespace):
                self._bytes -= _SMALL + weight(part.value)
            else:
                self._waiting.append(part)
        saved = self._saved_values | _with_values(self._taken)
        self._saved_values = {one for one in self._saved_values if not is_in(namespace, one)}
        is_known = any(is_in(namespace, one) for one in saved)
        return Part("checkpoint", namespace, "", "", None) if is_known else None

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next save, or None while nothing waits."""
        if not self._waiting:
            return None
        if self._bytes >= self._max_bytes:
            return max(0.0, self._not_before - now)
        lead = min(self._interval / 2, 2 * self._cost)
        return max(0.0, self._oldest + self._interval - lead - now, self._not_before - now)

    def take(self, now: float) -> list[Part]:
        """Begin a save of all waiting parts. End it with `saved` or `failed`."""
        self._taken, self._waiting = self._waiting, []
        self._taken_bytes, self._bytes = self._bytes, 0
        self._began = now
        return self._taken

    def saved(self, now: float) -> None:
        """End a save."""
        self._saved_values |= _with_values(self._taken)
        self._taken, self._taken_bytes = [], 0
        self._cost = now - self._began

    def failed(self, now: float) -> None:
        """End a failed save: its parts wait for another interval."""
        self._waiting = [*self._taken, *self._waiting]
        self._bytes += self._taken_bytes
        self._taken, self._taken_bytes = [], 0
        self._oldest, self._not_before = self._began, now + self._interval


def _with_values(parts: Iterable[Part]) -> set[str]:
    return {part.namespace for part in parts if part.kind == "values"}


class _Signal:
    """An event for threads or, with a loop, for tasks. Any thread may set it."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None, thread: str) -> None:
        self._loop = loop
        self._thread = thread
        self._wake = Wake()
        self._awaited = asyncio.Event()

    def set(self) -> None:
        self._wake.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._awaited.set)

    def wait(self, seconds: float | None) -> Operation[None]:
        """Wait for the event, and reset it."""
        own = None if self._loop is None else partial(self._await, seconds)
        yield External(partial(self._wait, seconds), own)

    def _wait(self, seconds: float | None) -> None:
        if self._loop is not None:
            raise StateError(
                "The store is slower than the stream, and no more output can wait.",
                hint="Use await aupdate(...), which waits until there is room.",
                thread=self._thread,
            )
        self._wake.wait(seconds)

    async def _await(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._awaited.wait(), seconds)
        self._awaited.clear()


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def _over(task: asyncio.Task[None]) -> None:
    if not task.done():
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


class Stream:
    """Output of a run, saved every few seconds. `Saver.streaming` returns it.

    `with` or `async with` starts and stops it. After an exception or a cancellation, all output is
    saved, and the stream stays pending. You may call `update` from any thread.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        config: RunnableConfig | str,
        *,
        interval: float = INTERVAL,
        max_pending: int = MAX_PENDING,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if not validation.is_time(interval):
            raise invalid("interval", interval, "Use seconds, more than 0.")
        for name, count in (("max_pending", max_pending), ("max_bytes", max_bytes)):
            if not validation.is_count(count, 1):
                raise invalid(name, count, "Use a whole number, 1 or more.")
        self._rows = StreamRows(saver, config, max_pending)
        self._buffer = Buffer(float(interval), max_bytes)
        self._lock = threading.Lock()  # of the buffer and the state, never held during I/O
        self._state = "new"
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The stream's id in `partial`."""
        return self._rows.id

    @property
    def thread(self) -> str:
        """The thread's id."""
        return self._rows.thread

    @property
    def is_started(self) -> bool:
        """True from the stream's start to its end."""
        return self._state == "started"

    # -- life ------------------------------------------------------------------------

    def _start(self) -> Operation[Self]:
        """Start to save: in a thread, or in a task of the awaiting caller's event loop.

        Raises:
            StateError: the stream was started before.
        """
        loop: asyncio.AbstractEventLoop | None = yield External(lambda: None, _running_loop)
        with suppress(ThreadkeepError):  # saves need the store, the start does not
            yield from self._rows.begin()
        with self._lock:
            if self._state != "new":
                raise StateError(
                    "The stream was started before.",
                    hint="Use a new stream for each run.",
                    thread=self.thread,
                )
            self._state = "started"
        self._loop = loop
        self._due, self._room = _Signal(loop, self.thread), _Signal(loop, self.thread)
        LIVE.add(self.id)
        if loop is not None:
            self._task = loop.create_task(driver.arun(self._work()))
            return self
        self._thread = threading.Thread(
            target=driver.run, args=(self._work(),), name="threadkeep-stream", daemon=True
        )
        self._thread.start()
        return self

    start, astart = sync_and_async(_start)

    def _stop(self, status: StreamStatus = "completed") -> Operation[None]:
        """Stop, after the save that is under way.

        Args: status: "completed" removes the parts, as the thread's checkpoint has the output now.
            "discarded" removes them too. "pending" saves the rest and keeps them for `partial`.

        Raises:
            StateError: the stream is not started.
            InvalidArgumentError: the status is unknown, or the stream belongs to an event loop: use
                `astop`.
            ThreadkeepError: the rest, or the status, could not be stored. You can stop it again.
        """
        # (a cancelled caller waits until all is saved)
        acall = partial(driver.arun, self._end(status))
        yield from sync_or_async(partial(self._end_blocking, status), acall)

    stop, astop = sync_and_async(_stop)

    def _end_blocking(self, status: StreamStatus) -> None:
        if self._task is not None:
            raise InvalidArgumentError(
                "The stream is saved by an event loop, which stop() would block.",
                hint="Use await astop().",
            )
        driver.run(self._end(status))

    def _end(self, status: StreamStatus) -> Operation[None]:
        if status not in _STATUSES:
            raise invalid("status", status, 'Use "completed", "pending" or "discarded".')
        with self._lock:
            if self._state != "started":
                raise self._not_started()
            self._state = "stopped"
        try:
            self._due.set()
            self._room.set()
            yield External(self._join, None if self._task is None else partial(_over, self._task))
            if status != "pending":
                yield from self._rows.stop(status)
            elif not self._buffer.is_empty:
                yield from self._save()
                if self._failure is not None:
                    raise self._failure  # noqa: TRY301 - the error of the save
        except Exception:
            self._state = "started"  # it can be stopped again
            raise
        finally:
            LIVE.discard(self.id)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _leave(self, error: BaseException | None) -> Operation[None]:
        """Stop at the end of a `with` block."""
        if not self.is_started:  # (stopped in the block)
            return
        if error is None:
            yield from self._stop()
            return
        is_refused = isinstance(error, ConflictError)  # (another run has answered in its place)
        try:
            yield from self._stop("discarded" if is_refused else "pending")
        except Exception:  # noqa: BLE001 - the error of the block is more important
            _log.warning("The rest of a stream could not be saved.", exc_info=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        driver.run(self._leave(error))

    async def __aenter__(self) -> Self:
        return await self.astart()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await driver.arun(self._leave(error))

    # -- updates ---------------------------------------------------------------------

    def _update(
        self,
        output: str | BaseMessage | Mapping[str, Any] = "",
        *,
        event: Any = None,
        node: str = "",
        message: str = "",
        checkpoint_ns: str = "",
    ) -> Operation[None]:
        """Add output, which is saved soon. If the store is too slow, wait until there is room.

        Args:
            output: text, a message or a chunk of one, or values by channel.
            event: a custom event, of any type, or None for none.
            node: the node that produced the output.
            message: the id of the message that the text belongs to.
            checkpoint_ns: the checkpoint namespace of the node.

        Raises:
            StateError: the stream is not started, or has ended, or its event loop has ended, or it
                belongs to an event loop, and no more output can wait: use `aupdate`.
            InvalidArgumentError: the output has another type.
            ThreadkeepError: the store fails, and no more output can wait.
        """
        for part in _parts(output, event, checkpoint_ns, node, message):
            yield from self._add(part)

    update, aupdate = sync_and_async(_update)

    def _add(self, part: Part) -> Operation[None]:
        while not self._offer(part):
            if self._failure is not None:
                raise self._failure
            yield from self._room.wait(_LOOK)

    def _is_alive(self) -> bool:
        if self._task is not None:
            return not self._task.done()
        return self._thread is not None and self._thread.is_alive()

    def _offer(self, part: Part) -> bool:
        """Add a part without waiting, or return False if the buffer is full."""
        with self._lock:
            if self._state != "started":
                raise self._not_started()
            if not self._is_alive():  # its event loop has ended, or all tasks were cancelled
                raise StateError(
                    "The worker of the stream has ended.",
                    hint='Call stop("pending") or astop("pending") to save the rest.',
                    thread=self.thread,
                )
            if self._buffer.is_full:
                return False
            is_sooner = self._buffer.add(part, time.monotonic())
        if is_sooner:
            self._due.set()
        return True

    def _drop_values(self, ns: str) -> Part | None:
        with self._lock:
            return self._buffer.drop_values(ns)

    def _not_started(self) -> StateError:
        text, hint = "has ended", "Start another one: saver.streaming(config)."
        if self._state == "new":
            text, hint = "is not started", "Use `with`, or call start() first."
        return StateError(f"The stream {text}.", hint=hint, thread=self.thread)

    # -- the worker ------------------------------------------------------------------

    def _work(self) -> Operation[None]:
        while self._state == "started":
            with self._lock:
                delay = self._buffer.delay(time.monotonic())
            if delay is None or delay > 0:
                yield from self._due.wait(delay)
            else:
                yield from self._save()

    def _save(self) -> Operation[None]:
        with self._lock:
            parts = self._buffer.take(time.monotonic())
        ended, failure = self._buffer.failed, None
        try:
            yield from self._rows.append(parts)
            ended = self._buffer.saved
        except Exception as error:  # noqa: BLE001 - `stop` or a full buffer raises it
            failure = error
            _log.warning("A stream could not be saved; it is tried again.", exc_info=True)
        finally:  # (also after a cancellation)
            with self._lock:
                ended(time.monotonic())
            self._failure = failure
            self._room.set()


def _parts(output: object, event: Any, ns: str, node: str, message: str) -> Iterator[Part]:
    if event is not None:
        yield of_event(event, ns, node)
    if isinstance(output, str):
        if output:
            yield Part("text", ns, node, message, output)
    elif isinstance(output, BaseMessage):
        part = of_message(output, ns, node)
        if part is not None:
            yield part
    elif isinstance(output, Mapping):
        yield Part("values", ns, node, "", dict(output))
    else:
        raise invalid("output", output, "Use text, a message or a dict of values by channel.")
