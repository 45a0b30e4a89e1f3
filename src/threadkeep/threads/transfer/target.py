"""Writes checkpoints through LangGraph's own savers, as LangGraph itself calls them.

Calls may block. A saver writes each call at once: a checkpoint, or the writes of one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import groupby, islice
from typing import Any, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._core.engine.model import LAYERS_NS, OWN_NS
from threadkeep.threads.transfer.sources import SourceCheckpoint, SourceWrite

_Versions: TypeAlias = Mapping[str, Any]  # by channel
_VersionsSeen: TypeAlias = Mapping[str, _Versions]  # by node


def is_left(ns: str) -> bool:
    """Return False for a namespace that LangGraph's tables do not get: partial output."""
    return not ns.startswith(OWN_NS) or ns == LAYERS_NS


def put_checkpoint(
    saver: BaseCheckpointSaver[Any],
    thread: str,
    one: SourceCheckpoint,
    previous: Mapping[str, Any] | None = None,
) -> None:
    """Store a checkpoint without its writes.

    `previous` are the parent's channel versions, if the saver has stored the parent: values of
    these versions are not stored again. None stores all values.
    """
    versions, values = one.checkpoint["channel_versions"], one.checkpoint["channel_values"]
    known = previous or {}
    new = {
        name: version
        for name, version in versions.items()
        if known.get(name) != version or isinstance(values.get(name), _DeltaSnapshot)
    }
    at = {"thread_id": thread, "checkpoint_ns": one.ns}
    if one.parent is not None:
        at["checkpoint_id"] = one.parent
    checkpoint: Any = one.checkpoint
    metadata: Any = one.metadata
    saver.put({"configurable": at}, checkpoint, metadata, new)


class LangGraphVersions:
    """Versions of a thread's channels as LangGraph's savers make them: "<number>.<hash>".

    A thread that began here counts 1, 2, 3. LangGraph's savers cannot continue from numbers: their
    next version is a text. The hash distinguishes branches. It is made from the checkpoint in which
    the version first occurs, so every call makes the same text. Other versions stay as they are.
    """

    def __init__(self) -> None:
        self._texts: dict[CheckpointKey, dict[tuple[str, int], str]] = {}

    def add(
        self, key: CheckpointKey, parent: str | None, versions: _Versions, seen: _VersionsSeen
    ) -> None:
        """Meet a checkpoint, after its parent."""
        above = {} if parent is None else self._texts.get((key[0], parent), {})
        pairs = [pair for one in (versions, *seen.values()) for pair in one.items()]
        self._texts[key] = {
            (channel, number): above.get((channel, number)) or _text(number, channel, key[1])
            for channel, number in pairs
            if type(number) is int
        }

    def applied(self, key: CheckpointKey, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Return a checkpoint with these versions."""
        texts = self._texts[key]
        seen = checkpoint["versions_seen"]
        return {
            **checkpoint,
            "channel_versions": _with(texts, checkpoint["channel_versions"]),
            "versions_seen": {node: _with(texts, versions) for node, versions in seen.items()},
        }


def _text(number: int, channel: str, checkpoint: str) -> str:
    digest = blake2b(f"{checkpoint}/{channel}".encode(), digest_size=8).digest()
    return f"{number:032}.0.{int.from_bytes(digest) % 10**16:016}"


def _with(texts: Mapping[tuple[str, int], str], versions: _Versions) -> dict[str, Any]:
    return {channel: texts.get((channel, v), v) for channel, v in versions.items()}


def put_writes(
    saver: BaseCheckpointSaver[Any], thread: str, ns: str, id: str, writes: Iterable[SourceWrite]
) -> None:
    """Store pending writes of a checkpoint, sorted by task.

    LangGraph numbers a task's writes by their position in the call. Special writes, such as an
    interrupt, replace earlier ones only if they are alone in the call.
    """
    at: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}
    for own in _calls(writes):
        pairs = [(one.channel, one.value) for one in own]
        saver.put_writes(at, pairs, own[0].task_id, own[0].task_path)


def numbered(writes: Iterable[SourceWrite]) -> list[SourceWrite]:
    """Return the writes with the indices that LangGraph gives them."""
    return [
        one._replace(idx=WRITES_IDX_MAP.get(one.channel, at))
        for own in _calls(writes)
        for at, one in enumerate(own)
    ]


def _calls(writes: Iterable[SourceWrite]) -> Iterator[list[SourceWrite]]:
    """Group writes by call. In a call, each takes the position of its index, if possible."""
    for _, own in groupby(writes, lambda one: (one.task_path, one.task_id)):
        found = list(own)
        special = [one for one in found if one.idx < 0]
        fillers = iter(special)  # (an error, and later writes: they begin with 1)
        plain = sorted([one for one in found if one.idx >= 0], key=lambda one: one.idx)
        placed: list[SourceWrite] = []
        for one in plain:
            placed += islice(fillers, max(one.idx - len(placed), 0))
            placed.append(one)
        yield from [call for call in (special, placed) if call]
