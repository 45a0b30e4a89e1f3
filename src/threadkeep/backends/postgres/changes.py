"""Changes as SQL: one statement each, which calls a function of the schema.

Only the statements that write live here. Invariants: a change is one statement, and so a
transaction of its own; values reach SQL as bound parameters only; the text depends on
nothing but which kinds of rows a batch has, so that few of them are prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from psycopg.types.numeric import Int8

from threadkeep.backends.postgres import metadata, registry
from threadkeep.backends.postgres.statement import Statement
from threadkeep.backends.postgres.text import pack_text
from threadkeep.engine.model import (
    Batch,
    Change,
    CheckpointRow,
    CopyThread,
    DropThread,
    Fence,
    ForkThread,
    HeadFence,
    RowsFence,
    Segment,
    WriteRow,
    WritesFence,
)
from threadkeep.engine.thread_entry import (
    EntryFence,
    Touch,
)
from threadkeep.errors import InvalidArgumentError

_Row: TypeAlias = tuple[Any, ...]

_MOST_BYTES = 1_000_000_000  # of one message to the server, with room for the rest of it
_FEW = 3  # rows of a kind that are given value by value: each number is another statement

# The parameters of `commit_batch` that come as arrays, by the kind of row they describe.
ARRAYS: dict[str, tuple[tuple[str, str], ...]] = {
    "fences": (
        *(("fence_kinds", "text"), ("fence_namespaces", "text"), ("fence_ids", "text")),
        *(("fence_a", "bigint"), ("fence_b", "bigint")),
    ),
    "segments": (
        *(("segment_logs", "bigint"), ("segment_starts", "bigint")),
        *(("segment_counts", "bigint"), ("segment_datas", "bytea")),
    ),
    "checkpoints": (
        *(("checkpoint_namespaces", "text"), ("checkpoint_ids", "text")),
        *(("checkpoint_parents", "text"), ("checkpoint_runs", "bigint")),
        *(("checkpoint_seens", "bigint"), ("checkpoint_flags", "bigint")),
        *(("checkpoint_times", "bigint"), ("checkpoint_time_texts", "text")),
        *(("checkpoint_metadatas", "text"), ("checkpoint_metadata_texts", "text")),
        *(("checkpoint_exacts", "bytea"), ("checkpoint_key_logs", "bigint")),
        *(("checkpoint_key_places", "bigint"), ("checkpoint_manifests", "bytea")),
    ),
    "writes": (
        *(("write_namespaces", "text"), ("write_ids", "text"), ("write_runs", "bigint")),
        *(("write_seens", "bigint"), ("write_tasks", "text"), ("write_paths", "text")),
        ("write_bodies", "bytea"),
    ),
    "drop_segments": (
        ("drop_logs", "bigint"),
        ("drop_starts", "bigint"),
        ("drop_counts", "bigint"),
    ),
    "drop_checkpoints": (("drop_namespaces", "text"), ("drop_ids", "text")),
    "drop_writes": (
        *(("drop_write_namespaces", "text"), ("drop_write_ids", "text")),
        ("drop_write_seqs", "bigint"),
    ),
    "hide_checkpoints": (("hide_namespaces", "text"), ("hide_ids", "text")),
}


def statement(change: Change) -> Statement:
    """The statement that carries out the change."""
    return _CHANGES[type(change)](change)


def locked(change: Change) -> tuple[str, ...]:
    """The threads that a change locks, in the order in which it does."""
    if isinstance(change, CopyThread | ForkThread):
        return tuple(sorted((change.source, change.target)))
    return (change.thread,)


def locking(threads: Iterable[str]) -> tuple[Statement, ...]:
    """What locks several threads, in the order of their names, and then what they share."""
    names = (sorted(map(pack_text, threads)),)
    return tuple([Statement(text, names) for text in (_LOCK_THREADS, _LOCK_HEAPS)])


_LOCK_THREADS = """
SELECT FROM {schema}.threads WHERE thread_id = ANY(%s) ORDER BY thread_id FOR NO KEY UPDATE
"""
_LOCK_HEAPS = """
SELECT FROM {schema}.heaps WHERE heap IN (
    SELECT t.heap FROM {schema}.threads t WHERE t.thread_id = ANY(%s))
