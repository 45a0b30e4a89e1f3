"""The program: its commands by panel, the options that they share, and its errors."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import metadata
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from threadkeep._core.codec import Migrations
from threadkeep.cli.parameters import (
    AS_JSON,
    COLD,
    IMPORTS,
    MIGRATIONS,
    RAW,
    STORE_FIRST,
    TENANT,
    option,
)
from threadkeep.cli.stores import LEFT_OUT, Session, is_path, names_store
from threadkeep.cli.terminal import clean, write
from threadkeep.errors import (
    InvalidArgumentError,
    StateMigrationError,
    ThreadkeepError,
    UnknownTypeError,
    invalid,
)

F = TypeVar("F", bound=Callable[..., int | None])

_PANELS = {
    "Look at threads and stores": "threads find show state history branches versions diff messages"
    " partial items cache stats advise",
    "Change threads": "create set tag pin release copy fork merge archive prune delete"
    " erase delete-account",
    "Move threads between stores": "export import adopt leave mirror",
    "Keep a store": "check repair backup restore gc tier heads index rotate upgrade",
    "Set up and run": "ui monitor migrate grant views",
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
        ("migrations", MIGRATIONS, str | None),
        ("raw", RAW, bool),
        ("cold", COLD, str | None),
        ("tenant", TENANT, str | None),
        ("store", STORE_FIRST, str | None),
        ("as_json", AS_JSON, bool),
    )
}


def command(
    example: str,
    *,
    store: bool = True,
    cold: bool = False,
    imports: bool = False,
    migrations: bool = True,
    raw: bool = False,
    tenant: bool | None = None,
    **groups: Callable[..., Any],
) -> Callable[[F], F]:
    """Add a command: a function of a session and of typer's parameters.

    With `store`, its first argument is the store. Its docstring is the help, and the example names
    it. It returns the exit code, or None for 0. Each of `groups` is a function of options. Its
    result is the argument of that name.
    """
    wanted = {"imports": imports, "migrations": imports and migrations, "raw": raw}
    wanted |= {"cold": cold, "tenant": store if tenant is None else tenant, "store": store}
    options = {name: _SHARED[name] for name, is_wanted in wanted.items() if is_wanted}
    options["as_json"] = _SHARED["as_json"]

    def add(run: F) -> F:
        _commands[example.split()[1]] = _Command(run, example, options, groups)
        return run

    return add


def build() -> Any:
    """Build the program of all commands. Only a terminal gets help with boxes."""
    drawn = "rich" if sys.stdout.isatty() else None
    app = typer.Typer(
        cls=_Program,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Use threadkeep COMMAND -h for the options and an example of a command.",
        rich_markup_mode=drawn,  # type: ignore[arg-type] # mypy widens the two texts to `str`
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for panel, names in _PANELS.items():
        for name in names.split():
            found = _commands[name]
            add = app.command(
                name, cls=_StoreFirst, epilog=f"Example: {found.example}", rich_help_panel=panel
            )
            add(_callback(found))
    return get_command(app)


class _WithoutTypes:
    """A command whose help names values, such as FILE, and no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc] # of typer's class
        for one in found:
            is_option = one.param_type_name == "option"
            shown = one.metavar if is_option and not one.is_flag else None
            vars(one)["display_type_rich"] = partial(_shown, shown)
        return found


def _shown(name: str | None, **_: Any) -> str | None:
    return name


class _Program(_WithoutTypes, TyperGroup):
    """The program. Its help lists the commands by panel, also if it is not drawn."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as there
        for panel, names in _PANELS.items():
            rows = [(name, _first_sentence(self.commands[name].help)) for name in names.split()]
            with formatter.section(panel):
                formatter.write_dl(rows)


def _first_sentence(help: str | None) -> str:
    words = " ".join((help or "").partition("\n\n")[0].split())
    return words.partition(". ")[0].removesuffix(".") + "."


class _StoreFirst(_WithoutTypes, TyperCommand):
    """A command whose first argument, the store, may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        found: list[Any] = [one for one in self.params if one.param_type_name == "argument"]
        if found and found[0].name == "store":
            others = found[1:]
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
            if not _begins_with_store(others, given):
                args = [LEFT_OUT, *args]
        return super().parse_args(ctx, args)


