"""The program: its commands by panel, and the options that all of them share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.main import get_command

from threadkeep import __version__
from threadkeep.cli.parameters import AsJson, Cold, Imports, Url
from threadkeep.cli.stores import Session
from threadkeep.errors import InvalidArgumentError, UnknownTypeError

F = TypeVar("F", bound=Callable[..., int | None])

_PANELS = {
    "Inspect threads": "threads show state history branches versions diff",
    "Change threads": "create set tag pin copy fork merge prune archive delete erase",
    "Move threads between stores": "export import adopt mirror",
    "Maintain a store": "check repair stats gc tier backup restore migrate",
}


class _Command(NamedTuple):
    run: Callable[..., int | None]
    example: str
    options: dict[str, Any]


_commands: dict[str, _Command] = {}


def command(
    example: str, *, url: bool = True, cold: bool = False, imports: bool = False
) -> Callable[[F], F]:
    """Add a command: a function of a session and of typer's parameters.

    Its docstring is the help. It returns the exit code, or None for 0.

    Args:
        example: a command line for its help, which also names it.
        url: add --url.
        cold: add --cold.
        imports: add --import.
    """
    options: dict[str, Any] = {"imports": Imports} if imports else {}
    options |= {"cold": Cold} if cold else {}
    options |= {"url": Url} if url else {}

    def add(run: F) -> F:
        _commands[example.split()[1]] = _Command(run, example, options)
        return run

    return add


def build() -> Any:
    """Build the program of all commands. Its help is drawn with boxes only on a terminal."""
    drawn = "rich" if sys.stdout.isatty() else None
    app = typer.Typer(
        epilog="Use threadkeep COMMAND --help for the options and an example of a command.",
        rich_markup_mode=drawn,  # type: ignore[arg-type] # mypy widens the two texts to `str`
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for panel, names in _PANELS.items():
        for name in names.split():
            found = _commands[name]
            add = app.command(name, epilog=f"Example: {found.example}", rich_help_panel=panel)
            add(_callback(found))
    return get_command(app)


def _callback(found: _Command) -> Callable[..., int | None]:
    """Return the function that typer calls: with the command's parameters and the shared ones."""

    def call(
        url: str | None = None,
        cold: str | None = None,
        imports: list[str] | None = None,
        *,
        as_json: bool,
        **arguments: Any,
    ) -> int | None:
        if "imports" in found.options:
            _import(imports)
        try:
            return found.run(Session(url, cold, as_json=as_json), **arguments)
        except UnknownTypeError as error:
            if "imports" in found.options:
                error.hint = "Name the module of the class: --import MODULE."
            raise

    _, *own = signature(found.run, eval_str=True).parameters.values()
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in found.options.items()
    ]
    as_json = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    call.__signature__ = Signature([*own, *shared, as_json])  # type: ignore[attr-defined] # typer reads it
    call.__doc__ = found.run.__doc__
    return call


def _import(modules: Iterable[str] | None) -> None:
    """Import the modules whose classes threads hold, and those of LangGraph's own.

    Raises:
        InvalidArgumentError: one cannot be imported.
    """
    with suppress(ModuleNotFoundError):
        importlib.import_module("langgraph.types")
    for name in modules or ():
        if "" not in sys.path:
            sys.path.insert(0, "")  # the working directory, as for `python -m`
        try:
            importlib.import_module(name)
        except Exception as error:  # a module of a program raises what it likes
            raise InvalidArgumentError(
                f"The module {name!r} cannot be imported: {type(error).__name__}: {error}.",
                hint="Use its full name, in the folder where the program runs.",
            ) from error


def _print_version(*, requested: bool) -> None:
    if requested:
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
            callback=lambda requested: _print_version(requested=requested),
        ),
    ] = False,
) -> None:
    """Inspect, change, move and maintain LangGraph threads in a threadkeep store."""
