"""Adopting threads from LangGraph's own savers.

Only the steps live here: reading is `sources`' affair, storing the engine's. Invariants: the
source is never changed; checkpoints go in by namespace and id, each before its own writes, so
that wherever it ends, doing it again goes on from there; of the source no more is held than a
few megabytes beside two states of a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from threadkeep import checks
from threadkeep.engine.calls import Operation, Place, commit
from threadkeep.engine.loaded import created_at
from threadkeep.engine.model import DropThread
from threadkeep.engine.operations import adoption, listing, put, write
from threadkeep.engine.operations.adoption import Present
from threadkeep.engine.operations.context import Engine
from threadkeep.engine.operations.listing import Listing
from threadkeep.engine.operations.load import Loaded
from threadkeep.engine.operations.put import Put
from threadkeep.engine.operations.write import PutWrites
from threadkeep.engine.rows import pack_time
from threadkeep.errors import (
    CorruptionError,
    ThreadExistsError,
    ThreadNotFoundError,
)
from threadkeep.plans import Plan, Store, aside, on, together
from threadkeep.transfer.comparing import differences
from threadkeep.transfer.portable import Progress
from threadkeep.transfer.sources import Found, FoundWrite, Source

Call: TypeAlias = Put | PutWrites

_MOST_CHECKPOINTS = 64  # read, and then stored, at a time
_MOST_BYTES = 8 << 20


@dataclass(slots=True)
class Adopted:
    """What was done.

    `threads` that were looked at; `checkpoints` put and `known` ones, which were there; `calls`
    of pending writes put; `verified` checkpoints; `deleted` threads, which were left alone, as
    they had been deleted here.
    """

    threads: int = 0
    checkpoints: int = 0
    known: int = 0
    writes: int = 0
    verified: int = 0
    deleted: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Adopting:
    """One call: where to, what is told, and what was done so far."""

    store: Store
    engine: Engine
    source: Source
    progress: Progress
    total: int = 0
    done: int = 0
    result: Adopted = field(default_factory=Adopted)

    def tell(self, what: str, count: int) -> None:
        self.done += count
        self.progress(what, self.done, self.total)


def adopt(
    store: Store,
    engine: Engine,
    opening: Callable[[], Source],
    names: Sequence[str] | None,
    progress: Progress,
    *,
    verify: bool,
) -> Plan[Adopted]:
    """Bring a source's threads into a store.

    Args:
        store: where to.
        engine: what the store is used with.
        opening: opens the source.
        names: the threads' ids; None for all but those that were deleted here.
        progress: see `Progress`.
        verify: whether every checkpoint is compared through both savers.

    Raises:
        ThreadNotFoundError: the source has no such thread; nothing was changed.
        ThreadExistsError: a checkpoint is there already in another state.
        CorruptionError: what is stored is not what the source gives.
        ThreadkeepError: a value cannot be read or stored; it names the checkpoint.
    """
    source = yield from aside(opening)
    with closing(source):
        counts = yield from aside(source.threads)
        wanted = _wanted(names, counts)
        engine = replace(engine, conflicts="fork")  # what happened is stored, whoever was first
        total = sum([counts[name] for name in wanted])
        call = _Adopting(store, engine, source, progress, total)
        for name in wanted:
            yield from _thread(call, name, counts[name], named=names is not None, verify=verify)
    return call.result


def _wanted(names: Sequence[str] | None, counts: dict[str, int]) -> list[str]:
    for name in names or ():
        if name not in counts:
            raise ThreadNotFoundError(
                hint="The source has no checkpoint of it: correct its id.", thread=name
            )
    return list(counts if names is None else names)


def _thread(call: _Adopting, thread: str, count: int, *, named: bool, verify: bool) -> Plan[None]:
    checks.text("The source's thread_id", thread)
    present = yield from on(call.store, adoption.present(call.engine, thread))
    if present.deleted_at and present.is_empty and not named:
        call.result.deleted.append(thread)
        call.tell("checkpoints read", count)
        return
    if present.deleted_at and present.is_empty:
        yield from on(call.store, commit(DropThread(thread, 0)))
        present = yield from on(call.store, adoption.present(call.engine, thread))
    yield from aside(call.source.begin)
    try:
        places = yield from _copied(call, thread, present)
        if verify:
            yield from _verified(call, thread, places)
    finally:
        call.source.end()
    call.result.threads += 1


# -- copying ---------------------------------------------------------------------------


def _copied(call: _Adopting, thread: str, present: Present) -> Plan[set[tuple[str, str]]]:
    """Store what is not there; the namespaces and ids of what the source has and this one shows."""
    places: set[tuple[str, str]] = set()
    apart = call.engine.apart()
    with closing(call.source.checkpoints(thread)) as rest:
        while part := (yield from aside(partial(_part, rest))):
            calls = [one for found in part for one in _calls(call, thread, found, present)]
            apart = yield from _stored(call, calls, apart)
            both = {(found.ns, found.id) for found in part}
            places |= {place for place in both if not present.hides(*place)}
            call.tell("checkpoints read", len(part))
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
    done = yield from together(call.store, (_operation(apart, one) for one in calls))
    if done is None:  # the store cannot do that, or somebody else writes to this thread
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
        engine = replace(engine, now=lambda: made)
    return put.put(engine, call) if isinstance(call, Put) else write.put_writes(engine, call)


def _calls(call: _Adopting, thread: str, found: Found, present: Present) -> Iterator[Call]:
    """What is to be stored of a checkpoint: itself, and the writes of each task.

    Raises:
        ThreadExistsError: it is there in another state.
        InvalidArgumentError: something of it cannot be stored as it is.
    """
    place = Place(thread, checks.text("checkpoint_ns", found.ns), found.id)
    for key in ("channel_values", "channel_versions"):
        given = checks.mapping("checkpoint", found.checkpoint, place)
        checks.mapping(f"checkpoint[{key!r}]", given.get(key), place)
    if present.has(found.ns, found.id):
        if not present.is_same(place, found.parent, found.checkpoint, found.metadata):
            raise ThreadExistsError(
                "The store holds this checkpoint already, in another state.",
                hint="Delete the thread here first, or adopt it into another store.",
                **place.named(),
            )
        call.result.known += 1
    else:
        checks.checkpoint(found.checkpoint, place)
        _check_is_younger(place, present)
        yield Put(place, found.parent, found.checkpoint, found.metadata, complete=True)
    lacking = present.lacks(found.ns, found.id, [(w.task_id, w.idx) for w in found.writes])
    yield from _writes(place, [w for w in found.writes if (w.task_id, w.idx) in lacking])


def _check_is_younger(place: Place, present: Present) -> None:
    """Refuse a checkpoint from before its thread was deleted here, and used again."""
    made = created_at(place.id)
    if made is not None and made <= present.deleted_at:
        raise ThreadExistsError(
            "The thread was deleted here since this checkpoint was made, and has others now.",
            hint="Delete the thread here and name it in threads=, or adopt into another store.",
            **place.named(),
        )


def _writes(place: Place, writes: Iterable[FoundWrite]) -> Iterator[PutWrites]:
    """A call for each task, in the order of the tasks."""
    for (path, task), each in groupby(writes, lambda w: (w.task_path, w.task_id)):
        own = list(each)
        pairs = checks.writes([(w.channel, w.value) for w in own], place)
        names = checks.text("task_id", task, place), checks.text("task_path", path, place)
        yield PutWrites(place, pairs, *names, [w.idx for w in own])


# -- verifying -------------------------------------------------------------------------


def _verified(call: _Adopting, thread: str, places: set[tuple[str, str]]) -> Plan[None]:
    """Compare all checkpoints as LangGraph's own saver and ours give them."""
    theirs = yield from aside(call.source.saver)
    rest = set(places)
    at = listing.begin(Listing(thread))
    while at is not None:
        found, at = yield from on(call.store, listing.page(call.engine, at))
        for loaded in found:
            if (loaded.ns, str(loaded.id)) in rest:
                yield from aside(partial(_compare, call, theirs, loaded))
                rest.remove((loaded.ns, str(loaded.id)))
    call.result.verified += len(places) - len(rest)
    for ns, checkpoint in sorted(rest):
        raise _different(thread, ns, checkpoint, "it is not shown here")


def _compare(call: _Adopting, saver: Any, ours: Loaded) -> None:
    place = {"thread_id": ours.thread, "checkpoint_ns": ours.ns, "checkpoint_id": str(ours.id)}
    theirs = saver.get_tuple({"configurable": place})
    what = "it is not there any more"
    if theirs is not None:
        what = ", ".join(differences(call.engine.codec, ours, theirs))
    if what:
        raise _different(ours.thread, ours.ns, str(ours.id), what)


def _different(thread: str, ns: str, checkpoint: str, what: str) -> CorruptionError:
    return CorruptionError(
        f"A checkpoint is not what LangGraph's own saver gives: {what}.",
        hint="If a run goes on with this thread here, this is as it should be. If not, delete it"
        " here and adopt it again.",
        thread=thread,
        namespace=ns or None,
        checkpoint=checkpoint,
    )
