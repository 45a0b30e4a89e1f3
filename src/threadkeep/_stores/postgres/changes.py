"""Changes as SQL: each is one statement that calls a function of the schema.

A statement's text depends only on the kinds of rows in a batch, so few statements are prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias, TypeGuard

from psycopg.types.numeric import Int8

from threadkeep._core.engine import model
from threadkeep._core.engine.thread_entry import EntryFence, EntryUpdate, ThreadEntry, label_prefix
from threadkeep._stores.postgres.statement import (
    Array,
    Statement,
    array,
    pack_metadata,
    pack_optional,
)
from threadkeep._stores.records import new_tip, only_adds, overlap, pack_text, tip_of
from threadkeep.errors import InvalidArgumentError

_Row: TypeAlias = tuple[Any, ...]
_Argument: TypeAlias = tuple[str, tuple[Any, ...]]  # a function's argument in SQL, parameters

_MOST_BYTES = 1_000_000_000  # of one message to the server, with room for the rest of it
_MOST_BYTES_TOGETHER = 64 * 1024 * 1024  # of batches in one call
# Up to so many rows of a kind are passed value by value. Each number of rows is another statement.
_FEW = 3


def _parameters(text: str) -> tuple[tuple[str, str], ...]:
    return tuple([(name, kind) for name, kind in map(str.split, text.split(","))])


# The array parameters of `commit_batch`, by the kind of row they describe.
_ARRAYS = {
    "base": _parameters("expected_tips bigint"),
    "fences": _parameters(
        "fence_kinds text, fence_namespaces text, fence_ids text, fence_a bigint, fence_b bigint"
    ),
    "segments": _parameters(
        "segment_logs bigint, segment_starts bigint, segment_counts bigint, segment_datas bytea"
    ),
    "checkpoints": _parameters(
        "checkpoint_namespaces text, checkpoint_ids text, checkpoint_parents text,"
        "checkpoint_runs bigint, checkpoint_seens bigint, checkpoint_flags bigint,"
        "checkpoint_times bigint, checkpoint_time_texts text, checkpoint_metadatas text,"
        "checkpoint_metadata_texts text, checkpoint_exacts bytea, checkpoint_key_logs bigint,"
        "checkpoint_key_places bigint, checkpoint_manifests bytea"
    ),
    "writes": _parameters(
        "write_namespaces text, write_ids text, write_runs bigint, write_seens bigint,"
        "write_tasks text, write_paths text, write_bodies bytea"
    ),
    "drop_segments": _parameters("drop_logs bigint, drop_starts bigint, drop_counts bigint"),
    "drop_checkpoints": _parameters("drop_namespaces text, drop_ids text"),
    "drop_writes": _parameters(
        "drop_write_namespaces text, drop_write_ids text, drop_write_seqs bigint"
    ),
    "replace_writes": _parameters(
        "new_namespaces text, new_ids text, new_seqs bigint, new_paths text, new_bodies bytea"
    ),
    "hide_checkpoints": _parameters("hide_namespaces text, hide_ids text"),
}


def statement(change: model.Change) -> Statement:
    """Return the statement for a change."""
    return _CHANGES[type(change)](change)


def locked(change: model.Change) -> tuple[str, ...]:
    """Return the threads that a change locks, in its order of locking."""
    if isinstance(change, model.CopyThread | model.ForkThread):
        return tuple(sorted((change.source, change.target)))
    return (change.thread,)


_LOCKS = (
    "SELECT FROM {schema}.threads WHERE thread_id = ANY(%s) ORDER BY thread_id FOR NO KEY UPDATE",
    """
SELECT FROM {schema}.heaps WHERE heap IN (
    SELECT t.heap FROM {schema}.threads t WHERE t.thread_id = ANY(%s))
