"""Committing a batch, and building it anew where others came in between.

Invariant: however an attempt ends, its appender hears of it, so that others can seal the tails.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from threadkeep.engine.context import ATTEMPTS, Engine
from threadkeep.engine.logs import Appender
from threadkeep.engine.model import Batch, HeadFence
from threadkeep.engine.operation import CheckpointRef, Operation, commit
from threadkeep.engine.refs import Ref
from threadkeep.engine.snapshots import ChannelValue, Snapshot
from threadkeep.engine.thread_summary import Reported
from threadkeep.engine.working_set import ThreadMemory
from threadkeep.errors import (
    BackendError,
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadkeepError,
)


class Built(NamedTuple):
    """A batch ready to commit, and what to remember in `memory` once it is.

    `beside` is the checkpoint whose values it was compared with; `writes` are pending writes:
    index, channel, reference, value. `fence` is what the run expects of the head; a violation is
    reported once a run. `begins`: the checkpoint is its run's first.
    """

    memory: ThreadMemory
    batch: Batch
    appender: Appender
    state: Snapshot | None = None
    reported: Reported | None = None
    beside: str | None = None
    writes: tuple[tuple[int, str, Ref, ChannelValue], ...] = ()
    fence: HeadFence | None = None
    begins: bool = False


Failed: TypeAlias = tuple[Built, ThreadkeepError]
"""A batch whose commit failed, and the failure."""


class BatchSource(NamedTuple):
    """The values of a batch, to make it anew later; see `write_behind.rebase`.

    They are the program's own, watched by their shadows.
    """

    engine: Engine
    ns: str
    beside: str | None
    state: Snapshot | None
    writes: tuple[tuple[int, str, Ref, ChannelValue], ...]

    @property
    def size(self) -> int:
        """About how many encoded bytes the values stand for that nothing else holds."""
        return (self.state.fresh if self.state else 0) + sum([h.weight for *_, h in self.writes])


def commit_built(
    engine: Engine,
    place: CheckpointRef,
    build: Callable[[int], Operation[Built]],
    lost: Callable[[], Operation[None]] | None = None,
    failed: Failed | None = None,
) -> Operation[None]:
    """Build a batch and commit it, again where its log positions were taken.

    Args:
        engine: the engine's parts.
        place: the checkpoint that errors name.
        build: makes the batch, given the number of the attempt, from 0 on.
        lost: run where the commit is refused for good.
        failed: the first attempt, where that was made.

    Raises:
        ConflictError: the commit was refused, or others kept taking the positions.
    """
    for attempt in range(ATTEMPTS):
        built, failure = failed or ((yield from build(attempt)), None)
        failed, done = None, False
        try:
            if failure is not None:
                raise failure
            yield from commit(to_commit(engine, place, built))
            done = True
        except SegmentTakenError:
            engine.memory(place.thread).abandon()
        except StaleThreadError:
            engine.working_set.forget(place.thread)
        except ThreadkeepError as exc:
            if isinstance(exc, ConflictError) and lost is not None:
                with suppress(BackendError):  # the conflict is what the caller must hear of
                    yield from lost()
            exc.at(**place.named())
            raise
        finally:  # (also where it was interrupted, and nobody knows whether it is there)
            if not done:
                built.appender.failed()
        if done:
            remember(engine, place, built)
            return
    raise ConflictError(
        "Others keep taking the log positions of this thread.",
        hint="Try the call again.",
        **place.named(),
    )


def to_commit(engine: Engine, place: CheckpointRef, built: Built) -> Batch:
    """Return the batch to commit, with its source where it may have to be made anew."""
    if not engine.holds_all:
        return built.batch
    made = BatchSource(engine, place.ns, built.beside, built.state, built.writes)
    return built.batch._replace(made=made)


def remember(engine: Engine, place: CheckpointRef, built: Built) -> None:
    """Remember what is committed."""
    built.appender.committed()
    memory, state = built.memory, built.state
    if state is not None:
        left = memory.publish(
            state, built.batch.generation, built.fence, built.reported, begins=built.begins
        )
        if left is not None:
            engine.forked(place.thread, left, state.id)
    engine.working_set.settle(place.thread, memory)
