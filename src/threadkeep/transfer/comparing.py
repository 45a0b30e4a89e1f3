"""Whether a checkpoint here is the one that LangGraph's own saver gives.

Only the comparison lives here; of values it is `engine.differences`. The order of channels, and of
what is kept by channel, means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from threadkeep.codec import Codec
from threadkeep.engine.differences import alike
from threadkeep.engine.load import Loaded


def differences(codec: Codec, ours: Loaded, theirs: CheckpointTuple) -> Iterator[str]:
    """What differs, each in a few words."""
    parent = theirs.parent_config["configurable"]["checkpoint_id"] if theirs.parent_config else None
    if ours.parent != parent:
        yield "the parent"
    if not alike(codec, ours.metadata, dict(theirs.metadata)):
        yield "the metadata"
    checkpoint: Mapping[str, Any] = {**theirs.checkpoint}
    for key in sorted(ours.checkpoint.keys() | checkpoint.keys()):
        yield from _differing(codec, key, ours.checkpoint.get(key), checkpoint.get(key))
    if not _same_writes(codec, ours.writes, theirs.pending_writes or ()):
        yield "the pending writes"


def _differing(codec: Codec, key: str, ours: Any, theirs: Any) -> Iterator[str]:
    if key in ("channel_values", "channel_versions", "versions_seen"):
        for name in sorted(ours.keys() | theirs.keys()):
            if name not in ours or name not in theirs:
                yield f"{key} of {name!r}, which one of them lacks"
            elif not alike(codec, _sorted(key, ours[name]), _sorted(key, theirs[name])):
                yield f"{key} of {name!r}"
    elif not alike(codec, ours, theirs):
        yield key


def _sorted(key: str, value: Any) -> Any:
    return dict(sorted(value.items())) if key == "versions_seen" else value


def _same_writes(
    codec: Codec, ours: Iterable[tuple[str, str, Any]], theirs: Iterable[tuple[str, str, Any]]
) -> bool:
    return alike(codec, [list(write) for write in ours], [list(write) for write in theirs])
