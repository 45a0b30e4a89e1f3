"""Finding the checkpoint that a command is about, and its head line.

Only what several commands share when they look into one thread lives here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from rich.text import Text

from threadkeep.cli.render import line
from threadkeep.engine.context import not_found
from threadkeep.engine.operation import CheckpointRef
from threadkeep.errors import InvalidArgumentError, UnknownTypeError
from threadkeep.readable.checkpoints import View
from threadkeep.saver import Saver


def config(thread: str, namespace: str | None, checkpoint: str | None = None) -> RunnableConfig:
    """The config that names a checkpoint, as the saver takes it."""
    names = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}
    return {"configurable": {name: value for name, value in names.items() if value is not None}}


def found(saver: Saver, thread: str, namespace: str, checkpoint: str | None) -> CheckpointTuple:
    """The checkpoint, or the thread's head.

    Raises:
        ThreadNotFoundError, CheckpointNotFoundError: there is none.
        UnknownTypeError: it holds a class of the program, whose module was not named.
    """
    with naming_modules():
        one = saver.get_tuple(config(thread, namespace, checkpoint))
    if one is None:
        raise not_found(CheckpointRef(thread, namespace, checkpoint))
    return one


@contextmanager
def naming_modules() -> Iterator[None]:
    """Say what can be done in a shell about a class that is not known."""
    try:
        yield
    except UnknownTypeError as error:
        error.hint = "Name the module of the class: --import MODULE."
        raise


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


def head_line(view: View, *, named: bool = True) -> Text:
    """A checkpoint in one line, which names the thread or (not `named`) does not."""
    step = "" if view.step is None else f"step {view.step}"
    return line(
        (f"thread {view.thread}" if named else "", "bold"),
        f"namespace {view.namespace}" if view.namespace else "",
        (view.id, "yellow"),
        moment(view.time),
        f"{step} ({view.source})" if view.source else step,
        f"next: {', '.join(view.next)}" if view.next else "",
    )


def moment(time: str) -> str:
    """An ISO time, to the second."""
    return time[:19].replace("T", " ")


def made_by(source: str | None, step: int | None) -> str:
    """What made a checkpoint."""
    return " ".join([str(part) for part in (source, step) if part is not None])


def place(view: View) -> dict[str, Any]:
    """The keys by which every JSON document names a checkpoint."""
    return {"thread": view.thread, "namespace": view.namespace, "checkpoint": view.id}
