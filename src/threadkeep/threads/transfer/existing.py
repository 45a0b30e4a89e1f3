"""A thread of a store, compared with the same thread in LangGraph's store, without the values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core.codec import Codec
from threadkeep._core.engine.context import Engine, Keyframes, read_elements, read_manifest
from threadkeep._core.engine.differences import alike
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._core.engine.load import Loaded
from threadkeep._core.engine.model import (
    HIDDEN,
    OWN_NS,
    ReadThread,
    StoredCheckpoint,
    ThreadRows,
)
from threadkeep._core.engine.operation import CheckpointRef, Fetch, Operation
from threadkeep._core.engine.refs import Manifest, Ref
from threadkeep._core.engine.rows import created_at, unpack_metadata, unpack_time, unpack_writes
from threadkeep._core.engine.thread_entry import ReadEntry, ThreadEntry
from threadkeep._core.langgraph_internals import DELTA_COUNTERS
from threadkeep._core.parts import parts_of
from threadkeep._run.driver import external
from threadkeep.errors import ThreadExistsError
from threadkeep.threads.retention.choose import GRACE
from threadkeep.threads.transfer.meter import Meter
from threadkeep.threads.transfer.sources import (
    SourceCheckpoint,
    SourceWrite,
)

AT_ONCE = 16
"""Checkpoints with their values in memory."""


def first_difference(
    load: Callable[[Sequence[StoredCheckpoint]], Operation[list[Loaded]]],
    stored: Iterable[StoredCheckpoint],
    codec: Codec,
    there: tuple[str, BaseCheckpointSaver[Any], SerializerProtocol],
    meter: Meter,
) -> Operation[tuple[str, str, str] | None]:
    """Compare checkpoints as `load` and LangGraph's own saver return them, until two differ.

    `there` are the thread's id there, the saver, and its serializer.

    Returns:
        The namespace and id of the different checkpoint, and the differences, or None.
    """
    for part in parts_of(stored, lambda _: 0, AT_ONCE):
        for ours in (yield from load(part)):
            found = yield from external(partial(_compared, ours, codec, *there))
            if found:
                return ours.ns, ours.id, ", ".join(found)
        meter.add(len(part))
    return None


def _compared(
    ours: Loaded,
    codec: Codec,
    thread: str,
    saver: BaseCheckpointSaver[Any],
    serde: SerializerProtocol,
) -> list[str]:
    theirs = get(saver, thread, ours)
    return ["it is missing there"] if theirs is None else differences(codec, ours, theirs, serde)


def get(saver: BaseCheckpointSaver[Any], thread: str, ours: Loaded) -> CheckpointTuple | None:
    """Load a checkpoint with LangGraph's own saver."""
    at: Any = {"thread_id": thread, "checkpoint_ns": ours.ns, "checkpoint_id": ours.id}
    return saver.get_tuple({"configurable": at})


def read_both(thread: str) -> Operation[tuple[ThreadRows, ThreadEntry | None]]:
    """Read a thread's rows, and its entry even if it is damaged."""
    rows, entry = yield Fetch([ReadThread(thread), ReadEntry(thread)])
    return rows, entry


