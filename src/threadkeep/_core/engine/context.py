"""The parts that operations share: options, working set, and reading a stored checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

from threadkeep._core.codec import Codec
from threadkeep._core.codec.frame import Compression
from threadkeep._core.engine import refs
from threadkeep._core.engine.differences import SeenSequence, to_watch
from threadkeep._core.engine.draft import Draft
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.logs import KEYFRAMES
from threadkeep._core.engine.model import (
    HIDDEN,
    OWN_NS,
    Batch,
    Child,
    HeadFence,
    ReadCheckpoint,
    Segment,
    Span,
    StoredCheckpoint,
    ThreadState,
    WriteRow,
)
from threadkeep._core.engine.operation import (
    CheckpointRef,
    Fetch,
    Operation,
    fetch_segments,
)
from threadkeep._core.engine.records import quick
from threadkeep._core.engine.refs import Cell, Inline, Manifest, Ref, Run
from threadkeep._core.engine.rows import Write, counting, manifest_of
from threadkeep._core.engine.shadow import Shadow
from threadkeep._core.engine.shapes import ChannelShapes, refuse_marked
from threadkeep._core.engine.snapshots import (
    ITSELF,
    ChannelValue,
    CheckpointSnapshot,
    Keyframe,
    RawElement,
    RunEntry,
    RunValue,
    cell_value,
)
from threadkeep._core.engine.thread_memory import ThreadMemory
from threadkeep._core.engine.thread_summary import Reported
from threadkeep._core.engine.tips import Look, Proof
from threadkeep._core.engine.working_set import WorkingSet
from threadkeep.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    ThreadkeepError,
    ThreadNotFoundError,
)

TOKEN_BITS = 31
_KEYFRAME_ROW = 64  # estimated bytes of a keyframe's own row
KEYFRAME_EVERY = 16  # checkpoints encoded against one keyframe
Keyframes: TypeAlias = dict[tuple[int, int], Keyframe]  # by log and position
ATTEMPTS = 8  # of a maintenance change, if other writers are faster
RUN_ATTEMPTS = 100  # of a run's reads and saves: others may archive its thread repeatedly


class Engine(NamedTuple):
    """The parts of the engine."""

    codec: Codec
    compression: Compression
    working_set: WorkingSet
    conflicts: Literal["fork", "raise"]
    token: Callable[[int], int]  # a random number of so many bits
    now: Callable[[], int]  # microseconds since 1970
    forked: Callable[[str, str, str], None]  # (thread, old head, checkpoint), once per forking run
    shapes: ChannelShapes | None = None  # of a program that has changed channels
    words: Callable[..., tuple[str, ...]] | None = None  # of messages, for an index: see `put`

    def shapes_in(self, ns: str) -> ChannelShapes | None:
        """Return the shapes of a namespace's channels, or None in threadkeep's own namespaces."""
        return None if ns.startswith(OWN_NS) else self.shapes

    def memory(self, thread: str) -> ThreadMemory:
        return self.working_set.thread(thread)

    def apart(self) -> Engine:
        """Return an engine with a working set of its own, which others do not use yet."""
        return self._replace(working_set=self.working_set.apart())


def read_manifest(
    stored: StoredCheckpoint, known: Keyframes | None = None
) -> tuple[Manifest, Keyframe]:
    """Return a checkpoint's manifest, and the keyframe it is encoded against."""
    row = stored.row
    if stored.keyframe is None:
        raise CorruptionError("The keyframe of a checkpoint is missing.")
    known, place = {} if known is None else known, (row.key_log, row.key_pos)
    key = known.get(place)
    if key is None:
        whole = Elements(NO_CODEC, (stored.keyframe,)).raw(*place)
        read = refs.decode_manifest(whole)
        key = known[place] = Keyframe(read, *place, 1, refs.numbers(read), len(whole))
    data = manifest_of(row)
    # A short-lived process cannot count the uses: a large difference shows them too.
    if 2 * len(data) > key.size + _KEYFRAME_ROW:
        key = key._replace(used=KEYFRAME_EVERY)
    return refs.decode_manifest(data, key.manifest), key


NO_CODEC: Any = None  # for readers of raw bytes


def read_channels(
    engine: Engine, stored: StoredCheckpoint, known: Keyframes | None = None
) -> tuple[Manifest, Keyframe]:
    """Return a checkpoint's manifest with the channels that the program knows."""
    read, key = read_manifest(stored, known)
    if engine.shapes is None or (shapes := engine.shapes_in(stored.row.ns)) is None:
        return read, key
    return shapes.manifest(read), key


def read_writes(
    engine: Engine, ns: str, rows: Sequence[WriteRow], child: Child | None
) -> list[Write]:
    """Return the writes that count, with the channels that the program knows."""
    writes = counting(rows, child)
    if engine.shapes is None or (shapes := engine.shapes_in(ns)) is None:
        refuse_marked(writes)
        return writes
    return shapes.writes(writes)


def to_store(engine: Engine, ns: str, manifest: Manifest) -> Manifest:
    """Return a manifest as it is stored: with the shape of its channels."""
    shapes = engine.shapes_in(ns)
    return manifest if shapes is None else shapes.marked(manifest)


def unless_hidden(stored: StoredCheckpoint | None) -> StoredCheckpoint | None:
    """Return None for a checkpoint that was pruned and is kept only for others."""
    return None if stored is None or stored.row.flags & HIDDEN else stored


def not_found(place: CheckpointRef) -> ThreadNotFoundError | CheckpointNotFoundError:
    if place.id is None:
        return ThreadNotFoundError(
            "There is no such thread, or it holds no checkpoints in this namespace.",
            thread=place.thread,
            namespace=place.ns or None,
        )
    return CheckpointNotFoundError(
        thread=place.thread,
        namespace=place.ns or None,
        checkpoint=place.id,
        hint="It may have been pruned. list() and get_state_history() show the existing ones.",
    )


