"""Finding the checkpoint that a command is about, and its head line.

Only what several commands share when they look into one thread lives here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from rich.text import Text

from threadkeep.cli.drawing import line
from threadkeep.cli.stores import reading, url_of
from threadkeep.engine.calls import Place
from threadkeep.engine.operations.context import not_found
from threadkeep.errors import InvalidArgumentError, UnknownTypeError
from threadkeep.readable.checkpoints import View


def config(thread: str, namespace: str | None, checkpoint: str | None = None) -> RunnableConfig:
    """The config that names a checkpoint, as the saver takes it."""
    names = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}
    return {"configurable": {name: value for name, value in names.items() if value is not None}}


def found(
    url: str | None,
    thread: str,
    namespace: str,
    checkpoint: str | None,
    modules: Iterable[str] | None,
) -> CheckpointTuple:
    """The checkpoint, or the thread's head.

    Raises:
        ThreadNotFoundError, CheckpointNotFoundError: there is none.
        UnknownTypeError: it holds a class of the program, whose module was not named.
    """
    load(modules)
    with reading(url_of(url)) as saver:
        try:
            one = saver.get_tuple(config(thread, namespace, checkpoint))
        except UnknownTypeError as error:
            raise with_hint(error) from error
    if one is None:
        raise not_found(Place(thread, namespace, checkpoint))
    return one


def with_hint(error: UnknownTypeError) -> UnknownTypeError:
    """The error, with what can be done about it in a shell."""
    own = "Name the module of the class: --import MODULE."
    return UnknownTypeError(error.message, hint=own, thread=error.thread, channel=error.channel)


def load(modules: Iterable[str] | None) -> None:
    """Import the modules whose classes threads hold, as the program that wrote them does.

    LangGraph's own are among them wherever it is installed: an interrupt is one.

    Raises:
        InvalidArgumentError: one cannot be imported.
    """
    with suppress(ModuleNotFoundError):
        importlib.import_module("langgraph.types")
    for name in modules or ():
        if "" not in sys.path:
            sys.path.insert(0, "")  # what lies in the working directory, as `python -m` has it
        try:
            importlib.import_module(name)
        except Exception as error:  # a module of a program raises what it likes
            raise InvalidArgumentError(
                f"The module {name!r} cannot be imported: {type(error).__name__}: {error}.",
                hint="Give its full name, and run this where the program runs.",
            ) from error


def head_line(view: View) -> Text:
    """A checkpoint in one line."""
    step = "" if view.step is None else f"step {view.step}"
    return line(
        (f"thread {view.thread}", "bold"),
        f"namespace {view.namespace}" if view.namespace else "",
        (view.id, "yellow"),
        moment(view.time),
        f"{step} ({view.source})" if view.source else step,
        f"next: {', '.join(view.next)}" if view.next else "",
    )


def moment(time: str) -> str:
    """An ISO time, to the second."""
    return time[:19].replace("T", " ")


def place(view: View) -> dict[str, Any]:
    """The keys by which every JSON document names a checkpoint."""
    return {"thread": view.thread, "namespace": view.namespace, "checkpoint": view.id}
