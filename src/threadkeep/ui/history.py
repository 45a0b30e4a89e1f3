"""Steps of a thread, from a window of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR

from threadkeep._core.engine.thread_summary import Tasks, following, own, tasks
from threadkeep._core.langgraph_internals import NO_TASK, TASKS
from threadkeep.threads import ThreadInfo
from threadkeep.ui import lanes

_LONG = 10_000
"""Steps from which a window leaves out subgraphs until it is asked for them: to sort several
namespaces by id, a store may read the whole thread."""

_ALONE = 20
"""Parents outside of a window that are read for it."""


class Step(NamedTuple):
    """A checkpoint, and the step that led to it.

    Attributes:
        source: "input", "loop", "update" or "fork".
        seconds: since the parent; None if a time is unknown.
        waited: a task of the step waited for an answer meanwhile.
        retried: a task of the step failed, and ran again.
        ran: the nodes that ran, in `tasks` tasks.
        wrote: the channels that they changed.
        next: the nodes that run next, if the checkpoint has no child.
        waiting, failed: of these, the number of tasks that wait for an answer, or have failed.
        error: the first error.
        lanes: None in a subgraph.
    """

    id: str
    parent: str | None
    ns: str
    ts: str
    source: str
    number: int | str
    seconds: float | None
    waited: bool
    retried: bool
    ran: tuple[str, ...]
    tasks: int
    wrote: tuple[str, ...]
    next: tuple[str, ...]
    waiting: int
    failed: int
    error: str
    tags: tuple[str, ...]
    pinned: bool
    lanes: lanes.Lanes | None

    @property
    def end(self) -> float | None:
        """Seconds since 1970."""
        return moment_of(self.ts)

    @property
    def is_idle(self) -> bool:
        """Return True if nothing ran between the parent and this checkpoint, or it waited."""
        return self.waited or self.source != "loop"

    @property
    def kind(self) -> str:
        """Return "input", "update" or "fork"; "start" if only LangGraph's own steps ran."""
        return self.source if self.source in ("input", "update", "fork") else "start"

    @property
    def where(self) -> str:
        """The subgraph's path, without the ids of its tasks."""
        return " / ".join(part.partition(":")[0] for part in self.ns.split("|"))


class Steps(NamedTuple):
    """Steps, newest first.

    Attributes:
        older: the checkpoint that the next window is below; "" at the end.
        waiting: the parents that lanes wait for below the window.
        beside: the lanes that lead into the window from above.
        inner: True if it lists subgraphs.
    """

    steps: list[Step]
    older: str
    waiting: list[str | None]
    beside: tuple[int, ...]
    inner: bool

    @property
    def groups(self) -> list[tuple[list[list[Step]], tuple[int, ...]]]:
        """Steps of the graph itself, one by one, and between them those of each subgraph.

        Each group has the lanes that lead through it.
        """
        made: list[tuple[list[list[Step]], tuple[int, ...]]] = []
        beside = self.beside
        for is_inner, some in groupby(self.steps, lambda one: one.lanes is None):
            if is_inner:
                every = sorted(some, key=lambda one: one.ns)
                made.append(([[*g] for _, g in groupby(every, lambda one: one.ns)], beside))
            else:
                for one in some:
                    beside = one.lanes.after if one.lanes else ()
                    made.append(([[one]], beside))
        return made

    @property
    def head(self) -> str:
        """The newest checkpoint of the graph itself."""
        return next((one.id for one in self.steps if one.lanes), "")

    @property
    def width(self) -> int:
        """The number of lanes."""
        drawn = [one.lanes for one in self.steps if one.lanes]
        return 1 + max([0, *self.beside, *[n for one in drawn for n in (one.lane, *one.after)]])

    @property
    def longest(self) -> float:
        """Seconds of the longest step."""
        return max([one.seconds or 0 for one in self.steps if not one.is_idle], default=0)


async def read(
    saver: Any,
    info: ThreadInfo,
    most: int,
    *,
    before: str = "",
    waiting: Sequence[str | None] = (),
    inner: bool | None = None,
) -> Steps:
    """Read a window of a thread's steps.

    Args:
        saver: a saver that shows values as stored.
        info: the thread's entry.
        most: the number of checkpoints.
        before: list those with smaller ids; "" for the newest.
        waiting: the parents that lanes wait for above the window.
        inner: list subgraphs too; None for threads of less than 10,000 steps.
    """
    if inner is None:
        head = await _listed(saver, info.id, 1, before, inner=False)
        number = (head[0].metadata or {}).get("step") if head else 0
        inner = not (isinstance(number, int) and number >= _LONG)
    found = await _listed(saver, info.id, most + 1, before, inner=inner)
    shown, more = found[:most], len(found) > most
    parents = {_key(one): one for one in found}
    parents |= await _missing(saver, shown, parents)
    roots = [(one.checkpoint["id"], _parent(one)) for one in shown if not _ns(one)]
    drawn, below = lanes.draw(roots, waiting)
    of_root = dict(zip([id for id, _ in roots], drawn, strict=True))
    has_child = {(_ns(one), _parent(one)) for one in shown} | {("", wanted) for wanted in waiting}
    if before and not waiting:  # (a newer checkpoint probably continues from the newest of these)
        has_child |= set({_ns(one): _key(one) for one in reversed(shown)}.values())
    marks = {(mark.checkpoint_ns, mark.checkpoint): mark for mark in info.marks}
    steps = []
    for one in shown:
        ns, id = key = _key(one)
        parent = parents.get((ns, _parent(one) or ""))
        step = _step(one, parent, None if ns else of_root[id], marks.get(key))
        if key in has_child:
            steps.append(step._replace(waiting=0, failed=0, next=()))
        else:
            steps.append(await _of_tip(one, step))
    older = shown[-1].checkpoint["id"] if more else ""
    beside = tuple(n for n, wanted in enumerate(waiting) if wanted is not None)
    return Steps(steps, older, below, beside, inner)


