"""A stream that is saved as it comes, by a worker beside it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Self

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core import validation
from threadkeep._core.engine.operation import External
from threadkeep._run.layers import driver
from threadkeep._run.layers.driver import Workflow, sync_and_async, sync_or_async
from threadkeep.errors import InvalidArgumentError, StateError, invalid
from threadkeep.threads.streams.parts import Buffer, Part, StreamStatus, of_event, of_message
from threadkeep.threads.streams.rows import LIVE, StreamRows

INTERVAL = 3.0
MAX_PENDING = 5
MAX_BYTES = 64 * 1024
_LOOK = 1.0  # seconds between two looks at a worker that may be gone
_STATUSES = ("completed", "pending", "discarded")
_ANEW = "Start another one: saver.streaming(config)."
_log = logging.getLogger("threadkeep")


class _Signal:
    """An event that threads wait for, or (with a loop) tasks; set from anywhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._event = threading.Event()
        self._awaited = asyncio.Event()

    def set(self) -> None:
        self._event.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._awaited.set)

    def wait(self, seconds: float | None) -> Workflow[None]:
        """Wait until it is set, and reset it."""
        own = None if self._loop is None else partial(self._await, seconds)
        yield External(partial(self._wait, seconds), own)

    def _wait(self, seconds: float | None) -> None:
        self._event.wait(seconds)
        self._event.clear()

    async def _await(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._awaited.wait(), seconds)
        self._awaited.clear()


