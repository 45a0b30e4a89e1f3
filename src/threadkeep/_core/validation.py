"""Validation of arguments: a valid value can be stored and read back unchanged.

Pure functions. An invalid value is an `InvalidArgumentError` that names the argument.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from threadkeep._core.engine.operation import CheckpointRef
from threadkeep._core.texts import is_unicode
from threadkeep.errors import InvalidArgumentError, invalid

if TYPE_CHECKING:
    from typing_extensions import TypeIs


_LEAST, _MOST = -(2**63), 2**63 - 1
_NAMES = "Use a str without lone surrogates."
_THREAD = "Use the thread's id, or a config with a thread_id."
_VERSIONS = "Use a number of up to 64 bits, or a str."


MICROSECOND = timedelta(microseconds=1)
LONGEST = 2**62  # limit of sizes, and of times in microseconds


# -- numbers -------------------------------------------------------------------------


def is_count(value: object, least: int) -> bool:
    """Return True for an int of at least `least`."""
    return type(value) is int and value >= least


def is_time(value: object) -> bool:
    """Return True for a number of seconds, more than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= sys.float_info.max  # (a whole number may be larger than any float)


def duration(name: str, value: object) -> timedelta:
    """Return a length of time, given in seconds or as a timedelta.

    Raises:
        InvalidArgumentError: it is neither, or not more than 0.
    """
    if isinstance(value, int | float) and type(value) is not bool and 0 < value < LONGEST / 1e6:
        value = timedelta(seconds=value)
    if not isinstance(value, timedelta) or value < MICROSECOND:
        raise invalid(name, value, "Use seconds, or a timedelta, more than 0.")
    return value


def micros(value: timedelta | float | None) -> int | None:
    """Return a validated duration in microseconds."""
    return value // MICROSECOND if isinstance(value, timedelta) else None


# -- single values -------------------------------------------------------------------


def checkpoint_id(value: object) -> str | None:
    if type(value) is str and value.isascii():  # (the quick way first)
        return value or None
    if value is None or value == "":
        return None
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str) or not is_unicode(value):
        raise invalid("checkpoint_id", value, "Use the id that put() or get_tuple() returned.")
    return value if type(value) is str else str.__str__(value)


def text(what: str, value: object, at: CheckpointRef | None = None) -> str:
    """Return valid Unicode as a plain `str`."""
    if type(value) is str and value.isascii():  # (the quick way first)
        return value
    if not isinstance(value, str) or not is_unicode(value):
        raise _invalid(what, value, _NAMES, at)
    return str.__str__(value)


def thread_in(value: object) -> object:
    """Return the id of a thread as it is given: alone, or as the `thread_id` of a config.

    Alone it is a str, a number or a UUID, and in a config it may be of any type, as for `put`.
    """
    if not is_mapping(value):
        if isinstance(value, bool) or not isinstance(value, str | int | float | UUID):
            raise invalid("thread_id", value, _THREAD)
        return value
    configurable = value.get("configurable")
    found = configurable.get("thread_id") if is_mapping(configurable) else None
    if found is None:
        raise invalid("thread_id", value, _THREAD)
    return found


def threads_in(values: object) -> list[object]:
    """Return the ids of several threads as they are given. See `thread_in`."""
    return [thread_in(each) for each in several("thread_ids", values)]


def thread_id(value: object) -> str:
    """Return the id of a thread as text, which may be empty as in LangGraph. See `thread_in`."""
    found = thread_in(value)
    return text("thread_id", found if isinstance(found, str) else str(found))


def place(thread: object, ns: object = "", checkpoint: object = None) -> CheckpointRef:
    """Return the place that arguments name: a thread, a namespace and a checkpoint's id."""
    name = thread_id(thread)
    return CheckpointRef(name, text("checkpoint_ns", ns), checkpoint_id(checkpoint))


def mapping(what: str, value: object, at: CheckpointRef) -> Mapping[Any, Any]:
    if type(value) is not dict and not is_mapping(value):  # (each save asks several times)
        raise _invalid(what, value, "Use a dict.", at)
    return value


def is_mapping(value: object) -> TypeIs[Mapping[Any, Any]]:
    return type(value) is dict or isinstance(value, Mapping)


def flag(what: str, value: object) -> bool:
    if type(value) is not bool:
        raise invalid(what, value, "Use True or False.")
    return value


def limit(value: object) -> int | None:
    """Return the number of checkpoints to list, or None for all."""
    if value is not None and (not isinstance(value, int) or value < 0):
        raise invalid("limit", value, "Use 0 or more, or leave it out to list everything.")
    return value


