"""Upgrades: rewriting stored values in the shapes of the program.

An element keeps its position, so that everything that refers to it stays valid, also in forks. Each
change is complete in itself: values of several shapes may coexist, so an upgrade can
be interrupted anywhere, and continues when it is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from threadkeep._core import validation
from threadkeep._core.codec import unpack
from threadkeep._core.codec.shapes import ShapedCodec
from threadkeep._core.engine import thread_summary
from threadkeep._core.engine.cold_references import archive_of, with_archive
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.elements import base_of
from threadkeep._core.engine.lineage import checkpoint_key, segment_key, write_key
from threadkeep._core.engine.model import (
    Batch,
    Segment,
    ThreadRows,
)
from threadkeep._core.engine.operation import Operation, Progress, commit, fetch_segments
from threadkeep._core.engine.refs import covering, span_of
from threadkeep._core.engine.registration import ThreadSnapshot, read_snapshot, retry
from threadkeep._core.engine.thread_entry import (
    EntryFence,
    EntryUpdate,
    ThreadEntry,
    is_archived,
)
from threadkeep._core.engine.thread_summary import bytes_of
from threadkeep._core.engine.tips import Link, Look, Proof
from threadkeep._core.parts import parts_of
from threadkeep._run.driver import Runner, external, on
from threadkeep.errors import (
    ClosedError,
    CodecError,
    ConflictError,
    InvalidArgumentError,
    StaleThreadError,
    ThreadArchivedError,
    ThreadkeepError,
    ThreadNotFoundError,
)
from threadkeep.threads.archives import archive as archiving
from threadkeep.threads.archives.seals import seal_of
from threadkeep.threads.retention.apply import all_writes
from threadkeep.threads.rewriting import Position, Renewed, Renewing, renew, with_elements
from threadkeep.threads.transfer.meter import Meter
from threadkeep.threads.transfer.whole_thread import (
    WholeThread,
    all_threads,
    stored_of,
)

if TYPE_CHECKING:
    from threadkeep._run.layered_backend import LayeredBackend
    from threadkeep._stores.cold_store import ColdStore

_BATCH_BYTES = 4 << 20  # of segments in one change


@dataclass(frozen=True, slots=True)
class UpgradedThread:
    """A thread that was rewritten, or would be.

    Attributes:
        thread: its id.
        values: number of stored elements rewritten: messages, elements of lists, large values.
        checkpoints, writes: number of rows rewritten.
    """

    thread: str
    values: int
    checkpoints: int
    writes: int


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """Result of an upgrade, or of a dry run.

    Attributes:
        threads: number of threads examined.
        upgraded: the threads that were rewritten.
        failed: the error of each thread that could not be, and is unchanged. `thread`,
            `checkpoint` and `channel` of an error name the value.
    """

    threads: int
    upgraded: tuple[UpgradedThread, ...]
    failed: tuple[ThreadkeepError, ...]

    @property
    def ok(self) -> bool:
        """True if everything stored has the shapes of the program."""
        return not self.failed


def upgrade(
    store: LayeredBackend,
    engine: Engine,
    threads: Iterable[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Operation[UpgradeReport]:
    codec = engine.codec
    if not isinstance(codec, ShapedCodec):
        raise InvalidArgumentError(
            "The saver was opened without migrations=.",
            hint="Open it with the migrations of your program: migrations=.",
        )
    return (yield from rewrite(store, engine, codec, threads, progress, dry_run=dry_run))


def rewrite(
    store: LayeredBackend,
    engine: Engine,
    codec: Renewing,
    threads: Iterable[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Operation[UpgradeReport]:
    """Rewrite the values that a codec renews. See `Threads.upgrade`."""
    named = None if threads is None else validation.each_thread(threads)
    names = yield from on(store, all_threads())
    for name in named or ():
        if name not in names:
            raise ThreadNotFoundError(hint="Nothing was changed.", thread=name)
    names, cold = names if named is None else list(named), (yield from store.own_cold())
    done, failed = list[UpgradedThread](), list[ThreadkeepError]()

    def visit(thread: str) -> Operation[None]:
        work = _Upgrade(store, cold, engine, codec, thread, dry_run)
        try:
            found = yield from work.run()
        except ClosedError:
            raise
        except (CodecError, ConflictError, ThreadArchivedError) as error:
            failed.append(error.at(thread=thread))
        else:
            done.extend([found] if found is not None else [])

    yield from Meter(progress, "upgraded", len(names)).each(names, visit)
    return UpgradeReport(len(names), tuple(done), tuple(failed))


class _Upgrade(NamedTuple):
    """The upgrade of one thread."""

    store: Runner
    cold: ColdStore | None
    engine: Engine
    codec: Renewing
    thread: str
    dry_run: bool

    def run(self) -> Operation[UpgradedThread | None]:
        """Rewrite the thread, change by change, and return None if nothing had an older shape."""
        total = nothing = UpgradedThread(self.thread, 0, 0, 0)
        while True:
            step, is_done = yield from retry(self.thread, self._step)
            total = replace(
                total,
                values=total.values + step.values,
                checkpoints=total.checkpoints + step.checkpoints,
                writes=total.writes + step.writes,
            )
            if is_done:
                return None if total == nothing else total

    def _step(self) -> Operation[tuple[UpgradedThread, bool]]:
        """Make one change, and return its counts, and False if there may be more to do."""
        snapshot = yield from on(self.store, read_snapshot(self.thread))
        if is_archived(snapshot.entry):
            return (yield from self._archived(snapshot.entry)), True
        rows = snapshot.rows
        spans = covering(map(span_of, rows.segments))
        segments = yield from on(self.store, fetch_segments(self.thread, spans, Look.of(rows)))
        new = yield from self._renewed(rows, snapshot.others, segments)
        counts = _counts(self.thread, new)
        if new.is_nothing or self.dry_run:
            return counts, True
        batch, counts, is_done = self._part(snapshot, new, segments)
        yield from on(self.store, commit(batch))
        for name in (self.thread, *rows.family):
            self.engine.working_set.forget(name)
        return counts, is_done

    def _renewed(
        self, rows: ThreadRows, others: Sequence[ThreadRows], segments: Sequence[Segment]
    ) -> Operation[Renewed]:
        # (decoding many values would block an event loop)
        arguments = (self.engine, self.codec, self.thread, rows, others, segments)
        return external(partial(renew, *arguments))

    # -- changes ---------------------------------------------------------------------

    def _part(
        self, snapshot: ThreadSnapshot, new: Renewed, segments: Sequence[Segment]
    ) -> tuple[Batch, UpgradedThread, bool]:
        """Build the change of some segments, or else of all rows, in place."""
        plain = Batch(
            self.thread,
            self.engine.now(),
            snapshot.rows.generation,
            fences=snapshot.fences,
            bump_generation=True,  # (a run may hold the bytes that its next patch is made for)
            link=Link(Proof.of(snapshot.rows)),
        )
        counts = UpgradedThread(self.thread, 0, 0, 0)
        if new.elements:
            old = next(_groups(segments, new.elements))
            sizes = {segment_key(info): info.size for info in snapshot.rows.segments}
            if not sizes.keys() >= set(map(segment_key, old)):
                raise StaleThreadError(thread=self.thread)
            after = [with_elements(self.engine, segment, new.elements) for segment in old]
            size = bytes_of(after) - sum([sizes[segment_key(segment)] for segment in old])
            size = size if snapshot.counts_segments else 0
            batch = plain._replace(
                segments=tuple(after),
                drop_segments=tuple(map(segment_key, old)),
                touch=EntryUpdate(size=size),
            )
            count = sum(map(partial(_changed_in, new.elements), old))
            return batch, replace(counts, values=count), False
        keys, writes = set(new.checkpoints), set(new.writes)
        size = snapshot.segment_bytes()
        size += bytes_of(new.added) if snapshot.counts_segments else 0
        batch = plain._replace(
            segments=tuple(new.added),
            checkpoints=tuple([s.row for s in new.rows.checkpoints if checkpoint_key(s) in keys]),
            replace_writes=tuple([w for w in all_writes(new.rows) if write_key(w) in writes]),
            touch=thread_summary.of_rows(new.rows.checkpoints, new.rows.orphans, size),
        )
        return batch, replace(_counts(self.thread, new), values=len(new.added)), True

    # -- archives --------------------------------------------------------------------

    def _archived(self, entry: ThreadEntry | None) -> Operation[UpgradedThread]:
        """Replace the archive of a thread, which stays in the cold store."""
        archive = archive_of(entry)
        if self.cold is None or entry is None or archive is None:
            raise ThreadArchivedError(thread=self.thread)
        data = yield from external(partial(self.cold.get, archive.key))
        whole = yield from archiving.opened(self.cold, self.thread, data, archive)
        new = yield from self._renewed(_rows_in(whole), (), whole.segments)
        counts = _counts(self.thread, new)
        if new.is_nothing or self.dry_run:
            return counts
        seal = yield from seal_of(self.cold, self.thread)
        packed = partial(archiving.pack, self._after(whole, new), archive, archive.state, seal)
        data, record = yield from external(packed)
        kept = record._replace(offloaded=archive.offloaded, back_at=archive.back_at)
        batch = Batch(
            self.thread,
            self.engine.now(),
            fences=(EntryFence(entry.revision),),
            entry=with_archive(entry, kept),
        )
        yield from archiving.exchange(self.store, self.cold, record.key, data, batch)
        return counts

    def _after(self, whole: WholeThread, new: Renewed) -> WholeThread:
        rows = new.rows
        by_key = {write_key(row): row for row in all_writes(rows)}
        own = [with_elements(self.engine, segment, new.elements) for segment in whole.segments]
        return replace(
            whole,
            segments=(*own, *new.added),
            checkpoints=tuple([stored.row for stored in rows.checkpoints]),
            writes=tuple([by_key[write_key(row)] for row in whole.writes]),
            digests=None,
        )


def _counts(thread: str, new: Renewed) -> UpgradedThread:
    values, rows = len(new.elements) + len(new.added), len(new.checkpoints)
    return UpgradedThread(thread, values, rows, len(new.writes))


def _changed_in(new: Mapping[Position, bytes], segment: Segment) -> int:
    return sum([(segment.log, n) in new for n in range(segment.start, segment.stop)])


def _groups(segments: Sequence[Segment], new: Mapping[Position, bytes]) -> Iterator[list[Segment]]:
    """Group the segments with rewritten elements. All that hold patches must change together."""
    changed = [segment for segment in segments if _changed_in(new, segment)]
    patched = {place for segment in changed for place in _patches_in(segment, new)}
    linked = [segment for segment in changed if _changed_in(dict.fromkeys(patched, b""), segment)]
    if linked:
        yield linked
    others = [segment for segment in changed if segment not in linked]
    yield from parts_of(others, lambda segment: len(segment.data), most_bytes=_BATCH_BYTES)


def _patches_in(segment: Segment, new: Mapping[Position, bytes]) -> Iterator[Position]:
    """Iterate over the rewritten elements that are patches, and their bases."""
    for n, raw in enumerate(unpack(segment.data, segment.count), segment.start):
        base = base_of(raw) if (segment.log, n) in new else None
        if base is not None:
            yield (segment.log, n)
            yield base


def _rows_in(whole: WholeThread) -> ThreadRows:
    """Return the rows of an archived thread, with their keyframes."""
    stored, orphans = stored_of(whole)
    by_position = {
        (segment.log, n): segment
        for segment in whole.segments
        for n in range(segment.start, segment.stop)
    }
    own = [s._replace(keyframe=by_position.get((s.row.key_log, s.row.key_pos))) for s in stored]
    return ThreadRows(0, whole.deleted_at, tuple(own), tuple(orphans), ())