def _begins_with_store(others: list[Any], given: Mapping[str, Any]) -> bool:
    """True if the first word of a command line is the store, as it was parsed."""
    word = given.get("store")
    if not isinstance(word, str):
        return False
    missing = [one for one in others if one.nargs == -1 or not isinstance(given.get(one.name), str)]
    if any(one.metavar in ("FILE", "TO") and one.required for one in missing):
        return False
    if any(one.metavar == "TO" and not names_store(given[one.name]) for one in others):
        return False  # (it is a thread, and the first word is TO)
    if not missing or names_store(word):
        return True
    needed = [one for one in missing if one.required]
    return all(one.nargs == -1 for one in needed) and is_path(word, alone=not needed)


def _callback(found: _Command) -> Callable[..., int | None]:
    """Return the function that typer calls: with the command's parameters and the shared ones."""
    parameters = _callback_parameters(found)

    def call(**arguments: Any) -> int | None:
        given = [one for one in parameters if arguments[one.name] not in (None, [])]
        shared = {name: arguments.pop(name) for name in found.options}
        try:
            _import_named(shared)
            for name, make in found.groups.items():
                own = {one.name: arguments.pop(one.name) for one in _parameters(make)}
                arguments[name] = make(**own)
            return found.run(Session(**shared, example=found.example), **arguments)
        except InvalidArgumentError as error:
            error.message = _with_flag(error.message, {one.name: _flag(one) for one in given})
            raise
        except UnknownTypeError as error:
            if "imports" in found.options and "pickle" not in error.message:
                error.hint = "Name the module of the class: --import MODULE."
            if "raw" in shared:
                error.hint = f"{error.hint} To see the stored fields, use --raw."
            raise
        except StateMigrationError as error:
            if "migrations" in found.options:
                error.hint = "Name your program's migrations: --migrations MODULE:NAME. " + (
                    "To see the stored fields, use --raw." if "raw" in shared else ""
                )
            raise

    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    paragraphs = cleandoc(found.run.__doc__ or "").split("\n\n")
    call.__doc__ = "\n\n".join(" ".join(one.split()) for one in paragraphs)
    return call


def _callback_parameters(found: _Command) -> list[Parameter]:
    """Return the store, a command's own parameters, its groups', and the shared ones."""
    parameters: list[Parameter] = []
    for one in _parameters(found.run)[1:]:
        make = found.groups.get(one.name)
        parameters += [one] if make is None else _parameters(make)
    everything = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters]
    return sorted([*everything, *found.options.values()], key=lambda one: one.name != "store")


def _flag(parameter: Parameter) -> str:
    """Return the parameter's name in the shell: its first flag, or the name of the argument."""
    first, *_ = getattr(parameter.default, "param_decls", None) or [parameter.default.metavar]
    return str(first).partition("/")[0]


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    return list(signature(function, eval_str=True).parameters.values())


def _import(modules: Iterable[str] | None) -> None:
    """Import the modules of the classes in threads."""
    for name in modules or ():
        if "" not in sys.path:
            sys.path.insert(0, "")  # the working directory, as for `python -m`
        try:
            importlib.import_module(name)
        except Exception as error:  # modules of users may raise any error
            raise InvalidArgumentError(
                f"The module {name!r} cannot be imported: {type(error).__name__}: {error}.",
                hint="Use its full name, in the folder where the program runs.",
            ) from error


def _import_named(shared: dict[str, Any]) -> None:
    """Import the modules that options name, and replace --migrations by the object."""
    if "imports" in shared:
        _import(shared.pop("imports"))
    if "migrations" in shared:
        shared["migrations"] = migrations_in(shared["migrations"])


def migrations_in(name: str | None) -> Migrations | None:
    """Return the migrations that the user names as MODULE:NAME."""
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    if module and attribute:
        _import([module])
        found = getattr(sys.modules[module], attribute, None)
        if isinstance(found, Migrations):
            return found
    raise invalid(
        "migrations", name, "Name a threadkeep.Migrations of a module: --migrations shop.state:all"
    )


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
    """Look at, change, move and keep LangGraph threads.

    The first argument of a command is the store. Without it, THREADKEEP_URL.
    """


# -- errors ------------------------------------------------------------------------------

_NAMED = re.compile(r"^Invalid (?:value for )?(\w+):")


def _with_flag(message: str, flags: Mapping[str, str]) -> str:
    """Return a message about an invalid value with the command's flag for it."""
    found = _NAMED.match(message)
    flag = found and flags.get(found[1].replace("_id", ""))  # (a flag is --thread or THREAD)
    return f"Invalid value for {flag}:{message[found.end() :]}" if found and flag else message


