"""Adopting threads from LangGraph's own savers.

Only the steps live here: reading is `sources`' affair, storing the engine's. Invariants: the
source is never changed; checkpoints go in by namespace and id, each before its own writes, so
that wherever it ends, doing it again goes on from there; of the source no more is held than a
few megabytes beside two states of a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from threadkeep import validation
from threadkeep.engine import (
    listing,
    put,
)
from threadkeep.engine.context import Engine
from threadkeep.engine.listing import Listing
from threadkeep.engine.load import Loaded
from threadkeep.engine.model import DropThread
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
    commit,
)
from threadkeep.engine.put import Put, PutWrites
from threadkeep.engine.rows import created_at, pack_time
from threadkeep.errors import (
    CorruptionError,
    ThreadExistsError,
    ThreadNotFoundError,
)
from threadkeep.forks import fork as forking
from threadkeep.progress import Progress
from threadkeep.store import bulk
from threadkeep.store.workflows import (
    Plan,
    Store,
    aside,
    on,
)
from threadkeep.transfer import adoption
from threadkeep.transfer.adoption import Present
from threadkeep.transfer.comparing import differences
from threadkeep.transfer.sources import Found, FoundWrite, Source

Call: TypeAlias = Put | PutWrites

_MOST_CHECKPOINTS = 64  # read, and then stored, at a time
_MOST_BYTES = 8 << 20


@dataclass(slots=True)
class Adopted:
    """What was done.

    Attributes:
        threads: how many were looked at, and are here as they are in the source, or more of them.
        checkpoints: how many were put.
        known: how many were here already.
        writes: calls of pending writes that were put.
        verified: how many checkpoints were compared.
        deleted: threads that were left alone, as they had been deleted here.
        conflicts: why others were left alone, by thread.
        replaced: threads that were removed here for the source's, as `replace` was given.
        forks: the thread that the source's line went into, by the thread, as `as_fork` was given.
    """

    threads: int = 0
    checkpoints: int = 0
    known: int = 0
    writes: int = 0
    verified: int = 0
    deleted: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    forks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was asked for beside bringing what is not there."""

    verify: bool = False
    replace: bool = False
    as_fork: bool = False


@dataclass(slots=True)
class _Adopting:
    """One call: where to, what is told, and what was done so far."""

    store: Store
    engine: Engine
    source: Source
    wishes: Wishes
    progress: Progress
    total: int = 0
    done: int = 0
    result: Adopted = field(default_factory=Adopted)

    def tell(self, count: int) -> None:
        self.done = min(self.done + count, self.total)  # (some are read twice)
        self.progress("checkpoints read", self.done, self.total)


class _Thread(NamedTuple):
    """A thread of the source, and the one that it goes into."""

    name: str
    target: str


def adopt(
    store: Store,
    engine: Engine,
    opening: Callable[[], Source],
    names: Sequence[str] | None,
    wishes: Wishes,
    progress: Progress,
) -> Plan[Adopted]:
    """Bring a source's threads into a store.

    Args:
        store: where to.
        engine: what the store is used with.
        opening: opens the source.
        names: the threads' ids; None for all but those that were deleted here.
        wishes: see `Wishes`.
        progress: see `Progress`.

    Raises:
        ThreadNotFoundError: the source has no such thread; nothing was changed.
        CorruptionError: what is stored is not what the source gives.
        ThreadkeepError: a value cannot be read or stored; it names the checkpoint.
    """
    source = yield from aside(opening)
    with closing(source):
        counts = yield from aside(source.threads)
        wanted = _wanted(names, counts)
        engine = engine._replace(conflicts="fork")  # what happened is stored, whoever was first
        total = sum([counts[name] for name in wanted])
        call = _Adopting(store, engine, source, wishes, progress, total)
        for name in wanted:
            validation.text("The source's thread_id", name)
            present = yield from _present(call, name, revive=names is not None)
            if present.deleted_at and present.is_empty:
                call.result.deleted.append(name)
                call.tell(counts[name])
            else:
                yield from _thread(call, name, present)
    return call.result


def _wanted(names: Sequence[str] | None, counts: dict[str, int]) -> list[str]:
    for name in names or ():
        if name not in counts:
            raise ThreadNotFoundError(
                hint="The source has no checkpoint of it: correct its id.", thread=name
            )
    return list(counts if names is None else names)


