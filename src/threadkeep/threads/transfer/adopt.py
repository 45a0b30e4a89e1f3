"""Copies of threads from LangGraph's own savers.

The source is never changed. Checkpoints are stored by namespace and id, each before its own writes,
so that a repeated call continues after an interruption. At most a few megabytes of the source and
two states of a thread are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core import validation
from threadkeep._core.engine import put
from threadkeep._core.engine.calls import Put, PutWrites, SaveCall
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._core.engine.load import Loaded, of_thread
from threadkeep._core.engine.model import Batch, DropThread, StoredCheckpoint
from threadkeep._core.engine.operation import (
    CheckpointRef,
    Operation,
    Progress,
    commit,
)
from threadkeep._core.engine.registration import retry, rows_fence
from threadkeep._core.engine.rows import created_at, pack_time
from threadkeep._core.engine.thread_entry import (
    EntryUpdate,
    is_taken,
    is_there,
    taken_label,
)
from threadkeep._core.parts import parts_of
from threadkeep._run.driver import Runner, external, on
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.together import together
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadNotFoundError,
    UnserializableError,
)
from threadkeep.threads import forks as forking
from threadkeep.threads.transfer.existing import ExistingThread, first_difference, read_both
from threadkeep.threads.transfer.meter import QUIET, Meter
from threadkeep.threads.transfer.opening import open_source
from threadkeep.threads.transfer.sources import (
    LangGraphSource,
    SourceCheckpoint,
    SourceWrite,
)

_MOST_CHECKPOINTS = 64  # in one read, and one write
_MOST_BYTES = 8 << 20
_RECENT = 64  # checkpoints of a thread that may still get writes
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
        skipped: reasons why damaged threads were not copied, or only to the damaged checkpoint, by
            thread.
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
    skipped: dict[str, str] = field(default_factory=dict)


def adopt(
    store: LayeredBackend,
    engine: Engine,
    /,
    source: str | os.PathLike[str] | BaseCheckpointSaver[Any],
    threads: str | Iterable[str] | None,
    key: str | bytes | None,
    progress: Progress | None,
    **flags: bool,
) -> Operation[AdoptReport]:
    if flags["replace"] and flags["as_fork"]:
        raise InvalidArgumentError(
            "replace= and as_fork= exclude each other.", hint="Use one of them."
        )
    names = validation.thread_ids(threads)
    ring = None if store.backend.keys is None else store.backend.keys.ring
    opened = yield from external(partial(open_source, source, engine.codec, key, ring))
    with closing(opened):
        if flags["verify"]:
            yield from external(opened.saver)  # (fails before anything is copied)
        counts = yield from external(opened.threads)
        for name in names or ():
            if name not in counts:
                raise ThreadNotFoundError(
                    hint="The source has no checkpoint of this thread: correct the id.", thread=name
                )
        wanted = {name: counts[name] for name in (counts if names is None else names)}
        # the source is copied in any order, and a program of before wrote its channels
        engine = engine._replace(conflicts="fork", shapes=None)
        reading = Meter(progress, "read", len(wanted), wanted)
        run = _Adoption(store, engine, opened, reading, Meter(progress, "verified"), **flags)

        def visit(name: str) -> Operation[None]:
            try:
                yield from run.visit(name, revive=names is not None)
            except (CorruptionError, InvalidArgumentError, UnserializableError) as error:
                if names is not None or run.is_verifying:
                    raise
                run.result.skipped[name] = str(error.at(thread=name)).partition("\n")[0]

        yield from reading.each(wanted, visit)
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
    while True:
        run = _Adoption(store, engine, source, QUIET, QUIET)
        run.merges, run.since, run.is_tail = merges, since, True
        existing = yield from run.existing(thread, revive=False)
        try:
            yield from run.thread(thread, existing)
        except ThreadDeletedError:
            continue  # (it was deleted here meanwhile)
        return run.result.conflicts.get(thread), run.heads


@dataclass(slots=True)
class _Adoption:
    """One call of `adopt`."""

    store: Runner
    engine: Engine
    source: LangGraphSource
    reading: Meter
    verifying: Meter
    verify: bool = False
    replace: bool = False
    as_fork: bool = False
    dry_run: bool = False
    merges: bool = field(init=False, default=False)  # see `take`
    is_tail: bool = field(init=False, default=False)  # (likewise)
    since: Mapping[str, str] = field(init=False, default_factory=dict)
    first: str = field(init=False, default="")  # the id from which on checkpoints are read
    heads: dict[str, str] = field(init=False, default_factory=dict)  # of the thread in the source
    is_verifying: bool = field(init=False, default=False)
    result: AdoptReport = field(init=False, default_factory=AdoptReport)

    def existing(self, thread: str, *, revive: bool) -> Operation[ExistingThread]:
        """Read the thread here. With `revive`, a deleted thread may be created again."""
        return retry(thread, partial(self._existing, thread, revive=revive))

    def _existing(self, thread: str, *, revive: bool) -> Operation[ExistingThread]:
        rows, entry = yield from on(self.store, read_both(thread))
        existing = ExistingThread(self.engine, thread, rows)
        existing.is_taken = is_there(entry) and is_taken(
            entry.labels, thread, self.source.place, exact=True
        )
        if revive and existing.deleted_at and not existing.stored:
            existing.deleted_at = 0
            if not self.dry_run:
                drop = DropThread(thread, 0, rows.generation, (rows_fence((rows,)),))
                yield from on(self.store, commit(drop))  # (refused if it was begun again)
        return existing

    def visit(self, name: str, *, revive: bool) -> Operation[None]:
        """Copy a thread, unless it was deleted here."""
        validation.text("The source's thread_id", name)
        existing = yield from self.existing(name, revive=revive)
        if existing.deleted_at and not existing.stored:
            self.result.deleted.append(name)
        else:
            try:
                yield from self.thread(name, existing)
            except ThreadDeletedError:  # (meanwhile)
                self.result.deleted.append(name)

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
            yield from self._mark(name, existing)
            self.result.threads += 1
        except ThreadExistsError as error:
            self.result.unchanged = unchanged
            self.result.conflicts[name] = error.message
        finally:
            self.source.end()

    def _mark(self, name: str, existing: ExistingThread) -> Operation[None]:
        """Note in the entry that LangGraph's store has the thread."""
        if not existing.is_taken or name in self.result.replaced:
            label = taken_label(name, self.source.place)
            touch = EntryUpdate(at=0, labels=(label,))  # (0: it was not used)
            yield from on(self.store, commit(Batch(name, self.engine.now(), touch=touch)))

    def _foresee(self, name: str, existing: ExistingThread) -> Operation[None]:
        """Count the checkpoints that a copy would write, without reading values."""
        parents = yield from external(partial(self.source.parents, name))
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
                raise existing.conflict()
            if self.is_tail:
                pruned = existing.pruned(left)
                gone |= pruned
                left = {key: left[key] for key in left.keys() - pruned}
                self.first = yield from self._tail(name, left, existing)
        keys = yield from self._put_missing(name, existing, gone)
        if self.verify:
            yield from self._verify(name, existing.thread, keys)

    def _tail(
        self, name: str, parents: Mapping[CheckpointKey, str | None], existing: ExistingThread
    ) -> Operation[str]:
        """Return the id of the oldest checkpoint that may lack something here.

        Runs that are under way there add writes to any of the newest checkpoints.
        """
        missing = parents.keys() - existing.stored.keys()
        newest = dict(sorted(parents.keys() & existing.stored.keys()))  # of each namespace
        ids = {id for _, id in missing} | {newest.get(ns, "~") for ns, _ in missing}
        for heads in (self.heads, self.since):
            ids |= {heads.get("", "~"), max(heads.values(), default="~")}
        recent = sorted([id for _, id in parents])[-_RECENT:]
        written = yield from external(partial(self.source.written, name, min(recent, default="~")))
        for key in written.keys() & parents.keys() & existing.stored.keys():
            if written[key] - existing.writes(*key):
                ids.add(key[1])
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
        self.reading.begin(name)
        with self._parts(name) as parts:
            while found := (yield from external(partial(next, parts, None))):
                part = [one for one in found if (one.ns, one.id) not in gone]
                yield from on(self.store, existing.read_special(part))
                calls = [call for one in part for call in self._calls(one, existing)]
                apart = yield from self._store(calls, apart)
                keys |= {key for one in part if not existing.hides(*(key := (one.ns, one.id)))}
                self.reading.add(len(found), sum([one.size for one in found]))
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
        validation.mapping("metadata", one.metadata, place)
        if (one.ns, one.id) in existing.stored:
            if not existing.is_same(place, one):
                raise ThreadExistsError(
                    f"Checkpoint {one.id} is stored already, in another state.", thread=thread
                )
            self.result.unchanged += 1
        else:
            validation.checkpoint(one.checkpoint, place)
            given = (place, one.parent, one.checkpoint, one.metadata)
            yield Put(*given, complete=True, life=existing.life)
        stored = existing.writes(one.ns, one.id)
        again = self.merges and self.heads.get(one.ns) == one.id
        missing = [
            w
            for w in one.writes
            if (w.task_id, w.idx) not in stored
            or (w.idx < 0 and (again or existing.is_new(one, w)))
        ]
        yield from _write_calls(place, missing, existing.life)

    def _store(self, calls: list[SaveCall], apart: Engine) -> Operation[Engine]:
        """Run the calls, and return the engine that knows their results."""
        done = yield from on(self.store, together([[_operation(apart, one) for one in calls]]))
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
        self.is_verifying = True
        self.verifying.begin(name, len(keys))
        saver = yield from external(self.source.saver)
        rows, _ = yield from on(self.store, read_both(target))
        stored = {(one.row.ns, one.row.id): one for one in rows.checkpoints}

        def load(part: Sequence[StoredCheckpoint]) -> Operation[list[Loaded]]:
            return on(self.store, of_thread(self.engine, target, part))

        ours = [stored[key] for key in sorted(keys & stored.keys())]
        there, codec = (name, saver, saver.serde), self.engine.codec
        found = yield from first_difference(load, ours, codec, there, self.verifying)
        lost = [(*key, "it is missing here") for key in sorted(keys - stored.keys())]
        for ns, checkpoint, what in [found] if found else lost[:1]:
            raise CorruptionError(
                f"The checkpoint here differs from LangGraph's own: {what}.",
                hint="Does a run continue this thread here? If not, adopt the thread into another"
                " store, and compare.",
                thread=target,
                namespace=ns or None,
                checkpoint=checkpoint,
            )
        self.result.verified += len(keys)
        self.is_verifying = False


def _operation(engine: Engine, call: SaveCall) -> Operation[None]:
    """Store a call as of its own time, which the registry shows as the time of the write."""
    at = pack_time(call.checkpoint.get("ts", "")) if isinstance(call, Put) else None
    made = at if isinstance(at, int) else created_at(call.place.id)
    if made is not None:
        engine = engine._replace(now=lambda: made)
    return put.save(engine, call)


def _write_calls(
    place: CheckpointRef, writes: Iterable[SourceWrite], life: int
) -> Iterator[PutWrites]:
    """Make one call per task, in the order of tasks."""
    for (path, task), each in groupby(writes, lambda w: (w.task_path, w.task_id)):
        own = list(each)
        pairs = validation.writes([(w.channel, w.value) for w in own], place)
        names = validation.text("task_id", task, place), validation.text("task_path", path, place)
        yield PutWrites(place, pairs, *names, [w.idx for w in own], life=life)
