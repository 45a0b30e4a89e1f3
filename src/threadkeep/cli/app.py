"""The commands by name, and how they become one program.

Only the list and its making live here. Invariant: a command adds itself, with an example.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.main import get_command

from threadkeep import __version__

F = TypeVar("F", bound=Callable[..., int])


class Panel(Enum):
    """Where the help lists a command."""

    LOOK = "Look into threads"
    CHANGE = "Change threads"
    MOVE = "Move threads"
    STORE = "Look after a store"


class _Command(NamedTuple):
    run: Callable[..., int]
    panel: Panel
    example: str


_commands: list[_Command] = []


def command(panel: Panel, example: str) -> Callable[[F], F]:
    """Add a command: a function that is named as it is, and returns the exit code.

    (With an underscore behind it where Python has that word for itself.)

    Its docstring is its help; its parameters are typer's, most of them from `parameters`.

    Args:
        panel: where the help lists it.
        example: a line as one would type it, for its help.
    """

    def add(run: F) -> F:
        _commands.append(_Command(run, panel, example))
        return run

    return add


def _tell_version(*, given: bool) -> None:
    if given:
        sys.stdout.write(f"threadkeep {__version__}\n")
        raise typer.Exit


def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version and exit.",
            is_eager=True,
            callback=lambda given: _tell_version(given=given),
        ),
    ] = False,
) -> None:
    """Threads of LangGraph, as threadkeep stores them."""


def built() -> Any:
    """The program of all commands, whose help is drawn only for a terminal."""
    drawn = "rich" if sys.stdout.isatty() else None
    app = typer.Typer(
        epilog="Each command has an example: threadkeep COMMAND --help",
        rich_markup_mode=drawn,  # type: ignore[arg-type] # mypy widens the two texts to `str`
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    panels = list(Panel)
    for one in sorted(_commands, key=lambda one: panels.index(one.panel)):
        name = one.run.__name__.removesuffix("_")  # (some are Python's own words)
        add = app.command(name, epilog=f"example: {one.example}", rich_help_panel=one.panel.value)
        add(one.run)
    return get_command(app)
