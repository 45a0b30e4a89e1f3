"""Contract of whole threads, and of scans over checkpoints."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from threadkeep.engine.model import (
    HIDDEN,
    Batch,
    CopyThread,
    DropThread,
    FindThreads,
    ReadSizes,
    RowsFence,
    ScanCheckpoints,
    StoredCheckpoint,
    ThreadRows,
    ThreadState,
)
from threadkeep.engine.thread_entry import (
    CountThreads,
    EntryFence,
    ReadEntry,
    ThreadEntry,
    ThreadQuery,
    Touch,
)
from threadkeep.errors import ConflictError, StaleThreadError, ThreadExistsError
from threadkeep.testing.records import NOW, THREAD, Contract, checkpoint, segment, uid, write

# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point


class ThreadContract(Contract):
    """Whole threads: dropped for good, copied in full."""

    def fill(self, thread: str = THREAD) -> None:
        """Checkpoints of two namespaces, one hidden, writes, an orphan, segments."""
        self.put(
            thread=thread,
            segments=(segment(0, 2), segment(2), segment(0, log=2, data=b"x" * 70_000)),
            checkpoints=(
                checkpoint(1),
                checkpoint(2, 1, flags=HIDDEN),
                checkpoint(3, 2, exact=b"exact", run=5, seen=2),
                checkpoint(1, ns="child"),
            ),
            writes=(write(3, run=5), write(3), write(9), write(1, ns="child")),
        )

    # -- drop ------------------------------------------------------------------------

    def test_dropped_threads_hold_nothing(self) -> None:
        """Everything of the thread is removed, and a tombstone left."""
        self.fill()
        self.fill("thread-2")
        self.backend.commit(DropThread(THREAD, now=NOW))
        assert self.rows() == ThreadRows(1, NOW, (), (), ())
        assert self.state() == ThreadState(1, NOW)
        assert self.segments((1, 0, 10), (2, 0, 10)) == []
        assert self.one(FindThreads(None, 10)) == ["thread-2"]
        assert [s.thread for s in self.one(ReadSizes(None, 10)).threads] == ["thread-2"]
        assert len(self.rows("thread-2").checkpoints) == 4

    def test_a_thread_that_never_was_gets_a_tombstone(self) -> None:
        """A thread that never was gets the tombstone too."""
        self.backend.commit(DropThread("nobody", now=NOW))
        assert self.state(thread="nobody") == ThreadState(1, NOW)

    def test_a_later_drop_moves_the_tombstone(self) -> None:
        """Each drop raises the generation and dates the tombstone anew."""
        for now in (NOW, NOW + 5):
            self.backend.commit(DropThread(THREAD, now=now))
        assert self.state() == ThreadState(2, NOW + 5)

    def test_a_drop_at_0_leaves_no_tombstone(self) -> None:
        """Dropped at 0, a thread counts as never deleted: whatever is put there is taken."""
        self.fill()
        self.backend.commit(DropThread(THREAD, now=NOW))
        self.backend.commit(DropThread(THREAD, now=0))
        assert self.state() == ThreadState(2, 0)
        self.put(born=1, checkpoints=(checkpoint(1),))
        assert len(self.rows().checkpoints) == 1

    def test_a_drop_leaves_the_entry_that_it_brings(self) -> None:
        """With an entry the thread holds nothing, and is registered as the entry says."""
        self.fill()
        left = ThreadEntry(
            THREAD, "kept apart", 3, 4, labels=('"tag"',), pinned=True, ttl=5, waits_at=uid(3)
        )
        self.backend.commit(DropThread(THREAD, now=0, entry=left))
        assert self.rows() == ThreadRows(1, 0, (), (), ())
        found = self.one(ReadEntry(THREAD))
        assert found == left._replace(revision=found.revision)
        assert found.revision > 0
        query = ThreadQuery(states=("kept apart",), labels=('"tag"',))
        assert self.one(CountThreads(query)) == 1
        self.backend.commit(DropThread(THREAD, now=NOW))
        assert self.one(CountThreads(query)) == 0

    def test_rows_take_the_place_of_what_was_dropped(self) -> None:
        """In the same change, at the same positions, with writes numbered from 1 on."""
        self.fill()
        entry = ThreadEntry(THREAD, "active", 3, 4, labels=('"tag"',))
        new = Batch(
            THREAD,
            NOW + 1,
            segments=(segment(0, 3, data=b"new"),),
            checkpoints=(checkpoint(3),),
            writes=(write(3),),
            bump=True,
            entry=entry,
            touch=Touch(size=7, whole=True),
        )
        self.refuses(DropThread(THREAD, 0, 99, rows=new), StaleThreadError)
        self.refuses(DropThread(THREAD, 0, fences=(RowsFence(4, 3),), rows=new), ConflictError)
        self.backend.commit(DropThread(THREAD, 0, fences=(RowsFence(4, 4),), rows=new))
        rows = self.rows()
        assert (rows.generation, rows.deleted_at) == (2, 0)
        assert [s.row for s in rows.checkpoints] == [checkpoint(3)]
        assert [w.seq for w in rows.checkpoints[0].writes] == [1]
        assert self.segments((1, 0, 10), (2, 0, 10)) == [segment(0, 3, data=b"new")]
        found = self.one(ReadEntry(THREAD))
        assert found == entry._replace(size=7, revision=found.revision)
        assert self.one(CountThreads(ThreadQuery(states=("active",), labels=('"tag"',)))) == 1

    def test_a_drop_that_expects_something_else_is_refused(self) -> None:
        """`generation` and `fences` are checked as a batch's; what is refused changed nothing."""
        self.fill()
        generation, rows = self.rows().generation, RowsFence(4, 4)
        for expected, error in (
            ({"generation": generation + 1}, StaleThreadError),
            ({"fences": (RowsFence(4, 3),)}, ConflictError),
            ({"fences": (rows, EntryFence(7))}, ConflictError),
        ):
            self.refuses(DropThread(THREAD, NOW, **expected), error)
        assert len(self.rows().checkpoints) == 4
        entry = self.one(ReadEntry(THREAD))
        revision = 0 if entry is None else entry.revision
        fences = (rows, EntryFence(revision))
        self.backend.commit(DropThread(THREAD, NOW, generation, fences))
        assert self.state() == ThreadState(generation + 1, NOW)

    def test_a_new_life_starts_afresh(self) -> None:
        """After a drop the same rows can be put again; `seq` and logs start anew."""
        self.fill()
        self.backend.commit(DropThread(THREAD, now=NOW))
        self.put(
            born=NOW + 1,
            generation=1,
            segments=(segment(1, 3, data=b"other bytes"),),
            checkpoints=(checkpoint(3),),
        )
        rows = self.rows()
        assert [s.row for s in rows.checkpoints] == [checkpoint(3)]
        assert rows.checkpoints[0].writes == ()
        assert (rows.generation, rows.deleted_at) == (1, NOW)

    # -- copy ------------------------------------------------------------------------

    def test_a_copy_has_all_rows(self) -> None:
        """All rows are copied: hidden checkpoints, writes with their `seq`, segments."""
        self.fill()
        self.backend.commit(CopyThread(THREAD, "copy", now=NOW))
        source, copy = self.rows(), self.rows("copy")
        assert [(s.row, s.writes, s.keyframe, s.child) for s in copy.checkpoints] == [
            (s.row, s.writes, s.keyframe, s.child) for s in source.checkpoints
        ]
        assert (copy.orphans, copy.segments) == (source.orphans, source.segments)
        assert {s.thread for s in copy.checkpoints} == {"copy"}
        everything = ((1, 0, 10), (2, 0, 10))
        assert self.segments(*everything, thread="copy") == self.segments(*everything)

    def test_a_copy_lives_on_its_own(self) -> None:
        """A change to one of the two does not reach the other."""
        self.fill()
        self.backend.commit(CopyThread(THREAD, "copy", now=NOW))
        before = self.rows("copy")
        self.put(checkpoints=(checkpoint(4, 3),), writes=(write(3),), segments=(segment(3),))
        assert self.rows("copy") == before
        self.put(thread="copy", writes=(write(3, body=b"of the copy"),))
        self.backend.commit(DropThread(THREAD, now=NOW))
        assert self.stored(3, thread="copy").writes[-1].body == b"of the copy"
        assert len(self.segments((1, 0, 10), thread="copy")) == 2

    @pytest.mark.parametrize("flags", [0, HIDDEN])
    def test_a_target_with_checkpoints_is_refused(self, flags: int) -> None:
        """`ThreadExistsError` if `target` holds checkpoints; hidden ones count."""
        self.fill()
        self.put(thread="copy", checkpoints=(checkpoint(9, flags=flags),))
        self.refuses(CopyThread(THREAD, "copy", now=NOW), ThreadExistsError, thread="copy")
        self.refuses(CopyThread(THREAD, THREAD, now=NOW), ThreadExistsError)

    def test_a_copy_replaces_an_earlier_lifes_orphans(self) -> None:
        """Orphans of `target` are removed first, its tombstone cleared, generation raised."""
        self.fill()
        self.backend.commit(DropThread("copy", now=NOW))
        self.put(thread="copy", writes=(write(3),), segments=(segment(0, 9, data=b"late"),))
        self.backend.commit(CopyThread(THREAD, "copy", now=NOW + 1))
        source, copy = self.rows(), self.rows("copy")
        assert (copy.generation, copy.deleted_at) == (2, 0)
        assert copy.segments == source.segments
        assert copy.orphans == source.orphans
        assert self.stored(3, thread="copy").writes == self.stored(3).writes

    @pytest.mark.parametrize("source", ["nobody", "dropped", "bumped"])
    def test_a_source_without_rows_changes_nothing(self, source: str) -> None:
        """A source that holds no rows changes nothing, whatever the target is."""
        self.backend.commit(DropThread("dropped", now=NOW))
        self.put(thread="bumped", bump=True)
        self.fill("target")
        before = self.rows("target")
        self.backend.commit(CopyThread(source, "target", now=NOW))
        self.backend.commit(CopyThread(source, "new", now=NOW))
        assert self.rows("target") == before
        assert self.state(thread="new") == ThreadState(0, 0)

    def test_a_source_whose_entry_has_changed_is_refused(self) -> None:
        """`ConflictError` if `revision` is not that of its entry; nothing is copied."""
        self.fill()
        known = ThreadEntry(THREAD, "active", NOW, NOW)
        for revision in (0, self.entry_revision(known)):
            self.put(entry=known._replace(labels=(f'"{revision}"',)))
            stale = CopyThread(THREAD, "copy", now=NOW, revision=revision)
            self.refuses(stale, ConflictError)
            assert self.state(thread="copy") == ThreadState(0, 0)
        self.backend.commit(CopyThread("nobody", "copy", now=NOW, revision=7))
        (entry,) = self.backend.fetch([ReadEntry(THREAD)])
        self.backend.commit(stale._replace(revision=entry.revision))
        assert len(self.rows("copy").checkpoints) == len(self.rows().checkpoints)

    def entry_revision(self, entry: ThreadEntry) -> int:
        """Set the thread's entry and return its revision."""
        self.put(entry=entry)
        (found,) = self.backend.fetch([ReadEntry(entry.thread)])
        return int(found.revision)

    def test_orphans_alone_are_copied(self) -> None:
        """A source may hold writes and segments alone."""
        self.put(writes=(write(1),), segments=(segment(0),))
        self.backend.commit(CopyThread(THREAD, "copy", now=NOW))
        copy = self.rows("copy")
        assert [w.checkpoint_id for w in copy.orphans] == [uid(1)]
        assert len(copy.segments) == 1


# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point


METADATA: tuple[dict[str, Any], ...] = (
    {},
    {"k": None},
    {"k": True},
    {"k": False},
    {"k": 0},
    {"k": 1},
    {"k": 1.0},
    {"k": -1.5},
    {"k": 2**53 + 1},
    {"k": 2**70},
    {"k": 1e300},
    {"k": "1"},
    {"k": "true"},
    {"k": "null"},
    {"k": ""},
    {"k": "quote ' \" \\ é \U0001f600"},
    {"k": [1]},
    {"k": {"k": 1}},
    {"K": 1, "k ": 1},
    {'it\'s "quoted" \\ é': "x", "$.k": 1, "": 1},
    {"source": "loop", "step": 1, "parents": {}},
    {"source": "input", "step": -1, "parents": {}},
    {"source": "fork", "step": 2**53 + 1, "parents": {"": "x"}},
    {"k": 1, "other": "x"},
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 1.0, -1.5, 2**53, 2**53 + 1, 2**70, float(2**70), 1e300),
    *(float("inf"), float("nan"), "1", "loop", "null", "", "[1]", "quote ' \" \\ é \U0001f600"),
)
KEYS = (
    "k",
    "K",
    "k ",
    "",
    "source",
    "step",
    "parents",
    "$.k",
    'it\'s "quoted" \\ é',
    "absent",
    "k' OR '1'='1",
)


