"""LangGraph's own streaming, recorded as it passes by."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core.langgraph_internals import TASK_ID, TASK_NS
from threadkeep.errors import InvalidArgumentError
from threadkeep.threads.partial_output import Part, of_event, of_message
from threadkeep.threads.stream import Stream

_RECORDED = ("messages", "custom", "updates", "checkpoints")
_INTERRUPT = "__interrupt__"
_log = logging.getLogger("threadkeep")


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
    """Yield what `graph.astream` yields, and save the output as it comes.

    Text and other chunks of messages, custom events and values that nodes of an unfinished step
    wrote are recorded, of subgraphs only with `subgraphs=True`. At the end the stream is completed;
    after an error, a cancellation or an interrupt it stays pending. See `Saver.partial`.

    Args:
        graph: a compiled graph.
        input: as of `graph.astream`.
        config: likewise; it names the thread.
        stream_mode: likewise.
        subgraphs: likewise.
        saver: the saver for the stream; None for the graph's checkpointer.
        interval: as of `Saver.streaming`; None for that of a `StreamingCheckpointSaver`, or 3.0.
        max_pending: likewise.
        max_bytes: likewise.
        **options: more options of `graph.astream`.

    Raises:
        InvalidArgumentError: an option is invalid, or the graph has no checkpointer.
        InvalidConfigError: the config has no thread_id.
        ThreadkeepError: the end of the stream could not be stored. It is raised after all else: a
            run goes on if its store fails, and if no more output can wait, no more is recorded.
    """
    view = _View(graph, config, stream_mode, options, subgraphs=subgraphs)
    limits = {"interval": interval, "max_pending": max_pending, "max_bytes": max_bytes}
    async with _stream(graph, saver, config, limits) as stream:
        inner = graph.astream(input, config, **view.options)
        async with aclosing(inner):
            async for item in inner:
                ns, mode, payload = view.split(item)
                for part in view.parts(ns, mode, payload, stream):
                    try:
                        await stream._aadd(part)  # noqa: SLF001 - one package
                    except Exception:  # noqa: BLE001 - the run goes on
                        view.give_up()
                if mode in view.modes:
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
    """Yield what `graph.stream` yields, and save the output as it comes. See `astream_saved`."""
    view = _View(graph, config, stream_mode, options, subgraphs=subgraphs)
    limits = {"interval": interval, "max_pending": max_pending, "max_bytes": max_bytes}
    with _stream(graph, saver, config, limits) as stream:
        inner = graph.stream(input, config, **view.options)
        with closing(inner):
            for item in inner:
                ns, mode, payload = view.split(item)
                for part in view.parts(ns, mode, payload, stream):
                    try:
                        stream._add(part)  # noqa: SLF001 - one package
                    except Exception:  # noqa: BLE001 - the run goes on
                        view.give_up()
                if mode in view.modes:
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
    """The stream of a graph in all modes that are recorded, and what of it the caller sees."""

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

    def split(self, item: Any) -> tuple[str, str, Any]:
        """Return namespace, mode and payload."""
        if self._is_v2:
            return "|".join(item["ns"]), item["type"], item["data"]
        if self._subgraphs:
            return "|".join(item[0]), item[1], item[2]
        return "", item[0], item[1]

    def shown(self, item: Any) -> Any:
        """Return the item as LangGraph shapes it for the caller."""
        if self._is_v2 or self._names_mode:
            return item
        return (item[0], item[2]) if self._subgraphs else item[1]

    def give_up(self) -> None:
        """Record no more, so that what is saved has no gaps."""
        self._gave_up = True
        _log.warning("The output of a run is recorded no more: no more can wait.", exc_info=True)

    def parts(self, ns: str, mode: str, payload: Any, stream: Stream) -> Sequence[Part]:
        """Return what to record of an item."""
        found = self._parts(ns, mode, payload, stream)
        return () if self._gave_up else found

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
            part = stream._drop_values(ns)  # noqa: SLF001 - one package
        return () if part is None else (part,)
