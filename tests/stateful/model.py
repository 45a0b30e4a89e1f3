"""The promises of LangGraph's savers, over plain dicts: the oracle of the state machine.

Values are kept in their exact form (`kit.engine.exactly`) as of the moment of the call.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any

from kit.engine import exactly, rest_of
from langgraph.checkpoint.base import WRITES_IDX_MAP

from threadkeep._core.engine.model import FREE, NESTED
from threadkeep._core.engine.snapshots import LOADS

EMPTY = ("no value",)


def as_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata as from LangGraph's savers: JSON, or other values in lists and dicts."""
    try:
        text = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError):
        return {key: _listed(part) for key, part in metadata.items()}
    return dict(json.loads(text))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return [_listed(part) for part in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Row:
    """One checkpoint: the arguments of `put`, as they must come back."""

    parent: str | None
    run: int
    seen: int
    free: bool
    entries: dict[str, tuple[Any, Any]]  # channel -> (version, exact value or EMPTY)
    metadata: dict[str, Any]
    rest: dict[str, Any]  # v, ts, versions_seen, updated_channels
    hidden: bool = False  # pruned, kept for the DeltaChannels of others


@dataclass(frozen=True)
class Batch:
    """One `put_writes` call."""

    seq: int
    run: int
    seen: int
    task: str
    path: str
    writes: list[tuple[int, str, Any]]


@dataclass
class Namespace:
    rows: dict[str, Row] = field(default_factory=dict)
    writes: dict[str, list[Batch]] = field(default_factory=dict)

    def visible(self) -> list[str]:
        return [i for i, row in self.rows.items() if not row.hidden]


class Conflict(Exception):  # noqa: N818 - what the saver must raise as ConflictError
    """The call is refused."""


def load_of(checkpoint_id: str | None) -> tuple[int, int, int]:
    """Run, seen and flags of the load that an id comes from; all 0 for plain text."""
    load = LOADS.of(checkpoint_id)
    return (0, 0, 0) if load is None else (load.run, load.seen, load.flags)


class Model:
    """Threads of namespaces of rows."""

    def __init__(self, *, fenced: bool) -> None:
        self.fenced = fenced
        self.threads: dict[str, dict[str, Namespace]] = {}
        self.plain_metadata: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.deleted: set[str] = set()  # threads that were, even if a copy has their place
        self.pruned: set[tuple[str, str, str]] = set()  # checkpoints, since the last deletion

    def space(self, thread: str, ns: str) -> Namespace:
        return self.threads.setdefault(thread, {}).setdefault(ns, Namespace())

    # -- writing -----------------------------------------------------------------------

    def is_refused(self, thread: str, ns: str, checkpoint_id: Any) -> bool:
        """Return True if a save that names the checkpoint belongs to a life that has ended."""
        is_missing = checkpoint_id is not None and not self.is_there(thread, ns, checkpoint_id)
        return is_missing and thread in self.deleted

    def is_there(self, thread: str, ns: str, checkpoint_id: Any) -> bool:
        return str(checkpoint_id) in self.space(thread, ns).rows

    def put(self, thread: str, ns: str, parent: Any, checkpoint: Any, metadata: Any) -> None:
        """Store the checkpoint; raises Conflict if a fence does not hold."""
        space = self.space(thread, ns)
        above = space.rows.get(str(parent)) if parent is not None else None
        run, seen, flags = load_of(parent)
        free = bool(flags & FREE) or metadata.get("source") == "fork"
        free = free or (above is not None and above.free)
        if self.fenced and not ns and not free:
            newer = [i for i in space.rows if parent is None or i > str(parent)]
            if any(i != checkpoint["id"] for i in newer):
                self._sweep(space, parent, checkpoint["id"])
                raise Conflict
        entries = self.entries(thread, ns, parent, checkpoint)
        metadata = as_json(metadata)
        row = Row(
            None if parent is None else str(parent),
            run,
            seen,
            free,
            entries,
            exactly(metadata),
            rest_of(checkpoint),
        )
        space.rows[str(checkpoint["id"])] = row
        self.plain_metadata[thread, ns, str(checkpoint["id"])] = dict(metadata)

    def entries(
        self, thread: str, ns: str, parent: Any, checkpoint: Any
    ) -> dict[str, tuple[Any, Any]]:
        """Return the value of each channel in a put: the parent's if the version is the same."""
        above = self.space(thread, ns).rows.get(str(parent)) if parent is not None else None
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        entries: dict[str, tuple[Any, Any]] = {}
        for channel in {**versions, **values}:
            version = versions.get(channel)
            old = above.entries.get(channel) if above is not None else None
            if old is not None and version is not None and exactly(old[0]) == exactly(version):
                entries[channel] = old
            else:
                value = exactly(values[channel]) if channel in values else EMPTY
                entries[channel] = (version, value)
        return entries

    def _sweep(self, space: Namespace, parent: Any, checkpoint_id: str) -> None:
        """Remove the writes of a refused run, on the loaded checkpoint and on the refused one."""
        run, *_ = load_of(parent)
        if run and str(parent) in space.rows:
            left = [b for b in space.writes.get(str(parent), []) if b.run != run]
            space.writes[str(parent)] = left
        if run and checkpoint_id not in space.rows:
            space.writes.pop(checkpoint_id, None)

    def put_writes(self, thread: str, ns: str, at: Any, writes: Any, task: str, path: str) -> None:
        """Store the writes; raises Conflict if a fence does not hold."""
        space = self.space(thread, ns)
        run, seen, flags = load_of(at)
        rows = space.writes.setdefault(str(at), [])
        fenced = self.fenced and not ns and run and not flags & (FREE | NESTED)
        if fenced and any(b.run != run and b.seq > seen for b in rows):
            raise Conflict
        seq = max([b.seq for b in rows], default=0) + 1
        stored = [
            (WRITES_IDX_MAP.get(channel, index), channel, exactly(value))
            for index, (channel, value) in enumerate(writes)
        ]
        rows.append(Batch(seq, run, seen, task, path, stored))

    # -- housekeeping ------------------------------------------------------------------

    def keep(self, thread: str, ns: str, ids: set[str], hidden: set[str]) -> None:
        """Remove the other checkpoints of the namespace, with their writes, or hide them."""
        space = self.space(thread, ns)
        for gone in space.rows.keys() - ids:
            if gone in hidden:
                space.rows[gone] = replace(space.rows[gone], hidden=True)
            else:
                self.pruned.add((thread, ns, gone))
                del space.rows[gone]
                space.writes.pop(gone, None)

    def newest(self, thread: str) -> dict[str, set[str]]:
        """Return the checkpoints that pruning keeps, by namespace."""
        spaces = self.threads.get(thread, {})
        return {ns: {max(ids)} if (ids := s.visible()) else set() for ns, s in spaces.items()}

    def of_other_runs(self, thread: str, runs: set[str]) -> dict[str, set[str]]:
        """Return the checkpoints kept when these runs are deleted, by namespace."""
        return {
            ns: {i for i in s.visible() if self.metadata(thread, ns, i).get("run_id") not in runs}
            for ns, s in self.threads.get(thread, {}).items()
        }

    def metadata(self, thread: str, ns: str, checkpoint_id: str) -> dict[str, Any]:
        return self.plain_metadata[thread, ns, checkpoint_id]

    def delete(self, thread: str) -> None:
        self.threads.pop(thread, None)
        self.deleted.add(thread)
        self.pruned = {place for place in self.pruned if place[0] != thread}

    def holds_checkpoints(self, thread: str) -> bool:
        return any(space.rows for space in self.threads.get(thread, {}).values())

    def copy(self, source: str, target: str) -> None:
        """Copy all rows, and writes on missing checkpoints too."""
        spaces = self.threads.get(source, {})
        if not any(space.rows or any(space.writes.values()) for space in spaces.values()):
            return
        self.threads[target] = {
            ns: Namespace(dict(s.rows), {k: list(v) for k, v in s.writes.items()})
            for ns, s in spaces.items()
        }
        for (thread, ns, checkpoint_id), metadata in list(self.plain_metadata.items()):
            if thread == source:
                self.plain_metadata[target, ns, checkpoint_id] = metadata

    # -- reading -----------------------------------------------------------------------

    def head(self, thread: str, ns: str) -> str | None:
        return max(self.threads.get(thread, {}).get(ns, Namespace()).visible(), default=None)

    def shown(self, thread: str, ns: str, checkpoint_id: str) -> dict[str, Any] | None:
        """Return a checkpoint as any reader must see it."""
        row = self.threads.get(thread, {}).get(ns, Namespace()).rows.get(checkpoint_id)
        if row is None or row.hidden:
            return None
        return {
            "place": (thread, ns, checkpoint_id),
            "parent": row.parent,
            "values": {c: v for c, (_, v) in row.entries.items() if v is not EMPTY},
            "versions": {c: exactly(v) for c, (v, _) in row.entries.items() if v is not None},
            "metadata": row.metadata,
            "rest": row.rest,
            "writes": self.writes(thread, ns, checkpoint_id),
        }

    def writes(self, thread: str, ns: str, checkpoint_id: str) -> list[tuple[str, str, Any]]:
        """Return the writes that count, in the order of their tasks' paths.

        With a child, these are the writes that its run made or had loaded; else the first run's of
        each task.
        """
        space = self.space(thread, ns)
        return self._counting(space, checkpoint_id, self._child(space, checkpoint_id))

    def _counting(
        self, space: Namespace, checkpoint_id: str, child: Row | None
    ) -> list[tuple[str, str, Any]]:
        found: dict[tuple[str, int], tuple[str, str, Any]] = {}
        writers: dict[str, list[Batch]] = {}
        for batch in space.writes.get(checkpoint_id, []):
            if child is not None and batch.run != child.run and batch.seq > child.seen:
                continue
            others = [b for b in writers.get(batch.task, []) if b.run != batch.run]
            late = any(b.seq > batch.seen for b in others)
            for index, channel, value in batch.writes:
                key = (batch.task, index)
                if index < 0 or (not late and key not in found):
                    found[key] = (batch.path, channel, value)
            if not late and any(index >= 0 for index, *_ in batch.writes):
                writers.setdefault(batch.task, []).append(batch)
        order = sorted(found.items(), key=lambda one: (one[1][0], *one[0]))
        return [(task, channel, value) for (task, _), (_, channel, value) in order]

    def history(self, thread: str, ns: str, checkpoint_id: str, channel: str) -> Any:
        """Return a channel's writes up the path, to the nearest ancestor that stores its value."""
        space = self.space(thread, ns)
        below = space.rows.get(checkpoint_id)
        writes: list[Any] = []
        met: set[str] = set()  # (a checkpoint may be put as its own ancestor)
        while below is not None and below.parent in space.rows and below.parent not in met:
            at = str(below.parent)
            met.add(at)
            row = space.rows[at]
            led = self._counting(space, at, below)
            writes = [write for write in led if write[1] == channel] + writes
            value = row.entries.get(channel, (None, EMPTY))[1]
            if value is not EMPTY:
                return writes, value
            below = row
        return writes, EMPTY

    def _child(self, space: Namespace, checkpoint_id: str) -> Row | None:
        children = [
            i for i, r in space.rows.items() if r.parent == checkpoint_id and i > checkpoint_id
        ]
        return space.rows[min(children)] if children else None

    def newest_seq(self, thread: str, ns: str, checkpoint_id: str) -> int:
        return max([b.seq for b in self.space(thread, ns).writes.get(checkpoint_id, [])], default=0)

    def listed(
        self,
        thread: str | None,
        ns: str | None,
        checkpoint_id: str | None,
        before: str | None,
        wanted: dict[str, Any],
    ) -> list[tuple[str, str, str]]:
        """Return the places in a listing: newest id first, then by thread and namespace."""
        places = [
            (t, n, i)
            for t, spaces in self.threads.items()
            for n, space in spaces.items()
            for i in space.visible()
            if (thread is None or t == thread)
            and (ns is None or n == ns)
            and (checkpoint_id is None or i == checkpoint_id)
            and (before is None or i < before)
            and all(self.metadata(t, n, i).get(k) == v for k, v in wanted.items())
        ]
        places.sort(key=lambda place: place[:2])
        return sorted(places, key=lambda place: place[2], reverse=True)