def _json(metadata: dict[str, Any]) -> str:
    """JSON without spaces, as the engine writes it."""
    return json.dumps(metadata, separators=(",", ":"))


class ScanContract(Contract):
    """Scans: newest first, over one thread or all, filtered, page by page."""

    def scan(self, **wanted: Any) -> list[StoredCheckpoint]:
        """Scan one thread unless `thread` is given, everything unless limited."""
        fields: dict[str, Any] = {
            "thread": THREAD,
            "ns": None,
            "id": None,
            "before": None,
            "filter": {},
            "after": None,
            "limit": 1000,
        }
        found: list[StoredCheckpoint] = self.one(ScanCheckpoints(**{**fields, **wanted}))
        return found

    def places(self, **wanted: Any) -> list[tuple[str, str, str]]:
        """The same, as (id, thread, ns)."""
        return [(s.row.id, s.thread, s.row.ns) for s in self.scan(**wanted)]

    def fill_threads(self) -> None:
        """Three threads, two namespaces, ids 1 to 4 in each, some of them hidden."""
        for thread in (THREAD, "b", "a"):
            rows = [checkpoint(n, n - 1, ns=ns) for ns in ("z", "", "y") for n in (3, 1, 4, 2)]
            hidden = checkpoint(5, 4, flags=HIDDEN)
            self.put(thread=thread, checkpoints=(*rows, hidden), segments=(segment(0),))

    def test_newest_ids_come_first(self) -> None:
        """Visible checkpoints of one namespace, newest id first, at most `limit`."""
        self.fill_threads()
        assert self.places(ns="") == [(uid(n), THREAD, "") for n in (4, 3, 2, 1)]
        assert self.places(ns="", limit=2) == [(uid(n), THREAD, "") for n in (4, 3)]
        assert self.places(ns="absent") == []
        assert self.places(thread="absent") == []

    def test_equal_ids_come_by_thread_and_namespace(self) -> None:
        """The order is by id descending, then thread, then ns, both ascending."""
        self.fill_threads()
        spaces = [(t, ns) for t in ("a", "b", THREAD) for ns in ("", "y", "z")]
        everything = [(uid(n), t, ns) for n in (4, 3, 2, 1) for t, ns in spaces]
        assert self.places(thread=None) == everything
        assert self.places() == [place for place in everything if place[1] == THREAD]
        assert self.places(thread=None, ns="y") == [p for p in everything if p[2] == "y"]

    def test_a_row_is_complete(self) -> None:
        """Each row comes with its keyframe, its writes and its child."""
        self.fill_threads()
        self.put(writes=(write(3), write(3)))
        found = {s.row.id: s for s in self.scan(ns="")}
        assert found == {uid(n): self.stored(n) for n in (1, 2, 3, 4)}
        assert len(found[uid(3)].writes) == 2

    def test_before_and_id_narrow_the_scan(self) -> None:
        """`id` asks for exactly this id, `before` for smaller ids, both may be given."""
        self.fill_threads()
        assert self.places(ns="", before=uid(3)) == [(uid(2), THREAD, ""), (uid(1), THREAD, "")]
        assert self.places(ns="", before="00000000-0000-0001-8") == [(uid(1), THREAD, "")]
        assert self.places(ns="", id=uid(2)) == [(uid(2), THREAD, "")]
        assert self.places(ns="", id=uid(2), before=uid(3)) == [(uid(2), THREAD, "")]
        assert self.places(ns="", id=uid(2), before=uid(2)) == []
        assert self.places(ns="", id=uid(5)) == []
        assert [t for _, t, _ in self.places(thread=None, ns="", id=uid(2))] == ["a", "b", THREAD]

    def test_pages_join_to_the_whole(self) -> None:
        """`after` continues behind the last row of the page before."""
        self.fill_threads()
        scans: tuple[dict[str, Any], ...] = (
            {"thread": None},
            {"thread": None, "ns": "y"},
            {"ns": None},
            {"ns": ""},
            {"thread": None, "before": uid(4)},
            {"thread": None, "id": uid(2)},
        )
        for wanted, limit in product(scans, (1, 2, 5)):
            found: list[tuple[str, str, str]] = []
            while page := self.places(**wanted, limit=limit, after=found[-1] if found else None):
                assert len(page) <= limit
                assert not set(page) & set(found)
                found += page
            assert found == self.places(**wanted), (wanted, limit)

    def test_a_filter_never_drops_a_match(self) -> None:
        """A filter never drops a row whose metadata has `metadata.get(key) == value`."""
        rows = [checkpoint(n, metadata=_json(m)) for n, m in enumerate(METADATA)]
        self.put(checkpoints=tuple(rows))
        for key, value in product(KEYS, VALUES):
            found = {s.row.id for s in self.scan(filter={key: value})}
            missed = [
                m for n, m in enumerate(METADATA) if m.get(key) == value and uid(n) not in found
            ]
            assert missed == [], f"filter {key!r}: {value!r}"

    def test_several_filters_must_all_hold(self) -> None:
        """A row that matches every key of the filter is found."""
        rows = [checkpoint(n, metadata=_json(m)) for n, m in enumerate(METADATA)]
        self.put(checkpoints=tuple(rows))
        found = {s.row.id for s in self.scan(filter={"k": 1, "other": "x", "absent": None})}
        assert uid(len(METADATA) - 1) in found

    def test_rows_with_exact_metadata_may_always_match(self) -> None:
        """A row that has `exact` counts as a possible match: JSON does not tell."""
        self.put(checkpoints=(checkpoint(1, exact=b"?", metadata='{"k": "Decimal(1)"}'),))
        assert len(self.scan(filter={"k": 1})) == 1

    def test_pages_of_a_filter_join_to_the_whole(self) -> None:
        """Filtered or not, a short page is the last one, and no match is lost."""
        rows = [checkpoint(n, metadata=_json({"odd": n % 2})) for n in range(20)]
        self.put(checkpoints=tuple(rows))
        found: list[StoredCheckpoint] = []
        after = None
        while page := self.scan(filter={"odd": 1}, limit=3, after=after):
            found += page
            assert len(found) <= 20
            after = (page[-1].row.id, THREAD, "")
        odd = [s.row.id for s in found if json.loads(s.row.metadata)["odd"] == 1]
        assert odd == [uid(n) for n in range(19, 0, -2)]
