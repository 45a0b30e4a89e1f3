"""What changed between two checkpoints: `diff`, `diff_places`.

Only the face lives here: `diff.checkpoints` reads, `differences` compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig

from threadkeep import arguments
from threadkeep.diff import (
    Change,
    ChannelDiff,
    DiffSide,
    StateDiff,
    checkpoints,
    differences,
)
from threadkeep.diff.checkpoints import (
    Compared,
    Pair,
    Side,
)
from threadkeep.diff.effort import Effort
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
)
from threadkeep.engine.rows import unpack_time
from threadkeep.errors import InvalidArgumentError
from threadkeep.langgraph_internals import is_internal
from threadkeep.store import driver
from threadkeep.threads.running import Running

__all__ = ["Comparing", "Where"]

Where: TypeAlias = RunnableConfig | tuple[str, str | None]
"""A config, or the id of a thread and that of a checkpoint (None: the head)."""


class Comparing(Running):
    """What changed."""

    def diff(
        self, thread: str, before: str | None, after: str | None = None, ns: str = ""
    ) -> StateDiff:
        """What changed between two checkpoints of a thread, channel by channel.

        Args:
            thread: the thread's id.
            before: a checkpoint's id; None for the head.
            after: a checkpoint's id; None for the head.
            ns: the checkpoint namespace of both; "" is the graph's own.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: one is not there.
            InvalidArgumentError: an argument is no text.
            CorruptionError, UnknownTypeError: a value cannot be read.
        """
        return _told(self._engine, self._run(self._compare(thread, before, after, ns)))

    async def adiff(
        self, thread: str, before: str | None, after: str | None = None, ns: str = ""
    ) -> StateDiff:
        """See `diff`."""
        return await self._atold(self._compare(thread, before, after, ns))

    def _compare(
        self, thread: str, before: str | None, after: str | None, ns: str
    ) -> Operation[Compared]:
        a, b = self._place(thread, ns, before), self._place(thread, ns, after)
        return checkpoints.compare(self._engine, a, b)

    def diff_places(self, before: Where, after: Where) -> StateDiff:
        """What differs between two checkpoints of any threads, channel by channel.

        Args:
            before: a config, as `get_state` and `list` give it, or a pair: the thread's id
                and the checkpoint's (None for the head).
            after: likewise.

        Raises:
            InvalidConfigError: a config has no thread_id.
            ThreadkeepError: as `diff`.
        """
        return _told(self._engine, self._run(self._compare_places(before, after)))

    async def adiff_places(self, before: Where, after: Where) -> StateDiff:
        """See `diff_places`."""
        return await self._atold(self._compare_places(before, after))

    def _compare_places(self, before: Where, after: Where) -> Operation[Compared]:
        return checkpoints.compare(self._engine, self._where(before), self._where(after))

    async def _atold(self, operation: Operation[Compared]) -> StateDiff:
        found = await self._arun(operation)
        # (Where much differs this takes long enough to hold up an event loop.)
        return await driver.in_thread(partial(_told, self._engine, found))

    def _where(self, given: Where) -> CheckpointRef:
        if isinstance(given, Mapping):
            return arguments.place(given)
        if isinstance(given, tuple | list) and len(given) == 2:  # noqa: PLR2004 - a pair
            return self._place(given[0], "", given[1])
        raise InvalidArgumentError(
            "A place to compare is a config, or a pair of ids.",
            hint="Pass state.config, or (thread id, checkpoint id or None).",
        )


def _told(engine: Engine, found: Compared) -> StateDiff:
    effort = Effort()
    channels = {name: _channel(engine, name, pair, effort) for name, pair in found.channels.items()}
    return StateDiff(_side(found.before), _side(found.after), channels)


def _side(side: Side) -> DiffSide:
    row, metadata = side.stored.row, side.metadata
    return DiffSide(
        thread=side.stored.thread,
        ns=row.ns,
        checkpoint=row.id,
        time=unpack_time(row.ts),
        step=metadata.get("step"),
        source=metadata.get("source"),
    )


def _channel(engine: Engine, name: str, pair: Pair, effort: Effort) -> ChannelDiff:
    before, after = pair.before, pair.after
    changes = () if pair.is_same else _changes(engine, pair, effort)
    same_version = (before.version, type(before.version)) == (after.version, type(after.version))
    kind: Any = "unchanged" if same_version else "version"
    if changes:
        whole = changes[0].kind if not changes[0].after_at and len(changes) == 1 else "changed"
        kind = whole if whole in ("added", "removed") else "changed"
    return ChannelDiff(
        channel=name,
        kind=kind,
        before_version=before.version,
        after_version=after.version,
        changes=changes,
        is_delta=pair.is_delta,
        is_internal=is_internal(name),
    )


def _changes(engine: Engine, pair: Pair, effort: Effort) -> tuple[Change, ...]:
    before, after = pair.before, pair.after
    if not before.is_there:
        return (Change("added", (), (), after=after.value),) if after.is_there else ()
    if not after.is_there:
        return (Change("removed", (), (), before.value),)
    return differences(before.value, after.value, engine.codec.encode, effort)
