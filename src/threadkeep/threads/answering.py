"""Interrupts that wait for an answer, and answers that the next run of a thread gets.

LangGraph stores the answers of a task as one pending write, a list in the order of the task's
interrupts (`RESUME`). A run without input continues with them. An interrupt of a subgraph belongs
to a task there, and its id also stands in the writes of the task above it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, cast

from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.types import Interrupt

from threadkeep._core import validation
from threadkeep._core.codec.codecs import PlainCodec, Raw
from threadkeep._core.engine import load, put, thread_summary
from threadkeep._core.engine.calls import PutWrites
from threadkeep._core.engine.context import Engine, not_found, unless_hidden
from threadkeep._core.engine.model import (
    OWN_NS,
    HeadFence,
    ScanCheckpoints,
    StoredCheckpoint,
    WriteRow,
    WritesFence,
)
from threadkeep._core.engine.operation import CheckpointRef, Operation, fetch, fetch_checkpoint
from threadkeep._core.engine.registration import retry
from threadkeep._core.engine.rows import counting, note_of, unpack_time, unpack_writes
from threadkeep._core.engine.shapes import AS_STORED
from threadkeep._core.engine.snapshots import LOADS
from threadkeep._core.engine.tips import Look
from threadkeep._core.langgraph_internals import NO_TASK, PULL, TASKS
from threadkeep.errors import CorruptionError, StateError, invalid

_PAGE = 64  # rows of one scan
_CHANNELS = frozenset({INTERRUPT, RESUME})
_SENDS = frozenset({TASKS})
_SENT = re.compile(r"~__pregel_push, (\d+), ")  # of a sent task: its index in `TASKS`


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """A question that a task of a thread's head has asked with `interrupt()`.

    Args:
        id: its id, as `Command(resume={id: value})` takes it.
        value: the question.
        checkpoint_id: the head of the thread.
        checkpoint_ns: the namespace of the graph that asked. "" is the thread's own.
        task_id: the task that asked.
        answered: True if an answer is stored, with which the next run continues.
        response_schema: JSON schema of the answer, if the graph gave one.
        answer: the stored answer, or None without one.
        answered_by: the name that `threads.answer(by=)` got with this answer, or None.
        answered_at: the time of that call, or None.
    """

    id: str
    value: Any
    checkpoint_id: str
    checkpoint_ns: str
    task_id: str
    answered: bool = False
    response_schema: Any = None
    answer: Any = None
    answered_by: str | None = None
    answered_at: datetime | None = None


_Giver: TypeAlias = tuple[str | None, datetime | None]  # of an answer: a name, and the time
_NOBODY: _Giver = (None, None)


class _Task(NamedTuple):
    """An unfinished task that asked."""

    stored: StoredCheckpoint
    id: str
    path: str
    asked: Sequence[Any]
    asked_in: WriteRow | None  # the row with its questions
    answers: Sequence[Any]  # stored ones
    is_answered: bool  # since it asked
    givers: Sequence[_Giver]  # of the answers


class _Pending(NamedTuple):
    """A pending interrupt, the task that it belongs to, and its answer."""

    asked: Any
    task: _Task
    is_answered: bool
    answer: Any
    giver: _Giver = _NOBODY


class _Head(NamedTuple):
    """The head of a thread, and its pending interrupts by id."""

    root: StoredCheckpoint
    pending: Mapping[str, _Pending]
    is_common: bool  # an answer for no task in particular is stored


def interrupts(engine: Engine, thread: str) -> Operation[list[PendingInterrupt]]:
    name = validation.thread_id(thread)
    head = yield from _read(engine, name)
    return [] if head is None else _listed(head)


def _listed(head: _Head) -> list[PendingInterrupt]:
    return [
        PendingInterrupt(
            id,
            field_of(one.asked, "value", one.asked),
            head.root.row.id,
            one.task.stored.row.ns,
            one.task.id,
            one.is_answered,
            field_of(one.asked, "response_schema", None),
            one.answer,
            *one.giver,
        )
        for id, one in head.pending.items()
    ]


def field_of(asked: Any, name: str, default: Any) -> Any:
    """Return a field of an `Interrupt`, which may be shown as it is stored."""
    if isinstance(asked, Raw):
        return asked.get(name, default)
    return getattr(asked, name, default) if isinstance(asked, Interrupt) else default


def answer(
    engine: Engine,
    thread: str,
    answers: Mapping[str, Any],
    checkpoint: str | None,
    *,
    replace: bool,
    resume: bool,
    by: str | None,
) -> Operation[None]:
    name = validation.thread_id(thread)
    if by is not None and not (isinstance(by, str) and by):
        raise invalid("by", by, "Use the name of a person.")
    validation.flag("resume", resume)
    if not validation.is_mapping(answers) or not answers:
        raise invalid("answers", answers, "Use a dict: {interrupt_id: value}.")
    expected = validation.checkpoint_id(checkpoint)
    validation.flag("replace", replace)

    def attempt() -> Operation[None]:
        # (questions may hold objects of classes that this program does not have)
        plain = engine._replace(codec=PlainCodec(), shapes=AS_STORED)
        head = yield from _read(plain, name)
        if head is None:
            raise not_found(CheckpointRef(name))
        if expected is not None and expected != head.root.row.id:
            raise StateError(
                f"The thread has moved on: its newest checkpoint is {head.root.row.id}.",
                hint="Look at what it asks now.",
                thread=name,
            )
        chosen = {id: _answerable(head, id, replace=replace) for id in answers}
        yield from _check_reach(plain, name, chosen)
        yield from _store(engine.apart(), head, chosen, answers, by, asks=resume)

    yield from retry(name, attempt)


def _answerable(head: _Head, id: str, *, replace: bool) -> _Task:
    """Return the task of an interrupt that an answer reaches."""
    if id not in head.pending:
        open_ids = ", ".join([id for id, one in head.pending.items() if not one.is_answered])
        hint = f"These wait: {open_ids}." if open_ids else "No interrupt of the thread waits."
        raise StateError(f"The interrupt {id!r} does not wait for an answer.", hint=hint)
    _, task, is_answered, *_ = head.pending[id]
    if is_answered and not replace:
        raise StateError(
            f"The interrupt {id!r} has an answer, with which the next run continues.",
            hint="Run the thread, or use replace=True to change the answer.",
        )
    return task


def _check_reach(engine: Engine, thread: str, chosen: Mapping[str, _Task]) -> Operation[None]:
    """Raise StateError for a question of a graph without checkpoints."""
    rows = {task.stored.row.ns: task.stored for task in chosen.values() if _SENT.match(task.path)}
    found = yield from load.of_thread(engine, thread, [*rows.values()], load.Wanted(_SENDS))
    sent = {at.ns: at.checkpoint["channel_values"].get(TASKS, ()) for at in found}
    for id, task in chosen.items():
        node = _node_of(task, sent)
        if node is not None and id not in _ids_of(task, node):
            raise StateError(
                "The question comes from a graph without checkpoints, where no answer can be"
                " stored.",
                hint="Resume the thread by Command(resume=...).",
            )


def _node_of(task: _Task, sent: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the node of a task, or None if it is unknown, as of a functional task."""
    if task.path.startswith(PULL):
        return task.path.removeprefix(PULL)
    index = _SENT.match(task.path)
    sends = sent.get(task.stored.row.ns, ())
    return str(sends[int(index[1])].node) if index and int(index[1]) < len(sends) else None


