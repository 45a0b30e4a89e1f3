"""Streaming saves: LangGraph's streams, saved as they run, and streams on any saver."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core.engine.operation import Operation
from threadkeep._core.langgraph_internals import TASK_ID, TASK_NS
from threadkeep._run import driver
from threadkeep._run.delegate import Delegate
from threadkeep._run.driver import sync_and_async
from threadkeep.errors import InvalidArgumentError, StateError, invalid
from threadkeep.threads.partial_output import (
    Part,
    PartialMessage,
    PartialStream,
    PartialValues,
    StreamStatus,
    discard_of,
    of_event,
    of_message,
    partial_of,
    thread_of,
)
from threadkeep.threads.stream import INTERVAL, MAX_BYTES, MAX_PENDING, Stream

__all__ = [
    "PartialMessage",
    "PartialStream",
    "PartialValues",
    "Stream",
    "StreamStatus",
    "StreamingCheckpointSaver",
    "astream_saved",
    "stream_saved",
]

_RECORDED = ("messages", "custom", "updates", "checkpoints")
_INTERRUPT = "__interrupt__"
_log = logging.getLogger("threadkeep")


class StreamingCheckpointSaver(Delegate):
    """A saver that adds streaming saves to any other saver. All other calls pass through.

    Its listings leave out the rows of streams. If you close it, running streams stay pending.

    Args:
        base_saver: the other saver, closed with this one.
        interval: see `Saver.streaming`, for all streams.
        max_pending: likewise.
        max_bytes: likewise.

    Raises:
        InvalidArgumentError: an option is invalid, or `base_saver` is not a LangGraph saver.
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
            hint = "Use a LangGraph saver, such as SqliteSaver(path)."
            raise invalid("base_saver", base_saver, hint)
        super().__init__(base_saver)
        self.streaming_limits = {
            "interval": interval,
            "max_pending": max_pending,
            "max_bytes": max_bytes,
        }
        self._streams: dict[str, Stream] = {}
        self.streaming("checks the options")

    def streaming(self, config: RunnableConfig | str, **limits: Any) -> Stream:
        """Return a new stream of a thread, not started yet. See `Saver.streaming`."""
        return Stream(self._inner, config, **{**self.streaming_limits, **limits})

    def _start_streaming(self, thread_id: RunnableConfig | str) -> Operation[Stream]:
        """Start a stream of a thread. A thread may have several. See `Stream.start`."""
        stream = yield from self.streaming(thread_id)._start()  # noqa: SLF001 - one workflow
        for one in list(self._streams.values()):
            if not one.is_started:
                self._streams.pop(one.id, None)
        self._streams[stream.id] = stream
        return stream

    start_streaming, astart_streaming = sync_and_async(_start_streaming)

    def _stop_streaming(
        self,
        thread_id: RunnableConfig | str,
        *,
        stream: str | None = None,
        status: StreamStatus = "completed",
    ) -> Operation[None]:
        """Stop a stream of a thread by its id, or all of them. See `Stream.stop`.

        Raises:
            StateError: the thread has no running stream, or not this one. For other errors see
                `Stream.stop`. The thread's other streams are stopped before one is raised.
        """
        yield from _stopped(self._started(thread_id, stream), status)

    stop_streaming, astop_streaming = sync_and_async(_stop_streaming)

    def _update(
        self,
        thread_id: RunnableConfig | str,
        output: Any = "",
        *,
        stream: str | None = None,
        **more: Any,
    ) -> Operation[None]:
        """Add output to the newest stream of a thread, or to another one by its id.

        Args:
            thread_id: the thread's id, or a config that names it.
            output: see `Stream.update`.
            stream: the stream's id.
            **more: see `Stream.update`.

        Raises:
            StateError: the thread has no running stream, or not this one. For other errors see
                `Stream.update`.
        """
        yield from self._started(thread_id, stream)[-1]._update(output, **more)  # noqa: SLF001

    update, aupdate = sync_and_async(_update)

    def _partial(self, thread_id: RunnableConfig | str) -> Operation[list[PartialStream]]:
        """Return the streams of a thread, newest first. See `Saver.partial`."""
        return partial_of(self._inner, thread_id)

    partial, apartial = sync_and_async(_partial)

    def _discard_partial(
        self, thread_id: RunnableConfig | str, stream: str | None = None
    ) -> Operation[int]:
        """Discard the saved output of a thread's streams. See `Saver.discard_partial`."""
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
                "The thread has no running stream, or not this one.",
                hint="Call start_streaming(thread_id) first.",
                thread=name,
            )
        return found

    def _end(self) -> Operation[None]:
        yield from _stopped([*self._streams.values()], "pending")