def _present(call: _Adopting, thread: str, *, revive: bool) -> Plan[Present]:
    """What is here of a thread; it may be made anew if it was deleted, and `revive`."""
    present = yield from on(call.store, adoption.present(call.engine, thread))
    if revive and present.deleted_at and present.is_empty:
        yield from on(call.store, commit(DropThread(thread, 0)))
        present = yield from on(call.store, adoption.present(call.engine, thread))
    return present


def _thread(call: _Adopting, name: str, present: Present) -> Plan[None]:
    """Bring a thread, or list it as a conflict."""
    known = call.result.known
    yield from aside(call.source.begin)
    try:
        yield from _settled(call, name, present)
        call.result.threads += 1
    except ThreadExistsError as error:
        call.result.known = known
        call.result.conflicts[name] = error.message
    finally:
        call.source.end()


def _settled(call: _Adopting, name: str, present: Present) -> Plan[None]:
    """Bring a thread, in the way that was asked for where it has gone another way here.

    Raises:
        ThreadExistsError: it has, and nothing was asked for, or its fork has too.
    """
    known = call.result.known
    try:
        yield from _brought(call, _Thread(name, name), present)
    except ThreadExistsError:
        if not (call.wishes.replace or call.wishes.as_fork):
            raise
        call.result.known = known
        yield from (_replaced if call.wishes.replace else _forked)(call, name, present)


def _brought(call: _Adopting, thread: _Thread, present: Present) -> Plan[None]:
    """Store what is not there of a thread.

    Raises:
        ThreadExistsError: what is there has gone another way.
    """
    if not present.is_empty:
        parents = yield from aside(partial(call.source.parents, thread.name))
        if present.went_apart(parents):
            call.tell(len(parents))
            which = "its fork" if thread.name != thread.target else "the thread"
            raise ThreadExistsError(
                f"Both have gone on since they were the same, {which} here and the source.",
                thread=thread.target,
            )
    places = yield from _copied(call, thread, present)
    if call.wishes.verify:
        yield from _verified(call, thread, places)


def _replaced(call: _Adopting, name: str, present: Present) -> Plan[None]:
    """Put the source's thread in the place of the one that is here."""
    with closing(call.source.checkpoints(name)) as rest:
        while (yield from aside(partial(_part, rest))):
            pass  # what cannot be read ends this before anything is removed
    yield from on(call.store, commit(DropThread(name, 0)))
    call.result.replaced.append(name)
    present = yield from _present(call, name, revive=True)
    yield from _brought(call, _Thread(name, name), present)


def _forked(call: _Adopting, name: str, present: Present) -> Plan[None]:
    """Bring the source's thread into a fork of the one here, or go on there.

    The fork begins with the newest checkpoint that both have, and shares its values.
    """
    target = f"{name}-adopted"
    fork = yield from _present(call, target, revive=True)
    if fork.is_empty:
        parents = yield from aside(partial(call.source.parents, name))
        shared = present.newest_shared(parents)
        if shared is not None:
            yield from on(call.store, forking.fork(call.engine, name, shared, target))
            fork = yield from _present(call, target, revive=False)
    yield from _brought(call, _Thread(name, target), fork)
    call.result.forks[name] = target


# -- copying ---------------------------------------------------------------------------


def _copied(call: _Adopting, thread: _Thread, present: Present) -> Plan[set[tuple[str, str]]]:
    """Store what is not there; the namespaces and ids of what the source has and this one shows."""
    places: set[tuple[str, str]] = set()
    apart = call.engine.apart()
    with closing(call.source.checkpoints(thread.name)) as rest:
        while part := (yield from aside(partial(_part, rest))):
            calls = [one for found in part for one in _calls(call, thread.target, found, present)]
            apart = yield from _stored(call, calls, apart)
            both = {(found.ns, found.id) for found in part}
            places |= {place for place in both if not present.hides(*place)}
            call.tell(len(part))
    return places


def _part(rest: Iterator[Found]) -> list[Found]:
    """The next checkpoints: neither too many nor too large."""
    part: list[Found] = []
    size = 0
    for found in rest:
        part.append(found)
        size += found.size
        if len(part) >= _MOST_CHECKPOINTS or size >= _MOST_BYTES:
            break
    return part