def _ids_of(task: _Task, node: str) -> list[str]:
    """Return the ids that the interrupts of a node's task can have."""
    ns = f"{task.stored.row.ns}|{node}:{task.id}".removeprefix("|")
    suffixes = ["", *[f"|{number}" for number in range(1, len(task.answers) + 1)]]
    return [Interrupt.from_ns(None, ns + suffix).id for suffix in suffixes]


# -- reading ---------------------------------------------------------------------------


def _read(engine: Engine, thread: str) -> Operation[_Head | None]:
    """Read the interrupts of a thread's head, or None if it has no checkpoints."""
    look = None
    while True:
        state = yield from fetch_checkpoint(thread, "", None)
        root = unless_hidden(state.found)
        if root is None:
            return None
        try:
            if not thread_summary.waits(root):
                return _Head(root, {}, is_common=False)
            rows = [root, *(yield from _below(thread, root))]
            wanted = load.Wanted(_CHANNELS, look=Look.of(state))
            loaded = yield from load.of_thread(engine, thread, rows, wanted)
        except CorruptionError:  # (segments may have been removed between two reads)
            if Look.of(state) == look:
                raise
            look = Look.of(state)
        else:
            return _head([*zip(rows, loaded, strict=True)])


def _below(thread: str, root: StoredCheckpoint) -> Operation[list[StoredCheckpoint]]:
    """Return the newest checkpoints of subgraphs that ran since the head, in which tasks wait."""
    found: dict[str, StoredCheckpoint] = {}
    after = None
    while True:
        scan = ScanCheckpoints(thread, None, None, None, {}, after, _PAGE)
        page = cast("list[StoredCheckpoint]", (yield from fetch(scan)))
        newer = [stored for stored in page if stored.row.id > root.row.id]
        for stored in newer:
            if stored.row.ns and not stored.row.ns.startswith(OWN_NS):
                found.setdefault(stored.row.ns, stored)
        if len(newer) < _PAGE:
            return [stored for stored in found.values() if thread_summary.waits(stored)]
        after = page[-1].row.id, thread, page[-1].row.ns


