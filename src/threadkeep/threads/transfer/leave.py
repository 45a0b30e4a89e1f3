"""Copies of threads into LangGraph's own savers: `adopt` backwards.

Checkpoints of all namespaces are written in the order of their ids, as LangGraph stored them. A
checkpoint's pending writes are written before the next checkpoint of its namespace, and at the
latest before the next checkpoint of the graph itself. So an interrupted copy is an earlier state of
the thread, and a repeated call completes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from threadkeep._core.codec.format import describe
from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.context import (
    Engine,
    Keyframes,
    named,
    read_channels,
    read_elements,
    read_writes,
)
from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._core.engine.load import Loaded, of_thread
from threadkeep._core.engine.model import (
    HIDDEN,
    INPUTS_NS,
    LAYERS_NS,
    Child,
    StoredCheckpoint,
    ThreadRows,
)
from threadkeep._core.engine.operation import (
    CheckpointRef,
    Operation,
    Progress,
    fetch_checkpoint,
)
from threadkeep._core.engine.registration import retry
from threadkeep._core.engine.rows import Write, counting, unpack_writes
from threadkeep._core.engine.thread_entry import ThreadEntry, is_there
from threadkeep._core.lru import Lru
from threadkeep._core.parts import parts_of
from threadkeep._run.driver import Runner, external, on
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.errors import (
    BackendError,
    ConflictError,
    CorruptionError,
    ThreadArchivedError,
    ThreadkeepError,
)
from threadkeep.threads.transfer import whole_thread
from threadkeep.threads.transfer.existing import (
    AT_ONCE,
    ExistingThread,
    first_difference,
    get,
    is_as_there,
    read_both,
)
from threadkeep.threads.transfer.meter import QUIET, Meter
from threadkeep.threads.transfer.opening import open_destination
from threadkeep.threads.transfer.sources import (
    LangGraphSource,
    Present,
    SourceCheckpoint,
    SourceWrite,
)
from threadkeep.threads.transfer.target import (
    LangGraphVersions,
    is_left,
    numbered,
    put_checkpoint,
    put_writes,
)

_VERSIONS = 64  # checkpoints whose versions are remembered
_UNAVAILABLE = ("OperationalError", "InterfaceError")  # of sqlite3 and psycopg


@dataclass(slots=True)
class LeaveReport:
    """Result of `leave`.

    Attributes:
        threads: the number of threads that are complete in the target now.
        checkpoints: the number of checkpoints written.
        unchanged: the number of checkpoints that were there already.
        writes: the number of pending writes written.
        verified: the number of checkpoints compared.
        plain: values that are encrypted here are stored there without encryption.
        newer: threads that continued in the target, and did not change here.
        deleted: threads that were deleted here, and are still in the target.
        conflicts: reasons why threads were not copied, by thread.
        skipped: threads that could not be read here or written there, each with the reason.
        differences: the first difference that `verify` found, by thread.
        not_held: parts of threads that the target cannot hold, by thread: their number by kind.
    """

    threads: int = 0
    checkpoints: int = 0
    unchanged: int = 0
    writes: int = 0
    verified: int = 0
    plain: bool = False
    newer: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)
    not_held: dict[str, dict[str, int]] = field(default_factory=dict)


class _NotStoredError(Exception):
    """LangGraph's saver does not store this checkpoint."""


class _DivergedError(Exception):
    """The thread has changed on both sides."""


def leave(
    store: LayeredBackend,
    engine: Engine,
    target: str | os.PathLike[str] | BaseCheckpointSaver[Any],
    threads: str | Iterable[str] | None,
    key: str | bytes | None,
    progress: Progress | None,
    *,
    verify: bool,
    dry_run: bool,
) -> Operation[LeaveReport]:
    names = yield from on(store, whole_thread.chosen(threads))
    with ExitStack() as stack:
        opening = partial(open_destination, target, engine.codec, key, stack, create=not dry_run)
        there = yield from external(opening)
        copying, verifying = [Meter(progress, one, len(names)) for one in ("copied", "verified")]
        verify = verify and not dry_run
        run = _Leaving(store, engine, *there, copying, verifying, verify=verify, dry_run=dry_run)
        is_encrypted = isinstance(run.source.serde, EncryptedSerializer)
        run.result.plain = store.backend.keys is not None and not is_encrypted
        yield from copying.each(names, run.visit)
    return run.result


