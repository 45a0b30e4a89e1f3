"""The graph of a page: imported by its name, drawn, and run in tasks of the server."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from threadkeep._run.layered_backend import store_of
from threadkeep.errors import (
    HeldError,
    InvalidArgumentError,
    StateError,
    ThreadkeepError,
    ThreadLockedError,
)
from threadkeep.runs.guard import guard, plain
from threadkeep.threads.steps import Step

try:
    from langgraph.runtime import RunControl
except ImportError:  # pragma: no cover - before LangGraph 1.2
    RunControl = None  # type: ignore[assignment,misc]

_MOST = 8  # runs at a time
_WAIT = 1.0  # seconds in which a run may end before its start is answered
_PAUSE = 0.1  # seconds between two looks at runs that drain
_CALLS = 3  # of a traceback that an error shows: the last ones
_SUBGRAPH = re.compile(r"^(\s*subgraph )([^\n\"]+)$", re.MULTILINE)
_WORDS = "end|class|graph|subgraph|click|style|linkStyle|classDef|flowchart|href|call|interpolate"
_WORD = re.compile(rf"(?<![^\t ])((?:{_WORDS})(?:-[\w\\-]*)?)(?=[(\[;]| -|\Z)")  # no name of a node
_EXPECTED = (GraphBubbleUp, HeldError, ThreadLockedError)
_log = logging.getLogger("threadkeep")


class PageGraph:
    """A graph that a page draws, and runs with a saver if it has one.

    Args:
        graph: a graph, compiled or not, or a function that returns one.
        saver: the checkpointer of its runs, unless the graph has one of the same store; or None to
            draw it only.
    """

    def __init__(self, graph: Any, saver: Any = None) -> None:
        made = graph_of(graph)
        self._saver = saver
        own = getattr(plain(made.checkpointer), "_store", None)
        is_bound = saver is None or own is store_of(plain(saver))
        self.graph = made if is_bound else made.copy(update={"checkpointer": saver})
        self._runs: dict[asyncio.Task[Any], Any] = {}

    @property
    def can_run(self) -> bool:
        """Return True if the page may run it."""
        return self._saver is not None

    # -- drawing ---------------------------------------------------------------------------

    @cached_property
    def text(self) -> str:
        """The graph with its subgraphs as Mermaid, or "" if it cannot be drawn."""
        for inner in (True, False):  # (two subgraphs of one name cannot be drawn)
            with suppress(Exception):
                drawn = _WORD.sub(r"_\1", self.graph.get_graph(xray=inner).draw_mermaid())
                return _SUBGRAPH.sub(lambda one: f'{one[1]}{_id(one[2])}["{one[2]}"]', drawn)
        return ""

    def marks(self, step: Step, failed: str | None) -> str:
        """Return the nodes that a step ran, and those that run next, as lines "node class".

        `failed` is the failed node, if known. A step names the tasks that failed or wait, not their
        nodes, so that nodes are only marked as these if all are.
        """
        levels = [part.partition(":")[0] for part in step.ns.split("|") if part]
        kinds = dict.fromkeys(step.next, "next")
        for tasks, kind in ((step.waiting, "waiting"), (step.failed, "failed")):
            if len(tasks) >= len(step.next):
                kinds = dict.fromkeys(step.next, kind)
        kinds |= {failed: "failed"} if failed in kinds else {}
        found = [*dict.fromkeys(step.ran, "ran").items(), *kinds.items()]
        named = [(_id(":".join([*levels, name])), kind) for name, kind in found]
        return "\n".join([f"{one} {kind}" for one, kind in named if one in self.text])

    # -- runs ------------------------------------------------------------------------------

    def check(self, names: Iterable[str]) -> None:
        """Raise `StateError` if the graph lacks one of the nodes that run next."""
        for lost in [one for one in names if one not in self.graph.nodes]:
            raise StateError(
                f"The graph has no node {lost!r}, which runs next.",
                hint="Start the page with the graph of this thread.",
            )

    async def start(self, config: RunnableConfig) -> str:
        """Resume the thread of a config, or replay it from its checkpoint, in a task.

        Returns:
            "running", or "ended" or "failed" if that was within a second.

        Raises:
            ThreadkeepError: another worker runs the thread, it is held, or too many are under way.
        """
        if len(self._runs) >= _MOST:
            raise StateError(f"{_MOST} runs are under way.", hint="Wait for the end of one.")
        control = None if RunControl is None else RunControl()
        task = asyncio.create_task(
            self._run(config, {} if control is None else {"control": control})
        )
        self._runs[task] = control
        task.add_done_callback(self._ended)
        await asyncio.wait({task}, timeout=_WAIT)
        if not task.done():
            return "running"
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ThreadLockedError):
            raise ThreadLockedError(error.message, hint="Wait for the end of that run.") from error
        if isinstance(error, ThreadkeepError):
            raise error
        return "ended" if error is None else "failed"

    async def _run(self, config: RunnableConfig, options: dict[str, Any]) -> None:
        place = config["configurable"]
        if "checkpoint_id" not in place:
            await self._saver.runs.aresume(self.graph, place["thread_id"], **options)
            return
        async with guard(self._saver, config) as run:
            await self.graph.ainvoke(None, run.config, durability="sync", **options)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._runs[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, _EXPECTED):
            _log.error("A run of the page has failed.", exc_info=error)

    async def drain(self, seconds: float, is_urgent: Callable[[], bool]) -> None:
        """Let runs end their step, then cancel those that take longer, or all once it is urgent."""
        if self._runs:
            _log.warning("Runs end their step: %d. A second signal cancels them.", len(self._runs))
        for control in filter(None, self._runs.values()):
            control.request_drain()
        end = asyncio.get_running_loop().time() + seconds
        while self._runs and asyncio.get_running_loop().time() < end and not is_urgent():
            await asyncio.wait({*self._runs}, timeout=_PAUSE)
        for task in [*self._runs]:
            task.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)


def _id(name: str) -> str:
    """Return a node's name as LangChain writes it in Mermaid, `_` before words of Mermaid."""
    escaped = re.sub(r"[^a-zA-Z0-9_-]", lambda found: f"\\{ord(found[0]):x}", name)
    return _WORD.sub(r"_\1", escaped)