def _head(found: Sequence[tuple[StoredCheckpoint, load.Loaded]]) -> _Head:
    """Return the pending interrupts of the first checkpoint. The others are of subgraphs."""
    tasks = [task for stored, loaded in found for task in _tasks(stored, loaded)]
    owners = {
        field_of(asked, "id", ""): (asked, task, at - len(task.asked))
        for task in sorted(tasks, key=lambda task: len(task.stored.row.ns))  # the deepest one
        for at, asked in enumerate(task.asked)
    }
    root, loaded = found[0]
    common = _last(root, NO_TASK, RESUME)
    given = [w[2] for w in loaded.writes if w[:2] == (NO_TASK, RESUME) and w[2] is not None]
    is_common = bool(given)
    pending = {}
    for above in tasks:
        if above.stored is root:
            is_given = is_common and _is_unused(common, above.asked_in)
            for asked in above.asked:
                id = field_of(asked, "id", "")
                own, task, at = owners[id]
                last = task.answers[at:][:1] if task.is_answered else given[-1:] * is_given
                giver = task.givers[at:][:1] if task.is_answered else ()
                is_answered = task.is_answered or is_given
                pending[id] = _Pending(own, task, is_answered, *(last or [None]), *giver)
    return _Head(root, pending, is_common)


def _tasks(stored: StoredCheckpoint, loaded: load.Loaded) -> Iterable[_Task]:
    counted = counting(stored.writes, stored.child)
    paths = {write.task_id: write.task_path for write in counted}
    values = {(task, channel): value for task, channel, value in loaded.writes}
    for task in thread_summary.tasks([(w.task_id, w.channel) for w in counted]).waiting:
        asked, at = each_of(values[task, INTERRUPT]), _last(stored, task, INTERRUPT)
        answers = each_of(values.get((task, RESUME), ()))
        # A run stores the answers that it has used in one row with its next question. Any others,
        # even older ones, were not there when it began, and the next run continues with them.
        row = _last(stored, task, RESUME)
        is_answered, givers = bool(answers) and row != at, _givers(row, len(answers))
        yield _Task(stored, task, paths[task], asked, at, answers, is_answered, givers)


