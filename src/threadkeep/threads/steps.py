"""A step of a thread, read without its graph from the checkpoints before and after it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR

from threadkeep._core.engine.thread_summary import Tasks, following, state_channels, tasks
from threadkeep._core.langgraph_internals import NO_TASK, TASKS

_ALONE = 20  # parents outside of a list that are read for it


class Step(NamedTuple):
    """A checkpoint, the step that led to it, and the next nodes.

    Attributes:
        id, parent, ns: the checkpoint, its parent and its namespace.
        time: of the checkpoint, as ISO 8601.
        source: "input", "loop", "update" or "fork".
        number: the metadata's `step`, or None if it is no number.
        seconds: since the parent, or None if a time is unknown.
        waited: a task of the step waited for an answer meanwhile.
        retried: a task of the step failed, and ran again.
        ran: the nodes that ran, in `tasks` tasks.
        wrote: the channels of the state that they changed.
        next: the nodes that run next.
        waiting, failed: of the next tasks, those that wait for an answer, or have failed.
        errors: the texts of their errors.
    """

    id: str
    parent: str
    ns: str
    time: str
    source: str
    number: int | None
    seconds: float | None
    waited: bool
    retried: bool
    ran: tuple[str, ...]
    tasks: int
    wrote: tuple[str, ...]
    next: tuple[str, ...]
    waiting: tuple[str, ...]
    failed: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def end(self) -> float | None:
        """Seconds since 1970."""
        return moment_of(self.time)

    @property
    def is_idle(self) -> bool:
        """Return True if nothing ran between the parent and this checkpoint, or it waited."""
        return self.waited or self.source != "loop"

    @property
    def kind(self) -> str:
        """Return "input", "update" or "fork", or "start" if only LangGraph's own steps ran."""
        return self.source if self.source in ("input", "update", "fork") else "start"

    @property
    def where(self) -> str:
        """The subgraph's path, without the ids of its tasks."""
        return " / ".join(part.partition(":")[0] for part in self.ns.split("|"))


def step_of(
    found: CheckpointTuple, parent: CheckpointTuple | None = None, *, is_tip: bool = True
) -> Step:
    """Read the step that led to a checkpoint.

    Args:
        found: the checkpoint, as `get_tuple` returns it. Of a lazy one, load the channel of sent
            tasks before, and the pending writes if a task failed.
        parent: the checkpoint before, which may be lazy. Without it, `ran` is unknown.
        is_tip: False for a checkpoint with a child: nothing waits there any more.
    """
    place, checkpoint, metadata = found.config["configurable"], found.checkpoint, found.metadata
    values, wrote = checkpoint["channel_values"], checkpoint.get("updated_channels")
    above = found.parent_config["configurable"] if found.parent_config else {}
    number = (metadata or {}).get("step")
    before, after = _status(parent), _status(found) if is_tip else Tasks()
    sent = values[TASKS] if is_tip and TASKS in values else None
    sent = sent if isinstance(sent, list | tuple) else ()
    nodes = [*following(values), *(str(getattr(task, "node", task)) for task in sent)]
    writes = found.pending_writes if after.failed else None
    return Step(
        id=str(checkpoint["id"]),
        parent=str(above.get("checkpoint_id") or ""),
        ns=str(place.get("checkpoint_ns") or ""),
        time=str(checkpoint["ts"]),
        source=str((metadata or {}).get("source", "")),
        number=number if isinstance(number, int) else None,
        seconds=seconds_between(parent.checkpoint["ts"], checkpoint["ts"]) if parent else None,
        waited=bool(before.asked),
        retried=bool(before.failed),
        ran=_ran(parent, found) if parent else (),
        tasks=len({task for task, _ in _writes(parent) if task != NO_TASK}),
        wrote=tuple(state_channels(map(str, wrote if isinstance(wrote, list) else ()))),
        next=tuple(sorted(set(nodes))) if is_tip else (),
        waiting=after.waiting,
        failed=after.failed,
        errors=errors_of(writes or ()),
    )


def errors_of(writes: Iterable[tuple[str, str, Any]]) -> tuple[str, ...]:
    """Return the texts of errors among pending writes, the ones of cancelled tasks last."""
    errors = [str(value) for _, channel, value in writes if channel == ERROR]
    return tuple(sorted(errors, key=lambda text: text.startswith("CancelledError")))


async def read_steps(
    saver: Any,
    found: Sequence[CheckpointTuple],
    most: int,
    continued: Collection[tuple[str, str]] = (),
) -> list[Step]:
    """Read the steps that led to the first checkpoints of a list (see `step_of`).

    Args:
        saver: reads parents that the list lacks, at most 20.
        found: checkpoints of a thread, newest first, as `alist(values="lazy")` returns them.
        most: number of steps. Further checkpoints of the list are parents alone.
        continued: checkpoints that have a child outside of the list.
    """
    shown, known = found[:most], {spot_of(one.config): one for one in found}
    parents = {spot_of(one.parent_config): one.parent_config for one in shown}
    for spot in [one for one in parents if one[1] and one not in known][:_ALONE]:
        async for one in saver.alist(parents[spot], limit=1, values="lazy"):
            known[spot] = one
    steps = []
    for one in shown:
        values: Any = one.checkpoint["channel_values"]
        writes: Any = one.pending_writes
        is_tip = (spot := spot_of(one.config)) not in parents and spot not in continued
        if is_tip and TASKS in values:
            await values.aload(TASKS)
        if is_tip and _status(one).failed:
            await writes.aload()
        steps.append(step_of(one, known.get(spot_of(one.parent_config)), is_tip=is_tip))
    return steps


def spot_of(config: RunnableConfig | None) -> tuple[str, str]:
    """Return the namespace and the id of a checkpoint, which are empty without a config."""
    place = config["configurable"] if config else {}
    return str(place.get("checkpoint_ns") or ""), str(place.get("checkpoint_id") or "")


def _status(found: CheckpointTuple | None) -> Tasks:
    return tasks(_writes(found))


def _writes(found: CheckpointTuple | None) -> Sequence[tuple[str, str]]:
    """Return the task and the channel of each pending write."""
    writes: Any = found.pending_writes if found else None
    names: Sequence[tuple[str, str]] | None = getattr(writes, "names", None)  # (of a lazy list)
    return [(task, channel) for task, channel, _ in writes or ()] if names is None else names


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


def seconds_between(before: str, after: str) -> float | None:
    """Return the seconds between two times in ISO 8601, at least 0, or None if one is unknown."""
    start, end = moment_of(before), moment_of(after)
    return None if start is None or end is None else max(end - start, 0.0)


def moment_of(time: str) -> float | None:
    """Return the seconds since 1970 of an ISO 8601 text, or None for other text."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
