"""Streaming saves in front of any saver, by the id of the thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._run.delegate import Delegate
from threadkeep._run.driver import Workflow, sync_and_async
from threadkeep.errors import InvalidArgumentError, StateError
from threadkeep.threads.partial_output import (
    PartialStream,
    StreamStatus,
    discard_of,
    partial_of,
    thread_of,
)
from threadkeep.threads.stream import INTERVAL, MAX_BYTES, MAX_PENDING, Stream


class StreamingCheckpointSaver(Delegate):
    """A saver with streaming saves, in front of any other one; all else goes to that.

    Its listings leave out the rows of streams. Closing it leaves streams that were not stopped
    pending.

    Args:
        base_saver: the other saver; closed with this one.
        interval: as of `Saver.streaming`, for all streams.
        max_pending: likewise.
        max_bytes: likewise.

    Raises:
        InvalidArgumentError: an option is invalid, or the other one is no saver.
    """

    def __init__(
        self,
        base_saver: BaseCheckpointSaver[Any],
        *,
        interval: float = INTERVAL,
        max_pending: int = MAX_PENDING,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if not isinstance(base_saver, BaseCheckpointSaver):
            raise InvalidArgumentError(
                f"{base_saver!r} is no LangGraph saver.",
                hint="Use a BaseCheckpointSaver.",
            )
        super().__init__(base_saver)
        self.streaming_limits = {
            "interval": interval,
            "max_pending": max_pending,
            "max_bytes": max_bytes,
        }
        self._streams: dict[str, Stream] = {}
        self.streaming("checks the options")

    def streaming(self, config: RunnableConfig | str, **limits: Any) -> Stream:
        """Return a stream of a thread that is not started. See `Saver.streaming`."""
        return Stream(self._inner, config, **{**self.streaming_limits, **limits})

    def start_streaming(self, thread_id: RunnableConfig | str) -> Stream:
        """Start a stream of a thread, which may have several."""
        return self._known(self.streaming(thread_id).start())

    async def astart_streaming(self, thread_id: RunnableConfig | str) -> Stream:
        """Async variant of `start_streaming`: this event loop saves."""
        return self._known(await self.streaming(thread_id).astart())

    def _known(self, stream: Stream) -> Stream:
        for one in list(self._streams.values()):
            if not one.is_started:
                self._streams.pop(one.id, None)
        self._streams[stream.id] = stream
        return stream

    def _stop_streaming(
        self,
        thread_id: RunnableConfig | str,
        *,
        stream: str | None = None,
        status: StreamStatus = "completed",
    ) -> Workflow[None]:
        """Stop a stream of a thread by its id, or all of them. See `Stream.stop`.

        Raises:
            StateError: there is none. See `Stream.stop` for others; all others are stopped then.
        """
        yield from _stopped(self._started(thread_id, stream), status)

    stop_streaming, astop_streaming = sync_and_async(_stop_streaming)

    def update(
        self,
        thread_id: RunnableConfig | str,
        output: Any = "",
        *,
        stream: str | None = None,
        **more: Any,
    ) -> None:
        """Add output to the stream of a thread that began last, or to another by its id.

        Args:
            thread_id: the thread's id, or a config that names it.
            output: as of `Stream.update`.
            stream: the stream's id.
            **more: as of `Stream.update`.

        Raises:
            StateError: there is none. See `Stream.update` for others.
        """
        self._started(thread_id, stream)[-1].update(output, **more)

    async def aupdate(
        self,
        thread_id: RunnableConfig | str,
        output: Any = "",
        *,
        stream: str | None = None,
        **more: Any,
    ) -> None:
        """Async variant of `update`."""
        await self._started(thread_id, stream)[-1].aupdate(output, **more)

    def _partial(self, thread_id: RunnableConfig | str) -> Workflow[list[PartialStream]]:
        """Return the streams of a thread, newest first. See `Saver.partial`."""
        return partial_of(self._inner, thread_id)

    partial, apartial = sync_and_async(_partial)

    def _discard_partial(
        self, thread_id: RunnableConfig | str, stream: str | None = None
    ) -> Workflow[int]:
        """Discard what streams of a thread have left. See `Saver.discard_partial`."""
        return discard_of(self._inner, thread_id, stream)

    discard_partial, adiscard_partial = sync_and_async(_discard_partial)

    def _started(self, thread_id: RunnableConfig | str, stream: str | None) -> list[Stream]:
        name = thread_of(thread_id)
        found = [
            one
            for one in list(self._streams.values())
            if one.is_started and one.thread == name and stream in (None, one.id)
        ]
        if not found:
            raise StateError(
                "The thread is not streaming, or not this stream.",
                hint="Call start_streaming(thread_id) first.",
                thread=name,
            )
        return found

    def _end(self) -> Workflow[None]:
        yield from _stopped([*self._streams.values()], "pending")


def _stopped(streams: Sequence[Stream], status: StreamStatus) -> Workflow[None]:
    """Stop all streams that run; then raise the error of the first that could not be."""
    failure: Exception | None = None
    for one in streams:
        try:
            if one.is_started:
                yield from one._stop(status)  # noqa: SLF001 - one workflow for both variants
        except Exception as error:  # noqa: BLE001 - the others are stopped first
            failure = failure or error
    if failure is not None:
        raise failure
