"""What the parts of a caller's arguments must be, so that they can be stored as they are.

Pure functions for `arguments`, which knows where each part comes from. Invariant: what
passes here can be written and read back; everything else is an `InvalidArgumentError`
that says which part is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from threadkeep.engine.operation import CheckpointRef
from threadkeep.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_LEAST, _MOST = -(2**63), 2**63 - 1
_SHOWN = 60  # characters of a text that a message quotes
_NAMES = "Names are str, without lone surrogates."
_VERSIONS = "Versions are numbers of up to 64 bits, or str."


# -- single values -------------------------------------------------------------------


def checkpoint_id(given: object) -> str | None:
    """The id that a config names; None if it names none.

    Raises:
        InvalidArgumentError: it is neither text nor a UUID.
    """
    if type(given) is str and given.isascii():  # (asked for the quick way first)
        return given or None
    if given is None or given == "":
        return None
    if isinstance(given, UUID):
        return str(given)
    if not isinstance(given, str) or not is_unicode(given):
        refuse("checkpoint_id", given, "Pass the id that put() or get_tuple() returned.")
    return given if type(given) is str else str.__str__(given)


def text(what: str, given: object, at: CheckpointRef | None = None) -> str:
    """A text, as a plain `str`.

    Raises:
        InvalidArgumentError: it is none, or not valid Unicode.
    """
    if type(given) is str and given.isascii():  # (asked for the quick way first)
        return given
    if not isinstance(given, str) or not is_unicode(given):
        refuse(what, given, "It is a str, without lone surrogates.", at)
    return str.__str__(given)


def mapping(what: str, given: object, at: CheckpointRef) -> Mapping[Any, Any]:
    """A dict or the like.

    Raises:
        InvalidArgumentError: it is none.
    """
    if type(given) is not dict and not is_mapping(given):
        refuse(what, given, "It is a dict.", at)
    return given


def is_mapping(given: object) -> TypeIs[Mapping[Any, Any]]:
    """Whether it is a dict or the like (asked for the quick way first)."""
    return type(given) is dict or isinstance(given, Mapping)


def limit(given: object) -> int | None:
    """How many checkpoints to list; None for all.

    Raises:
        InvalidArgumentError: it is no whole number, or negative.
    """
    if given is not None and (not isinstance(given, int) or given < 0):
        refuse("limit", given, "Pass 0 or more, or leave it out to list everything.")
    return given


def ids(what: str, given: object) -> list[str]:
    """Several ids, as text.

    Raises:
        InvalidArgumentError: it is a single text, or cannot be gone through.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        refuse(what, given, "Pass a list of ids, for a single one too.")
    return [text(what, str(each)) for each in given]


def classes(given: object) -> frozenset[tuple[str, ...]]:
    """An allowlist: for each class its module and name.

    Raises:
        InvalidArgumentError: it is none.
    """
    found = set()
    for each in given if isinstance(given, Iterable) else [given]:
        if not isinstance(each, tuple | list) or not all(isinstance(part, str) for part in each):
            refuse("An entry of the allowlist", each, 'It is a tuple: ("module", "Name").')
        found.add(tuple(each))
    return frozenset(found)


# -- a checkpoint --------------------------------------------------------------------


def checkpoint(given: Mapping[str, Any], at: CheckpointRef) -> None:
    """Check what a checkpoint says beside its values.

    Raises:
        InvalidArgumentError: a name, a version or the time cannot be stored.
    """
    # All at once where all is as usual, which costs a microsecond; else one by one.
    values, versions = given["channel_values"], given["channel_versions"]
    seen = given.get("versions_seen", {})
    _version("checkpoint['v']", given.get("v", 1), at)
    if not is_usual(values, versions, seen):
        _check_each(values, versions, seen, at)
    text("checkpoint['ts']", given.get("ts", ""), at)
    updated = given.get("updated_channels")
    if updated is not None:
        if not isinstance(updated, list | tuple | set | frozenset):
            refuse("checkpoint['updated_channels']", updated, "It is a list of names.", at)
        if not _are_ascii(updated):
            for name in updated:
                _name("checkpoint['updated_channels']", name, at)


