"""The program: its commands by panel, and the options that all of them share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import metadata
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple, TypeVar

import typer
from typer.main import get_command

from threadkeep.cli.hints import with_flags
from threadkeep.cli.parameters import AS_JSON, COLD, IMPORTS, RAW, URL, option
from threadkeep.cli.stores import Session
from threadkeep.errors import InvalidArgumentError, UnknownTypeError

F = TypeVar("F", bound=Callable[..., int | None])

_PANELS = {
    "Inspect threads": "threads show state history branches versions diff messages partial",
    "Change threads": "create set tag pin copy fork merge prune archive delete erase",
    "Items and caches": "items cache",
    "Move threads between stores": "export import adopt mirror",
    "Maintain a store": "stats advise monitor check repair gc tier backup restore migrate",
}


class _Command(NamedTuple):
    run: Callable[..., int | None]
    example: str
    options: dict[str, Parameter]
    groups: dict[str, Callable[..., Any]]


_commands: dict[str, _Command] = {}
_SHARED = {
    name: Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=kind)
    for name, option, kind in (
        ("imports", IMPORTS, list[str] | None),
        ("raw", RAW, bool),
        ("cold", COLD, str | None),
        ("url", URL, str | None),
        ("as_json", AS_JSON, bool),
    )
}


def command(
    example: str,
    *,
    url: bool = True,
    cold: bool = False,
    imports: bool = False,
    raw: bool = False,
    **groups: Callable[..., Any],
) -> Callable[[F], F]:
    """Add a command: a function of a session and of typer's parameters.

    Its docstring is the help. It returns the exit code, or None for 0. The example also names it.
    Each of `groups` is a function of options, whose result is the argument of that name.
    """
    wanted = {"imports": imports, "raw": raw, "cold": cold, "url": url, "as_json": True}
    options = {name: _SHARED[name] for name, is_wanted in wanted.items() if is_wanted}

    def add(run: F) -> F:
        _commands[example.split()[1]] = _Command(run, example, options, groups)
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
    groups = {name: _parameters(make) for name, make in found.groups.items()}
    parameters: list[Parameter] = []
    for one in _parameters(found.run)[1:]:
        parameters += groups.get(one.name, [one])
    parameters += found.options.values()

    def call(**arguments: Any) -> int | None:
        given = {one.name: one for one in parameters if arguments[one.name] not in (None, [])}
        flags = {name: _flag(one) for name, one in given.items()}
        try:
            return run(arguments)
        except InvalidArgumentError as error:
            error.message = with_flags(error.message, flags)
            raise

    def run(arguments: dict[str, Any]) -> int | None:
        shared = {name: arguments.pop(name) for name in found.options}
        if "imports" in shared:
            _import(shared["imports"])
        for name, own in groups.items():
            arguments[name] = found.groups[name](
                **{one.name: arguments.pop(one.name) for one in own}
            )
        session = Session(
            shared.get("url"),
            shared.get("cold"),
            as_json=shared["as_json"],
            raw=shared.get("raw", False),
        )
        try:
            return found.run(session, **arguments)
        except UnknownTypeError as error:
            if "imports" in shared and "pickle" not in error.message:
                error.hint = "Name the module of the class: --import MODULE."
            if "raw" in shared:
                error.hint = f"{error.hint} To see only what is stored, use --raw."
            raise

    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    call.__doc__ = found.run.__doc__
    return call


def _flag(parameter: Parameter) -> str:
    """Return how a parameter is called in the shell: its first flag, or the name of an argument."""
    first, *_ = getattr(parameter.default, "param_decls", None) or [parameter.default.metavar]
    return str(first).partition("/")[0]


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    return list(signature(function, eval_str=True).parameters.values())


def _import(modules: Iterable[str] | None) -> None:
    """Import the modules whose classes threads hold, and those of LangGraph's own."""
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


def _print_version(requested: bool) -> None:  # noqa: FBT001 - typer calls it
    if requested:
        sys.stdout.write(f"threadkeep {metadata.version('threadkeep')}\n")
        raise typer.Exit


def _options(
    *,
    version: bool = option(
        "--version",
        "Show the version and exit.",
        default=False,
        is_eager=True,
        callback=_print_version,
    ),
) -> None:
    """Inspect, change, move and maintain LangGraph threads in a threadkeep store."""