def _stored(call: _Adopting, calls: list[Call], apart: Engine) -> Plan[Engine]:
    """Carry out the calls; the engine that remembers what was stored last."""
    done = yield from on(call.store, bulk.together(_operation(apart, one) for one in calls))
    if done is None:  # somebody else writes to this thread
        apart = call.engine.apart()
        for one in calls:
            yield from on(call.store, _operation(apart, one))
    call.result.checkpoints += sum([isinstance(one, Put) for one in calls])
    call.result.writes += sum([isinstance(one, PutWrites) for one in calls])
    return apart


def _operation(engine: Engine, call: Call) -> Operation[None]:
    """Store it as of its own time, so that the registry says when the thread was written."""
    at = pack_time(call.checkpoint.get("ts", "")) if isinstance(call, Put) else None
    made = at if isinstance(at, int) else created_at(call.place.id)
    if made is not None:
        engine = engine._replace(now=lambda: made)
    return put.put(engine, call) if isinstance(call, Put) else put.put_writes(engine, call)


def _calls(call: _Adopting, thread: str, found: Found, present: Present) -> Iterator[Call]:
    """What is to be stored of a checkpoint: itself, and the writes of each task.

    Raises:
        ThreadExistsError: it is there in another state.
        InvalidArgumentError: something of it cannot be stored as it is.
    """
    place = CheckpointRef(thread, validation.text("checkpoint_ns", found.ns), found.id)
    for key in ("channel_values", "channel_versions"):
        given = validation.mapping("checkpoint", found.checkpoint, place)
        validation.mapping(f"checkpoint[{key!r}]", given.get(key), place)
    if present.has(found.ns, found.id):
        if not present.is_same(place, found.parent, found.checkpoint, found.metadata):
            raise ThreadExistsError(
                f"Checkpoint {found.id} is here already, in another state.",
                thread=thread,
            )
        call.result.known += 1
    else:
        validation.checkpoint(found.checkpoint, place)
        yield Put(place, found.parent, found.checkpoint, found.metadata, complete=True)
    lacking = present.lacks(found.ns, found.id, [(w.task_id, w.idx) for w in found.writes])
    yield from _writes(place, [w for w in found.writes if (w.task_id, w.idx) in lacking])


def _writes(place: CheckpointRef, writes: Iterable[FoundWrite]) -> Iterator[PutWrites]:
    """A call for each task, in the order of the tasks."""
    for (path, task), each in groupby(writes, lambda w: (w.task_path, w.task_id)):
        own = list(each)
        pairs = validation.writes([(w.channel, w.value) for w in own], place)
        names = validation.text("task_id", task, place), validation.text("task_path", path, place)
        yield PutWrites(place, pairs, *names, [w.idx for w in own])


# -- verifying -------------------------------------------------------------------------


def _verified(call: _Adopting, thread: _Thread, places: set[tuple[str, str]]) -> Plan[None]:
    """Compare all checkpoints as LangGraph's own saver and ours give them."""
    theirs = yield from aside(call.source.saver)
    rest = set(places)
    at = listing.begin(Listing(thread.target))
    while at is not None:
        found, at = yield from on(call.store, listing.page(call.engine, at))
        for loaded in found:
            if (loaded.ns, loaded.id) in rest:
                yield from aside(partial(_compare, call, theirs, thread.name, loaded))
                rest.remove((loaded.ns, loaded.id))
    call.result.verified += len(places) - len(rest)
    for ns, checkpoint in sorted(rest):
        raise _different(thread.target, ns, checkpoint, "it is not shown here")


def _compare(call: _Adopting, saver: Any, thread: str, ours: Loaded) -> None:
    place = {"thread_id": thread, "checkpoint_ns": ours.ns, "checkpoint_id": ours.id}
    theirs = saver.get_tuple({"configurable": place})
    what = "it is not there any more"
    if theirs is not None:
        what = ", ".join(differences(call.engine.codec, ours, theirs))
    if what:
        raise _different(ours.thread, ours.ns, ours.id, what)


def _different(thread: str, ns: str, checkpoint: str, what: str) -> CorruptionError:
    return CorruptionError(
        f"A checkpoint is not what LangGraph's own saver gives: {what}.",
        hint="If a run goes on with this thread here, this is as it should be. If not, adopt it"
        " into another store, and compare.",
        thread=thread,
        namespace=ns or None,
        checkpoint=checkpoint,
    )
