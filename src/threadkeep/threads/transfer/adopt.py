"""Copies of threads from LangGraph's own savers.

The source is never changed. Checkpoints are stored by namespace and id, each before its own writes,
so that a repeated call continues after an interruption. At most a few megabytes of the source and
two states of a thread are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core import validation
from threadkeep._core.engine import put
from threadkeep._core.engine.context import Engine, Keyframes, read_elements, read_manifest
from threadkeep._core.engine.differences import alike
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._core.engine.listing import Listing
from threadkeep._core.engine.listing import page as page_of
from threadkeep._core.engine.load import Loaded
from threadkeep._core.engine.model import HIDDEN, OWN_NS, DropThread, ReadThread, ThreadRows
from threadkeep._core.engine.operation import (
    CheckpointRef,
    Operation,
    Progress,
    commit,
    fetch,
    no_progress,
)
from threadkeep._core.engine.put import Put, PutWrites, SaveCall
from threadkeep._core.engine.refs import Manifest, Ref
from threadkeep._core.engine.rows import (
    created_at,
    pack_time,
    unpack_metadata,
    unpack_time,
    unpack_writes,
)
from threadkeep._core.parts import parts_of
from threadkeep._run.driver import Runner, external, on, together
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    ThreadExistsError,
    ThreadNotFoundError,
)
from threadkeep.threads import forks as forking
from threadkeep.threads.retention.choose import GRACE
from threadkeep.threads.transfer.opening import open_source
from threadkeep.threads.transfer.sources import (
    LangGraphSource,
    SourceCheckpoint,
    SourceWrite,
    differences,
    in_order,
)

_MOST_CHECKPOINTS = 64  # in one read, and one write
_MOST_BYTES = 8 << 20
_FORK = "-adopted"  # ends the id of a fork


@dataclass(slots=True)
class AdoptReport:
    """Result of an adoption.

    Attributes:
        threads: the number of threads that have all of the source's checkpoints now.
        checkpoints: the number of checkpoints written.
        unchanged: the number of checkpoints that were stored already.
        writes: calls of pending writes that were written.
        verified: the number of checkpoints compared.
        plain: the number of values that the source held unencrypted, though keys were given.
        deleted: threads that were not copied, as they had been deleted here.
        conflicts: reasons why other threads were not copied, by thread.
        replaced: threads that were replaced with the source's, with `replace`.
        forks: forks that hold the source's threads, by thread, with `as_fork`.
    """

    threads: int = 0
    checkpoints: int = 0
    unchanged: int = 0
    writes: int = 0
    verified: int = 0
    plain: int = 0
    deleted: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    forks: dict[str, str] = field(default_factory=dict)


def adopt(
    store: LayeredBackend,
    engine: Engine,
    source: str | os.PathLike[str] | BaseCheckpointSaver[Any],
    threads: str | Iterable[str] | None,
    key: str | bytes | None,
    progress: Progress | None,
    **flags: bool,
) -> Operation[AdoptReport]:
    """Copy a source's threads into a store; see `Threads.adopt`."""
    if flags["replace"] and flags["as_fork"]:
        raise InvalidArgumentError(
            "replace= and as_fork= exclude each other.", hint="Use one of them."
        )
    names = validation.thread_ids(threads)
    ring = None if store.backend.keys is None else store.backend.keys.ring
    opened = yield from external(partial(open_source, source, engine.codec, key, ring))
    with closing(opened):
        counts = yield from external(opened.threads)
        for name in names or ():
            if name not in counts:
                raise ThreadNotFoundError(
                    hint="The source has no checkpoint of this thread: correct the id.", thread=name
                )
        wanted = {name: counts[name] for name in (counts if names is None else names)}
        # the source is copied in any order, and a program of before wrote its channels
        engine = engine._replace(conflicts="fork", shapes=None)
        total = sum(wanted.values())
        run = _Adoption(store, engine, opened, progress or no_progress, total, **flags)
        for name in wanted:
            validation.text("The source's thread_id", name)
            existing = yield from run.existing(name, revive=names is not None)
            if existing.deleted_at and not existing.stored:
                run.result.deleted.append(name)
                run.count(counts[name])
            else:
                yield from run.thread(name, existing)
    yield from store.flush()
    return run.result