@contextmanager
def named(stored: StoredCheckpoint) -> Iterator[None]:
    """Name the checkpoint in every error raised inside."""
    try:
        yield
    except ThreadkeepError as exc:
        row = stored.row
        exc.at(thread=stored.thread, namespace=row.ns or None, checkpoint=row.id)
        raise


def look(engine: Engine, place: CheckpointRef) -> Operation[tuple[ThreadState, Proof]]:
    """Fetch a checkpoint, and forget the thread's values if they are no longer stored.

    Returns also the proof of the thread's values, as long as the working set has it.
    """
    while True:
        memory = engine.memory(place.thread)
        before = memory.proof
        tips = () if before is None else frozenset(before.tips)
        (state,) = yield Fetch((ReadCheckpoint(*place),))
        is_new = state.found is None and not place.ns and place.id is None
        proof = memory.reconcile(state, before, tips, is_new=is_new)
        if proof is not None:
            return state, proof


def read_elements(
    engine: Engine, thread: str, spans: Iterable[Span], look: Look | None = None
) -> Operation[tuple[Elements, list[Segment]]]:
    """Return the elements of the spans, and the segments they came in."""
    segments = yield from fetch_segments(thread, refs.covering(spans), look)
    return Elements(engine.codec, segments), segments


def watched_value(ref: Ref, found: Elements, value: Any) -> ChannelValue:
    """Return the record of a value that was read, watched from now on."""
    if isinstance(ref, Inline):
        return cell_value(value, Shadow.of([value]), ref.data, ref.uses)
    if isinstance(ref, Cell):
        data, depth = found.raw(ref.log, ref.pos), found.depth(ref.log, ref.pos)
        raw = RawElement(data, ref.log, ref.pos, depth, ref.uses)
        return cell_value(value, Shadow.of([value]), data, ref.uses, raw)
    weight = sum([found.size(span) for span in ref.spans])
    keys = list(value) if ref.kind == refs.DICT else None
    items = list(value) if keys is None else list(value.values())
    shadow = Shadow.of(to_watch(keys, items))
    raws = {i: found.raw(*refs.cut(ref.spans, i, i + 1)[0][:2]) for i in shadow.opaque}
    seen = SeenSequence(keys, items, shadow, len(items))
    return RunValue(ref.kind, ref.spans, seen, weight, raws)


def resume_logs(
    memory: ThreadMemory,
    ns: str,
    read: Manifest,
    key: Keyframe,
    segments: list[Segment],
    proof: Proof | None,
) -> None:
    """Continue the logs that a checkpoint ends in, as read under `proof`."""
    ends: dict[int, int] = {}
    for segment in segments:
        ends[segment.log] = max(ends.get(segment.log, 0), segment.stop)
    for channel, entry in read.entries.items():
        ref = entry.ref
        if ref is None or isinstance(ref, Inline):
            continue
        for log, _, _ in ref.spans[-1:] if isinstance(ref, Run) else ref.needs[:1]:
            stop = max(ends.get(log, 0), memory.logs.end_of(log))
            if stop:
                memory.logs.resume(ns, channel, log, stop)
    memory.logs.resume(ns, KEYFRAMES, key.log, key.pos + 1)
    memory.publish(proof, segments)


def keyframe_of(
    engine: Engine,
    stored: StoredCheckpoint,
    state: CheckpointSnapshot | None,
    last: CheckpointSnapshot | None,
) -> tuple[Manifest, Keyframe]:
    """Return the manifest and its keyframe, from the working set if the store has the same.

    `state` is the checkpoint as it was seen, `last` the one that was seen last: later checkpoints
    may share its keyframe.
    """
    row = stored.row
    if (
        state is not None
        and state.data == row.manifest
        and (state.keyframe.log, state.keyframe.pos) == (row.key_log, row.key_pos)
    ):
        manifest_of(row)  # (checks it)
        return state.manifest, state.keyframe
    if engine.shapes is not None:
        return read_channels(engine, stored)
    if last is None:
        return read_manifest(stored)
    key = last.keyframe
    return read_manifest(stored, {(key.log, key.pos): key})


@quick
class Built(NamedTuple):
    """A batch ready to commit, and the values to remember in `memory` afterwards."""

    memory: ThreadMemory
    proof: Proof
    batch: Batch
    draft: Draft
    state: CheckpointSnapshot | None = None
    reported: Reported | None = None
    fence: HeadFence | None = None  # the head that the run expects
    begins: bool = False  # the first checkpoint of its run
    by: RunEntry | None = None  # the run of the graph


Failed: TypeAlias = tuple[Built, ThreadkeepError]
"""A batch whose commit failed, and the failure."""


def remember(engine: Engine, place: CheckpointRef, built: Built) -> None:
    """Publish a committed batch to the working set."""
    memory, proof, batch, draft, state, reported, fence, begins, by = built
    thread, working_set = place.thread, engine.working_set
    draft.committed()
    if by is not None:  # (ids of rows are separate objects)
        if state is not None:
            own_id, task = state.id, ITSELF
        else:
            (row,) = batch.writes
            own_id, task = row.checkpoint_id, (row.task_id, row.run)
        by.note(((working_set.key, thread), place.ns, own_id), (task,), proof)
    left = memory.publish(proof, draft.tails, state, fence, reported, begins=begins)
    counts, touch = working_set.counts, batch.touch
    size = 0 if touch is None else touch.size
    counts.written += size
    if state is not None:
        if memory.newest_bytes > size:
            counts.saved += memory.newest_bytes - size
        if left is not None:
            engine.forked(thread, left, state.id)
    working_set.note_use(thread, memory)