class ExistingThread:
    """A thread's checkpoints in the store (`stored`), including hidden checkpoints.

    LangGraph takes checkpoints with the same id, parent, time, metadata and channel versions for
    the same.
    """

    def __init__(self, engine: Engine, thread: str, rows: ThreadRows) -> None:
        self.thread = thread
        self.deleted_at = rows.deleted_at
        self.life = rows.life
        self.is_taken = False  # whether its entry says that it was copied from there
        self._engine = engine
        self._known: Keyframes = {}
        self._elements = Elements(engine.codec)
        self.stored = {(s.row.ns, s.row.id): s for s in rows.checkpoints}

    def hides(self, ns: str, checkpoint: str) -> bool:
        """True if a checkpoint is stored, but was pruned."""
        stored = self.stored.get((ns, checkpoint))
        return stored is not None and bool(stored.row.flags & HIDDEN)

    def conflict(self) -> ThreadExistsError:
        """Make the error for a thread that has diverged."""
        return ThreadExistsError(
            "The thread here and the source have diverged.", thread=self.thread
        )

    def diverged(self, theirs: Mapping[CheckpointKey, str | None]) -> bool:
        """True if both have checkpoints after the shared ones."""
        spaces = {ns for ns, _ in theirs}
        own = [key for key in self.stored if key[0] in spaces or not key[0].startswith(OWN_NS)]
        if all(key in theirs for key in own):
            return False
        newest = max([checkpoint for _, checkpoint in self.shared(theirs)], default="")
        return any(checkpoint > newest for _, checkpoint in theirs.keys() - self.stored.keys())

    def shared(self, theirs: Mapping[CheckpointKey, str | None]) -> set[CheckpointKey]:
        """Return their checkpoints that are here, or that led here and were pruned."""
        shared: set[CheckpointKey] = set()
        for (ns, checkpoint), stored in self.stored.items():
            for start in (checkpoint, stored.row.parent):
                step = start
                while step is not None and (ns, step) in theirs and (ns, step) not in shared:
                    shared.add((ns, step))
                    step = theirs[ns, step]
        return shared

    def deleted(self, theirs: Mapping[CheckpointKey, str | None]) -> set[CheckpointKey]:
        """Return their checkpoints from before the deletion here, and those that continue them."""
        gone: set[CheckpointKey] = set()
        for (ns, checkpoint), parent in sorted(theirs.items()) if self.deleted_at else ():
            times = [created_at(own_id) for own_id in (checkpoint, parent)]
            made = min([time for time in times if time is not None], default=self.deleted_at + 1)
            if (ns, parent) in gone or made <= self.deleted_at:
                gone.add((ns, checkpoint))
        return gone

    def pruned(self, theirs: Mapping[CheckpointKey, str | None]) -> set[CheckpointKey]:
        """Return their checkpoints that were here and were removed: ancestors of those here.

        Also all that are older than the first that was kept, such as subgraphs', except checkpoints
        that a new branch begins from, and young tips, which retention keeps too.
        """
        there = self.stored.keys()
        gone = self.shared(theirs) - there
        if not gone:
            return gone
        last = max([id for ns, id in gone if not ns], default="")
        first = min([id for ns, id in there if not ns and id > last], default=last)
        continued = {(ns, parent) for (ns, _), parent in theirs.items()}
        young = self._engine.now() - GRACE
        gone |= {
            key
            for key in theirs.keys() - there
            if key[1] < first and (key[0] or key in continued or (created_at(key[1]) or 0) < young)
        }
        for ns, checkpoint in theirs.keys() - there - gone:
            step = theirs[ns, checkpoint]
            while step is not None and (ns, step) in gone:
                gone.remove((ns, step))
                step = theirs[ns, step]
        return gone

    def newest_shared(self, theirs: Collection[CheckpointKey]) -> str | None:
        """Return the newest shared, visible checkpoint of the root namespace, or None."""
        both = [key for key in self.stored if key in theirs and not self.hides(*key)]
        return max([checkpoint for ns, checkpoint in both if not ns], default=None)

    def is_same(self, place: CheckpointRef, one: SourceCheckpoint) -> bool:
        """True if the checkpoint at a place is the source's."""
        stored = self.stored[place.ns, str(place.id)]
        row = stored.row
        manifest, _ = read_manifest(stored, self._known)
        own = unpack_metadata(row.metadata, row.exact, self._engine.codec)
        return (
            one.parent in (None, row.parent)  # (None: LangGraph has pruned it)
            and unpack_time(row.ts) == one.checkpoint.get("ts", "")
            and alike(self._engine.codec, in_order(own), in_order(one.metadata))
            and _is_same_shape(manifest, one.checkpoint, own.get(DELTA_COUNTERS, ()))
        )

    def writes(self, ns: str, checkpoint: str) -> set[tuple[str, int]]:
        """Return the task id and index of each pending write of a checkpoint."""
        stored = self.stored.get((ns, checkpoint))
        rows = stored.writes if stored is not None else ()
        return {(row.task_id, write.idx) for row in rows for write in unpack_writes(row)}

    def read_special(self, part: Iterable[SourceCheckpoint]) -> Operation[None]:
        """Read the special writes of checkpoints, for `is_new`."""
        refs = [ref for one in part for ref in self._special(one.ns, one.id).values()]
        spans = [span for found in refs for ref in found for span in ref.needs]
        self._elements, _ = yield from read_elements(self._engine, self.thread, spans)

    def is_new(self, one: SourceCheckpoint, write: SourceWrite) -> bool:
        """True if a special write, such as the next question of a task, was never stored here."""
        known = self._special(one.ns, one.id).get((write.task_id, write.idx), ())
        codec = self._engine.codec
        return not any(alike(codec, self._elements.value(ref), write.value) for ref in known)

    def _special(self, ns: str, checkpoint: str) -> dict[tuple[str, int], list[Ref]]:
        stored = self.stored.get((ns, checkpoint))
        found: dict[tuple[str, int], list[Ref]] = {}
        for row in stored.writes if stored is not None else ():
            for write in unpack_writes(row):
                if write.idx < 0:
                    found.setdefault((write.task_id, write.idx), []).append(write.ref)
        return found