# -- import --------------------------------------------------------------------------------


def load_graph(name: str) -> Any:
    """Import the object that `module:attribute` or `path/file.py:attribute` names.

    Modules are also found in the current folder, and next to the file.

    Raises:
        InvalidArgumentError: there is no such module or attribute, or the import fails.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        hint = "Use module:graph or path/file.py:graph, as langgraph.json writes it."
        raise InvalidArgumentError(f"--graph {name} names no graph.", hint=hint)
    module = _module(place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [one for one, value in vars(module).items() if _is_graph(value)]
            hint = f"Its graphs are: {', '.join(known)}." if known else "Correct --graph."
            raise InvalidArgumentError(f"{place} has no {attribute}.", hint=hint)
        found = getattr(found, part)
    return found


def _module(place: str) -> ModuleType:
    file = Path(place) if place.endswith(".py") else None
    if file is not None and not file.is_file():
        raise InvalidArgumentError(f"There is no file {place}.", hint="Correct --graph.")
    folders = [Path.cwd()] if file is None else [file.resolve().parent, Path.cwd()]
    sys.path[:0] = [f"{one}" for one in folders if f"{one}" not in sys.path]
    try:
        return importlib.import_module(place) if file is None else _of_file(file)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if file is None and missing and f"{place}.".startswith(f"{missing}."):
            hint = "Start the command in its folder, or name a file: path/file.py:graph."
            raise InvalidArgumentError(f"There is no module {missing}.", hint=hint) from error
        raise _failed(f"{place} cannot be imported", error) from error


def _of_file(file: Path) -> ModuleType:
    name = file.stem if file.stem not in sys.modules else f"_graph_{file.stem}"
    loader = SourceFileLoader(name, f"{file}")
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    sys.modules[name] = module = importlib.util.module_from_spec(cast("ModuleSpec", spec))
    loader.exec_module(module)
    return module


def _is_graph(value: object) -> bool:
    return isinstance(value, Pregel | StateGraph)


def graph_of(value: Any) -> Any:
    """Return a compiled graph: the value, a builder compiled, or the result of a function.

    Raises:
        InvalidArgumentError: it is no graph, or the function needs arguments or fails.
    """
    if inspect.isroutine(value):
        value = _called(value)
    if isinstance(value, StateGraph):
        try:
            value = value.compile()
        except Exception as error:
            raise _failed("The graph cannot be compiled", error) from error
    if not isinstance(value, Pregel):
        raise InvalidArgumentError(
            f"This is no graph: {type(value).__name__}.",
            hint="Use a compiled graph, a StateGraph, or a function that returns one.",
        )
    return value


def _called(function: Callable[[], Any]) -> Any:
    name = getattr(function, "__name__", "function")
    needed = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed or inspect.iscoroutinefunction(function):
        said = f"needs arguments: {', '.join(needed)}" if needed else "is async"
        hint = "Name a graph, or a function without arguments that returns one."
        raise InvalidArgumentError(f"The function {name} {said}.", hint=hint)
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise _failed(f"The function {name} failed", error) from error


def _failed(said: str, error: BaseException) -> InvalidArgumentError:
    calls = traceback.extract_tb(error.__traceback__)
    own = [one for one in calls if one.filename != __file__ and "importlib" not in one.filename]
    places = ", ".join([f"{Path(one.filename).name}:{one.lineno}" for one in own[-_CALLS:]])
    lines = "".join(traceback.format_exception_only(error)).strip()
    return InvalidArgumentError(f"{said}: {lines} ({places})", hint="Correct it, or --graph.")