# Sentences for Python programs, by a pattern in them, and the sentence for the shell.
_SENTENCES = {
    r"get_state_history": "threadkeep history lists the others.",
    r"[Oo]pen .*\bcold=": "Use --cold URL, or set THREADKEEP_COLD.",
    r"exist_ok=": "Use another id.",
    r"LayeredCheckpointSaver\(": "Save one with them in your program first.",
    r"metadata=\{": "Use a thread id, or --metadata KEY=VALUE.",
    r"\badopt\(.*key=": (
        "Use the key that LANGGRAPH_AES_KEY held: --key-file FILE, or THREADKEEP_ADOPT_KEY."
    ),
    r"strategy=.*\ba function": "Use --strategy theirs, or --strategy ours.",
}
_PHRASES = {
    r"Call setup\(\)( once)?, or run ": "Run ",
    r"(?<![?\w])schema=(?!\w)": "?schema=NAME in the URL",
    r", or one of these savers.*(?=\.)": "",
    r", or (a function|None)(?=\.)": "",
    r"graph\.update_state": "graph.update_state in your program",
    r"`(threadkeep [^`]*)`": r"\1",
}
_CALLS = {
    "export_bundle": "export",
    "import_bundle": "import",
    "merge_fork": "merge",
    "search": "threads",
    "delete_thread": "delete",
}
_CALL = re.compile(r"(?:(?:saver\.)?threads\.(\w+)|\b(\w+_\w+))(\([^)]*\))?")
# (not the arguments of a call, such as "f(name=...)" or "f(x, name=...)")
_OPTION = re.compile(r"(?<![?&(\w])(?<!, )(\w+)=(?:\"([^\"]*)\"|'([^']*)'|True|\.\.\.)?(?!\w)")
_TWICE = re.compile(r"(--[\w-]+|threadkeep \w+)(?:, or \1| \(\1\))")


def in_shell(text: str) -> str:
    """Return an error or hint with commands and flags in place of Python's names."""
    sentences = re.split(r"(?<=[.!?]) ", text)
    for number, sentence in enumerate(sentences):
        for pattern, shell in _SENTENCES.items():
            if re.search(pattern, sentence):
                sentences[number] = shell
    text = " ".join(sentences)
    for pattern, shell in _PHRASES.items():
        text = re.sub(pattern, shell, text)
    return _TWICE.sub(r"\1", _OPTION.sub(_as_option, _CALL.sub(_as_command, text)))


def _as_command(call: re.Match[str]) -> str:
    method = call[1] or call[2]
    name = _CALLS.get(method, method if call[1] else "")
    if name not in _commands:
        return call[0]
    return f"threadkeep {name}{' THREAD' if call[3] == '(thread_id)' else ''}"


def _as_option(given: re.Match[str]) -> str:
    flag, value = flags().get(given[1], ""), given[2] or given[3]
    return f"{flag} {value}" if flag and value else flag or given[0]


@cache
def flags() -> dict[str, str]:
    """Return the flags of all commands by the name of the parameter."""
    parameters = [one for found in _commands.values() for one in _callback_parameters(found)]
    return {one.name: _flag(one) for one in parameters if _flag(one).startswith("--")}


def print_error(
    error: ThreadkeepError | typer.TyperException, *, as_json: bool, secrets: Sequence[str] = ()
) -> None:
    """Print an error to stderr, and replace secrets that a usage error would repeat."""
    if isinstance(error, ThreadkeepError):
        error.message, error.hint = in_shell(error.message), in_shell(error.hint)
        text = str(error)
        names = ("message", "hint", "thread", "namespace", "checkpoint", "channel")
        document = {"type": type(error).__name__, **{name: getattr(error, name) for name in names}}
    else:
        text = _usage(error, secrets)
        document = {"type": "Usage", "message": text, "hint": ""}
    if as_json:
        write(json.dumps({"error": document}), sys.stderr)
    else:
        write(f"threadkeep: {clean(' '.join(text.split()))}", sys.stderr)


def _usage(error: typer.TyperException, secrets: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    see = f" See {context.command_path} --help." if context is not None else ""
    message = error.format_message().strip()
    for secret in filter(None, secrets):
        message = message.replace(secret, "...")
    end = "" if not see or message.endswith((".", "?")) else "."
    return f"{message}{end}{see}"
