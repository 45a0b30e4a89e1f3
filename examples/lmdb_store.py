"""A backend for LMDB in one module: the example of docs/writing-a-backend.md.

LMDB is an ordered table of keys and values in a file. Several processes can use it; one at a time
writes. A key of this store begins with the letter of a table:

    n                                    the last number given to a thread
    t  thread                            a `Head`
    l  number  prefix of the label       a label
    c  number  ns  id                    a `CheckpointRow`
    w  number  ns  id of checkpoint seq  a `WriteRow`
    s  heap    log stop                  a `Segment`; the first that stops after a position holds it
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from heapq import merge
from itertools import islice, repeat, takewhile
from operator import attrgetter
from typing import Any, TypeVar

import lmdb

from threadkeep import backends as tk
from threadkeep import errors

R = TypeVar("R", tk.Head, tk.CheckpointRow, tk.WriteRow, tk.Segment)
PLACE, WRITE_PLACE = attrgetter("ns", "id"), attrgetter("ns", "checkpoint_id", "seq")
END = b"\xff" * 9  # sorts after all numbers and ids
NEXT = b"\0"  # a key and this: the first key after it
MEANINGS = {  # of LMDB's errors. A key has at most 511 bytes
    lmdb.MapFullError: errors.DiskFullError,
    lmdb.BadValsizeError: errors.InvalidArgumentError,
}


def key(table: bytes, *parts: int | str) -> bytes:
    """Return a key, or the beginning of some keys: then it may end in an empty text."""
    for at, part in enumerate(parts, 1):
        if isinstance(part, int):
            table += (part + 2**63).to_bytes(8)  # (negative numbers sort first)
        else:
            text = part.encode()
            is_last = at == len(parts)  # (only its order matters; UTF-8 sorts by code point)
            table += text if is_last else blake2b(text, digest_size=16).digest()
    return table


def key_of(head: tk.Head, row: tk.CheckpointRow | tk.WriteRow | tk.Segment) -> bytes:
    """Return the key of a row of a thread."""
    if isinstance(row, tk.Segment):
        return key(b"s", head.heap or head.number, row.log, row.stop)
    if isinstance(row, tk.CheckpointRow):
        return key(b"c", head.number, *PLACE(row))
    return key(b"w", head.number, *WRITE_PLACE(row))


class _Rows:
    """The rows in one transaction: one view for reads, all or nothing for moves."""

    def __init__(self, transaction: lmdb.Transaction) -> None:
        self.transaction = transaction

    def up(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the items whose keys begin with `prefix`, from `start` on."""
        cursor: Any = self.transaction.cursor()
        found = cursor.set_range(max(prefix, start))
        return takewhile(lambda at: at[0].startswith(prefix), cursor if found else ())

    def down(self, kind: type[R], prefix: bytes, stop: bytes = END) -> Iterator[R]:
        """Yield the records whose keys begin with `prefix`, the last one before `stop` first."""
        cursor: Any = self.transaction.cursor()
        found = cursor.prev() if cursor.set_range(prefix + stop) else cursor.last()
        items = takewhile(lambda at: at[0].startswith(prefix), cursor.iterprev() if found else ())
        return (tk.unpack_record(kind, value) for _, value in items)

    def all(self, kind: type[R], prefix: bytes, start: bytes = b"") -> Iterator[R]:
        return (tk.unpack_record(kind, value) for _, value in self.up(prefix, start))

    def one(self, kind: type[R], at: bytes) -> R | None:
        value = self.transaction.get(at)
        return None if value is None else tk.unpack_record(kind, bytes(value))

    def head(self, thread: str) -> tk.Head:
        """Return the head of a thread; without tips if the store does not have it."""
        return self.one(tk.Head, key(b"t", thread)) or tk.Head(thread)

    def checkpoint(self, read: tk.ReadCheckpoint) -> tk.ThreadState:
        head = self.head(read.thread)
        at, rows = key(b"c", head.number, read.ns, read.id or ""), self.visible(head, read.ns)
        row = next(rows, None) if read.id is None else self.one(tk.CheckpointRow, at)
        found = None if row is None else self.stored(head, row)
        state = (head.generation, head.deleted_at, found, head.tips, head.life, head.logs)
        return tk.ThreadState(*state)

    def visible(self, head: tk.Head, ns: str, stop: bytes = END) -> Iterator[tk.CheckpointRow]:
        rows = self.down(tk.CheckpointRow, key(b"c", head.number, ns, ""), stop)
        return (row for row in rows if not row.flags & tk.HIDDEN)

    def stored(self, head: tk.Head, row: tk.CheckpointRow) -> tk.StoredCheckpoint:
        """Return a checkpoint with its keyframe, its writes and its first child."""
        keyframe = self.keyframe(head, row)
        writes = tuple(self.all(tk.WriteRow, key(b"w", head.number, *PLACE(row), "")))
        later = self.after(head, *PLACE(row))
        children = (tk.Child(one.id, one.run, one.seen) for one in later if one.parent == row.id)
        return tk.StoredCheckpoint(head.thread, row, keyframe, writes, next(children, None))

    def after(self, head: tk.Head, ns: str, id: str | None) -> Iterator[tk.CheckpointRow]:
        start = b"" if id is None else key(b"c", head.number, ns, id) + NEXT
        return self.all(tk.CheckpointRow, key(b"c", head.number, ns, ""), start)

    def keyframe(self, head: tk.Head, row: tk.CheckpointRow) -> tk.Segment | None:
        return next(self.overlapping(head, row.key_log, row.key_pos, row.key_pos + 1), None)

    def overlapping(self, head: tk.Head, log: int, start: int, stop: int) -> Iterator[tk.Segment]:
        prefix = key(b"s", head.heap or head.number, log)
        found = self.all(tk.Segment, prefix, prefix + key(b"", start + 1))
        return takewhile(lambda one: one.start < stop > start, found)

    def segments(self, read: tk.ReadSegments) -> list[tk.Segment]:
        head = self.head(read.thread)
        if read.generation not in (None, head.generation) or not {*read.base} <= {*head.tips}:
            return []
        found = {one[:2]: one for span in read.spans for one in self.overlapping(head, *span)}
        return [found[place] for place in sorted(found)]

    def ends(self, read: tk.ReadEnds) -> dict[int, int]:
        heap = read.head.heap or read.head.number
        logs = [self.down(tk.Segment, key(b"s", heap, log)) for log in read.logs]
        return {last.log: last.stop for log in logs for last in islice(log, 1)}

    def newer(self, read: tk.ReadNewer) -> list[str]:
        rows = self.after(read.head, read.ns, read.id)
        return [*islice((row.id for row in rows if not row.flags & tk.NESTED), read.limit)]

    def has_others(self, read: tk.HasOthers) -> bool:
        rows = self.all(tk.WriteRow, key(b"w", read.head.number, read.ns, read.checkpoint_id, ""))
        return any(row.run != read.run and row.seq > read.seen for row in rows)

    def scan(self, read: tk.ScanCheckpoints) -> list[tk.StoredCheckpoint]:
        after, pages = read.after, []
        stops = [] if read.before is None else [read.before.encode()]
        stops += [id.encode() + NEXT for id in (read.id, after and after[0]) if id is not None]
        stop = min(stops, default=END)
        for name in self.names(read.prefix) if read.thread is None else [read.thread]:
            head = self.head(name)
            rows = self.all(tk.CheckpointRow, key(b"c", head.number)) if read.ns is None else ()
            spaces = sorted({row.ns for row in rows}) if read.ns is None else [read.ns]
            pages += [zip(repeat(head), self.visible(head, ns, stop)) for ns in spaces]
        page: Any = merge(*pages, key=lambda at: at[1].id, reverse=True)  # (equal ids in order)
        page = takewhile(lambda at: read.id in (None, at[1].id), page)
        if after:
            page = (at for at in page if at[1].id < after[0] or (at[0][0], at[1][0]) > after[1:])
        return [self.stored(*at) for at in islice(page, read.limit)]

    def names(self, prefix: str, after: str | None = None) -> Iterator[str]:
        start = b"" if after is None else key(b"t", after) + NEXT
        return (at[1:].decode() for at, _ in self.up(key(b"t", prefix), start))

    def thread(self, read: tk.ReadThread) -> tk.ThreadRows:
        head = self.head(read.thread)
        rows = sorted(self.all(tk.CheckpointRow, key(b"c", head.number)), key=PLACE)
        writes = sorted(self.all(tk.WriteRow, key(b"w", head.number)), key=WRITE_PLACE)
        stored = tk.with_writes(read.thread, rows, [self.keyframe(head, r) for r in rows], writes)
        segments = self.all(tk.Segment, key(b"s", head.heap or head.number))
        places = tuple([tk.SegmentInfo(*one[:3], len(one.data)) for one in segments])
        heads = self.answer(tk.ReadFamily(head.heap)) if head.heap else ()
        family = tuple([one.thread for one in heads if one.thread != read.thread])
        thread = tk.ThreadRows(head.generation, head.deleted_at, *stored, places, family)
        return thread._replace(tips=head.tips, life=head.life)

    def threads(self, read: tk.FindThreads) -> list[str]:
        def is_wanted(name: str) -> bool:
            rows = self.all(tk.CheckpointRow, key(b"c", self.head(name).number))
            if not read.run_ids:
                return read.empty or any(rows)
            return any(json.loads(row.metadata).get("run_id") in read.run_ids for row in rows)

        return [*islice(filter(is_wanted, self.names(read.prefix, read.after)), read.limit)]

    def entry(self, read: tk.ReadEntry) -> tk.ThreadEntry | None:
        head = self.head(read.thread)
        return tk.entry_of(head, [label.decode() for _, label in self.up(key(b"l", head.number))])

    def answer(self, read: Any) -> Any:
        """Return the reply to a read: see the docstring of its class."""
        own = ANSWERS.get(type(read))
        return own(self, read) if own else tk.derived(read, self.answer)

    def make(self, move: tk.Move) -> tk.Head | None:
        """Make a move; None if it is refused. All checks come before the first change."""
        old, new, heap = move.old, move.new, move.new.heap or move.new.number
        drops = [(key(b"s", heap, log, start + n), n) for log, start, n in move.drop_segments]
        gone = [at for at, n in drops if (one := self.one(tk.Segment, at)) and one.count == n]
        was = [old, *[before for before, _ in move.beside]]
        if any(self.head(one.thread).tips[:1] != one.tips[:1] for one in was):
            return None
        if move.segments and len(gone) < len(drops):
            return None
        if not old.tips:
            new = new._replace(number=int.from_bytes(self.transaction.get(b"n", b"")) + 1)
            self.transaction.put(b"n", new.number.to_bytes(8))
        cleared = [key(b"c", old.number), key(b"w", old.number)] if move.clears else []
        cleared += [key(b"l", old.number)] if move.clears_labels else []
        cleared += [key(b"s", old.heap or old.number)] if move.clears_heap else []
        for at in [at for prefix in cleared for at, _ in self.up(prefix)]:
            self.transaction.delete(at)
        if move.copies:
            self.put(new, self.copied(*move.copies))
        gone += [key(b"c", new.number, *place) for place in move.drop_checkpoints]
        gone += [key(b"w", new.number, *place) for place in move.drop_writes]
        for at in gone:
            self.transaction.delete(at)
        writes = [row for row in move.replace_writes if self.one(tk.WriteRow, key_of(new, row))]
        places = [key(b"c", new.number, *place) for place in move.hide_checkpoints]
        rows = [row for at in places if (row := self.one(tk.CheckpointRow, at))]
        hidden = [row._replace(flags=row.flags | tk.HIDDEN) for row in rows]
        self.put(new, [*writes, *hidden, *move.segments, *move.checkpoints, *move.writes])
        for label in move.labels:
            self.transaction.put(key(b"l", new.number, tk.label_prefix(label), ""), label.encode())
        for head in (new, *[after for _, after in move.beside]):
            self.transaction.put(key(b"t", head.thread), tk.pack_record(head))
        return new

    def copied(self, source: tk.Head, ids: Any, places: Any, segments: Any) -> list[Any]:
        """Return the rows that a `Copying` names; None names all."""
        ids, places = (None if chosen is None else {*chosen} for chosen in (ids, places))
        heap = key(b"s", source.heap or source.number)
        kept: list[Any] = [*self.all(tk.Segment, heap)] if segments else []
        rows = self.all(tk.CheckpointRow, key(b"c", source.number))
        kept += [row for row in rows if ids is None or PLACE(row) in ids]
        writes = self.all(tk.WriteRow, key(b"w", source.number))
        return kept + [row for row in writes if places is None or WRITE_PLACE(row) in places]

    def put(self, head: tk.Head, rows: Iterable[Any]) -> None:
        for row in rows:
            self.transaction.put(key_of(head, row), tk.pack_record(row))