def take(
    store: LayeredBackend,
    engine: Engine,
    source: LangGraphSource,
    thread: str,
    since: Mapping[str, str],
    *,
    merges: bool,
) -> Operation[tuple[str | None, dict[str, str]]]:
    """Copy the checkpoints of a thread of an open source that are missing here.

    A deletion here is final, but a thread that was begun again there is copied. With
    `merges`, runs that both have made become branches, and questions and answers of the source's
    heads take the place of those here: as in one store of LangGraph's.

    Values of checkpoints that are here are not read again, but those of the heads, and of the heads
    as of the last call (`since`): writes may have been added to them.

    Returns:
        The reason why it was not copied, or None, and the source's heads by namespace.
    """
    engine = engine._replace(conflicts="fork", shapes=None)
    flags = dict.fromkeys(("verify", "replace", "as_fork", "dry_run"), False)
    run = _Adoption(store, engine, source, no_progress, total=0, **flags)
    run.merges, run.since, run.is_tail = merges, since, True
    existing = yield from run.existing(thread, revive=False)
    yield from run.thread(thread, existing)
    yield from store.flush()
    return run.result.conflicts.get(thread), run.heads


@dataclass(slots=True)
class _Adoption:
    """One call of `adopt`."""

    store: Runner
    engine: Engine
    source: LangGraphSource
    progress: Progress
    total: int
    verify: bool
    replace: bool
    as_fork: bool
    dry_run: bool
    merges: bool = field(init=False, default=False)  # see `take`
    is_tail: bool = field(init=False, default=False)  # (likewise)
    since: Mapping[str, str] = field(init=False, default_factory=dict)
    first: str = field(init=False, default="")  # the id from which on checkpoints are read
    heads: dict[str, str] = field(init=False, default_factory=dict)  # of the thread in the source
    done: int = field(init=False, default=0)
    result: AdoptReport = field(init=False, default_factory=AdoptReport)

    def count(self, checkpoints: int) -> None:
        self.done = min(self.done + checkpoints, self.total)  # (some are read twice)
        self.progress("checkpoints read", self.done, self.total)

    def existing(self, thread: str, *, revive: bool) -> Operation[ExistingThread]:
        """Read the thread here. With `revive`, a deleted thread may be created again."""
        rows = yield from on(self.store, fetch(ReadThread(thread)))
        existing = ExistingThread(self.engine, thread, rows)
        if revive and existing.deleted_at and not existing.stored:
            existing.deleted_at = 0
            if not self.dry_run:
                yield from on(self.store, commit(DropThread(thread, 0)))
        return existing

    def thread(self, name: str, existing: ExistingThread) -> Operation[None]:
        """Copy a thread, or report it as a conflict."""
        unchanged = self.result.unchanged
        yield from external(self.source.begin)
        try:
            if self.dry_run:
                yield from self._foresee(name, existing)
                return
            try:
                yield from self._copy(name, existing)
            except ThreadExistsError:
                if not (self.replace or self.as_fork):
                    raise
                self.result.unchanged = unchanged
                yield from (self._replace if self.replace else self._fork)(name, existing)
            self.result.threads += 1
        except ThreadExistsError as error:
            self.result.unchanged = unchanged
            self.result.conflicts[name] = error.message
        finally:
            self.source.end()

    def _foresee(self, name: str, existing: ExistingThread) -> Operation[None]:
        """Count the checkpoints that a copy would write, without reading values."""
        parents = yield from external(partial(self.source.parents, name))
        self.count(len(parents))
        missing = len(parents.keys() - existing.stored.keys())
        if existing.deleted(parents) or existing.diverged(parents):
            if not (self.replace or self.as_fork):
                raise existing.conflict()
            if self.replace:
                self.result.replaced.append(name)
                missing = len(parents)
            else:
                self.result.forks[name] = f"{name}{_FORK}"
        self.result.threads += 1
        self.result.checkpoints += missing
        self.result.unchanged += len(parents) - missing

    def _copy(self, name: str, existing: ExistingThread) -> Operation[None]:
        """Store the checkpoints and writes that are missing here."""
        gone: set[CheckpointKey] = set()
        if existing.stored or self.is_tail:
            parents = yield from external(partial(self.source.parents, name))
            self.heads = dict(sorted(parents))  # (the last of each namespace)
            gone = existing.deleted(parents)
            left = {key: parents[key] for key in parents.keys() - gone}
            is_conflict = existing.diverged(left) or (gone and not self.is_tail)
            if is_conflict and not self.merges:
                self.count(len(parents))
                raise existing.conflict()
            if self.is_tail:
                pruned = existing.pruned(left)
                gone |= pruned
                left = {key: left[key] for key in left.keys() - pruned}
                self.first = self._tail(left, existing)
        keys = yield from self._put_missing(name, existing, gone)
        if self.verify:
            yield from self._verify(name, existing.thread, keys)

    def _tail(self, parents: Mapping[CheckpointKey, str | None], existing: ExistingThread) -> str:
        """Return the id of the oldest checkpoint that may lack something here."""
        missing = parents.keys() - existing.stored.keys()
        newest = dict(sorted(parents.keys() & existing.stored.keys()))  # of each namespace
        ids = {id for _, id in missing} | {newest.get(ns, "~") for ns, _ in missing}
        for heads in (self.heads, self.since):
            ids |= {heads.get("", "~"), max(heads.values(), default="~")}
        return min(ids)

    def _replace(self, name: str, existing: ExistingThread) -> Operation[None]:
        """Replace the thread here with the source's."""
        with self._parts(name) as parts:
            while (yield from external(partial(next, parts, None))):
                pass  # an unreadable checkpoint raises before anything is removed
        yield from on(self.store, commit(DropThread(name, 0)))
        self.result.replaced.append(name)
        existing = yield from self.existing(name, revive=True)
        yield from self._copy(name, existing)

    def _fork(self, name: str, existing: ExistingThread) -> Operation[None]:
        """Copy the source's thread into a fork of the one here, or complete that fork.

        The fork begins with the newest shared checkpoint, and shares its values.
        """
        target = f"{name}{_FORK}"
        fork = yield from self.existing(target, revive=True)
        if not fork.stored:
            parents = yield from external(partial(self.source.parents, name))
            shared = existing.newest_shared(parents)
            if shared is not None:
                yield from on(self.store, forking.fork(self.engine, name, shared, target))
                fork = yield from self.existing(target, revive=False)
        yield from self._copy(name, fork)
        self.result.forks[name] = target

    def _put_missing(
        self, name: str, existing: ExistingThread, gone: set[CheckpointKey]
    ) -> Operation[set[CheckpointKey]]:
        """Store missing checkpoints, except those in `gone`.

        Returns:
            The keys of the source's that are visible here.
        """
        keys: set[CheckpointKey] = set()
        apart, plain = self.engine.apart(), self.source.plain
        with self._parts(name) as parts:
            while found := (yield from external(partial(next, parts, None))):
                part = [one for one in found if (one.ns, one.id) not in gone]
                yield from on(self.store, existing.read_special(part))
                calls = [call for one in part for call in self._calls(one, existing)]
                apart = yield from self._store(calls, apart)
                keys |= {key for one in part if not existing.hides(*(key := (one.ns, one.id)))}
                self.count(len(found))
        self.result.plain += self.source.plain - plain
        return keys

    @contextmanager
    def _parts(self, name: str) -> Iterator[Iterator[list[SourceCheckpoint]]]:
        with closing(self.source.checkpoints(name, self.first)) as found:
            yield parts_of(found, lambda one: one.size, _MOST_CHECKPOINTS, _MOST_BYTES)

    def _calls(self, one: SourceCheckpoint, existing: ExistingThread) -> Iterator[SaveCall]:
        """Make the calls that store a checkpoint and the writes of each task."""
        thread = existing.thread
        place = CheckpointRef(thread, validation.text("checkpoint_ns", one.ns), one.id)
        for key in ("channel_values", "channel_versions"):
            value = validation.mapping("checkpoint", one.checkpoint, place).get(key)
            validation.mapping(f"checkpoint[{key!r}]", value, place)
        if (one.ns, one.id) in existing.stored:
            if not existing.is_same(place, one):
                raise ThreadExistsError(
                    f"Checkpoint {one.id} is stored already, in another state.", thread=thread
                )
            self.result.unchanged += 1
        else:
            validation.checkpoint(one.checkpoint, place)
            yield Put(place, one.parent, one.checkpoint, one.metadata, complete=True)
        stored = existing.writes(one.ns, one.id)
        again = self.merges and self.heads.get(one.ns) == one.id
        missing = [
            w
            for w in one.writes
            if (w.task_id, w.idx) not in stored
            or (w.idx < 0 and (again or existing.is_new(one, w)))
        ]
        yield from _write_calls(place, missing)

    def _store(self, calls: list[SaveCall], apart: Engine) -> Operation[Engine]:
        """Run the calls; return the engine that knows their results."""
        done = yield from on(self.store, together(_operation(apart, one) for one in calls))
        if done is None:  # another process writes to this thread
            apart = self.engine.apart()
            for one in calls:
                yield from on(self.store, _operation(apart, one))
        puts = sum([isinstance(one, Put) for one in calls])
        self.result.checkpoints += puts
        self.result.writes += len(calls) - puts
        return apart

    def _verify(self, name: str, target: str, keys: set[CheckpointKey]) -> Operation[None]:
        """Compare each checkpoint as LangGraph's own saver and ours return it."""
        theirs = yield from external(self.source.saver)
        rest = set(keys)
        own = {ns for ns, _ in keys if ns.startswith(OWN_NS)}  # (not among all namespaces)
        for ns in (None, *sorted(own)):
            at: Listing | None = Listing(target, ns)
            while at is not None:
                page, at = yield from on(self.store, page_of(self.engine, at))
                for loaded in page:
                    if (loaded.ns, loaded.id) in rest:
                        yield from external(partial(self._compare, theirs, name, loaded))
                        rest.remove((loaded.ns, loaded.id))
        self.result.verified += len(keys) - len(rest)
        for ns, checkpoint in sorted(rest):
            raise _different(target, ns, checkpoint, "it is missing here")

    def _compare(self, saver: BaseCheckpointSaver[Any], thread: str, ours: Loaded) -> None:
        place = {"thread_id": thread, "checkpoint_ns": ours.ns, "checkpoint_id": ours.id}
        theirs = saver.get_tuple({"configurable": place})
        found = ["it is missing in the source"]
        if theirs is not None:
            found = differences(self.engine.codec, ours, theirs, saver.serde)
        if found:
            raise _different(ours.thread, ours.ns, ours.id, ", ".join(found))


