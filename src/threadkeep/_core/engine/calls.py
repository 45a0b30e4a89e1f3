"""Calls of a saver that store something, as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.engine import model
from threadkeep._core.engine.operation import CheckpointRef
from threadkeep._core.engine.records import quick
from threadkeep._core.engine.shadow import copy_and_watch
from threadkeep._core.engine.snapshots import LOADS, LoadEntry, RunEntry


class TakenInput(NamedTuple):
    """A stored input that a run begins with: its id, its key, and the bytes of its row."""

    id: str
    key: str
    size: int


@quick
class Put(NamedTuple):
    """A `put` call: the checkpoint, its parent's id, its merged metadata."""

    place: CheckpointRef
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    new: frozenset[str] = frozenset()  # channels with a new value, whatever their version
    complete: bool = False  # missing channels are empty, whatever their version
    run: bool = False  # made by a run of a graph
    edits: bool = False  # changes its parent, which must exist
    record: str | None = None  # of layered memory, which must exist
    by: RunEntry | None = None  # the run of the graph
    life: int | None = None  # of the thread, if there is no run, as for a copy
    guard: str | None = None  # the thread's holder
    fences: tuple[model.Fence, ...] = ()
    takes: TakenInput | None = None

    @property
    def loaded(self) -> LoadEntry | None:
        """The load that the run began with, or None for a run that continues."""
        return LOADS.of(self.parent)

    def with_copies(self) -> Put:
        """Return the call with copies of its values, as they are now."""
        values = self.checkpoint["channel_values"]
        copies = dict(zip(values, copy_and_watch([*values.values()]).copies, strict=True))
        return self._replace(checkpoint={**self.checkpoint, "channel_values": copies})


Writes: TypeAlias = Sequence[tuple[str, Any]]  # channel and value


@quick
class PutWrites(NamedTuple):
    """A `put_writes` call. `indexes` are the writes' own, if another saver assigned them.

    Writes with `fences` need these and the checkpoint, and count as an update of the thread.
    """

    place: CheckpointRef
    writes: Writes
    task_id: str
    task_path: str
    indexes: Sequence[int] | None = None
    fences: tuple[model.Fence, ...] = ()
    by: RunEntry | None = None  # as in `Put`
    life: int | None = None
    guard: str | None = None
    asks: bool = False  # the thread is due afterwards
    note: str | None = None  # stored with the writes

    def with_copies(self) -> PutWrites:
        copies = copy_and_watch([value for _, value in self.writes]).copies
        channels = [channel for channel, _ in self.writes]
        return self._replace(writes=list(zip(channels, copies, strict=True)))


SaveCall: TypeAlias = Put | PutWrites
