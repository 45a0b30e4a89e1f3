"""One-way copies of new and changed threads from one store to another.

After an interruption, the other store shows whole threads, in this or an earlier state, and a
repeated call continues. A thread that is archived or deleted here meanwhile is compared again, so
that no content there is replaced by a thread without content. Stored inputs are not copied: they
run once, here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from threadkeep._core.codec import Codec, FormerSerde, SerdeCodec
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import DropThread
from threadkeep._core.engine.operation import Operation, Progress, commit
from threadkeep._core.engine.registration import OVERTAKEN, read_snapshot, retry
from threadkeep._core.engine.rows import created_at
from threadkeep._core.engine.thread_entry import is_archived, is_there
from threadkeep._run.driver import Runner, on
from threadkeep._run.first_change import check_is_plain
from threadkeep._run.layered_backend import LayeredBackend, store_of
from threadkeep.errors import CorruptionError, InvalidArgumentError
from threadkeep.threads.transfer import digest, whole_thread
from threadkeep.threads.transfer.meter import Meter
from threadkeep.threads.transfer.whole_thread import (
    ChangedError,
    ThreadRow,
    WholeThread,
    marks_of,
    put_rows,
    rows_of,
    whole_of,
    without_inputs,
)


@dataclass(slots=True)
class MirrorReport:
    """Result of a mirror, or of its dry run: the ids of threads.

    Attributes:
        added: threads that were missing there.
        extended: threads that were in an earlier state there.
        replaced: threads that were in another state there, with `replace`.
        deleted: threads that were deleted here, with `delete`.
        newer: threads that have everything and more there, not changed.
        conflicts: reasons why other threads were not changed, by thread.
        archived: unnamed threads that are archived here, not copied.
        skipped: unnamed damaged threads, each with the reason, not copied.
        unchanged: the number of threads that were the same.
    """

    added: list[str] = field(default_factory=list)
    extended: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    newer: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    archived: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    unchanged: int = 0


def mirror(
    store: LayeredBackend,
    engine: Engine,
    /,
    other: Any,
    threads: str | Iterable[str] | None,
    progress: Progress | None,
    **flags: bool,
) -> Operation[MirrorReport]:
    there = store_of(other)
    if there.backend is store.backend:
        raise InvalidArgumentError("The other store is this one.", hint="Use another saver.")
    _check_codecs(engine.codec, other._engine.codec)  # noqa: SLF001 - a saver of ours
    yield from check_is_plain(store)
    names = yield from on(store, whole_thread.chosen(threads))
    verbs = ("read", "written", "compared")
    meters = {verb: Meter(progress, verb, len(names)) for verb in verbs}
    run = _Mirror(store, there, meters, is_named=threads is not None, **flags)
    yield from meters["compared"].each(names, run.visit)
    return run.result


def _check_codecs(here: Codec, there: Codec) -> None:
    """Refuse copies that the other saver could not read."""
    if isinstance(here, SerdeCodec) and not isinstance(there, SerdeCodec | FormerSerde):
        raise InvalidArgumentError(
            f"The other saver cannot read values of {type(here.serde).__name__}.",
            hint="Open it with the same serde=. If it has keys= in place of an"
            " EncryptedSerializer, first encrypt this store with keys=: see rotate_keys().",
        )


@dataclass(slots=True)
class _Mirror:
    """One call of `mirror`."""

    here: Runner
    there: Runner
    meters: dict[str, Meter]
    is_named: bool
    replace: bool
    delete: bool
    dry_run: bool
    result: MirrorReport = field(init=False, default_factory=MirrorReport)

    def visit(self, name: str) -> Operation[None]:
        try:
            copied = yield from retry(name, partial(self._thread, name), ChangedError)
        except CorruptionError as error:
            if self.is_named:
                raise
            self.result.skipped[name] = error.message
            return
        if copied is not None:  # (a difference means that the other store fails: the mirror ends)
            yield from digest.verify_copy(self.there, copied, self.meters["compared"])

    def _thread(self, name: str) -> Operation[WholeThread | None]:
        """Compare a thread, and return it if it is copied."""
        stub = not self.is_named
        found = yield from on(self.here, read_snapshot(name, alone=True, stub=stub))
        own, copied = whole_of(without_inputs(found)), None
        inputs = rows_of(whole_of(found)) - rows_of(own)
        if is_archived(own.entry):
            self.result.archived.append(name)
            return None
        other = yield from on(self.there, read_snapshot(name, stub=False))
        step = _step_for(own, whole_of(other), inputs)
        if step == "diverged" and (yield from self._are_equal(own)):
            step = "unchanged"
        step = self._allowed(step)
        change: Operation[None] | None = None
        if step in ("added", "extended", "replaced") and not self.dry_run:
            copied, now = (yield from self._read(own)), time.time_ns() // 1000
            meter, replace = self.meters["written"], step == "replaced"
            change = put_rows(copied, other, now, meter, replace=replace)
        elif step == "deleted" and not self.dry_run:
            drop = DropThread(name, own.deleted_at, other.rows.generation, other.fences)
            change = commit(drop)
        try:
            yield from () if change is None else on(self.there, change)
        except OVERTAKEN as error:  # (it was used there meanwhile)
            raise ChangedError from error
        if step in _CONFLICTS:
            self.result.conflicts[name] = _CONFLICTS[step]
        elif step == "unchanged":
            self.result.unchanged += 1
        else:
            getattr(self.result, step).append(name)
        return copied

    def _allowed(self, step: str) -> str:
        """Apply the options to a step."""
        if step == "revived" and self.replace:
            step = "deleted"
        if step == "deleted" and not self.delete:
            return "newer"
        return "replaced" if step in _CONFLICTS and self.replace else step

    def _read(self, own: WholeThread) -> Operation[WholeThread]:
        """Read all of a thread here, with digests. Raises ChangedError if rows were removed."""
        whole = yield from digest.read(self.here, own.thread, self.meters["read"], inputs=False)
        if is_archived(whole.entry) or not rows_of(own) <= rows_of(whole):
            raise ChangedError
        return whole

    def _are_equal(self, own: WholeThread) -> Operation[bool]:
        """Compare the digests of threads whose rows differ."""
        whole, meter = (yield from self._read(own)), self.meters["compared"]
        reading = digest.read(self.there, own.thread, meter, stub=False, inputs=False)
        other = yield from reading
        return whole.by_checkpoint == other.by_checkpoint


_CONFLICTS = {
    "diverged": "It has other checkpoints or pending writes.",
    "removed": "It was deleted there.",
    "revived": "It was deleted here, and used there since.",
}


def _step_for(here: WholeThread, there: WholeThread, inputs: set[ThreadRow]) -> str:
    """Choose the step for the other store: a field of `MirrorReport`, or a key of `_CONFLICTS`.

    Rows are compared, as a copy has the same bytes. `inputs` are stored here, and not copied.
    """
    own, other = rows_of(here), rows_of(there) - inputs
    only_created = not own and is_there(here.entry) and not is_there(there.entry)
    if own == other and not only_created:
        return "unchanged" if marks_of(here.entry) <= marks_of(there.entry) else "extended"
    if not other:
        return "removed" if there.deleted_at > here.deleted_at else "added"
    if own or not here.deleted_at:
        return "extended" if other < own else "newer" if own < other else "diverged"
    times = [created_at(row.id) or here.deleted_at for row in there.checkpoints]
    return "revived" if max(times, default=0) > here.deleted_at else "deleted"