def _stopped(streams: Sequence[Stream], status: StreamStatus) -> Operation[None]:
    """Stop all running streams, then raise the first error."""
    failure: Exception | None = None
    for one in streams:
        try:
            if one.is_started:
                yield from one._stop(status)  # noqa: SLF001 - one workflow for both variants
        except Exception as error:  # noqa: BLE001 - the others are stopped first
            failure = failure or error
    if failure is not None:
        raise failure


# -- streams of graphs -----------------------------------------------------------------


async def astream_saved(  # noqa: PLR0913 - they are given by name
    graph: Any,
    input: Any,
    config: RunnableConfig,
    *,
    stream_mode: str | Sequence[str] | None = None,
    subgraphs: bool = False,
    saver: BaseCheckpointSaver[Any] | None = None,
    interval: float | None = None,
    max_pending: int | None = None,
    max_bytes: int | None = None,
    **options: Any,
) -> AsyncIterator[Any]:
    """Stream a graph as `graph.astream` does, and save the output while it runs.

    The saved output has chunks of messages, custom events, and values that nodes of an unfinished
    step wrote, in subgraphs only with `subgraphs=True`. At the end of the run the stream is
    completed. If the run is refused (`ConflictError`), it is discarded. After any other error, a
    cancellation or an interrupt it stays pending. See `Saver.partial`.

    Args:
        graph: a compiled graph.
        input: see `graph.astream`.
        config: likewise. It names the thread.
        stream_mode: likewise.
        subgraphs: likewise.
        saver: the saver for the stream, or None for the graph's checkpointer.
        interval: see `Saver.streaming`, or None for the interval of a `StreamingCheckpointSaver`,
            or 3.0.
        max_pending: likewise.
        max_bytes: likewise.
        **options: more options of `graph.astream`.

    Raises:
        InvalidArgumentError: an option is invalid, or the graph has no checkpointer.
        InvalidConfigError: the config has no thread_id.
        ThreadkeepError: the end of the stream could not be stored. It is raised after the run: a
            failing store does not stop a run. Once too much output is pending, recording ends.
    """
    view = _View(graph, config, stream_mode, options, subgraphs=subgraphs)
    limits = {"interval": interval, "max_pending": max_pending, "max_bytes": max_bytes}
    async with _stream(graph, saver, config, limits) as stream:
        inner = graph.astream(input, config, **view.options)
        async with aclosing(inner):
            async for item in inner:
                if await driver.arun(view.record(item, stream)):
                    yield view.shown(item)
        if view.is_interrupted:
            await stream.astop("pending")