def _operation(engine: Engine, call: SaveCall) -> Operation[None]:
    """Store a call as of its own time, which the registry shows as the time of the write."""
    at = pack_time(call.checkpoint.get("ts", "")) if isinstance(call, Put) else None
    made = at if isinstance(at, int) else created_at(call.place.id)
    if made is not None:
        engine = engine._replace(now=lambda: made)
    return put.save(engine, call)


def _write_calls(place: CheckpointRef, writes: Iterable[SourceWrite]) -> Iterator[PutWrites]:
    """Make one call per task, in the order of tasks."""
    for (path, task), each in groupby(writes, lambda w: (w.task_path, w.task_id)):
        own = list(each)
        pairs = validation.writes([(w.channel, w.value) for w in own], place)
        names = validation.text("task_id", task, place), validation.text("task_path", path, place)
        yield PutWrites(place, pairs, *names, [w.idx for w in own])


def _different(thread: str, ns: str, checkpoint: str, what: str) -> CorruptionError:
    return CorruptionError(
        f"The checkpoint here differs from LangGraph's own: {what}.",
        hint="Does a run continue this thread here? If not, adopt the thread into another store,"
        " and compare.",
        thread=thread,
        namespace=ns or None,
        checkpoint=checkpoint,
    )


# -- comparison with the thread here, without the values -------------------------------