ORDER BY heap FOR NO KEY UPDATE
""",
)


def locking(threads: Iterable[str]) -> tuple[Statement, ...]:
    """Return statements that lock threads in the order of their ids, then their shared heaps."""
    names = (sorted(map(pack_text, threads)),)
    return tuple([Statement(text, names) for text in _LOCKS])


# -- rows of a batch -----------------------------------------------------------------


def _fence(fence: model.Fence) -> _Row:
    match fence:
        case model.HeadFence(ns, expected):
            return "head", pack_text(ns), pack_optional(expected), 0, 0
        case model.WritesFence(ns, checkpoint, run, seen):
            return "writes", pack_text(ns), pack_text(checkpoint), run, seen
        case model.RowsFence(checkpoints, writes):
            return "rows", "", "", checkpoints, writes
        case EntryFence(revision):
            return "entry", "", "", revision, 0


def _checkpoint(row: model.CheckpointRow) -> _Row:
    by_number = isinstance(row.ts, int)
    return (
        pack_text(row.ns),
        pack_text(row.id),
        pack_optional(row.parent),
        row.run,
        row.seen,
        row.flags,
        row.ts if by_number else None,
        None if by_number else pack_text(str(row.ts)),
        *pack_metadata(row.metadata),
        row.exact,
        row.key_log,
        row.key_pos,
        row.manifest,
    )


def _write(row: model.WriteRow) -> _Row:
    return (
        pack_text(row.ns),
        pack_text(row.checkpoint_id),
        row.run,
        row.seen,
        pack_text(row.task_id),
        pack_text(row.task_path),
        row.body,
    )


def _key(key: tuple[str, ...]) -> _Row:
    ns, checkpoint, *seq = key
    return pack_text(ns), pack_text(checkpoint), *seq


_ROWS: dict[str, Callable[[Any], _Row]] = {
    "fences": _fence,
    "segments": attrgetter("log", "start", "count", "data"),
    "checkpoints": _checkpoint,
    "writes": _write,
    "drop_segments": tuple,
    "drop_checkpoints": _key,
    "drop_writes": _key,
    "replace_writes": lambda row: (*_key((row.ns, row.checkpoint_id, row.seq)), *_write(row)[5:]),
    "hide_checkpoints": _key,
}


# -- the registry --------------------------------------------------------------------


def _register(
    thread: str,
    now: int,
    entry: ThreadEntry | None,
    touch: EntryUpdate | None,
    tip: int | None = None,
) -> tuple[str, tuple[Any, ...]]:
    """Return the call of `register` as SQL, and its parameters; "" if there is no update.

    `tip` is put with it.
    """
    arguments: list[_Argument] = []
    if entry is not None:
        arguments += _entry_arguments(entry)
    if touch is not None:
        arguments += _touch_arguments(touch)
    if not arguments:
        return "", ()
    text = f"{{schema}}.register(%s, %s, %s, {', '.join([sql for sql, _ in arguments])})::text"
    first = (pack_text(thread), Int8(now), _number(tip))
    return text, (*first, *[value for _, some in arguments for value in some])


def _entry_arguments(entry: ThreadEntry) -> Iterator[_Argument]:
    origin, checkpoint = entry.origin or (None, None)
    for sql, value in (
        ("entry_state => %s", entry.state),
        ("entry_created => %s", Int8(entry.created_at)),
        ("entry_updated => %s", Int8(entry.updated_at)),
        ("entry_pinned => %s", entry.pinned),
        ("entry_ttl => %s::bigint", _number(entry.ttl)),
        ("entry_origin => %s", pack_optional(origin)),
        ("entry_origin_checkpoint => %s", pack_optional(checkpoint)),
        ("entry_waits_at => %s", pack_optional(entry.waits_at)),
    ):
        yield sql, (value,)
    yield from _label_arguments("entry", entry.labels)


def _touch_arguments(touch: EntryUpdate) -> Iterator[_Argument]:
    yield "touch_size => %s", (Int8(touch.size),)
    if touch.whole:
        yield "touch_whole => true", ()
    if touch.at is not None:
        yield "touch_at => %s", (Int8(touch.at),)
    if touch.labels:
        yield from _label_arguments("touch", touch.labels)
    if touch.transitions:
        columns = zip(*map(_transition_row, touch.transitions), strict=True)
        for (name, kind), column in zip(_TRANSITIONS, columns, strict=True):
            yield _array_argument(name, kind, column)


def _label_arguments(of: str, labels: Sequence[str]) -> Iterator[_Argument]:
    yield _array_argument(f"{of}_beginnings", "text", tuple(map(label_prefix, labels)))
    yield _array_argument(f"{of}_labels", "text", tuple(labels))


_TRANSITIONS = _parameters(
    "move_sources text, move_targets text, move_checkpoints text,"
    "move_waits boolean, move_same boolean"
)


def _transition_row(transition: tuple[Sequence[str], str, str, bool, bool]) -> _Row:
    sources, target, checkpoint, waits, same = transition
    return f"|{'|'.join(sources)}|", target, pack_text(checkpoint), waits, same


def _array_argument(name: str, kind: str, values: tuple[Any, ...]) -> _Argument:
    if len(values) > _FEW:
        return f"{name} => %s::{kind}[]", (list(values),)
    return f"{name} => {_array(len(values))}::{kind}[]", values


def _array(few: int) -> str:
    # Single values are many times faster to convert than an array of them.
    return f"ARRAY[{', '.join(['%s'] * few)}]"


def _number(value: int | None) -> Int8 | None:
    # Always the same type, whatever the number: so the statement is prepared only once.
    return None if value is None else Int8(value)


# -- one batch -----------------------------------------------------------------------


def _batch(batch: model.Batch, tip: int | None) -> Statement:
    if size(batch) > _MOST_BYTES:  # the server would just close the connection
        raise InvalidArgumentError(
            f"The values of one save take {size(batch):,} bytes; PostgreSQL takes 1 GB.",
            hint="Keep larger values outside the state.",
            thread=batch.thread,
        )
    told, told_values = _register(batch.thread, batch.now, batch.entry, batch.touch, tip)
    expected = _number(batch.life), _number(batch.generation), None if told else _number(tip)
    values: list[Any] = [pack_text(batch.thread), *expected, batch.bump_generation]
    present = [("base", len(batch.base) if len(batch.base) <= _FEW else 0)] if batch.base else []
    base = [_number(one) for one in batch.base]
    values += base if len(base) <= _FEW else [base]
    for kind, row_of in _ROWS.items():
        rows: Sequence[Any] = getattr(batch, kind)
        if rows:
            few = len(rows) if len(rows) <= _FEW else 0
            present.append((kind, few))
            columns = zip(*map(row_of, rows), strict=True)
            for column, (_, type_) in zip(columns, _ARRAYS[kind], strict=True):
                some = [_number(one) for one in column] if type_ == "bigint" else list(column)
                values += some if few else (some,)
    return Statement(_commit(tuple(present), told), (*values, *told_values))


def size(batch: model.Batch) -> int:
    """Count the bytes of a batch's values."""
    return sum([len(segment.data) for segment in batch.segments]) + sum(
        [len(row.body) for row in batch.writes]
    )


