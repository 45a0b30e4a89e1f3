"""The checks of `validate="strict"`: fields of a checkpoint that LangGraph itself always keeps.

Pure functions. `put` raises the first problem of a call; `check` reports the problems of stored
checkpoints as notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from threadkeep._core.engine.calls import Put
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.operation import CheckpointRef
from threadkeep._core.langgraph_internals import FORMATS
from threadkeep._core.validation import is_mapping
from threadkeep._core.versions import unordered
from threadkeep.errors import InvalidArgumentError, invalid

SOURCES = ("input", "loop", "update", "fork")
_UTC = timedelta(0)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Fields(NamedTuple):
    """The checked fields of a checkpoint."""

    v: Any
    id: str
    ts: str
    versions: Mapping[str, Any]
    seen: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, Any]


def strict(call: Put) -> Put:
    """Check the fields of a call of `put`; return it with the checkpoints that must exist.

    threadkeep's own checkpoints, in namespaces of its own, are not checked.

    Raises:
        InvalidArgumentError: it names the field.
    """
    if call.place.ns.startswith(OWN_NS):
        return call
    at, found = call.place, call.checkpoint
    fields = Fields(
        found.get("v", 1),
        str(at.id),
        found.get("ts", ""),
        found["channel_versions"],
        found.get("versions_seen", {}),
        call.metadata,
    )
    for error in problems(fields):
        raise error.at(**at.named())
    above = tuple(parents(at.thread, call.metadata))
    return call._replace(above=above) if above else call


def problems(fields: Fields) -> Iterator[InvalidArgumentError]:
    """Check each field by itself. Absent metadata is valid, as in LangGraph."""
    v, own_id, ts, versions, seen, metadata = fields
    if type(v) is not int or v not in FORMATS:
        yield invalid("checkpoint['v']", v, f"Use one of {', '.join(map(str, FORMATS))}.")
    if not _UUID.fullmatch(own_id):
        yield invalid("checkpoint['id']", own_id, "Use a UUID, such as uuid6() of LangGraph.")
    if not _is_utc(ts):
        hint = "Use ISO 8601 in UTC: datetime.now(UTC).isoformat()."
        yield invalid("checkpoint['ts']", ts, hint)
    every = [*versions.values()]
    for each in seen.values():
        every += each.values()
    if (error := unordered(every)) is not None:
        error.message = f"checkpoint['channel_versions'] or ['versions_seen']: {error.message}"
        yield error
    source, step = metadata.get("source", "input"), metadata.get("step", 0)
    if not isinstance(source, str) or source not in SOURCES:
        yield invalid("metadata['source']", source, f"Use one of {', '.join(SOURCES)}.")
    if not isinstance(step, int) or type(step) is bool or step < -1:
        yield invalid("metadata['step']", step, "Use a whole number, -1 or more.")
    yield from _wrong_parents(metadata.get("parents", {}))


def _wrong_parents(above: object) -> Iterator[InvalidArgumentError]:
    hint = "Use the id of a checkpoint for each namespace above."
    if not is_mapping(above):
        yield invalid("metadata['parents']", above, f"Use a dict. {hint}")
        return
    for ns, own_id in above.items():
        if not isinstance(ns, str):
            yield invalid("namespace in metadata['parents']", ns, hint)
        elif not isinstance(own_id, str) or not own_id:
            yield invalid(f"metadata['parents'][{ns!r}]", own_id, hint)


def _is_utc(ts: str) -> bool:
    try:
        return datetime.fromisoformat(ts).utcoffset() == _UTC
    except ValueError:
        return False


def parents(thread: str, metadata: Mapping[str, Any]) -> Iterator[CheckpointRef]:
    """Return the checkpoints that valid metadata names in `parents`."""
    for ns, own_id in metadata.get("parents", {}).items():
        yield CheckpointRef(thread, ns, own_id)