def _is_same_shape(
    manifest: Manifest, checkpoint: Mapping[str, Any], deltas: Collection[str]
) -> bool:
    """Return True if a checkpoint has the same versions, and values of the same channels.

    LangGraph's SqliteSaver stores the snapshot of a DeltaChannel (`deltas`) with one checkpoint,
    other savers return it with all of its version.
    """
    entries = manifest.entries
    versions = {c: e.version for c, e in entries.items() if e.version is not None}
    values = {c for c, e in entries.items() if e.ref is not None}
    seen, theirs = manifest.seen, checkpoint.get("versions_seen", {})
    return (
        (values ^ checkpoint["channel_values"].keys()).issubset(deltas)
        and _are_same(versions, checkpoint["channel_versions"])
        and seen.keys() == theirs.keys()
        and all(_are_same(seen[node], theirs[node]) for node in seen)
    )


def _are_same(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    return own.keys() == theirs.keys() and all(_is_same(own[c], theirs[c]) for c in own)


def _is_same(own: Any, theirs: Any) -> bool:
    """Compare versions. A thread that left and came back counts 1, 2, 3 only here."""
    if type(own) is int and isinstance(theirs, str):
        return theirs.partition(".")[0] == f"{own:032}"
    return repr(own) == repr(theirs)


# -- comparison with LangGraph's own saver ---------------------------------------------


def is_as_there(codec: Codec, serde: SerializerProtocol, own: Any, there: Any) -> bool:
    """Return True if a value there is ours, or as `serde`, LangGraph's serializer, returns ours.

    It may return a list for a tuple, for example. Two values with the same bytes there are alike.
    """
    try:
        stored = serde.dumps_typed(own)
        if stored == serde.dumps_typed(there):  # the fastest test. Encrypted bytes never are
            return True
    except (TypeError, ValueError):  # it cannot store large numbers, for example
        return alike(codec, own, there)
    return alike(codec, own, there) or alike(codec, serde.loads_typed(stored), there)


def in_order(value: Any) -> Any:
    """Return a value of JSON with the keys of its objects sorted, as PostgreSQL sorts them."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [*map(in_order, value)] if isinstance(value, list) else value


def differences(
    codec: Codec, ours: Loaded, theirs: CheckpointTuple, serde: SerializerProtocol
) -> list[str]:
    """Name the differences between two checkpoints, ignoring the order of channels and metadata.

    A value may also be as `serde`, LangGraph's serializer, returns ours.
    """
    parent = theirs.parent_config["configurable"]["checkpoint_id"] if theirs.parent_config else None
    one = _parts(ours.checkpoint, ours.parent, ours.metadata, ours.writes)
    other = _parts(theirs.checkpoint, parent, theirs.metadata, theirs.pending_writes or ())
    # (the snapshot of a DeltaChannel may be with one checkpoint of its version, or with all)
    deltas = {f"channel_values of {name!r}" for name in ours.metadata.get(DELTA_COUNTERS, ())}
    missing = (one.keys() ^ other.keys()) - deltas
    found = [f"{name} (missing in one of them)" for name in sorted(missing)]
    both = sorted(one.keys() & other.keys())
    same = {
        name: is_as_there(codec, serde, one[name], other[name])
        or (name.startswith("channel_versions of") and _is_same(one[name], other[name]))
        or (name.startswith("versions_seen of") and _are_same(one[name], other[name]))
        for name in both
    }
    return found + [name for name in both if not same[name]]


def _parts(
    checkpoint: Mapping[str, Any], parent: str | None, metadata: Mapping[str, Any], writes: Any
) -> dict[str, Any]:
    """List the parts of a checkpoint, by their names in messages."""
    parts: dict[str, Any] = {
        "the parent": parent,
        "the metadata": in_order(dict(metadata)),
        "the pending writes": [list(write) for write in writes],
    }
    for key, value in checkpoint.items():
        if key in ("channel_values", "channel_versions"):
            parts |= {f"{key} of {name!r}": one for name, one in value.items()}
        elif key == "versions_seen":
            parts |= {f"{key} of {n!r}": dict(sorted(one.items())) for n, one in value.items()}
        else:
            parts[key] = value
    return parts