@lru_cache(maxsize=256)
def _commit(present: tuple[tuple[str, int], ...], told: str) -> str:
    """Return the SQL of a batch with these kinds of rows, each with its number (0: an array).

    `told` is the call that updates the registry.
    """
    arrays = [
        f"{name} => {_array(few) if few else '%s'}::{kind}[]"
        for row, few in present
        for name, kind in _ARRAYS[row]
    ]
    first = "the_thread => %s", "expected_life => %s::bigint", "expected_generation => %s::bigint"
    arguments = ", ".join([*first, "its_tip => %s::bigint", "bump => %s", *arrays])
    committed = f"SELECT * FROM {{schema}}.commit_batch({arguments})"
    if not told:
        return committed
    # The registry is updated afterwards, and only if the batch was not refused.
    return f"""
    WITH done AS MATERIALIZED ({committed})
    SELECT done.*, CASE WHEN done.refusal IS NULL THEN {told} END
    FROM done"""


# -- batches together ----------------------------------------------------------------

_TOGETHER = ("segments", "drop_segments", "checkpoints", "writes")
# The columns of each kind of row, in the order of the function's parameters. The rows of all kinds
# but the first (the batches themselves) begin with the number of their batch.
_KINDS: dict[str, tuple[str, ...]] = {
    "batches": ("text", "bigint", "bigint", "text", *["bigint"] * 4),
    "labels": ("bigint", "text", "text"),
    "transitions": ("bigint", *[kind for _, kind in _TRANSITIONS]),
    **{kind: ("bigint", *[column for _, column in _ARRAYS[kind]]) for kind in _TOGETHER},
}
_CALL = ", ".join([f"%s::{kind}[]" for kinds in _KINDS.values() for kind in kinds])


