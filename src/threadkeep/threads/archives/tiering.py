"""Move threads and values to the cold store: by policy, or one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from threadkeep._core import validation
from threadkeep._core.engine import registration, thread_summary
from threadkeep._core.engine.cold_references import archive_of
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import DropThread, ThreadRows
from threadkeep._core.engine.operation import Operation, Progress, commit
from threadkeep._core.engine.registration import retry
from threadkeep._core.engine.thread_entry import (
    WITH_CHECKPOINTS,
    EntryFence,
    ThreadEntry,
    is_archived,
)
from threadkeep._core.policies import Tiering, check_over
from threadkeep._core.validation import MICROSECOND, duration, micros
from threadkeep._run.driver import Runner, on
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.cold_store import ColdStore
from threadkeep.errors import (
    CodecError,
    ConflictError,
    InvalidArgumentError,
    StateError,
    ThreadNotFoundError,
    invalid,
)
from threadkeep.threads.archives import archive as archiving
from threadkeep.threads.archives import offload as offloading
from threadkeep.threads.archives.offload import OffloadReport, move_out, tidy
from threadkeep.threads.registry import ThreadInfo, info


@dataclass(frozen=True, slots=True)
class ArchivedThread:
    """A thread that was archived (in a dry run: would be).

    Args:
        thread: its id.
        bytes: its size in the store.
    """

    thread: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TierReport:
    """Result of tiering, or of a dry run.

    Args:
        archived: threads that were archived.
        offloaded: threads with offloaded values.
        shared: threads whose old values stay because forks share them.
        skipped: threads that an error left as they are, each with the reason.
        examined: number of threads examined.
        dry_run: True if nothing was moved.
    """

    archived: tuple[ArchivedThread, ...]
    offloaded: tuple[OffloadReport, ...]
    shared: tuple[str, ...]
    skipped: tuple[OffloadReport, ...]
    examined: int
    dry_run: bool

    @property
    def bytes(self) -> int:
        """Number of bytes moved out of the store."""
        archived, offloaded = self.archived, self.offloaded
        return sum([one.bytes for one in archived]) + sum([one.bytes for one in offloaded])


def tier(
    store: LayeredBackend,
    engine: Engine,
    tiering: Tiering | None,
    threads: Iterable[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Operation[TierReport]:
    names = None if threads is None else validation.each_thread(threads)
    if tiering is not None and not isinstance(tiering, Tiering):
        raise invalid("tiering", tiering, "Use a threadkeep.Tiering, such as Tiering().")
    cold = None if dry_run else (yield from _cold(store, "move threads"))
    run = _Round(store, cold, engine, tiering or store.tiering or Tiering())
    examined = yield from registration.for_each(
        names, run.visit, "threads tiered", progress, partial(on, run.store)
    )
    return TierReport(
        tuple(run.archived),
        tuple(run.offloaded),
        tuple(run.shared),
        tuple(run.skipped),
        examined=examined,
        dry_run=dry_run,
    )


@dataclass(slots=True)
class _Round:
    """One round over a store."""

    store: Runner
    cold: ColdStore | None
    engine: Engine
    tiering: Tiering
    archived: list[ArchivedThread] = field(default_factory=list)
    offloaded: list[OffloadReport] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    skipped: list[OffloadReport] = field(default_factory=list)

    def visit(self, entry: ThreadEntry) -> Operation[None]:
        """Remove a thread's unused objects, then archive it, offload its values, or do nothing."""
        try:
            known = archive_of(entry)  # (raises if the entry is damaged)
            if self.cold is not None and known is not None and known.offloaded:
                yield from tidy(self.store, self.cold, self.engine, entry.thread)
            if entry.state in WITH_CHECKPOINTS and not entry.pinned:
                yield from self._move(entry)
        except (CodecError, ConflictError) as error:
            self.skipped.append(OffloadReport(entry.thread, skipped=error.message))
        except (ThreadNotFoundError, StateError):
            pass  # (deleted or archived meanwhile)

    def _move(self, entry: ThreadEntry) -> Operation[None]:
        tier, warm = self.tiering.cold, self.engine.now() - (micros(self.tiering.warm.max_age) or 0)
        known = archive_of(entry)
        back_at = 0 if known is None else known.back_at
        if tier.archive and max(entry.updated_at, back_at) < warm:
            if self.cold is not None:
                yield from archiving.archive(
                    self.store,
                    self.cold,
                    self.engine,
                    entry.thread,
                    partial(_rests, warm, self.engine.now()),
                )
            self.archived.append(ArchivedThread(entry.thread, max(entry.size, 0)))
        elif tier.offload_over is not None and max(entry.created_at, back_at) < warm:
            has_stubs = known is not None and bool(known.offloaded)
            # (a smaller thread has no such segment, and a fork's size may not count its segments)
            if entry.size > tier.offload_over or entry.origin is not None or has_stubs:
                found = yield from move_out(
                    self.store, self.cold, self.engine, entry.thread, tier.offload_over, warm
                )
                if found.segments:
                    self.offloaded.append(found)
                elif found.skipped is not None:
                    self.shared.append(entry.thread)


