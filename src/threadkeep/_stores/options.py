"""Options of savers, stores, caches and databases, each described once.

An option is a field of a `TypedDict` whose type is annotated with an `Option`. Constructors take
`**options: Unpack[...]` of that `TypedDict` (PEP 692), so editors and type checkers know each
option. The `Option` adds its default, help, check and text form, for `help()`, URLs and the
environment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeAlias, TypedDict, TypeVar, get_type_hints
from urllib.parse import unquote

from threadkeep._core.texts import is_public
from threadkeep._core.validation import is_count, is_time
from threadkeep.errors import InvalidArgumentError, invalid

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Option(NamedTuple):
    """Description of an option.

    Attributes:
        default: the value if none is given.
        help: a line of help.
        check: returns whether a value is valid, and it may raise its own error.
        hint: says which values are valid.
        parse: converts text to a value, or raises ValueError. None if the option has no text form.
    """

    default: Any
    help: str
    check: Callable[[Any], bool]
    hint: str
    parse: Callable[[str], Any] | None = str


Options: TypeAlias = Mapping[str, Option]


def described(kind: type) -> Options:
    """Return the options of a `TypedDict`, by name."""
    return _described(kind)


@cache
def _described(kind: type) -> Options:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def check(owner: str, given: Mapping[str, Any], known: Options) -> None:
    """Raise `InvalidArgumentError` for an unknown name or an invalid value."""
    for name, value in given.items():
        if name not in known:
            raise unknown(owner, name, known)
        if not known[name].check(value):
            raise invalid(name, value, known[name].hint)


def unknown(owner: str, name: str, known: Iterable[str]) -> InvalidArgumentError:
    """Return the error for an unknown option. Its hint names the closest known one."""
    close = get_close_matches(name, known, 1, cutoff=0.65)
    hint = f"Did you mean {close[0]!r}?" if close else f"Options: {', '.join(known) or 'none'}."
    return InvalidArgumentError(f"{owner} has no option {name!r}.", hint=hint)


def complete(owner: str, kind: type[T], given: Any) -> T:
    """Return checked options, with defaults for the missing ones."""
    known = described(kind)
    check(owner, given, known)
    found: Any = {name: option.default for name, option in known.items()} | given
    return found  # type: ignore[no-any-return] # a TypedDict, by its own table


def listed(kind: type, **defaults: object) -> Callable[[F], F]:
    """Replace a function's `**options` by the options of a `TypedDict`, as `help()` shows them.

    Args:
        kind: the `TypedDict`.
        **defaults: defaults of this function that differ from the options' own.
    """

    def with_options(function: F) -> F:
        signature = inspect.signature(function)
        plain = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        types = get_type_hints(kind)
        keywords, lines = [], []
        for name, option in described(kind).items():
            default = defaults.get(name, option.default)
            keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            keywords.append(keyword.replace(annotation=types[name]))
            lines.append(f"    {name}: {option.help} Default: {shown_default(default)}.")
        changed: Any = function
        changed.__signature__ = signature.replace(parameters=[*plain, *keywords])
        above = inspect.cleandoc(function.__doc__) + "\n\n" if function.__doc__ else "\n"
        changed.__doc__ = f"{above}Options:\n" + "\n".join(lines)
        return function

    return with_options


def shown_default(value: object) -> str:
    """Return a default as help and docs show it."""
    return f'"{value}"' if isinstance(value, str) else str(value)


# -- text --------------------------------------------------------------------------------


def parsed(source: str, text: str, option: Option) -> Any:
    """Return the value of a text from a URL or the environment.

    Raises:
        InvalidArgumentError: the text is invalid, and it is shown if it cannot hold a password.
    """
    try:
        assert option.parse is not None  # noqa: S101 - others have no text form
        value = option.parse(text)
        if option.check(value):
            return value
    except (ValueError, TypeError):
        pass
    shown = f": {text!a}" if is_public(text) else ""
    raise InvalidArgumentError(f"Invalid {source}{shown}.", hint=option.hint)


def from_url(url: str, known: Options) -> tuple[str, dict[str, Any]]:
    """Take options out of a URL's query. All other parameters stay as they are.

    Returns:
        The URL without them, and their values.
    """
    start, mark, query = url.partition("?")
    if not mark or "://" not in start:
        return url, {}
    query, hash_, fragment = query.partition("#")
    rest, found = [], {}
    for part in query.split("&"):
        name, _, text = map(unquote, part.partition("="))
        option = known.get(name)
        if option is None or option.parse is None:
            rest.append(part)
        else:
            if name in found:
                raise InvalidArgumentError(
                    f"The URL names the option {name!r} twice.", hint="Leave one of them out."
                )
            found[name] = parsed(f"{name} in the URL", text, option)
    kept = "&".join(rest)
    return start + (f"?{kept}" if kept else "") + hash_ + fragment, found


def variable(name: str) -> str:
    """Return the environment variable of an option."""
    return f"THREADKEEP_{name.upper()}"


def from_environment(environment: Mapping[str, str], known: Options) -> dict[str, Any]:
    """Return the options that have a variable. Empty variables are ignored."""
    texts = {
        name: environment.get(variable(name), "")
        for name, option in known.items()
        if option.parse is not None
    }
    return {n: parsed(variable(n), text, known[n]) for n, text in texts.items() if text}


def flag(text: str) -> bool:
    """Convert "true" or "false", likewise 1 and 0, yes and no, on and off."""
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    try:
        return words[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None


def switch(help: str, *, parse: Callable[[str], bool] | None = flag) -> Option:
    """Return an option that is on or off, and off by default."""
    return Option(False, help, lambda value: type(value) is bool, "Use True or False.", parse)  # noqa: FBT003 - the default


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a converter that takes "none" as well, for None."""
    return lambda text: None if text.strip().lower() == "none" else parse(text)


class ConnectionOptions(TypedDict, total=False):
    """Options of connections to a server."""

    max_connections: Annotated[
        int,
        Option(
            16,
            "Connections of a pool at most (on a cluster, to each node).",
            lambda value: is_count(value, 1),
            "Use a number of 1 or more.",
            int,
        ),
    ]
    timeout: Annotated[
        float,
        Option(
            30.0,
            "Seconds to wait for a free connection, for a new one, and for each answer.",
            is_time,
            "Use seconds, more than 0.",
            float,
        ),
    ]