async def _of_tip(found: CheckpointTuple, step: Step) -> Step:
    """Add what needs a read: nodes that tasks were sent to, and the error."""
    values: Any = found.checkpoint["channel_values"]
    writes: Any = found.pending_writes
    is_lazy = hasattr(writes, "aload")
    if TASKS in values:
        if is_lazy:
            await values.aload(TASKS)
        sent = [str(getattr(task, "node", task)) for task in values[TASKS] or ()]
        step = step._replace(next=tuple(sorted({*step.next, *sent})))
    if step.failed:
        if is_lazy:
            await writes.aload()
        errors = [str(value) for _, channel, value in writes if channel == ERROR]
        step = step._replace(error=next(iter(errors), ""))
    return step


async def _listed(
    saver: Any, thread: str, most: int, before: str, *, inner: bool
) -> list[CheckpointTuple]:
    place = {"thread_id": thread} if inner else {"thread_id": thread, "checkpoint_ns": ""}
    start = {"configurable": {**place, "checkpoint_id": before}} if before else None
    found = saver.alist({"configurable": place}, before=start, limit=most, values="lazy")
    return [one async for one in found]


async def _missing(
    saver: Any, shown: Iterable[CheckpointTuple], known: Mapping[tuple[str, str], Any]
) -> dict[tuple[str, str], CheckpointTuple]:
    """Read parents outside of the window: where branches fork, and below its end."""
    made: dict[tuple[str, str], CheckpointTuple] = {}
    wanted = {(_ns(one), _parent(one) or ""): one.parent_config for one in shown}
    for key in [key for key in wanted if key[1] and key not in known][:_ALONE]:
        async for one in saver.alist(wanted[key], limit=1, values="lazy"):
            made[key] = one
    return made


def _ns(found: CheckpointTuple) -> str:
    return str(found.config["configurable"].get("checkpoint_ns") or "")


def _key(found: CheckpointTuple) -> tuple[str, str]:
    return _ns(found), found.checkpoint["id"]


def _parent(found: CheckpointTuple) -> str | None:
    above = found.parent_config
    return above["configurable"].get("checkpoint_id") if above else None


def _step(
    found: CheckpointTuple,
    parent: CheckpointTuple | None,
    drawn: lanes.Lanes | None,
    mark: Any,
) -> Step:
    checkpoint, metadata = found.checkpoint, found.metadata or {}
    number, status, wrote = metadata.get("step"), _tasks(found), checkpoint.get("updated_channels")
    before = _tasks(parent) if parent else Tasks()
    return Step(
        id=checkpoint["id"],
        parent=_parent(found),
        ns=_ns(found),
        ts=str(checkpoint["ts"]),
        source=str(metadata.get("source", "")),
        number=number if isinstance(number, int) else "?",
        seconds=_seconds(parent, found) if parent else None,
        waited=bool(before.asked),
        retried=bool(before.failed),
        ran=_ran(parent, found) if parent else (),
        tasks=len({task for task, _ in _names(parent) if task != NO_TASK}) if parent else 0,
        wrote=tuple(own(map(str, wrote if isinstance(wrote, list) else ()))),
        next=tuple(sorted(following(checkpoint["channel_values"]))),
        waiting=len(status.waiting),
        failed=len(status.failed),
        error="",
        tags=mark.tags if mark else (),
        pinned=bool(mark and mark.pinned),
        lanes=drawn,
    )


def _names(found: CheckpointTuple) -> Sequence[tuple[str, str]]:
    """Return the task and the channel of each pending write."""
    writes: Any = found.pending_writes
    names: Sequence[tuple[str, str]] | None = getattr(writes, "names", None)  # (of a lazy list)
    return [(task, channel) for task, channel, _ in writes or ()] if names is None else names


def _tasks(found: CheckpointTuple) -> Tasks:
    return tasks(_names(found))


def _seconds(parent: CheckpointTuple, found: CheckpointTuple) -> float | None:
    start, end = moment_of(parent.checkpoint["ts"]), moment_of(found.checkpoint["ts"])
    return None if start is None or end is None else max(end - start, 0.0)


def moment_of(ts: str) -> float | None:
    """Return the seconds since 1970 of an ISO 8601 text; None for other text."""
    try:
        return datetime.fromisoformat(ts).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _ran(parent: CheckpointTuple, found: CheckpointTuple) -> tuple[str, ...]:
    """Return the nodes that have seen other versions of channels than at the parent."""
    before, now = parent.checkpoint["versions_seen"], found.checkpoint["versions_seen"]
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return ()
    return tuple(
        str(name)
        for name, versions in now.items()
        if before.get(name) != versions and str(name)[:2] != "__"
    )