ORDER BY heap FOR NO KEY UPDATE
"""


# -- batches -------------------------------------------------------------------------


def _batch(batch: Batch) -> Statement:
    thread, born, generation = pack_text(batch.thread), batch.born, batch.generation
    values: list[Any] = [thread, _number(born), _number(generation), batch.bump]
    _check_size(batch)
    present = []
    for kind, row_of in ROWS.items():
        rows: Sequence[Any] = getattr(batch, kind)
        if rows:
            few = len(rows) if len(rows) <= _FEW else 0
            present.append((kind, few))
            for column in _columns(map(row_of, rows), ARRAYS[kind]):
                values += column if few else (column,)
    told = registry.arguments(batch)
    if told:
        values += [thread, Int8(batch.now), *[value for _, given in told for value in given]]
    arguments = tuple([argument for argument, _ in told])
    return Statement(_call(tuple(present), arguments), tuple(values))


def size(batch: Batch) -> int:
    """Bytes of the values that a batch stores."""
    return sum([len(segment.data) for segment in batch.segments]) + sum(
        [len(row.body) for row in batch.writes]
    )


def _check_size(batch: Batch) -> None:
    """Refuse what the server cannot take: it would just end the connection."""
    if size(batch) > _MOST_BYTES:
        raise InvalidArgumentError(
            f"What is to be stored at once takes {size(batch):,} bytes; PostgreSQL takes 1 GB.",
            hint="Keep larger values outside the state.",
            thread=batch.thread,
        )


def _columns(rows: Iterable[_Row], kinds: Sequence[tuple[str, str]]) -> Iterator[list[Any]]:
    """Rows as arrays, one for each column."""
    for column, (_, kind) in zip(zip(*rows, strict=True), kinds, strict=True):
        yield [_number(value) for value in column] if kind == "bigint" else list(column)


@lru_cache(maxsize=256)
def _call(present: tuple[tuple[str, int], ...], told: tuple[str, ...]) -> str:
    """The statement for these kinds of rows, how many of each (0: an array of any length).

    `told` are the arguments that tell the registry of them.
    """
    arrays = [
        f"{name} => {_array(few)}::{kind}[]" for row, few in present for name, kind in ARRAYS[row]
    ]
    given = ", ".join(["the_thread => %s", "born => %s::bigint", *_ALWAYS, *arrays])
    committed = f"SELECT * FROM {{schema}}.commit_batch({given})"  # noqa: S608 - names of ours only
    if not told:
        return committed
    told_of = ", ".join(["%s", "%s", *told])
    # (what is refused is told of nothing; what is not is told after it was done)
    return f"""
    WITH done AS MATERIALIZED ({committed})
    SELECT done.*, CASE WHEN done.refusal IS NULL THEN {{schema}}.register({told_of})::text END
    FROM done"""  # noqa: S608 - names of ours only


_ALWAYS = ("expected_generation => %s::bigint", "bump => %s")


def _array(few: int) -> str:
    # Single values are many times faster to convert than an array of them.
    return f"ARRAY[{', '.join(['%s'] * few)}]" if few else "%s"


def _number(value: int | None) -> Int8 | None:
    """So that every number has the same type, and the statement is prepared once."""
    return None if value is None else Int8(value)


# -- rows of a batch -----------------------------------------------------------------


def _fence(fence: Fence) -> _Row:
    match fence:
        case HeadFence(ns, expected):
            return "head", pack_text(ns), _text(expected), 0, 0
        case WritesFence(ns, checkpoint, run, seen):
            return "writes", pack_text(ns), pack_text(checkpoint), run, seen
        case RowsFence(checkpoints, writes):
            return "rows", "", "", checkpoints, writes
        case EntryFence(revision):
            return "entry", "", "", revision, 0


def _segment(segment: Segment) -> _Row:
    return segment.log, segment.start, segment.count, segment.data


def _checkpoint(row: CheckpointRow) -> _Row:
    by_number = isinstance(row.ts, int)
    return (
        pack_text(row.ns),
        pack_text(row.id),
        _text(row.parent),
        row.run,
        row.seen,
        row.flags,
        row.ts if by_number else None,
        None if by_number else pack_text(str(row.ts)),
        *metadata.split(row.metadata),
        row.exact,
        row.key_log,
        row.key_pos,
        row.manifest,
    )


def _write(row: WriteRow) -> _Row:
    return (
        pack_text(row.ns),
        pack_text(row.checkpoint_id),
        row.run,
        row.seen,
        pack_text(row.task_id),
        pack_text(row.task_path),
        row.body,
    )


def _text(text: str | None) -> str | None:
    return None if text is None else pack_text(text)


def _place(place: tuple[int, int, int]) -> _Row:
    return place


def _key(key: tuple[str, ...]) -> _Row:
    ns, checkpoint, *seq = key
    return pack_text(ns), pack_text(checkpoint), *seq


ROWS: dict[str, Callable[[Any], _Row]] = {
    "fences": _fence,
    "segments": _segment,
    "checkpoints": _checkpoint,
    "writes": _write,
    "drop_segments": _place,
    "drop_checkpoints": _key,
    "drop_writes": _key,
    "hide_checkpoints": _key,
}


# -- whole threads -------------------------------------------------------------------


def _drop(change: DropThread) -> Statement:
    values = (pack_text(change.thread), Int8(change.now))
    if change.rows is not None:
        return _replaced(change, change.rows)
    if change.generation is None and not change.fences and change.entry is None:
        return Statement("SELECT {schema}.drop_thread(%s, %s)", values)
    checked = _batch(change.expected)
    told = registry.arguments(Batch(change.thread, change.now, entry=change.entry))
    given = [value for _, some in told for value in some]
    arguments = ", ".join(["%s", "%s", *[argument for argument, _ in told]])
    text = _DROP_EXPECTED.replace("{checked}", checked.sql).replace("{told}", arguments)
    return Statement(text, (*checked.values, *values, *values, *given))


# (each step looks at the one before, so that they come in this order)
_DROP_EXPECTED = """
WITH checked AS MATERIALIZED ({checked}), dropped AS MATERIALIZED (
    SELECT checked.*,
        CASE WHEN checked.refusal IS NULL THEN {schema}.drop_thread(%s, %s)::text END AS gone
    FROM checked)