def _is_unused(common: WriteRow | None, asked: WriteRow | None) -> bool:
    """Return True if `Command(resume=value)` stored an answer, and its run has not asked since.

    Of one run, either may be stored first.
    """
    return bool(common and asked and common.run != asked.run and common.seq > asked.seq)


def _last(stored: StoredCheckpoint, task: str, channel: str) -> WriteRow | None:
    """Return the last row in which a task wrote to a channel, or None."""
    own = [row for row in stored.writes if row.task_id == task]
    wrote = [row for row in own if any(w.channel == channel for w in unpack_writes(row))]
    return max(wrote, key=attrgetter("seq"), default=None)


def each_of(values: Any) -> list[Any]:
    """Return the values of a write, which may be one alone."""
    return [*values] if isinstance(values, list | tuple) else [values]


# -- storing ---------------------------------------------------------------------------


def _store(
    engine: Engine,
    head: _Head,
    chosen: Mapping[str, _Task],
    answers: Mapping[str, Any],
    by: str | None,
    *,
    asks: bool,
) -> Operation[None]:
    """Store the answers of each task after those that it has, unless others have written since."""
    rows = {task.stored.row.ns: task.stored for task in chosen.values()}
    if head.is_common:
        rows[""] = head.root
    wanted = load.Wanted(frozenset({RESUME}))
    found = yield from load.of_thread(engine, head.root.thread, [*rows.values()], wanted)
    at = dict(zip(rows, found, strict=True))
    calls = []
    if head.is_common:  # (else a run without input would give it to later questions too)
        calls.append(_call(head, at[""], NO_TASK, "", None))
    for task in {(task.stored.row.ns, task.id): task for task in chosen.values()}.values():
        ns = task.stored.row.ns
        own = {id for id, one in chosen.items() if (one.stored.row.ns, one.id) == (ns, task.id)}
        known = [v for one, _, many in at[ns].writes if one == task.id for v in each_of(many)]
        kept = known[: -len(own)] if task.is_answered else known
        given = [*kept, *[value for id, value in answers.items() if id in own]]
        call = _call(head, at[ns], task.id, task.path, given)
        calls.append(call._replace(note=_note(task.givers[: len(kept)], by, len(given))))
    for call in calls:
        yield from put.save(engine, call._replace(asks=asks))


def _givers(row: WriteRow | None, count: int) -> list[_Giver]:
    """Return the givers of the answers in a row, which a note names."""
    found: list[_Giver] = []
    with suppress(ValueError, TypeError):  # (it is not one of ours)
        given = json.loads((row and note_of(row)) or "[]")
        found = [(str(one[0]), datetime.fromisoformat(one[1])) if one else _NOBODY for one in given]
    return [*found, *[_NOBODY] * count][:count]


def _note(known: Sequence[_Giver], by: str | None, count: int) -> str | None:
    """Return a note that names the givers of some answers, and of all after them, or None."""
    now = (by, unpack_time(time.time_ns() // 1000)) if by is not None else None
    given = [(name, at.isoformat()) if name and at else None for name, at in known]
    given += [now] * (count - len(given))
    return json.dumps(given) if any(given) else None


def _call(head: _Head, at: load.Loaded, task: str, path: str, answers: Any) -> PutWrites:
    """Return a save that is refused if the thread has moved, or others wrote to the checkpoint."""
    loaded = LOADS.of(at.id)
    run, seen = (1, 0) if loaded is None else (loaded.run, loaded.seen)
    fences = HeadFence("", head.root.row.id), HeadFence(at.ns, str(at.id))
    place = CheckpointRef(at.thread, at.ns, at.id)
    fence = WritesFence(at.ns, str(at.id), run, seen)
    return PutWrites(place, [(RESUME, answers)], task, path, fences=(*fences, fence))
