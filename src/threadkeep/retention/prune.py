"""Removing: whole threads, all but the newest checkpoints, single runs.

A checkpoint that a DeltaChannel of a kept one is rebuilt through stays, hidden. Segments
that nothing refers to go with what referred to them; the thread's generation is raised,
so that no process relies on what it remembers of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, cast

from threadkeep.codec import Codec
from threadkeep.engine import thread_summary
from threadkeep.engine.context import (
    ATTEMPTS,
    Engine,
)
from threadkeep.engine.lineage import (
    CheckpointKey,
    Lineage,
    needed,
)
from threadkeep.engine.model import (
    HIDDEN,
    Batch,
    DropThread,
    FindThreads,
    ReadThread,
    RowsFence,
    SegmentInfo,
    Span,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep.engine.operation import (
    Fetch,
    Operation,
    commit,
    fetch,
)
from threadkeep.engine.refs import covering, span_of
from threadkeep.engine.rows import created_at, heads, unpack_metadata, unpack_writes, visible
from threadkeep.errors import ConflictError, InvalidArgumentError, StaleThreadError

_PAGE = 200

_ORPHAN_AGE = 3600 * 1_000_000  # microseconds after which writes without a checkpoint go

Choice: TypeAlias = Callable[[Sequence[StoredCheckpoint]], set[CheckpointKey]]


def delete_thread(engine: Engine, thread: str) -> Operation[None]:
    """Remove a thread and leave a tombstone, so that no late write brings it back."""
    yield from commit(DropThread(thread, engine.now()))
    engine.working_set.forget(thread)


def prune(engine: Engine, threads: Sequence[str], strategy: str) -> Operation[None]:
    """Keep the newest checkpoint of each namespace (`keep_latest`), or nothing (`delete`).

    Raises:
        InvalidArgumentError: another strategy.
    """
    if strategy not in ("keep_latest", "delete"):
        raise InvalidArgumentError(
            f"There is no strategy {strategy!r}.", hint='Use "keep_latest" or "delete".'
        )
    for thread in threads:
        if strategy == "delete":
            yield from delete_thread(engine, thread)
        else:
            yield from _thin(engine, thread, _latest)


def delete_for_runs(engine: Engine, run_ids: Sequence[str]) -> Operation[None]:
    """Remove the checkpoints that these runs made, in every thread, with their writes."""
    wanted = frozenset(run_ids)
    after: str | None = None
    while wanted:
        reply = yield from fetch(FindThreads(after, _PAGE, tuple(wanted)))
        threads = cast("list[str]", reply)
        for thread in threads:
            yield from _thin(engine, thread, partial(_not_of_runs, engine.codec, wanted))
        if len(threads) < _PAGE:
            return
        after = threads[-1]


def _latest(rows: Sequence[StoredCheckpoint]) -> set[CheckpointKey]:
    """The newest visible checkpoint of each namespace."""
    return set(heads(rows).items())


def _not_of_runs(
    codec: Codec, runs: frozenset[str], rows: Sequence[StoredCheckpoint]
) -> set[CheckpointKey]:
    return {(s.row.ns, s.row.id) for s in visible(rows) if _run_of(codec, s) not in runs}


def _run_of(codec: Codec, stored: StoredCheckpoint) -> str | None:
    run = unpack_metadata(stored.row.metadata, stored.row.exact, codec).get("run_id")
    return run if isinstance(run, str) else None


# -- keeping some checkpoints of a thread --------------------------------------------


def _thin(engine: Engine, thread: str, choose: Choice) -> Operation[None]:
    """Remove all checkpoints but the chosen ones and what those are rebuilt through."""
    for _ in range(ATTEMPTS):
        rows, others = yield from read_family(thread)
        lineage = Lineage(rows.checkpoints)
        keep = choose(rows.checkpoints)
        try:
            hidden = (yield from needed(engine, thread, lineage, keep)) - keep
            yield from commit(thinning(engine, thread, rows, lineage, keep, hidden, others))
        except (StaleThreadError, ConflictError):
            continue  # somebody wrote meanwhile: look again
        engine.working_set.forget(thread)
        return
    raise ConflictError(
        "This thread is being written all the time.", hint="Try again later.", thread=thread
    )


def thinning(
    engine: Engine,
    thread: str,
    rows: ThreadRows,
    lineage: Lineage,
    keep: set[CheckpointKey],
    hidden: set[CheckpointKey],
    others: Sequence[ThreadRows],
) -> Batch:
    """What removes all checkpoints but those kept and those kept hidden, if none was added."""
    stored, now = lineage.stored, engine.now()
    drop = [key for key in stored if key not in keep and key not in hidden]
    stay = [row for row in rows.orphans if not is_old(row, now)]
    gone = [row for row in rows.orphans if is_old(row, now)]
    gone += [row for key in drop for row in stored[key].writes]
    left = [stored[key] for key in stored if key in keep or key in hidden]
    used = positions(lineage, keep | hidden, stay, others)
    unused = [s for s in rows.segments if not touches(used, span_of(s))]
    bytes_left = own_bytes(thread, rows, without=unused)
    return Batch(
        thread=thread,
        now=now,
        generation=rows.generation,
        fences=(nothing_new((rows, *others)),),
        drop_checkpoints=tuple(drop),
        drop_writes=tuple((row.ns, row.checkpoint_id, row.seq) for row in gone),
        hide_checkpoints=tuple(k for k in hidden if not stored[k].row.flags & HIDDEN),
        drop_segments=tuple((s.log, s.start, s.count) for s in unused),
        bump=True,
        touch=thread_summary.of_rows(_as_left(left, hidden), stay, bytes_left),
    )


def _as_left(
    left: Iterable[StoredCheckpoint], hidden: set[CheckpointKey]
) -> list[StoredCheckpoint]:
    """The checkpoints that stay, hidden ones flagged so."""
    return [
        s._replace(row=s.row._replace(flags=s.row.flags | HIDDEN))
        if (s.row.ns, s.row.id) in hidden
        else s
        for s in left
    ]


def counts_segments(thread: str, rows: ThreadRows) -> bool:
    """Whether its segments count for the thread: what is shared does for the first by name."""
    return not any(name < thread for name in rows.family)


def own_bytes(thread: str, rows: ThreadRows, without: Iterable[SegmentInfo] = ()) -> int:
    """Bytes of the segments that count for a thread, but for some of its segments."""
    if not counts_segments(thread, rows):
        return 0
    return thread_summary.bytes_of(rows.segments) - thread_summary.bytes_of(without)


def nothing_new(family: Iterable[ThreadRows]) -> RowsFence:
    """Holds as long as nobody of these adds a row."""
    checkpoints = writes = 0
    for rows in family:
        tables = [row.table for row in rows.unreadable]
        checkpoints += len(rows.checkpoints) + tables.count("checkpoints")
        writes += sum([len(s.writes) for s in rows.checkpoints]) + len(rows.orphans)
        writes += tables.count("writes")
    return RowsFence(checkpoints, writes)


def read_family(
    thread: str, *, stub: bool = False
) -> Operation[tuple[ThreadRows, list[ThreadRows]]]:
    """A thread's rows, and those of the threads that share its segments, of one state.

    With `stub` one that is archived stays so, and has none.
    """
    family: tuple[str, ...] = ()
    while True:
        replies = yield Fetch([ReadThread(name, stub=stub) for name in (thread, *family)])
        rows, *others = cast("list[ThreadRows]", replies)
        if rows.family == family:
            return rows, others
        family = rows.family


def is_old(row: WriteRow, now: int) -> bool:
    """Whether the checkpoint that the writes are for will not come any more."""
    made = created_at(row.checkpoint_id)
    return made is not None and made < now - _ORPHAN_AGE


# -- what is still needed ------------------------------------------------------------


def positions(
    lineage: Lineage,
    kept: Iterable[CheckpointKey],
    orphans: Iterable[WriteRow],
    others: Iterable[ThreadRows],
) -> dict[int, list[Span]]:
    """All positions that rows refer to, by log, in order and apart; of other threads all."""
    spans = list(spans_of(lineage, kept, orphans))
    for rows in others:
        theirs = Lineage(rows.checkpoints)
        spans += spans_of(theirs, theirs.stored, rows.orphans)
    return by_log(spans)


def referred(lineage: Lineage, orphans: Iterable[WriteRow]) -> dict[int, list[Span]]:
    """All positions that a thread's own rows refer to, by log."""
    return by_log(spans_of(lineage, lineage.stored, orphans))


def by_log(spans: Iterable[Span]) -> dict[int, list[Span]]:
    """The positions, those of each log in order and apart."""
    found: dict[int, list[Span]] = {}
    for span in covering(spans):
        found.setdefault(span.log, []).append(span)
    return found


def spans_of(
    lineage: Lineage, kept: Iterable[CheckpointKey], orphans: Iterable[WriteRow]
) -> Iterator[Span]:
    """All positions that these checkpoints and writes refer to. Raises CorruptionError."""
    for place in kept:
        read, key = lineage.manifest(place)
        yield Span(key.log, key.pos, key.pos + 1)
        yield from read.needs()
        for write in lineage.stored[place].writes:
            yield from _needs(write)
    for write in orphans:
        yield from _needs(write)


def _needs(row: WriteRow) -> list[Span]:
    return [span for write in unpack_writes(row) for span in write.ref.needs]


def touches(used: dict[int, list[Span]], span: Span) -> bool:
    """Whether one of the positions is used."""
    spans = used.get(span.log, [])
    at = bisect_left(spans, span.stop, key=lambda s: s.start)
    return at > 0 and spans[at - 1].stop > span.start