class ExistingThread:
    """A thread's checkpoints in the store (`stored`), including hidden checkpoints.

    LangGraph takes checkpoints with the same id, parent, time, metadata and channel versions for
    the same.
    """

    def __init__(self, engine: Engine, thread: str, rows: ThreadRows) -> None:
        self.thread = thread
        self.deleted_at = rows.deleted_at
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
            made = put.born(checkpoint, parent)
            if (ns, parent) in gone or (made is not None and made <= self.deleted_at):
                gone.add((ns, checkpoint))
        return gone

    def pruned(self, theirs: Mapping[CheckpointKey, str | None]) -> set[CheckpointKey]:
        """Return their checkpoints that were here and were removed: ancestors of those here.

        Also all that are older than the first that was kept, such as those of subgraphs, except
        those that a new branch begins from, and young tips, which retention keeps too.
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
            and _is_same_shape(manifest, one.checkpoint)
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


def _is_same_shape(manifest: Manifest, checkpoint: Mapping[str, Any]) -> bool:
    """Return True if a checkpoint has the same versions, and values of the same channels."""
    entries = manifest.entries
    versions = {c: e.version for c, e in entries.items() if e.version is not None}
    values = {c for c, e in entries.items() if e.ref is not None}
    seen, theirs = manifest.seen, checkpoint.get("versions_seen", {})
    return (
        values == set(checkpoint["channel_values"])
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
