"""Erasing threads: the rows, what is kept at hand of them, and the bytes in the store's files.

Only the order of things lives here, and what is told of it. Invariants: rows go first, and the
places that may hold copies of them after all are gone; each place is cleared whether or not rows
were found, so that what was cut off is completed by doing it again; one thread, or place, that
fails keeps the others from nothing, and is an error that says what was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from threadkeep.backends.base import Scrubbed
from threadkeep.cold.archive import archive_of
from threadkeep.cold.store import ColdStore
from threadkeep.engine import registration
from threadkeep.engine.context import Engine
from threadkeep.erasure import rows
from threadkeep.erasure.rows import ErasedThread
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    ThreadArchivedError,
    ThreadkeepError,
    ThreadNotFoundError,
    UnfinishedErasureError,
)
from threadkeep.store.opened import (
    OpenStore,
    own_cold,
)
from threadkeep.store.workflows import (
    Plan,
    Store,
    aside,
    either,
    on,
)
from threadkeep.transfer.portable import Progress

ALWAYS = (
    "What was written before into other files (backups, bundles, quarantine files): remove them.",
    "Copies under other names and in other stores (copy_thread, sync, import): erase them too.",
    "What other programs and savers remember of a thread until they load it again: restart them.",
    "The thread's name and the time: a tombstone, so that no late save brings it back.",
)
"""What no store can see to."""


@dataclass(frozen=True, slots=True)
class EraseReport:
    """What was removed where, or would be, and what is left to do.

    Args:
        threads: what was removed, thread by thread.
        forks: threads that were forked from an erased one, and theirs, and hold what they took.
            Empty where they were erased too.
        shared_with: other threads that hold a part of what an erased one held: what it was forked
            from, and that one's forks. What it said itself is not among it.
        cleared: the places in which nothing is left of the threads.
        remains: what this cannot promise, each with what to do.
        unfinished: why a thread was not removed or a place not cleared, and what to do before that
            is tried again.
        dry_run: whether nothing was done.
    """

    threads: tuple[ErasedThread, ...]
    forks: tuple[str, ...] = ()
    shared_with: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether all is erased that was to be."""
        return not self.unfinished

    def as_json(self) -> dict[str, Any]:
        """The same as values that JSON can hold."""
        return {**asdict(self), "ok": self.ok}


class Asked(NamedTuple):
    """What a place is told.

    `threads` are those that are erased, `near` also those that share with them; None for all that
    there are: no rows were found, and somebody may complete what was cut off, of other threads.
    `elsewhere` are folders of the cold store that are another store's, of which this is a copy.
    """

    store: OpenStore
    cold: ColdStore | None
    threads: Sequence[str]
    near: Sequence[str] | None
    elsewhere: Sequence[str]
    rewrite: bool


Place: TypeAlias = Callable[[Asked], Plan[Scrubbed]]
"""Clears a place of threads whose rows are gone. Idempotent; raises where it cannot."""


def _at_hand(asked: Asked) -> Plan[Scrubbed]:
    """What this program and the hot store keep at hand."""
    store = asked.store
    for name in (None,) if asked.near is None else asked.near:
        yield from either(partial(store.clear_cache, name), partial(store.aclear_cache, name))
    here = Scrubbed(("what this program remembered, and its cache",))
    return here + (yield from either(store.scrub_hot, store.ascrub_hot))


def _files(asked: Asked) -> Plan[Scrubbed]:
    """The store's own files."""
    scrub = partial(asked.store.scrub, rewrite=asked.rewrite)
    ascrub = partial(asked.store.ascrub, rewrite=asked.rewrite)
    return (yield from either(scrub, ascrub))


def _archives(asked: Asked) -> Plan[Scrubbed]:
    """What this store has put into the cold store, whichever process left it there."""
    cold = asked.cold
    if cold is None:
        return Scrubbed()
    for name in asked.threads:
        yield from aside(partial(cold.clear, cold.home(name)))
    others = [_ELSEWHERE.format(folder) for folder in asked.elsewhere]
    return Scrubbed(("archives in the cold store",), (_VERSIONS, *others))


_VERSIONS = "Former versions of archives, if the cold store keeps such: remove them."
_ELSEWHERE = (
    "{} in the cold store belongs to another store, from which this one was copied or moved: erase"
    " the thread in that store. If that store is gone, remove the folder."
)


