"""Checking and repairing a store, thread by thread: plans, for whoever waits or awaits.

Only the order of things lives here, and what is told of it. Invariants: what goes out of a
thread is on the disk before it goes; one thread that cannot be read or repaired never keeps the
others from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from threadkeep.cold.stubs import WITH_COLD
from threadkeep.engine.context import (
    ATTEMPTS,
    Engine,
)
from threadkeep.errors import ConflictError
from threadkeep.progress import Progress
from threadkeep.repair import (
    check as checking,
)
from threadkeep.repair import (
    rows,
)
from threadkeep.repair.findings import (
    CheckReport,
    Finding,
    Kind,
)
from threadkeep.repair.quarantine import QuarantineFile
from threadkeep.repair.rows import (
    NewHead,
    Repair,
)
from threadkeep.store.workflows import (
    Plan,
    Store,
    aside,
    on,
)

HINTS = {
    Kind.STORE: "What the store finds wrong with its own files or tables is not repaired by this:"
    " restore a backup, or (SQLite) rebuild the file with `sqlite3 FILE .recover`.",
    Kind.UNREADABLE: "The store cannot read these rows at all: look at its own log, and restore a"
    " backup.",
    Kind.UNKNOWN: rows.NEWER,
    Kind.AWAY: WITH_COLD,
    Kind.SEGMENT: "A thread that shares it is broken too: name both, or none.",
}
"""What to do about a finding that is left, by its kind."""


@dataclass(frozen=True, slots=True)
class RepairedThread:
    """What was wrong with a thread, and what was taken out of it.

    `checkpoints` are (namespace, id) of those that were taken out; `writes`, `segments` and
    `unreadable` count rows. `heads` are the namespaces whose newest checkpoint was one of them.
    """

    thread: str
    findings: tuple[Finding, ...]
    checkpoints: tuple[tuple[str, str], ...] = ()
    writes: int = 0
    segments: int = 0
    unreadable: int = 0
    heads: tuple[NewHead, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairReport:
    """How many threads were looked at, those that were repaired, and what is left.

    `left` is what cannot be repaired by this, each with why. `file` holds what was taken out;
    None where nothing was.
    """

    threads: int
    repaired: tuple[RepairedThread, ...]
    left: tuple[Finding, ...]
    file: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is broken any more."""
        return not self.left


def check(
    store: Store, engine: Engine, progress: Callable[[int, int], None] | None
) -> Plan[CheckReport]:
    """Verify a whole store; see `Saver.check`."""
    findings = yield from on(store, checking.damage())
    threads, unlisted = yield from on(store, checking.threads_to_check())
    findings += unlisted
    notes: list[Finding] = []
    for done, thread in enumerate(threads, 1):
        found, noted = yield from on(store, checking.check_thread(engine, thread))
        findings += found
        notes += noted
        if progress is not None:
            progress(done, len(threads))
    return CheckReport(len(threads), tuple(findings), tuple(notes))


def repair(
    store: Store,
    engine: Engine,
    names: Sequence[str] | None,
    file: QuarantineFile | None,
    progress: Progress,
) -> Plan[RepairReport]:
    """Repair threads; see `Threads.repair`.

    Args:
        store: where they are.
        engine: the parts.
        names: their ids; None for all, and then what the store finds of itself is told too.
        file: where to what is taken out goes; None: nothing is changed.
        progress: see `Progress`.
    """
    left: dict[str, tuple[Finding, ...]] = {}
    all_names, unlisted = yield from on(store, checking.threads_to_check())
    threads = all_names if names is None else names
    done: list[RepairedThread] = []
    with ExitStack() as stack:
        if file is not None:
            stack.callback(file.close)
        for number, thread in enumerate(threads, 1):
            found = yield from _repaired(store, engine, thread, file)
            if found is not None and found.left:
                left[thread] = found.left
            if found is not None and found.batch is not None:
                done.append(_told(found))
            progress("threads repaired", number, len(threads))
        yield from _shared(store, engine, left, file)
        if file is not None:
            yield from aside(file.end)
    stays = [finding for some in left.values() for finding in some]
    if names is None:
        stays += unlisted + (yield from on(store, checking.damage()))
    path = file.path if file is not None and file.is_used else None
    return RepairReport(len(threads), tuple(done), tuple(stays), path)


def _shared(
    store: Store,
    engine: Engine,
    left: dict[str, tuple[Finding, ...]],
    file: QuarantineFile | None,
) -> Plan[None]:
    """Look once more at what stayed because of threads that may have been repaired since."""
    for thread in list(left):
        found = yield from _repaired(store, engine, thread, file)
        left[thread] = found.left if found is not None else ()


def _repaired(
    store: Store, engine: Engine, thread: str, file: QuarantineFile | None
) -> Plan[Repair | None]:
    for _ in range(ATTEMPTS):
        planned = yield from on(store, rows.plan(engine, thread))
        if planned is None or planned.batch is None or file is None:
            return planned
        if planned.taken is not None:
            yield from aside(partial(file.add, planned.taken))
        if (yield from on(store, rows.carry_out(engine, planned))):
            return planned
    raise ConflictError(
        "This thread is being written all the time.",
        hint="Do it again: what was repaired so far stays so.",
        thread=thread,
    )


def _told(found: Repair) -> RepairedThread:
    batch, taken = found.batch, found.taken
    if batch is None or taken is None:
        return RepairedThread(found.thread, found.findings)
    return RepairedThread(
        found.thread,
        found.findings,
        tuple([(row.ns, row.id) for row in taken.whole.checkpoints]),
        len(batch.drop_writes),
        len(batch.drop_segments),
        len(batch.drop_unreadable),
        found.heads,
    )