def together(changes: Sequence[model.Change]) -> Statement | None:
    """Return the statement that makes all changes, or none of them.

    None if a change does more than add rows, two overlap, or they are too large for one call.
    """
    batches = [change for change in changes if _adds_rows(change)]
    is_too_much = sum(map(size, batches)) > _MOST_BYTES_TOGETHER
    if len(batches) < len(changes) or is_too_much or _overlap(batches):
        return None
    rows = _rows(batches)
    values: list[Array] = []
    try:
        for kind, columns in _KINDS.items():
            found = rows[kind]
            values += map(
                array, columns, zip(*found, strict=True) if found else [()] * len(columns)
            )
    except UnicodeError:  # committed one by one, only the invalid batch is refused
        return None
    return Statement(f"SELECT {{schema}}.commit_batches({_CALL})", tuple(values))


def _adds_rows(change: model.Change) -> TypeGuard[model.Batch]:
    return (
        only_adds(change)
        and bool(change.segments or not change.drop_segments)
        and not (change.touch is not None and change.touch.whole)
    )


def _overlap(batches: Sequence[model.Batch]) -> bool:
    """Return True if two batches write the same checkpoint, or the same positions of a log."""
    checkpoints = [(batch.thread, row.ns, row.id) for batch in batches for row in batch.checkpoints]
    put: dict[str, list[model.Segment]] = {}
    owners = {}
    for number, batch in enumerate(batches):
        put.setdefault(batch.thread, []).extend(batch.segments)
        owners.update({(batch.thread, one.log, one.start): number for one in batch.segments})
    if len(set(checkpoints)) < len(checkpoints) or any(map(overlap, put.values())):
        return True
    return any(
        owners.get((batch.thread, log, start), number) != number
        for number, batch in enumerate(batches)
        for log, start, _ in batch.drop_segments
    )


def _rows(batches: Sequence[model.Batch]) -> dict[str, list[_Row]]:
    rows: dict[str, list[_Row]] = {kind: [] for kind in _KINDS}
    tips = {batch.thread: new_tip() for batch in batches}
    tips |= {batch.thread: batch.tip for batch in batches if batch.tip}
    for number, batch in enumerate(batches, 1):
        touch = batch.touch
        told = (None, None) if touch is None else (touch.size, touch.at)
        base = f"{{{','.join(map(str, batch.base))}}}"
        expected = (pack_text(batch.thread), batch.life, batch.generation, base)
        rows["batches"].append((*expected, tips[batch.thread], batch.now, *told))
        for kind in _TOGETHER:
            some = getattr(batch, kind)
            if some:
                row_of = _ROWS[kind]
                rows[kind] += [(number, *row_of(one)) for one in some]
        if touch is not None:
            rows["labels"] += [(number, label_prefix(label), label) for label in touch.labels]
            rows["transitions"] += [(number, *_transition_row(t)) for t in touch.transitions]
    return rows


# -- whole threads -------------------------------------------------------------------

