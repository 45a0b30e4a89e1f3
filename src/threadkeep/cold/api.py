"""Workflows behind `saver.threads`: archive, restore, offload, tier, discard_fork."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from threadkeep import validation
from threadkeep.cold import archive as archiving
from threadkeep.cold import offload as offloading
from threadkeep.cold import tiering as tiers
from threadkeep.cold.offload import Offloaded
from threadkeep.cold.store import ColdStore
from threadkeep.cold.tiering import Tiering, TierReport, check_over
from threadkeep.engine import registration
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import Operation, Progress
from threadkeep.errors import InvalidArgumentError, StateError, invalid
from threadkeep.registry.info import (
    ThreadInfo,
    info,
)
from threadkeep.retention import apply
from threadkeep.retention.policy import MICROSECOND, duration
from threadkeep.store.driver import Plan, on
from threadkeep.store.store import LayeredStore


def archive(store: LayeredStore, engine: Engine, thread: str) -> Plan[ThreadInfo]:
    """See `Threads.archive`."""
    name, cold = validation.thread_id(thread), (yield from _cold(store, "archive a thread"))
    return info((yield from archiving.archive(store.beneath(), cold, engine, name)))


def restore(engine: Engine, thread: str) -> Operation[ThreadInfo]:
    """See `Threads.restore`."""
    return info((yield from offloading.restore(engine, validation.thread_id(thread))))


def offload(
    store: LayeredStore,
    engine: Engine,
    thread: str,
    over: int,
    older_than: timedelta | float | None,
) -> Plan[Offloaded]:
    """See `Threads.offload`."""
    name, cold = validation.thread_id(thread), (yield from _cold(store, "offload values"))
    before = None
    if older_than is not None:
        before = engine.now() - duration("older_than", older_than) // MICROSECOND
    limit = check_over("over", over)
    return (yield from offloading.offload(store.beneath(), cold, engine, name, limit, before))


def tier(
    store: LayeredStore,
    engine: Engine,
    tiering: Tiering | None,
    threads: Iterable[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Plan[TierReport]:
    """See `Threads.tier`."""
    names = None if threads is None else validation.ids("threads", threads)
    if tiering is not None and not isinstance(tiering, Tiering):
        raise invalid("tiering", tiering, "Use a threadkeep.Tiering, such as Tiering().")
    own = tiering or store.tiering or Tiering()
    cold = None if dry_run else (yield from _cold(store, "move threads"))
    moving = tiers.tier(store.beneath(), cold, engine, own, names, progress=progress)
    return (yield from moving)


def discard_fork(
    store: LayeredStore, engine: Engine, fork: str, *, delete: bool
) -> Plan[ThreadInfo]:
    """See `Threads.discard_fork`."""
    name = validation.thread_id(fork)
    entry = yield from on(store, registration.known(name))
    if entry.origin is None:
        hint = "delete_thread removes it, threads.archive puts it into the cold store."
        raise StateError("This thread is no fork of another.", hint=hint, thread=name)
    if not delete:
        return (yield from archive(store, engine, name))
    yield from on(store, apply.delete_thread(engine, name))
    gone = yield from on(store, registration.read(name))
    return info(entry if gone is None else gone)


def _cold(store: LayeredStore, what: str) -> Plan[ColdStore]:
    """Return the cold store, as this store uses it."""
    cold = yield from store.own_cold()
    if cold is None:
        raise InvalidArgumentError(
            f"A cold store is needed to {what}.",
            hint="Open the saver with cold=, such as cold='file:///folder'.",
        )
    return cold