def bring(
    store: LayeredBackend,
    engine: Engine,
    source: LangGraphSource,
    saver: BaseCheckpointSaver[Any],
    place: CheckpointRef,
) -> Operation[None]:
    """Write a checkpoint into LangGraph's tables, with the ancestors that they lack."""
    run = _Leaving(store, engine, source, saver, QUIET, QUIET, verify=False, dry_run=False)
    yield from run.bring(place)


class _Copy(NamedTuple):
    """A thread here and there, and its checkpoints to write, by key."""

    name: str
    ours: dict[CheckpointKey, StoredCheckpoint]
    theirs: Present
    missing: set[CheckpointKey]
    lacking: dict[CheckpointKey, set[tuple[str, int]]]
    versions: LangGraphVersions

    def to_write(self) -> list[CheckpointKey]:
        return sorted(self.missing | self.lacking.keys(), key=lambda key: (key[1], key[0]))

    def to_compare(self) -> list[CheckpointKey]:
        """Return the newest checkpoints there that may have to change, or are continued."""
        changing = {(ns, str(self.ours[ns, id].row.parent)) for ns, id in self.missing}
        changing |= self.lacking.keys()
        changing |= {key for key, own in self.theirs.writes.items() if any(i < 0 for _, i in own)}
        return sorted(_tips(self.theirs) & self.ours.keys() & changing)