SELECT refusal, at_namespace, at_checkpoint,
    CASE WHEN refusal IS NULL AND gone IS NOT NULL THEN {schema}.register({told})::text END
FROM dropped
"""


def _replaced(change: DropThread, rows: Batch) -> Statement:
    checked, put = _batch(change.expected), _batch(rows)
    # (what the function is given says that it comes after the drop)
    after = put.sql.replace("the_thread => %s", _AFTER, 1)
    text = _REPLACE.replace("{checked}", checked.sql).replace("{put}", after)
    dropped = (pack_text(change.thread), Int8(change.now))
    return Statement(text, (*checked.values, *dropped, *put.values))


_AFTER = "the_thread => CASE WHEN dropped.gone IS NOT NULL THEN %s::text END"
_REPLACE = """
WITH checked AS MATERIALIZED ({checked}), dropped AS MATERIALIZED (
    SELECT checked.*,
        CASE WHEN checked.refusal IS NULL THEN {schema}.drop_thread(%s, %s)::text END AS gone
    FROM checked
), put AS MATERIALIZED (
    SELECT found.refusal FROM (SELECT d.gone FROM dropped d WHERE d.refusal IS NULL) dropped
    CROSS JOIN LATERAL ({put}) found
)
SELECT coalesce(refusal, (SELECT put.refusal FROM put)), at_namespace, at_checkpoint FROM dropped
"""


def _copy(change: CopyThread) -> Statement:
    names = (pack_text(change.source), pack_text(change.target))
    if change.revision is None:
        copied = "SELECT refusal FROM {schema}.copy_thread(%s, %s, %s)"
        return Statement(copied, (*names, Int8(change.now)))
    revision = Int8(change.revision)
    values = (list(names), names[0], revision, names[0], *names, Int8(change.now))
    return Statement(_COPY_EXPECTED, values)


# (locked in the order in which the functions do, and before it is said of which revision)
_SOURCE = """
found AS MATERIALIZED (
    SELECT t.thread_id, CASE WHEN t.state IS NULL THEN 0 ELSE t.revision END AS revision
    FROM {schema}.threads t WHERE t.thread_id = ANY(%s) ORDER BY t.thread_id FOR NO KEY UPDATE
), source AS MATERIALIZED (
    SELECT coalesce((SELECT f.revision FROM found f WHERE f.thread_id = %s), 0) AS revision
)
"""
_COPY_EXPECTED = f"""
WITH {_SOURCE}
SELECT CASE WHEN source.revision <> %s AND {{schema}}.holds_rows(%s) THEN 'conflict'
    ELSE (SELECT refusal FROM {{schema}}.copy_thread(%s, %s, %s)) END
FROM source
"""  # noqa: S608 - constants of this module


def _fork(change: ForkThread) -> Statement:
    columns: list[Any] = [
        *(list(column) for column in _transposed(map(_key, change.checkpoints), 2)),
        *(list(column) for column in _transposed(map(_write_key, change.writes), 3)),
    ]
    told = registry.arguments(
        Batch(
            change.target,
            change.now,
            entry=change.entry,
            touch=Touch(change.entry.size, whole=True),
        )
    )
    names = (pack_text(change.source), pack_text(change.target))
    expected = [None if change.revision is None else Int8(change.revision)]
    values = [list(names), names[0], *expected, *names, Int8(change.generation), *columns]
    values += [names[1], Int8(change.now), *[value for _, given in told for value in given]]
    arguments = ", ".join(["%s", "%s", *[argument for argument, _ in told]])
    return Statement(_FORK.replace("{told}", arguments), tuple(values))


_FORK = f"""
WITH {_SOURCE}, done AS MATERIALIZED (
    SELECT CASE WHEN source.revision <> %s::bigint THEN 'conflict' ELSE (
        SELECT refusal FROM {{schema}}.fork_thread(
            %s, %s, %s, %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])
    ) END AS refusal FROM source)
SELECT done.refusal, NULL, NULL,
    CASE WHEN done.refusal IS NULL THEN {{schema}}.register({{told}})::text END
FROM done
"""  # noqa: S608 - constants of this module


def _write_key(key: tuple[str, str, int]) -> _Row:
    ns, checkpoint, seq = key
    return pack_text(ns), pack_text(checkpoint), Int8(seq)


def _transposed(rows: Iterable[_Row], width: int) -> Sequence[_Row]:
    return tuple(zip(*rows, strict=True)) or ((),) * width


_CHANGES: dict[type[Change], Callable[[Any], Statement]] = {
    Batch: _batch,
    DropThread: _drop,
    CopyThread: _copy,
    ForkThread: _fork,
}
