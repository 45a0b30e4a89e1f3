"""Contract of whole threads, and of scans over checkpoints."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

import json
from itertools import product
from typing import Any

from threadkeep._core.engine.model import (
    HIDDEN,
    Batch,
    CopyThread,
    DropThread,
    ReadSizes,
    RowsFence,
    ScanCheckpoints,
    StoredCheckpoint,
    ThreadRows,
    ThreadState,
)
from threadkeep._core.engine.thread_entry import EntryFence, EntryUpdate, ThreadEntry
from threadkeep.errors import ConflictError, StaleThreadError, ThreadExistsError
from threadkeep.testing.records import (
    NOW,
    THREAD,
    Contract,
    checkpoint,
    ids,
    segment,
    uid,
    write,
)

COPY = CopyThread(THREAD, "copy", NOW)


class ThreadContract(Contract):
    """Whole threads are dropped and copied in full."""

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
        """`DropThread` removes all rows and leaves a tombstone. The id may be used again."""
        self.fill()
        self.fill("thread-2")
        self.drop()
        assert self.rows()[:-2] == ThreadRows(1, NOW, (), (), ())[:-2]
        assert self.state()[:3] == (1, NOW, None)
        assert self.everything() == []
        assert self.threads() == ["thread-2"]
        assert [s.thread for s in self.one(ReadSizes(None, 10)).threads] == ["thread-2"]
        assert len(self.rows("thread-2").checkpoints) == 4
        other = segment(1, 3, data=b"other bytes")
        self.put(generation=1, segments=(other,), checkpoints=(checkpoint(3),))
        assert self.stored(3).row == checkpoint(3)
        assert self.stored(3).writes == ()
        assert self.rows()[:2] == (1, NOW)

    def test_a_thread_that_never_was_gets_a_tombstone(self) -> None:
        """`DropThread` of an unknown thread leaves a tombstone, and each repetition renews it."""
        for generation, now in ((1, NOW), (2, NOW + 5)):
            self.drop(now=now)
            assert self.state()[:3] == (generation, now, None)

    def test_a_drop_at_0_leaves_no_tombstone(self) -> None:
        """`DropThread` at time 0 leaves no tombstone."""
        self.fill()
        self.drop()
        self.drop(now=0)
        assert self.state()[:3] == (2, 0, None)
        self.put(checkpoints=(checkpoint(1),))
        assert len(self.rows().checkpoints) == 1

    def test_a_drop_leaves_the_entry_that_it_brings(self) -> None:
        """With an entry the thread holds nothing, and is registered as the entry says."""
        self.fill()
        left = ThreadEntry(THREAD, "active", 3, 4, labels=('"tag"',), pinned=True, ttl=5)
        left = left._replace(status="waiting", status_at=uid(3))
        self.drop(now=0, entry=left)
        assert self.rows()[:-2] == ThreadRows(1, 0, (), (), ())[:-2]
        assert self.known()._replace(revision=0) == left
        assert self.known().revision > 0
        query = {"statuses": ("waiting",), "labels": ('"tag"',)}
        assert self.count(**query) == 1
        self.drop()
        assert self.count(**query) == 0

    def test_rows_take_the_place_of_what_was_dropped(self) -> None:
        """`DropThread(rows=...)` stores the rows in the same change, with new `seq` from 1."""
        self.fill()
        entry = ThreadEntry(THREAD, "active", 3, 4, labels=('"tag"',))
        new = Batch(
            *(THREAD, NOW + 1),
            segments=(segment(0, 3, data=b"new"),),
            checkpoints=(checkpoint(3),),
            writes=(write(3),),
            bump_generation=True,
            entry=entry,
            touch=EntryUpdate(size=7, whole=True),
        )
        self.refuses(DropThread(THREAD, 0, 99, rows=new), StaleThreadError)
        self.refuses(DropThread(THREAD, 0, fences=(RowsFence(4, 3),), rows=new), ConflictError)
        self.drop(now=0, fences=(RowsFence(4, 4),), rows=new)
        rows = self.rows()
        assert (rows.generation, rows.deleted_at) == (2, 0)
        assert [s.row for s in rows.checkpoints] == [checkpoint(3)]
        assert [w.seq for w in rows.checkpoints[0].writes] == [1]
        assert self.everything() == [segment(0, 3, data=b"new")]
        assert self.known()._replace(revision=0) == entry._replace(size=7)
        assert self.count(states=("active",), labels=('"tag"',)) == 1

    def test_a_drop_that_expects_something_else_is_refused(self) -> None:
        """`DropThread` checks `generation` and fences like a batch."""
        self.fill()
        self.put(entry=ThreadEntry(THREAD, "active", NOW, NOW))
        rows, fence = RowsFence(4, 4), EntryFence(self.known().revision)
        for expected, error in (
            ({"generation": 1}, StaleThreadError),
            ({"fences": (RowsFence(4, 3),)}, ConflictError),
            ({"fences": (rows, EntryFence(fence.revision + 1))}, ConflictError),
        ):
            self.refuses(DropThread(THREAD, NOW, **expected), error)
        self.drop(generation=0, fences=(rows, fence))
        assert self.state()[:3] == (1, NOW, None)

    # -- copy ------------------------------------------------------------------------

    def test_a_copy_has_all_rows(self) -> None:
        """`CopyThread` copies all rows: hidden checkpoints, writes with their `seq`, segments."""
        self.fill()
        self.commit(COPY)
        source, copy = self.rows(), self.rows("copy")
        assert {s.thread for s in copy.checkpoints} == {"copy"}
        assert [s._replace(thread=THREAD) for s in copy.checkpoints] == [*source.checkpoints]
        assert (copy.orphans, copy.segments) == (source.orphans, source.segments)
        assert self.everything("copy") == self.everything()

    def test_a_copy_lives_on_its_own(self) -> None:
        """A later change to the source or the copy leaves the other unchanged."""
        self.fill()
        self.commit(COPY)
        before = self.rows("copy")
        self.put(checkpoints=(checkpoint(4, 3),), writes=(write(3),), segments=(segment(3),))
        assert self.rows("copy") == before
        self.put(thread="copy", writes=(write(3, body=b"of the copy"),))
        self.drop()
        assert self.stored(3, thread="copy").writes[-1].body == b"of the copy"
        assert len(self.everything("copy")) == 3

    def test_a_target_with_checkpoints_is_refused(self) -> None:
        """`CopyThread` raises `ThreadExistsError` if the target has checkpoints, hidden or not."""
        self.fill()
        for flags in (HIDDEN, 0):
            self.put(thread="copy", checkpoints=(checkpoint(9, flags=flags),))
            self.refuses(COPY, ThreadExistsError, thread="copy")
        self.refuses(COPY._replace(target=THREAD), ThreadExistsError)

    def test_a_copy_replaces_an_earlier_lifes_orphans(self) -> None:
        """`CopyThread` removes the target's orphans and tombstone, and raises its generation."""
        self.fill()
        self.drop("copy")
        self.put(thread="copy", writes=(write(3),), segments=(segment(0, 9, data=b"late"),))
        self.commit(COPY)
        source, copy = self.rows(), self.rows("copy")
        assert (copy.generation, copy.deleted_at) == (2, 0)
        assert copy.segments == source.segments
        assert copy.orphans == source.orphans
        assert self.stored(3, thread="copy").writes == self.stored(3).writes

    def test_a_source_without_rows_changes_nothing(self) -> None:
        """`CopyThread` from a source without rows changes nothing."""
        self.drop("dropped")
        self.put(thread="bumped", bump_generation=True)
        self.fill("target")
        before = self.rows("target")
        for source, target in product(("nobody", "dropped", "bumped"), ("target", "new")):
            self.commit(CopyThread(source, target, NOW, revision=7))
        assert self.rows("target") == before
        assert self.state(thread="new") == ThreadState(0, 0)

    def test_a_source_whose_entry_has_changed_is_refused(self) -> None:
        """`CopyThread` raises `ConflictError` if the source's entry has another `revision`."""
        self.fill()
        known = ThreadEntry(THREAD, "active", NOW, NOW)
        for revision in (0, 1):
            self.put(entry=known._replace(labels=(f'"{revision}"',)))
            self.refuses(COPY._replace(revision=revision), ConflictError, thread="copy")
        self.commit(COPY._replace(revision=self.known().revision))
        assert len(self.rows("copy").checkpoints) == len(self.rows().checkpoints)

    def test_orphans_alone_are_copied(self) -> None:
        """`CopyThread` also copies a source with only writes, or only segments."""
        self.put(thread="writes", writes=(write(1),))
        self.put(thread="segments", segments=(segment(0),))
        for source in ("writes", "segments"):
            self.commit(CopyThread(source, f"{source} 2", NOW))
        assert [w.checkpoint_id for w in self.rows("writes 2").orphans] == [uid(1)]
        assert len(self.rows("segments 2").segments) == 1