ANSWERS: dict[Any, Any] = {
    tk.ReadHead: lambda rows, read: rows.head(read.thread),
    tk.ReadCheckpoint: _Rows.checkpoint,
    tk.ReadSegments: _Rows.segments,
    tk.ReadEnds: _Rows.ends,
    tk.ReadNewer: _Rows.newer,
    tk.HasOthers: _Rows.has_others,
    tk.ScanCheckpoints: _Rows.scan,
    tk.ReadThread: _Rows.thread,
    tk.FindThreads: _Rows.threads,
    tk.ReadEntry: _Rows.entry,
}


class LmdbDatabase(tk.Database):
    """Threads in a folder. Open it once in a process, after a fork; `map_size` is its limit."""

    def __init__(self, folder: str, map_size: int = 2**30) -> None:
        super().__init__()
        self._lock, self._is_closed = threading.Lock(), False
        try:
            self._environment = lmdb.open(folder, map_size=map_size)
            self._environment.reader_check()  # frees what killed processes held
        except lmdb.Error as error:
            raise errors.OpenError(f"LMDB cannot open {folder}: {error}") from error

    @contextmanager
    def _rows(self, *, write: bool = False) -> Iterator[_Rows]:
        """One transaction. Calls of several threads take turns, so that `close` interrupts none."""
        with self._lock:
            if self._is_closed:
                raise errors.ClosedError
            try:
                with self._environment.begin(write=write) as transaction:
                    yield _Rows(transaction)
            except lmdb.Error as error:
                kind = MEANINGS.get(type(error), errors.BackendError)
                raise kind(f"LMDB refused the call: {error}") from error

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """Answer the reads, all from one view of the store."""
        with self._rows() as rows:
            for read in reads:
                if isinstance(read, tk.ReadCheckpoint):  # (the commit after it then needs no read)
                    self.heads.found(rows.head(read.thread))
            return [rows.answer(read) for read in reads]

    def make(self, moves: Sequence[tk.Move]) -> list[tk.Head | None]:
        """Make the moves in one transaction, which is on the disk when this returns."""
        with self._rows(write=True) as rows:
            return [rows.make(move) for move in moves]

    def close(self) -> None:
        """Close the store. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._environment.close()
