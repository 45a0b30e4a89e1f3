"""Labels: tags and metadata of a thread as texts that every store can look up.

Only that conversion lives here. A label is JSON: `"urgent"` is a tag, `["user_id","u1"]` a
piece of metadata, `{"at":[ns,id],"tag":"best"}` a tag of one checkpoint (without a "tag": its
pin), `{"kept":...}` a record of our own, of a kind that a thread has one of. The last two are
looked up by nobody. Invariant: equal tags and equal pieces of metadata are the same text, and no
text is two things; numbers are equal as texts: 1 is not 1.0, nor true.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MOST_BYTES = 1000
"""Of one label: what every store's index takes."""

ARCHIVE = "archive"
"""The kind of the record of where a thread is archived; see `operations.archiving`."""

MOST = 200
"""Labels of one thread."""

_CANONICAL = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True
)


def of_tag(tag: str) -> str:
    """The label of a tag.

    Raises:
        ValueError: it is too long, or holds what a store cannot.
    """
    return _checked(_CANONICAL.encode(tag))


def of_metadata(key: str, value: Any) -> str:
    """The label of a piece of metadata.

    Raises:
        ValueError, TypeError, RecursionError: it is no JSON, too long, or holds what a store
            cannot.
    """
    label = _checked(_CANONICAL.encode([key, value]))
    _check_keys(value)
    return label


def of_record(kind: str, value: Any) -> str:
    """The label of a record of our own.

    Raises:
        ValueError: it is too long, or holds what a store cannot.
    """
    return _checked(_CANONICAL.encode({kind: value}))


def record(labels: Iterable[str], kind: str) -> Any:
    """The record of this kind; None if there is none."""
    beginning = of_kind(kind)
    return next((json.loads(label)[kind] for label in labels if label.startswith(beginning)), None)


def without_record(labels: Iterable[str], kind: str) -> tuple[str, ...]:
    """The labels but for the record of this kind."""
    return tuple([label for label in labels if not label.startswith(of_kind(kind))])


def is_record(label: str) -> bool:
    """Whether it is one that nobody looks up."""
    return label.startswith("{")


def beginning_of(label: str) -> str:
    """What a thread has one label of: a tag, a mark itself, metadata its key, a record its kind."""
    if is_mark(label):
        return label
    if is_record(label):
        return label[: label.index(":") + 1]  # (no kind has a colon in its name)
    return label if label.startswith('"') else _CANONICAL.encode(json.loads(label)[0])[1:]


def of_kind(kind: str) -> str:
    """What the label of a record of this kind begins with."""
    return f'{{"{kind}":'


# -- marks of checkpoints --------------------------------------------------------------

_AT = "at"


class Mark(NamedTuple):
    """What was said of one checkpoint."""

    ns: str
    checkpoint: str
    tags: tuple[str, ...] = ()
    pinned: bool = False


def of_mark(ns: str, checkpoint: str, tag: str | None = None) -> str:
    """The label of a checkpoint's tag, or of its pin.

    Raises:
        ValueError: it is too long, or holds what a store cannot.
    """
    place = {_AT: [ns, checkpoint]}
    return _checked(_CANONICAL.encode(place if tag is None else {**place, "tag": tag}))


def is_mark(label: str) -> bool:
    """Whether it is of a checkpoint."""
    return label.startswith(of_kind(_AT))


def marks(labels: Iterable[str]) -> tuple[Mark, ...]:
    """What was said of checkpoints, in their order."""
    found: dict[tuple[str, str], Mark] = {}
    for said in map(json.loads, filter(is_mark, sorted(labels))):
        ns, checkpoint = said[_AT]
        known = found.get((ns, checkpoint), Mark(ns, checkpoint))
        tags = (*known.tags, said["tag"]) if "tag" in said else known.tags
        found[ns, checkpoint] = known._replace(tags=tags, pinned=known.pinned or "tag" not in said)
    return tuple([found[place] for place in sorted(found)])


# -- checks ----------------------------------------------------------------------------


def _checked(label: str) -> str:
    if len(label.encode()) > MOST_BYTES:  # (a lone surrogate is a ValueError, too)
        raise ValueError(f"it takes more than {MOST_BYTES} bytes")
    if "\\u0000" in label and "\x00" in _texts(json.loads(label)):
        raise ValueError("it holds a NUL character")
    return label


def _texts(value: Any) -> str:
    """All texts in a JSON value, one behind the other."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "".join(map(_texts, (*value.keys(), *value.values())))
    return "".join(map(_texts, value)) if isinstance(value, list) else ""


def _check_keys(value: Any) -> None:
    """Refuse keys that JSON would turn into texts: they would not come back as they were."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key in it is no text")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            _check_keys(part)


def tags(labels: Iterable[str]) -> tuple[str, ...]:
    """The tags among the labels."""
    return tuple([json.loads(label) for label in labels if label.startswith('"')])


def without_tags(labels: Iterable[str]) -> tuple[str, ...]:
    """The metadata among the labels, as labels."""
    return tuple([label for label in labels if label.startswith("[")])


def metadata(labels: Iterable[str]) -> dict[str, Any]:
    """The metadata among the labels."""
    return dict([json.loads(label) for label in labels if label.startswith("[")])