@dataclass(slots=True)
class _Leaving:
    """One call of `leave`."""

    store: Runner
    engine: Engine
    source: LangGraphSource
    saver: BaseCheckpointSaver[Any]
    copying: Meter
    verifying: Meter
    verify: bool
    dry_run: bool
    result: LeaveReport = field(init=False, default_factory=LeaveReport)

    def visit(self, name: str) -> Operation[None]:
        """Copy a thread, or report why not."""
        try:
            yield from retry(name, partial(self._attempt, name), whole_thread.ChangedError)
        except _DivergedError as error:
            self.result.conflicts[name] = str(error)
        except _NotStoredError as error:
            self.result.skipped[name] = str(error)
        except (CorruptionError, ConflictError, ThreadArchivedError) as error:
            self.result.skipped[name] = error.message

    def _attempt(self, name: str) -> Operation[None]:
        rows, entry = yield from on(self.store, read_both(name))
        try:
            yield from self._thread(name, rows, entry)
        except CorruptionError as error:
            now = yield from on(self.store, fetch_checkpoint(name, "", None))
            if now.generation != rows.generation:
                raise whole_thread.ChangedError from error
            raise

    def _thread(self, name: str, rows: ThreadRows, entry: ThreadEntry | None) -> Operation[None]:
        ours = {(one.row.ns, one.row.id): one for one in rows.checkpoints if is_left(one.row.ns)}
        theirs = yield from external(partial(self.source.present, name))
        if (found := not_held(rows, entry)) and (ours or is_there(entry)):
            self.result.not_held[name] = found
        if not ours:
            if theirs.parents and rows.deleted_at:
                self.result.deleted.append(name)
            return
        existing = ExistingThread(self.engine, name, rows)
        copy = yield from external(partial(self._planned, name, ours, theirs))
        if (yield from external(partial(_is_newer, copy, existing))):
            self.result.newer.append(name)
            return
        if not self.dry_run:
            for key in copy.to_compare():
                yield from self._check_tip(copy, key)
            counted = self.result.checkpoints, self.result.writes
            try:
                yield from self._write(copy)
            except _NotStoredError:
                if not theirs.parents and (yield from external(partial(self._undone, copy))):
                    self.result.checkpoints, self.result.writes = counted
                raise
        self.result.checkpoints += len(copy.missing) if self.dry_run else 0
        self.result.unchanged += len(ours) - len(copy.missing)
        self.result.threads += 1
        if self.verify:
            yield from self._verify(copy)

    def _undone(self, copy: _Copy) -> bool:
        """Delete a new thread there, and return True, unless another program has continued it."""
        there = self.source.present(copy.name)
        is_ours = there.parents.keys() <= copy.ours.keys() and all(
            key in copy.ours and writes <= self._numbers(copy.ours[key])
            for key, writes in there.writes.items()
        )
        if is_ours:
            self.saver.delete_thread(copy.name)
        return is_ours

    def bring(self, place: CheckpointRef) -> Operation[None]:
        rows, _ = yield from on(self.store, read_both(place.thread))
        ours = {(one.row.ns, one.row.id): one for one in rows.checkpoints}
        theirs = yield from external(partial(self.source.present, place.thread))
        copy = yield from external(partial(self._planned, place.thread, ours, theirs))
        missing, key = set[CheckpointKey](), (place.ns, str(place.id))
        while key in copy.missing:
            missing.add(key)
            key = place.ns, str(ours[key].row.parent)
        lacking = {key: copy.lacking[key]} if key in copy.lacking else {}
        yield from self._write(copy._replace(missing=missing, lacking=lacking))

    def _planned(
        self, name: str, ours: dict[CheckpointKey, StoredCheckpoint], theirs: Present
    ) -> _Copy:
        missing = ours.keys() - theirs.parents.keys()
        lacking, versions = self._lacking(ours, theirs), self._versions(ours)
        return _Copy(name, ours, theirs, missing, lacking, versions)

    def _versions(self, ours: dict[CheckpointKey, StoredCheckpoint]) -> LangGraphVersions:
        versions, known = LangGraphVersions(), Keyframes()
        for key in sorted(ours, key=lambda key: key[1]):
            with named(ours[key]):
                read, _ = read_channels(self.engine, ours[key], known)
            numbers = {name: entry.version for name, entry in read.entries.items()}
            versions.add(key, ours[key].row.parent, numbers, read.seen)
        return versions

    def _lacking(
        self, ours: dict[CheckpointKey, StoredCheckpoint], theirs: Present
    ) -> dict[CheckpointKey, set[tuple[str, int]]]:
        """Return the pending writes that checkpoints there lack."""
        found = {}
        for key in ours.keys() & theirs.parents.keys():
            with named(ours[key]):
                own = self._numbers(ours[key])
            if lacking := own - theirs.writes.get(key, set()):
                found[key] = lacking
        return found

    def _numbers(self, stored: StoredCheckpoint) -> set[tuple[str, int]]:
        """Return the task and index of the checkpoint's writes, as LangGraph numbers them."""
        return {(one.task_id, one.idx) for one in numbered(self._writes_of(stored))}

    def _writes_of(
        self, stored: StoredCheckpoint, values: Sequence[tuple[str, str, Any]] = ()
    ) -> list[SourceWrite]:
        """Return the checkpoint's pending writes, with their values or None."""
        writes = read_writes(self.engine, stored.row.ns, stored.writes, stored.child)
        found = [value for *_, value in values] or [None] * len(writes)
        return [
            SourceWrite(one.task_id, one.task_path, one.idx, one.channel, value)
            for one, value in zip(writes, found, strict=True)
        ]

    def _load(self, copy: _Copy, rows: Sequence[StoredCheckpoint]) -> Operation[list[Loaded]]:
        """Load checkpoints, with versions as LangGraph's savers make them."""
        loaded = yield from on(self.store, of_thread(self.engine, copy.name, rows))
        return [
            one._replace(checkpoint=copy.versions.applied((one.ns, one.id), one.checkpoint))
            for one in loaded
        ]

    def _write(self, copy: _Copy) -> Operation[None]:
        """Write all missing rows."""
        writer = _Writer(self.saver, copy, self.result)
        keys = copy.to_write()
        self.copying.begin(copy.name, len(keys))
        for rows in parts_of([copy.ours[key] for key in keys], lambda _: 0, AT_ONCE):
            loaded = yield from self._load(copy, rows)
            yield from external(partial(writer.put, list(map(self._as_source, rows, loaded))))
            self.copying.add(len(rows))
        yield from external(writer.flush)

    def _as_source(self, stored: StoredCheckpoint, loaded: Loaded) -> SourceCheckpoint:
        row, writes = stored.row, self._writes_of(stored, loaded.writes)
        checkpoint = {**loaded.checkpoint, "id": row.id}
        return SourceCheckpoint(row.ns, row.id, row.parent, checkpoint, loaded.metadata, writes)

    def _check_tip(self, copy: _Copy, key: CheckpointKey) -> Operation[None]:
        """Compare a checkpoint that the copy continues. Add changed special writes to `lacking`."""
        stored = copy.ours[key]
        (ours,) = yield from self._load(copy, [stored])
        every = [write for row in stored.writes for write in unpack_writes(row)]
        spans = [span for write in every for span in write.ref.needs]
        found, _ = yield from on(self.store, read_elements(self.engine, copy.name, spans))
        known = [(one.task_id, one.channel, found.value(one.ref)) for one in every]
        theirs = yield from external(partial(get, self.saver, copy.name, ours))
        if theirs is None or theirs.checkpoint["ts"] != ours.checkpoint["ts"]:
            raise _DivergedError(f"Checkpoint {key[1]} is there already, in another state.")
        there = theirs.pending_writes or []
        if not all(any(self._is_same(own, write) for own in known) for write in there):
            raise _DivergedError(f"Checkpoint {key[1]} has other pending writes there.")
        for write in self._writes_of(stored, ours.writes):
            own = (write.task_id, write.channel, write.value)
            if write.idx < 0 and not any(self._is_same(own, one) for one in there):
                copy.lacking.setdefault(key, set()).add((write.task_id, write.idx))

    def _is_same(self, own: tuple[str, str, Any], write: tuple[str, str, Any]) -> bool:
        """Return True if a write there is ours."""
        if own[:2] != write[:2]:
            return False
        return is_as_there(self.engine.codec, self.source.serde, own[2], write[2])

    def _verify(self, copy: _Copy) -> Operation[None]:
        self.verifying.begin(copy.name, len(copy.ours))
        there = copy.name, self.saver, self.source.serde
        stored = [copy.ours[key] for key in sorted(copy.ours)]
        load, codec = partial(self._load, copy), self.engine.codec
        found = yield from first_difference(load, stored, codec, there, self.verifying)
        if found is not None:
            self.result.differences[copy.name] = f"Checkpoint {found[1]}: {found[2]}."
        self.result.verified += len(copy.ours)