class Stream:
    """Output of a run that is saved every few seconds, as `Saver.streaming` returns it.

    `with` or `async with` starts and stops it. After an exception, or a cancellation, all that
    came is saved, and the stream stays pending. `update` may be called from any thread.
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
        self._lock = threading.Lock()  # of the buffer and the state; held for moments only
        self._state = "new"
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The id, by which `partial` lists the stream."""
        return self._rows.id

    @property
    def thread(self) -> str:
        """The id of the thread."""
        return self._rows.thread

    @property
    def is_started(self) -> bool:
        """True from its start to its end."""
        return self._state == "started"

    # -- life ------------------------------------------------------------------------

    def start(self) -> Self:
        """Start to save.

        Raises:
            StateError: it was started before.
        """
        self._begin(None)
        self._thread = threading.Thread(
            target=driver.run, args=(self._work(),), name="threadkeep-stream", daemon=True
        )
        self._thread.start()
        return self

    async def astart(self) -> Self:
        """Async variant of `start`: this event loop saves."""
        loop = asyncio.get_running_loop()
        self._begin(loop)
        self._task = loop.create_task(driver.arun(self._work()))
        return self

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        with self._lock:
            if self._state != "new":
                raise StateError(
                    "The stream was started before.", hint="Use one for each run.", **self._place
                )
            self._state = "started"
        self._loop = loop
        self._due, self._room = _Signal(loop), _Signal(loop)
        LIVE.add(self.id)

    def _stop(self, status: StreamStatus = "completed") -> Workflow[None]:
        """Stop, after the save that is under way.

        Args:
            status: "completed" drops the parts, as the thread's checkpoint has the output by now;
                "discarded" drops them too; "pending" saves the rest and leaves them to `partial`.

        Raises:
            StateError: the stream is not started.
            InvalidArgumentError: another status, or the stream belongs to an event loop: `astop`.
            ThreadkeepError: the rest, or the status, could not be stored. It can be stopped again.
        """
        # (a cancelled caller waits until all is saved)
        acall = partial(driver.arun, self._end(status))
        yield from sync_or_async(partial(self._end_blocking, status), acall)

    stop, astop = sync_and_async(_stop)

    def _end_blocking(self, status: StreamStatus) -> None:
        if self._task is not None:
            raise InvalidArgumentError(
                "The stream is saved by an event loop, which this call would block.",
                hint="Use astop() there.",
            )
        driver.run(self._end(status))

    def _end(self, status: StreamStatus) -> Workflow[None]:
        if status not in _STATUSES:
            raise invalid("status", status, 'Use "completed", "pending" or "discarded".')
        with self._lock:
            if self._state != "started":
                raise self._not_started()
            self._state = "stopped"
        try:
            self._due.set()
            self._room.set()
            yield External(self._join, self._ajoin)
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

    async def _ajoin(self) -> None:
        if self._task is None:
            await driver.in_thread(self._join)
            return
        if not self._task.done():
            await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    def _leave(self, error: BaseException | None) -> Workflow[None]:
        """Stop as `with` does."""
        if not self.is_started:  # (stopped in the block)
            return
        if error is None:
            yield from self._stop()
            return
        try:
            yield from self._stop("pending")
        except Exception:  # noqa: BLE001 - the error of the block is what counts
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

    def update(
        self,
        output: str | BaseMessage | Mapping[str, Any] = "",
        *,
        event: Any = None,
        node: str = "",
        message: str = "",
        ns: str = "",
    ) -> None:
        """Add output, which is saved soon. Where the store is too slow, wait for it.

        Args:
            output: text, a message or a chunk of one, or values by channel.
            event: a custom event, of any kind; None for none.
            node: the node that it came from.
            message: the id of the message that the text belongs to.
            ns: the checkpoint namespace of the node.

        Raises:
            StateError: the stream is not started, or has ended; or its event loop has; or it
                belongs to an event loop, and no more output can wait: use `aupdate`.
            InvalidArgumentError: the output is of another kind.
            ThreadkeepError: the store fails, and no more output can wait.
        """
        for part in _parts(output, event, ns, node, message):
            self._add(part)

    async def aupdate(
        self,
        output: str | BaseMessage | Mapping[str, Any] = "",
        *,
        event: Any = None,
        node: str = "",
        message: str = "",
        ns: str = "",
    ) -> None:
        """Async variant of `update`."""
        for part in _parts(output, event, ns, node, message):
            await self._aadd(part)

    def _add(self, part: Part) -> None:
        while not self._offer(part):
            if self._loop is not None:
                raise StateError(
                    "The store is slower than the stream, and no more output can wait.",
                    hint="Use await aupdate(...), which waits until there is room.",
                    **self._place,
                )
            driver.run(self._wait_for_room())

    async def _aadd(self, part: Part) -> None:
        while not self._offer(part):
            await driver.arun(self._wait_for_room())

    def _wait_for_room(self) -> Workflow[None]:
        if self._failure is not None:
            raise self._failure
        yield from self._room.wait(_LOOK)

    def _is_alive(self) -> bool:
        if self._task is not None:
            return not self._task.done()
        return self._thread is not None and self._thread.is_alive()

    def _offer(self, part: Part) -> bool:
        """Add a part without waiting; return False if there is no room for it."""
        with self._lock:
            if self._state != "started":
                raise self._not_started()
            if not self._is_alive():  # its event loop has ended, or all tasks were cancelled
                raise StateError(
                    "The worker of the stream is gone.",
                    hint='Call stop("pending") or astop, which saves the rest.',
                    **self._place,
                )
            if self._buffer.is_full:
                return False
            is_sooner = self._buffer.add(part, time.monotonic())
        if is_sooner:
            self._due.set()
        return True

    def _drop_values(self, ns: str) -> Part | None:
        """Drop the values of a namespace that a checkpoint holds now. See `Buffer`."""
        with self._lock:
            return self._buffer.drop_values(ns)

    # -- the worker ------------------------------------------------------------------

    def _work(self) -> Workflow[None]:
        """Save what is due, until the stream is stopped."""
        while self._state == "started":
            with self._lock:
                delay = self._buffer.delay(time.monotonic())
            if delay is None or delay > 0:
                yield from self._due.wait(delay)
            else:
                yield from self._save()

    def _save(self) -> Workflow[None]:
        with self._lock:
            parts = self._buffer.take(time.monotonic())
        ended, failure = self._buffer.failed, None
        try:
            yield from self._rows.append(parts)
            ended = self._buffer.saved
        except Exception as error:  # noqa: BLE001 - it is tried again, and raised where it matters
            failure = error
            _log.warning("A stream could not be saved; it is tried again.", exc_info=True)
        finally:  # (also where it was cancelled)
            with self._lock:
                ended(time.monotonic())
            self._failure = failure
            self._room.set()

    # -- errors ----------------------------------------------------------------------

    @property
    def _place(self) -> dict[str, str]:
        return {"thread": self.thread}

    def _not_started(self) -> StateError:
        if self._state == "new":
            hint = "Use `with`, or call start() first."
            return StateError("The stream is not started.", hint=hint, **self._place)
        return StateError("The stream has ended.", hint=_ANEW, **self._place)


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