def stream_saved(  # noqa: PLR0913 - they are given by name
    graph: Any,
    input: Any,
    config: RunnableConfig,
    *,
    stream_mode: str | Sequence[str] | None = None,
    subgraphs: bool = False,
    saver: BaseCheckpointSaver[Any] | None = None,
    interval: float | None = None,
    max_pending: int | None = None,
    max_bytes: int | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Stream a graph as `graph.stream` does, and save the output. See `astream_saved`."""
    view = _View(graph, config, stream_mode, options, subgraphs=subgraphs)
    limits = {"interval": interval, "max_pending": max_pending, "max_bytes": max_bytes}
    with _stream(graph, saver, config, limits) as stream:
        inner = graph.stream(input, config, **view.options)
        with closing(inner):
            for item in inner:
                if driver.run(view.record(item, stream)):
                    yield view.shown(item)
        if view.is_interrupted:
            stream.stop("pending")


def _stream(
    graph: Any,
    saver: BaseCheckpointSaver[Any] | None,
    config: RunnableConfig,
    limits: Mapping[str, Any],
) -> Stream:
    found = saver or getattr(graph, "checkpointer", None)
    if not isinstance(found, BaseCheckpointSaver):
        raise InvalidArgumentError(
            "The graph has no checkpointer to save its stream with.",
            hint="Use builder.compile(checkpointer=saver), or saver=.",
        )
    chosen = {name: value for name, value in limits.items() if value is not None}
    return Stream(found, config, **{**getattr(found, "streaming_limits", {}), **chosen})


class _View:
    """The stream of a graph in all recorded modes, and the part that the caller asked for."""

    def __init__(
        self,
        graph: Any,
        config: RunnableConfig,
        stream_mode: str | Sequence[str] | None,
        options: Mapping[str, Any],
        *,
        subgraphs: bool,
    ) -> None:
        if stream_mode is None:  # (as LangGraph decides)
            is_task = TASK_ID in ((config or {}).get("configurable") or {})
            stream_mode = "values" if is_task else graph.stream_mode
        self.modes = [stream_mode] if isinstance(stream_mode, str) else list(stream_mode or ())
        self._names_mode = isinstance(stream_mode, list)
        self._subgraphs = subgraphs
        self._is_v2 = options.get("version") == "v2"
        self._stores_steps = options.get("durability") != "exit"
        self.is_interrupted = self._gave_up = False
        modes = list(dict.fromkeys([*self.modes, *_RECORDED]))
        self.options = {**options, "stream_mode": modes, "subgraphs": subgraphs}

    def shown(self, item: Any) -> Any:
        """Return the item in LangGraph's form for the caller."""
        if self._is_v2 or self._names_mode:
            return item
        return (item[0], item[2]) if self._subgraphs else item[1]

    def record(self, item: Any, stream: Stream) -> Operation[bool]:
        """Save the output in an item. Return True if the caller asked for its mode.

        After an error nothing more is recorded, so that the saved output has no gaps.
        """
        ns, mode, payload = self._split(item)
        for part in self._parts(ns, mode, payload, stream):
            try:
                if not self._gave_up:
                    yield from stream._add(part)  # noqa: SLF001 - one workflow for both variants
            except Exception:  # noqa: BLE001 - the run continues
                self._gave_up = True
                _log.warning(
                    "Recording of a run's output ended: it could not be added.", exc_info=True
                )
        return mode in self.modes

    def _split(self, item: Any) -> tuple[str, str, Any]:
        """Return namespace, mode and payload."""
        if self._is_v2:
            return "|".join(item["ns"]), item["type"], item["data"]
        if self._subgraphs:
            return "|".join(item[0]), item[1], item[2]
        return "", item[0], item[1]

    def _parts(self, ns: str, mode: str, payload: Any, stream: Stream) -> Sequence[Part]:
        part: Part | None = None
        if mode == "messages":
            message, about = payload
            if isinstance(message, AIMessage):
                place = about.get(TASK_NS, ns)
                part = of_message(message, place, about.get("langgraph_node", ""))
        elif mode == "custom":
            part = of_event(payload, ns)
        elif mode == "updates":
            self.is_interrupted |= bool(payload.get(_INTERRUPT))
            return [
                Part("values", ns, node, "", dict(values))
                for node, found in payload.items()
                for values in (found if isinstance(found, list) else [found])
                if isinstance(values, Mapping) and not node.startswith("__")  # (LangGraph's own)
            ]
        elif mode == "checkpoints" and self._stores_steps:
            part = stream._drop_values(ns)  # noqa: SLF001 - no public method is async here
        return () if part is None else (part,)