# A further place that may hold what threads hold is added here. It finds what is a thread's by
# the thread's name: the rows are gone by then, or have been for long.
PLACES: tuple[Place, ...] = (_at_hand, _archives, _files)


def erase(
    store: OpenStore,
    engine: Engine,
    names: Sequence[str],
    progress: Progress,
    *,
    forks: bool,
    rewrite: bool,
    dry_run: bool,
) -> Plan[EraseReport]:
    """Erase threads; see `Threads.erase`.

    Args:
        store: where they are.
        engine: the parts.
        names: their names.
        progress: see `Progress`.
        forks: also those that were forked from them.
        rewrite: see `Backend.scrub`.
        dry_run: change nothing.
    """
    beneath = store.beneath()
    found = yield from on(beneath, rows.forks_of(names))
    # Origins last: as long as they are there, it is known what was forked from them.
    all_names = [*reversed(found), *names] if forks else names
    cold = yield from own_cold(store)
    elsewhere = yield from _elsewhere(beneath, cold, all_names)
    shared = set[str]()
    for name in all_names:
        shared |= yield from on(beneath, rows.sharing_with(name))
    shared -= {*found, *names}
    rehearsal = rows.Rehearsal() if dry_run else None
    done, failures = list[ErasedThread](), list[ThreadkeepError]()
    for number, name in enumerate(all_names, 1):
        try:
            gone = yield from on(beneath, rows.erase(engine, name, rehearsal))
            done.append(replace(gone, archived_bytes=0) if name in elsewhere else gone)
        except (ConflictError, CorruptionError) as error:  # (of this thread alone)
            failures.append(error)
        progress("threads erased", number, len(all_names))
    if failures and not done:
        raise failures[0]
    left = () if forks else tuple(sorted(found))
    report = EraseReport(tuple(done), left, tuple(sorted(shared)), dry_run=dry_run)
    if dry_run:
        return replace(report, unfinished=_lines(failures))
    is_new = any(one.checkpoints or one.writes or one.segments for one in done)
    near = sorted({*names, *found, *shared}) if is_new else None
    asked = Asked(store, cold, all_names, near, tuple(elsewhere.values()), rewrite)
    return (yield from _cleared(asked, report, failures, progress))


def _cleared(
    asked: Asked, report: EraseReport, failures: list[ThreadkeepError], progress: Progress
) -> Plan[EraseReport]:
    """The report, once all places are cleared; the error where anything has failed."""
    found = Scrubbed(("rows, entries and labels",))
    for number, place in enumerate(PLACES):
        progress("places cleared", number, len(PLACES))
        try:
            found += yield from place(asked)
        except ThreadkeepError as error:
            failures.append(error)
    progress("places cleared", len(PLACES), len(PLACES))
    unfinished, remains = _lines(failures), (*found.remains, *ALWAYS)
    report = replace(report, cleared=found.cleared, remains=remains, unfinished=unfinished)
    if failures:
        raise UnfinishedErasureError(
            f"Not every byte of the threads is gone yet: {'; '.join(unfinished)}",
            hint="Then erase again, in the same way: what was done is not done twice.",
            report=report,
        ) from failures[0]
    return report


def _elsewhere(store: Store, cold: ColdStore | None, names: Sequence[str]) -> Plan[dict[str, str]]:
    """The folders that entries of threads name and that are another store's, by thread.

    Raises:
        ThreadArchivedError: there is one with archives, and no cold store.
    """
    found: dict[str, str] = {}
    for name in names:
        archive = archive_of((yield from on(store, registration.read(name))))
        if archive is not None and cold is None:
            hint = "Open the store with cold=, the URL of the cold store. Nothing was erased."
            raise ThreadArchivedError(hint=hint, thread=name)
        if archive and cold and not archive.folder.startswith(cold.home(name)):
            found[name] = archive.folder
    return found


def _lines(failures: Sequence[ThreadkeepError]) -> tuple[str, ...]:
    return tuple([" ".join(str(error).split()) for error in failures])


def named(store: OpenStore, thread: str) -> Plan[list[str]]:
    """The thread of this name.

    Raises:
        ThreadNotFoundError: there never was one.
    """
    if not (yield from on(store.beneath(), rows.is_known(thread))):
        raise ThreadNotFoundError(hint="Nothing was erased.", thread=thread)
    return [thread]


def with_labels(store: OpenStore, labels: tuple[str, ...]) -> Plan[list[str]]:
    """The threads that have these labels."""
    return on(store.beneath(), rows.with_labels(labels))