def _rests(since: int, now: int, entry: ThreadEntry, rows: ThreadRows) -> bool:
    """Return True if a thread is not pinned and nothing was saved since."""
    return not entry.pinned and thread_summary.written_at(entry, rows.checkpoints, now) < since


def archive(store: LayeredBackend, engine: Engine, thread: str) -> Operation[ThreadInfo]:
    name, cold = validation.thread_id(thread), (yield from _cold(store, "archive a thread"))
    return info((yield from archiving.archive(store, cold, engine, name)), engine.now())


def restore(engine: Engine, thread: str) -> Operation[ThreadInfo]:
    return info((yield from offloading.restore(engine, validation.thread_id(thread))), engine.now())


def write_again(store: LayeredBackend, engine: Engine, entry: ThreadEntry) -> Operation[None]:
    """Write a thread's archive or offloaded values again, with the current key."""
    if is_archived(entry):
        yield from on(store, offloading.restore(engine, entry.thread))
        yield from archive(store, engine, entry.thread)
    else:
        cold = yield from _cold(store, "rotate keys")
        yield from offloading.write_again(store, cold, engine, entry.thread)


def offload(
    store: LayeredBackend,
    engine: Engine,
    thread: str,
    over: int,
    older_than: timedelta | float | None,
) -> Operation[OffloadReport]:
    name, cold = validation.thread_id(thread), (yield from _cold(store, "offload values"))
    before = None
    if older_than is not None:
        before = engine.now() - duration("older_than", older_than) // MICROSECOND
    limit = check_over("over", over)
    yield from tidy(store, cold, engine, name)
    return (yield from move_out(store, cold, engine, name, limit, before))


def discard_fork(
    store: LayeredBackend, engine: Engine, fork: str, *, delete: bool
) -> Operation[ThreadInfo]:
    name = validation.thread_id(fork)

    def attempt() -> Operation[ThreadInfo]:
        entry = yield from on(store, registration.known(name))
        if entry.origin is None:
            hint = "Use delete_thread, or threads.archive to keep it in the cold store."
            raise StateError("This thread is not a fork.", hint=hint, thread=name)
        if not delete:
            return (yield from archive(store, engine, name))
        fence = EntryFence(entry.revision)  # (the id may belong to a new thread by now)
        yield from on(store, commit(DropThread(name, engine.now(), fences=(fence,))))
        engine.working_set.forget(name)
        if store.rolling is not None:
            yield from store.rolling.mirror(name, "delete_thread", name)
        gone = yield from on(store, registration.read(name))
        return info(entry if gone is None else gone, engine.now())

    return (yield from retry(name, attempt))


def _cold(store: LayeredBackend, what: str) -> Operation[ColdStore]:
    """Return the cold store, limited to this store's folder."""
    cold = yield from store.own_cold()
    if cold is None:
        raise InvalidArgumentError(
            f"A cold store is needed to {what}.",
            hint="Open the saver with cold=, such as cold='file:///folder'.",
        )
    return cold