def ids(what: str, values: object) -> list[str]:
    """Return several ids, except of threads, as text."""
    return [text(what, str(each)) for each in several(what, values)]


def channels(values: object) -> frozenset[str]:
    """Return the names of channels to read."""
    return frozenset([text("channels", each) for each in several("channels", values)])


def each_thread(thread_ids: object) -> list[str]:
    """Return the ids of several threads. See `thread_id`."""
    return [thread_id(each) for each in several("thread_ids", thread_ids)]


def thread_ids(threads: object) -> list[str] | None:
    """Return the ids of one thread or of several, each once, or None for all threads."""
    if threads is None:
        return None
    if isinstance(threads, str | Mapping):
        return [thread_id(threads)]
    return list(dict.fromkeys(each_thread(threads)))


def several(what: str, values: object) -> Iterable[object]:
    """Return a list of values, or raise for a single text or a mapping."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise invalid(what, values, "Use a list, even for a single one.")
    return values


def classes(values: object) -> frozenset[tuple[str, ...]]:
    """Return an allowlist: module and name of each class."""
    found = set()
    for each in values if isinstance(values, Iterable) else [values]:
        if not isinstance(each, tuple | list) or not all(isinstance(part, str) for part in each):
            raise invalid("entry of the allowlist", each, 'Use tuples: ("module", "Name").')
        found.add(tuple(each))
    return frozenset(found)


# -- a checkpoint --------------------------------------------------------------------


def checkpoint(value: Mapping[str, Any], at: CheckpointRef) -> None:
    """Validate everything of a checkpoint except its values."""
    # Usual checkpoints take one quick check of a microsecond, and others are checked name by name.
    values, versions = value["channel_values"], value["channel_versions"]
    seen = value.get("versions_seen", {})
    v = value.get("v", 1)
    if type(v) is not int or not _LEAST <= v <= _MOST:
        _version("checkpoint['v']", v, at)
    if not is_usual(values, versions, seen):
        _check_each(values, versions, seen, at)
    ts, updated = value.get("ts", ""), value.get("updated_channels")
    if type(ts) is not str or not ts.isascii():
        text("checkpoint['ts']", ts, at)
    if updated is not None:
        if not isinstance(updated, list | tuple | set | frozenset):
            raise _invalid("checkpoint['updated_channels']", updated, "Use a list of names.", at)
        if not _are_ascii(updated):
            for name in updated:
                _name("checkpoint['updated_channels']", name, at)


def portable_is_usual(values: Any, versions: Any, seen: Any) -> bool:
    """Return True if all names are ASCII, and all versions either small numbers or ASCII.

    Args:
        values: the checkpoint's `channel_values`, a dict.
        versions: its `channel_versions`, a dict.
        seen: its `versions_seen`, of any type. The compiled twin accepts only dicts.
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


def _check_versions(what: str, versions: object, at: CheckpointRef) -> None:
    for name, version in mapping(what, versions, at).items():
        _version(f"{what}[{_name(what, name, at)!r}]", version, at)


def _name(where: str, name: object, at: CheckpointRef) -> str:
    if not isinstance(name, str) or not is_unicode(name):
        raise _invalid(f"name in {where}", name, _NAMES, at)
    return name


def _version(what: str, version: object, at: CheckpointRef) -> None:
    whole = isinstance(version, int) and _LEAST <= version <= _MOST
    plain = version is None or isinstance(version, float)
    if not whole and not plain and not (isinstance(version, str) and is_unicode(version)):
        raise _invalid(what, version, _VERSIONS, at)


# -- pending writes ------------------------------------------------------------------


def writes(values: Iterable[tuple[str, Any]], at: CheckpointRef) -> list[tuple[str, Any]]:
    """Return pending writes as pairs of a channel's name and a value."""
    try:
        pairs = [(channel, value) for channel, value in values]
    except (TypeError, ValueError):
        hint = "Use a list of pairs: a channel's name and a value."
        raise _invalid("writes", values, hint, at) from None
    for channel, _ in pairs:
        if type(channel) is not str or not channel.isascii():  # (as most are)
            _name("writes", channel, at)
    return pairs


def _invalid(what: str, value: object, hint: str, at: CheckpointRef | None) -> InvalidArgumentError:
    return invalid(what, value, hint, **({} if at is None else at.named()))


try:
    from threadkeep._core.engine._wire import is_usual
except ImportError:  # it could not be compiled
    is_usual = portable_is_usual