# Each step reads from the step before, which fixes their order.
_DROPPED = """
WITH checked AS MATERIALIZED ({checked}), dropped AS MATERIALIZED (
    SELECT checked.*,
        CASE WHEN checked.refusal IS NULL
            THEN {schema}.drop_thread(%s, %s, %s, %s)::text END AS gone
    FROM checked)
"""
_DROP_EXPECTED = f"""{_DROPPED}
SELECT nullif(refusal, 'done'), at_namespace, at_checkpoint,
    CASE WHEN refusal IS NULL AND gone IS NOT NULL THEN {{told}} END
FROM dropped
"""
_REPLACE = f"""{_DROPPED}, put AS MATERIALIZED (
    SELECT found.refusal FROM (SELECT d.gone FROM dropped d WHERE d.refusal IS NULL) dropped
    CROSS JOIN LATERAL ({{put}}) found
)
SELECT coalesce(refusal, (SELECT put.refusal FROM put)), at_namespace, at_checkpoint FROM dropped
"""
# The argument depends on the drop, so PostgreSQL runs this call after it.
_AFTER_DROP = "the_thread => CASE WHEN dropped.gone IS NOT NULL THEN %s::text END"


def _drop(change: model.DropThread) -> Statement:
    tip = tip_of(change)
    values = (pack_text(change.thread), Int8(change.now), Int8(tip), change.ends)
    replaced = change.rows is not None
    expected = change.expected
    is_free = change.generation is None and not (change.fences or expected.base)
    if is_free and not replaced and change.entry is None:
        return Statement("SELECT {schema}.drop_thread(%s, %s, %s, %s)", values)
    checked = _batch(expected, None)
    asked = checked.sql.replace("the_thread => %s", "end_tip => %s, the_thread => %s", 1)
    checked = Statement(asked, (_number(tip if change.ends else None), *checked.values))
    if change.rows is not None:
        put = _batch(change.rows, tip_of(change.rows))
        text = _REPLACE.replace("{put}", put.sql.replace("the_thread => %s", _AFTER_DROP, 1))
        rest = put.values
    else:
        told, rest = _register(change.thread, change.now, change.entry, None)
        text = _DROP_EXPECTED.replace("{told}", told or "NULL")
    return Statement(text.replace("{checked}", checked.sql), (*checked.values, *values, *rest))


def _copy(change: model.CopyThread) -> Statement:
    names = pack_text(change.source), pack_text(change.target)
    values = (*names, Int8(change.now), _number(change.revision), Int8(tip_of(change)))
    return Statement("SELECT refusal FROM {schema}.copy_thread(%s, %s, %s, %s::bigint, %s)", values)


def _fork(change: model.ForkThread) -> Statement:
    checkpoints = _columns(map(_key, change.checkpoints), 2)
    writes = _columns([(*_key((ns, id_)), Int8(seq)) for ns, id_, seq in change.writes], 3)
    touch = EntryUpdate(change.entry.size, whole=True)
    told, told_values = _register(change.target, change.now, change.entry, touch)
    expected = Int8(change.generation), _number(change.revision)
    values = (pack_text(change.source), pack_text(change.target), *expected)
    values = (*values, *checkpoints, *writes, Int8(tip_of(change)), *told_values)
    return Statement(_FORK.replace("{told}", told), values)


def _columns(rows: Iterable[_Row], width: int) -> list[list[Any]]:
    return list(map(list, zip(*rows, strict=True))) or [[]] * width


_FORK = """
WITH done AS MATERIALIZED (
    SELECT refusal FROM {schema}.fork_thread(%s, %s, %s, %s::bigint,
        %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s))
SELECT done.refusal, NULL, NULL,
    CASE WHEN done.refusal IS NULL THEN {told} END
FROM done
"""
_CHANGES: dict[type[model.Change], Callable[[Any], Statement]] = {
    model.Batch: lambda batch: _batch(batch, tip_of(batch)),
    model.DropThread: _drop,
    model.CopyThread: _copy,
    model.ForkThread: _fork,
}
