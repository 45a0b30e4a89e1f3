"""The growth of a thread over its checkpoints, compared with full copies of its state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, cast

from threadkeep._core import validation
from threadkeep._core.engine.context import not_found
from threadkeep._core.engine.log_sizes import LogSizes, read_logs
from threadkeep._core.engine.model import HIDDEN, OWN_NS, ReadThread, StoredCheckpoint, ThreadRows
from threadkeep._core.engine.operation import Operation, Progress, fetch
from threadkeep._core.engine.rows import unpack_time, unpack_writes
from threadkeep._core.engine.thread_sizes import BATCH, ValueSizes, step_of
from threadkeep.errors import invalid


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """The bytes that one checkpoint added to its thread.

    Attributes:
        checkpoint: its id.
        namespace: its namespace. "" is the graph's own.
        time: its time, as ISO 8601.
        step: the metadata's `step`, if any.
        channels: bytes of newly stored values, by channel. A channel that added none is absent.
        other_bytes: bytes of its row with the small values in it, and of its pending writes.
        full_copy_bytes: bytes of one whole, uncompressed copy of the state.
    """

    checkpoint: str
    namespace: str
    time: str
    step: int | None
    channels: dict[str, int]
    other_bytes: int
    full_copy_bytes: int

    @property
    def bytes(self) -> int:
        """All bytes that it added."""
        return sum(self.channels.values()) + self.other_bytes


class GrowthPoint(NamedTuple):
    """A checkpoint of a plot: sums over all checkpoints up to it.

    Attributes:
        number: its position in the thread, from 1.
        step: the checkpoint itself.
        stored: bytes that were stored.
        full_copies: bytes of one whole copy of each state.
        channels: stored bytes, by channel.
    """

    number: int
    step: GrowthStep
    stored: int
    full_copies: int
    channels: Counter[str]


@dataclass(frozen=True, slots=True)
class ThreadGrowth:
    """The growth of a thread, checkpoint by checkpoint.

    Bytes count as in `ThreadStats`. Bytes that forks share count in each of the threads.

    Attributes:
        thread: its id.
        steps: the checkpoints of all namespaces by id, oldest first. Bytes of hidden checkpoints
            and of threadkeep's own data count for the checkpoint after them.
        other_bytes: bytes that belong to no checkpoint: writes whose checkpoint is missing, and
            values that nothing refers to, unless forks share the thread's values.
    """

    thread: str
    steps: tuple[GrowthStep, ...]
    other_bytes: int

    @property
    def bytes(self) -> int:
        """All bytes of the thread."""
        return sum([one.bytes for one in self.steps]) + self.other_bytes

    def points(self, most: int = 1000) -> list[GrowthPoint]:
        """Return at most `most` points of a plot, evenly spread, with the first and the last.

        Raises:
            InvalidArgumentError: `most` is less than 2.
        """
        if not validation.is_count(most, 2):
            raise invalid("most", most, "Give 2 or more.")
        last = len(self.steps) - 1
        kept = {round(at * last / (most - 1)) for at in range(most)} if last >= most else None
        channels, stored, full = Counter[str](), 0, 0
        points = []
        for number, one in enumerate(self.steps):
            channels.update(one.channels)
            stored += one.bytes
            full += one.full_copy_bytes
            if kept is None or number in kept:
                points.append(GrowthPoint(number + 1, one, stored, full, channels.copy()))
        return points


def growth(thread_id: str, progress: Progress | None = None) -> Operation[ThreadGrowth]:
    place = validation.place(thread_id)
    thread = place.thread
    rows = cast("ThreadRows", (yield from fetch(ReadThread(thread))))
    checkpoints = sorted(rows.checkpoints, key=lambda one: (one.row.id, one.row.ns))
    if all(map(_is_hidden, checkpoints)):
        raise not_found(place)
    logs = yield from read_logs(thread, rows.segments)
    sizes, steps, carried = ValueSizes(logs), list[GrowthStep](), 0
    for at in range(0, len(checkpoints), BATCH):
        for stored, keyframe, values in (yield from sizes.read(checkpoints[at : at + BATCH])):
            channels = Counter[str]()
            other = carried + logs.count((keyframe,)) + _bytes_of(stored)
            for one in values:
                if one.is_changed and (added := logs.count(one.ref.needs)):
                    channels[one.channel] += added
            other += _pending(logs, stored)
            if _is_hidden(stored):
                carried = other + channels.total()
                continue
            full, carried = sum([one.full_size for one in values]), 0
            steps.append(_step(stored, dict(channels), other, full))
        if progress is not None:
            progress("checkpoints read", min(at + BATCH, len(checkpoints)), len(checkpoints))
    for row in rows.orphans:
        carried += len(row.body)
        carried += logs.count([span for one in unpack_writes(row) for span in one.ref.needs])
    rest = 0 if rows.family else logs.rest()  # (others of the family refer to their own values)
    return ThreadGrowth(thread, tuple(steps), carried + rest)


def _is_hidden(stored: StoredCheckpoint) -> bool:
    return bool(stored.row.flags & HIDDEN) or stored.row.ns.startswith(OWN_NS)


def _bytes_of(stored: StoredCheckpoint) -> int:
    row = stored.row
    return len(row.manifest) + len(row.metadata) + len(row.exact or b"")


def _pending(logs: LogSizes, stored: StoredCheckpoint) -> int:
    spans = [span for row in stored.writes for one in unpack_writes(row) for span in one.ref.needs]
    return logs.count(spans) + sum([len(row.body) for row in stored.writes])


def _step(stored: StoredCheckpoint, channels: dict[str, int], other: int, full: int) -> GrowthStep:
    row = stored.row
    return GrowthStep(row.id, row.ns, unpack_time(row.ts), step_of(row), channels, other, full)