# -- scans -----------------------------------------------------------------------------

METADATA: tuple[dict[str, Any], ...] = (
    {},
    *({"k": value} for value in (None, True, False, 0, 1, 1.0, -1.5, 2**53 + 1, 2**70, 1e300)),
    *({"k": value} for value in ("1", "true", "null", "", "quote ' \" \\ é \U0001f600")),
    *({"k": value} for value in ([1], {"k": 1})),
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
    *("k", "K", "k ", "", "source", "step", "parents", "$.k"),
    *('it\'s "quoted" \\ é', "absent", "k' OR '1'='1"),
)


class ScanContract(Contract):
    """Scans return checkpoints of one thread or all, newest first, in pages."""

    def scan(self, **fields: Any) -> list[StoredCheckpoint]:
        """Scan one thread unless `thread` is given, everything unless limited."""
        everything = ScanCheckpoints(THREAD, None, None, None, {}, None, 1000)
        found: list[StoredCheckpoint] = self.one(everything._replace(**fields))
        return found

    def places(self, **fields: Any) -> list[tuple[str, str, str]]:
        """The same, as (id, thread, ns)."""
        return [(s.row.id, s.thread, s.row.ns) for s in self.scan(**fields)]

    def numbers(self, **fields: Any) -> list[int]:
        """The numbers of the ids that are found in the root namespace."""
        found = ids(self.scan(ns="", **fields))
        return [number for key in found for number in range(1, 6) if key == uid(number)]

    def fill_threads(self) -> None:
        """Put three threads of three namespaces, with ids 1 to 4 and a hidden one."""
        for thread in (THREAD, "b", "a"):
            rows = [checkpoint(n, n - 1, ns=ns) for ns in ("z", "", "y") for n in (3, 1, 4, 2)]
            hidden = checkpoint(5, 4, flags=HIDDEN)
            self.put(thread=thread, checkpoints=(*rows, hidden), segments=(segment(0),))

    def fill_metadata(self, metadata: tuple[dict[str, Any], ...] = METADATA) -> None:
        """A checkpoint of each metadata, as JSON without spaces, as the engine writes it."""
        texts = [json.dumps(each, separators=(",", ":")) for each in metadata]
        self.put(checkpoints=tuple(checkpoint(n, metadata=text) for n, text in enumerate(texts)))

    def test_newest_ids_come_first(self) -> None:
        """A scan returns at most `limit` whole, visible checkpoints, newest id first."""
        self.fill_threads()
        self.put(writes=(write(3), write(3)))
        assert self.scan(ns="") == [self.stored(n) for n in (4, 3, 2, 1)]
        assert self.numbers(limit=2) == [4, 3]
        assert self.places(ns="absent") == []
        assert self.places(thread="absent") == []

    def test_equal_ids_come_by_thread_and_namespace(self) -> None:
        """A scan orders by id descending, then by thread and namespace ascending."""
        self.fill_threads()
        spaces = [(t, ns) for t in ("a", "b", THREAD) for ns in ("", "y", "z")]
        everything = [(uid(n), t, ns) for n in (4, 3, 2, 1) for t, ns in spaces]
        assert self.places(thread=None) == everything
        assert self.places() == [place for place in everything if place[1] == THREAD]
        assert self.places(thread=None, ns="y") == [p for p in everything if p[2] == "y"]

    def test_before_and_id_narrow_the_scan(self) -> None:
        """`id` selects this id, `before` smaller ids. Both may be combined."""
        self.fill_threads()
        assert self.numbers(before=uid(3)) == [2, 1]
        assert self.numbers(before="00000000-0000-0001-8") == [1]
        assert self.numbers(id=uid(2)) == self.numbers(id=uid(2), before=uid(3)) == [2]
        assert self.numbers(id=uid(2), before=uid(2)) == self.numbers(id=uid(5)) == []
        assert [t for _, t, _ in self.places(thread=None, ns="", id=uid(2))] == ["a", "b", THREAD]

    def test_pages_join_to_the_whole(self) -> None:
        """`after` continues after the last row of the previous page."""
        self.fill_threads()
        scans: tuple[dict[str, Any], ...] = (
            {"thread": None},
            {"thread": None, "ns": "y"},
            {"ns": None},
            {"ns": ""},
            {"thread": None, "before": uid(4)},
            {"thread": None, "id": uid(2)},
        )
        for fields, limit in product(scans, (1, 2, 5)):
            found: list[tuple[str, str, str]] = []
            while page := self.places(**fields, limit=limit, after=found[-1] if found else None):
                assert len(page) <= limit
                assert not set(page) & set(found)
                found += page
            assert found == self.places(**fields), (fields, limit)

    def test_a_filter_never_drops_a_match(self) -> None:
        """A filter returns every row with `metadata.get(key) == value` for all of its keys."""
        self.fill_metadata()
        filters: list[dict[str, Any]] = [{k: value} for k, value in product(KEYS, VALUES)]
        for wanted in (*filters, {"k": 1, "other": "x", "absent": None}):
            found = set(ids(self.scan(filter=wanted)))
            matches = {
                uid(number)
                for number, metadata in enumerate(METADATA)
                if all(metadata.get(k) == value for k, value in wanted.items())
            }
            assert matches <= found, wanted

    def test_rows_with_exact_metadata_may_always_match(self) -> None:
        """A filter returns rows with `exact`, as their JSON does not decide the match."""
        self.put(checkpoints=(checkpoint(1, exact=b"?", metadata='{"k": "Decimal(1)"}'),))
        assert len(self.scan(filter={"k": 1})) == 1

    def test_pages_of_a_filter_join_to_the_whole(self) -> None:
        """Pages of a filtered scan return every match. Only the last page is short."""
        self.fill_metadata(tuple({"odd": number % 2} for number in range(20)))
        found: list[StoredCheckpoint] = []
        after = None
        while page := self.scan(filter={"odd": 1}, limit=3, after=after):
            found += page
            assert len(found) <= 20
            after = (page[-1].row.id, THREAD, "")
        odd = [s.row.id for s in found if json.loads(s.row.metadata)["odd"] == 1]
        assert odd == [uid(n) for n in range(19, 0, -2)]