class _Writer:
    """Writes one thread's checkpoints, in the order of their ids. Calls may block."""

    def __init__(self, saver: BaseCheckpointSaver[Any], copy: _Copy, result: LeaveReport) -> None:
        self._saver = saver
        self._copy = copy
        self._missing = copy.missing
        self._result = result
        self._waiting: dict[str, SourceCheckpoint] = {}  # whose writes are next, by namespace
        self._versions: Lru[CheckpointKey, Any] = Lru(_VERSIONS)

    def put(self, checkpoints: Iterable[SourceCheckpoint]) -> None:
        """Write checkpoints, and the writes of those before them."""
        for one in checkpoints:
            self.flush(None if not one.ns else one.ns)
            if (one.ns, one.id) in self._missing:
                self._put(one)
            self._waiting[one.ns] = one

    def flush(self, ns: str | None = None) -> None:
        """Write the waiting writes of a namespace, or all, the graph's own last."""
        for name in sorted(self._waiting, reverse=True):
            if ns is None or ns == name:
                self._put_writes(self._waiting.pop(name))

    def _put(self, one: SourceCheckpoint) -> None:
        previous = self._versions.get((one.ns, str(one.parent)))
        self._calling(one, put_checkpoint, self._saver, self._copy.name, one, previous)
        self._versions.put((one.ns, one.id), one.checkpoint["channel_versions"])
        self._result.checkpoints += 1

    def _put_writes(self, one: SourceCheckpoint) -> None:
        key = (one.ns, one.id)
        lacking = self._copy.lacking.get(key)
        tasks = None if lacking is None else {task for task, _ in lacking}
        writes = [write for write in one.writes if tasks is None or write.task_id in tasks]
        self._calling(one, put_writes, self._saver, self._copy.name, one.ns, one.id, writes)
        self._result.writes += len(writes) if lacking is None else len(lacking)

    def _calling(self, one: SourceCheckpoint, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except ThreadkeepError:
            raise
        except Exception as error:
            names = {cls.__name__ for cls in type(error).__mro__}
            if isinstance(error, OSError) or not names.isdisjoint(_UNAVAILABLE):
                raise BackendError(f"LangGraph's saver failed: {describe(error)}.") from error
            text = f"LangGraph's saver refuses checkpoint {one.id}: {describe(error)}."
            raise _NotStoredError(text) from error


# -- comparison ---------------------------------------------------------------------------


def _tips(theirs: Present) -> set[CheckpointKey]:
    """Return the checkpoints there that none there continues."""
    parents = {(ns, parent) for (ns, _), parent in theirs.parents.items() if parent is not None}
    return theirs.parents.keys() - parents


def _is_newer(copy: _Copy, existing: ExistingThread) -> bool:
    """Return True if only the target has changed. Raises an error if both sides have."""
    ours, theirs = copy.ours, copy.theirs
    for key in ours.keys() & theirs.parents.keys():
        if theirs.parents[key] not in (None, ours[key].row.parent):  # (None: it was pruned there)
            raise _DivergedError(f"Checkpoint {key[1]} is there already, with another parent.")
    newest = max([id for _, id in existing.shared(theirs.parents)], default="")
    extra = [key for key in theirs.parents.keys() - ours.keys() if is_left(key[0])]
    is_ahead = any(id > newest for _, id in extra) or any(
        theirs.writes.get(key, set()) - existing.writes(*key) for key in _tips(theirs) & ours.keys()
    )
    if is_ahead and (copy.lacking or any(id > newest for _, id in copy.missing)):
        raise _DivergedError("The thread here and the thread there have diverged.")
    return is_ahead


# -- parts that LangGraph's tables do not hold --------------------------------------------


def not_held(rows: ThreadRows, entry: ThreadEntry | None) -> dict[str, int]:
    """Count the parts of a thread that are lost or changed in LangGraph's tables, by kind."""
    labels = () if entry is None else entry.labels
    stored = {(one.row.ns, one.row.id): one for one in rows.checkpoints}
    counts = {
        "tags": len(set(thread_entry.tags_of(labels)) - thread_entry.OWN_TAGS),
        "metadata": len(thread_entry.metadata_labels(labels)),
        "pin": entry is not None and entry.pinned,
        "ttl": entry is not None and entry.ttl is not None,
        "origin": entry is not None and entry.origin is not None,
        "marked checkpoints": len(thread_entry.marks_of(labels)),
        "stored inputs": sum([ns == INPUTS_NS for ns, _ in stored]),
        "partial output": sum([not is_left(ns) and ns != INPUTS_NS for ns, _ in stored]),
        "layered memory": sum([ns == LAYERS_NS for ns, _ in stored]),
        "pruned checkpoints": sum([bool(one.row.flags & HIDDEN) for one in stored.values()]),
        "missing parents": sum(
            [
                one.row.parent is not None and (ns, one.row.parent) not in stored
                for (ns, _), one in stored.items()
                if is_left(ns)
            ]
        ),
        "writes of other runs": sum([_others(one, stored) for one in stored.values()]),
    }
    return {kind: int(count) for kind, count in counts.items() if count}


def _others(one: StoredCheckpoint, stored: dict[CheckpointKey, StoredCheckpoint]) -> int:
    """Count the writes that led to a checkpoint, and that its parent has from another run."""
    parent = stored.get((one.row.ns, str(one.row.parent)))
    if parent is None or not parent.writes:
        return 0
    own = _by_place(counting(parent.writes, parent.child))
    led = _by_place(counting(parent.writes, Child(one.row.id, one.row.run, one.row.seen)))
    return sum([own.get(place) != ref for place, ref in led.items()])


def _by_place(writes: Iterable[Write]) -> dict[tuple[str, int], Any]:
    return {(one.task_id, one.idx): one.ref for one in writes}