def portable_is_usual(values: Any, versions: Any, seen: Any) -> bool:
    """Return True if all names are ASCII, and all versions either small numbers or ASCII.

    Args:
        values: the checkpoint's `channel_values`, a dict.
        versions: its `channel_versions`, a dict.
        seen: its `versions_seen`, whatever it is. The compiled one knows dicts alone.
    """
    every = [*versions.values()]
    try:
        names = [*values, *versions, *seen]
        for each in seen.values():
            names += each
            every += each.values()
    except (AttributeError, TypeError):
        return False
    if not _are_ascii(names):
        return False
    numbers = [version for version in every if type(version) is int]
    if numbers and not (min(numbers) >= _LEAST and max(numbers) <= _MOST):
        return False
    return len(numbers) == len(every) or _are_ascii(
        [version for version in every if type(version) is not int]
    )


def _are_ascii(texts: Iterable[Any]) -> bool:
    """Return True if these are texts, all of them ASCII."""
    try:
        return "".join(texts).isascii()
    except TypeError:
        return False


def _check_each(
    values: Mapping[Any, Any], versions: Mapping[Any, Any], seen: object, at: CheckpointRef
) -> None:
    for name in values:
        _name("checkpoint['channel_values']", name, at)
    _check_versions("checkpoint['channel_versions']", versions, at)
    for node, each in mapping("checkpoint['versions_seen']", seen, at).items():
        _name("checkpoint['versions_seen']", node, at)
        _check_versions(f"checkpoint['versions_seen'][{node!r}]", each, at)


def _check_versions(what: str, given: object, at: CheckpointRef) -> None:
    for name, version in mapping(what, given, at).items():
        _version(f"{what}[{_name(what, name, at)!r}]", version, at)


def _name(where: str, given: object, at: CheckpointRef) -> str:
    if not isinstance(given, str) or not is_unicode(given):
        refuse(f"A name in {where}", given, _NAMES, at)
    return given


def _version(what: str, given: object, at: CheckpointRef) -> None:
    whole = isinstance(given, int) and _LEAST <= given <= _MOST
    plain = given is None or isinstance(given, float)
    if not whole and not plain and not (isinstance(given, str) and is_unicode(given)):
        refuse(what, given, _VERSIONS, at)


# -- pending writes ------------------------------------------------------------------


def writes(given: Iterable[tuple[str, Any]], at: CheckpointRef) -> list[tuple[str, Any]]:
    """Pending writes, as pairs.

    Raises:
        InvalidArgumentError: they are no pairs, or a channel's name cannot be stored.
    """
    try:
        pairs = [(channel, value) for channel, value in given]
    except (TypeError, ValueError):
        refuse("writes", given, "Pass a list of pairs: a channel's name and a value.", at)
    for channel, _ in pairs:
        if type(channel) is not str or not channel.isascii():  # (as most are)
            _name("writes", channel, at)
    return pairs


# -- refusals ------------------------------------------------------------------------


def is_unicode(given: str) -> bool:
    """Whether UTF-8 can hold the text: it has no lone surrogates."""
    if given.isascii():
        return True
    try:
        str.encode(given)
    except UnicodeEncodeError:
        return False
    return True


def refuse(what: str, given: object, hint: str, at: CheckpointRef | None = None) -> NoReturn:
    """Say that this part of the arguments cannot be used."""
    raise InvalidArgumentError(
        f"{what} cannot be {_shown(given)}.", hint=hint, **(at.named() if at is not None else {})
    )


def _shown(given: object) -> str:
    """The value as a message shows it, whatever its class does when it is asked."""
    if isinstance(given, str):
        return ascii(str.__str__(given[:_SHOWN]))
    if type(given) is int:
        bits = given.bit_length()
        return str(given) if bits <= _SHOWN else f"a whole number of {bits} bits"
    return "None" if given is None else f"a value of type {type(given).__name__}"


try:
    from threadkeep.engine._wire import is_usual
except ImportError:  # it could not be compiled
    is_usual = portable_is_usual
