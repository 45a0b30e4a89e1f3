"""Contract of the registry: changes of entries, searches and counts."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from threadkeep._core.engine.model import Batch, CopyThread
from threadkeep._core.engine.thread_entry import (
    EntryFence,
    EntryUpdate,
    SearchThreads,
    StatusEvent,
    ThreadEntry,
    ThreadQuery,
    mark_label,
    metadata_label,
    record_label,
    tag_label,
)
from threadkeep.errors import ConflictError
from threadkeep.testing.records import NOW, THREAD, Contract, checkpoint, segment, uid, write

if TYPE_CHECKING:
    from threadkeep._core.engine.thread_entry import Order

SECOND = 1_000_000
USER = metadata_label("user_id", "u1")
OTHER_USER = metadata_label("user_id", "u2")
TAG = tag_label("urgent")
ALL = ThreadQuery()
# The threads of `six_threads` in each order, descending and ascending. Ties are ordered by id.
ORDERS: dict[Order, tuple[str, str]] = {
    "updated_at": ("badce", "ecdab"),
    "created_at": ("bdcea", "aecdb"),
    "size": ("adceb", "becda"),
    "thread": ("edcba", "abcde"),
}


# Events by the number of their checkpoint.
SAVED, RUN, ASKED, FAILED = (
    [StatusEvent(status, uid(number)) for number in range(10)]
    for status in (None, "unfinished", "waiting", "failed")
)


class RegistryContract(Contract):
    """Entries of threads change with their batches, and are found by queries."""

    def unrevised(self, thread: str = THREAD) -> ThreadEntry:
        """The thread's entry without its revision, whose steps are up to the backend."""
        return self.known(thread)._replace(revision=0)

    def revision(self) -> int:
        """The entry's revision."""
        return self.known().revision

    def touch(
        self,
        event: StatusEvent | None = None,
        thread: str = THREAD,
        now: int = NOW,
        **fields: Any,
    ) -> None:
        """Commit a batch that only touches the entry."""
        touch = EntryUpdate(saves=event is not None, event=event)
        self.put(thread=thread, now=now, touch=touch._replace(**fields))

    def register(self, thread: str, at: int = NOW, **fields: Any) -> None:
        """Set the entry of a thread."""
        entry = ThreadEntry(thread, "active", at, at)._replace(**fields)
        self.put(thread=thread, now=at, entry=entry, touch=EntryUpdate(size=entry.size))

    def found(
        self, query: ThreadQuery = ALL, order: Order = "updated_at", **fields: Any
    ) -> list[str]:
        """The ids of the matching entries, latest first."""
        read = SearchThreads(query, order, descending=True, after=None, limit=100)
        return [entry.thread for entry in self.one(read._replace(**fields))]

    # -- states and statuses ---------------------------------------------------------

    def test_a_save_makes_an_entry(self) -> None:
        """The first save registers its thread, with the touch's time, else the batch's."""
        self.put(checkpoints=(checkpoint(1),), touch=EntryUpdate(size=2))
        assert self.entry() is None
        assert self.found() == []
        assert self.count() == 0
        self.put(checkpoints=(checkpoint(1),), touch=EntryUpdate(size=5, saves=True))
        assert self.unrevised() == ThreadEntry(THREAD, "active", NOW, NOW, 7)
        assert self.revision() > 0
        self.touch(SAVED[1], thread="thread-2", at=NOW - 5)
        assert self.known("thread-2")[:4] == ("thread-2", "active", NOW - 5, NOW - 5)

    def test_a_touch_that_changes_nothing_keeps_the_revision(self) -> None:
        """A touch that changes only times and sizes keeps the revision of the entry."""
        self.touch(SAVED[1])
        before = self.revision()
        self.touch(SAVED[2], at=NOW + 5, size=3)
        self.touch(at=NOW + 2, size=4)
        assert self.unrevised() == ThreadEntry(THREAD, "active", NOW, NOW + 5, 7)
        self.touch(size=4, whole=True)
        self.touch(size=-1)
        assert self.known().size == 3
        assert self.revision() == before

    def test_the_newest_event_is_the_status(self) -> None:
        """An event of a later checkpoint counts, and of one checkpoint the last of a task."""
        for number, (events, status) in enumerate(
            (
                ([SAVED[1]], SAVED[1]),
                ([RUN[1]], RUN[1]),
                ([RUN[1], SAVED[2]], SAVED[2]),
                ([SAVED[1], ASKED[1]], ASKED[1]),
                ([ASKED[1], SAVED[1]], ASKED[1]),
                ([ASKED[1], FAILED[1]], FAILED[1]),
                ([FAILED[1], SAVED[1], ASKED[1]], ASKED[1]),
                ([ASKED[1], SAVED[1], SAVED[2]], SAVED[2]),
                ([FAILED[1], RUN[2]], RUN[2]),
                ([ASKED[3], RUN[3], SAVED[2], FAILED[2]], ASKED[3]),
                ([ASKED[1], ASKED[2], ASKED[1]], ASKED[2]),
            )
        ):
            thread = f"t{number}"
            for each in events:
                self.touch(each, thread=thread)
            expected = self.with_status(ThreadEntry(thread, "active", NOW, NOW), status)
            assert self.unrevised(thread) == expected, events
        self.put(thread="rows", checkpoints=(checkpoint(3),), touch=EntryUpdate(saves=True))
        self.touch(ASKED[2], thread="rows")  # (of a checkpoint that is not the newest)
        assert self.known("rows").status is None
        self.touch(ASKED[3], thread="rows")
        assert self.known("rows").status == "waiting"

    def with_status(self, entry: ThreadEntry, event: StatusEvent) -> ThreadEntry:
        """Return an entry with the status of an event."""
        at = event.at if event.status in ("waiting", "failed") else None
        return entry._replace(status=event.status, status_at=at, failed_node=event.node)

    def test_a_failed_node_stays_known(self) -> None:
        """Another task of the step, which was cancelled, does not hide the node that failed."""
        self.touch(FAILED[1]._replace(node="model"))
        self.touch(FAILED[1])
        assert self.known().failed_node == "model"
        assert self.found(ThreadQuery(failed_node="model")) == [THREAD]
        assert self.found(ThreadQuery(failed_node="other")) == []
        self.touch(SAVED[2])
        assert self.known().failed_node is None
        assert self.found(ThreadQuery(failed_node="model")) == []

    def test_the_rows_settle_the_status(self) -> None:
        """The status by all rows replaces any other. Forked and archived states stay."""
        known = [
            (state, event) for state in ("active", "forked") for event in (FAILED[1], ASKED[8])
        ]
        known += [("archived", ASKED[1]), ("created", SAVED[0])]
        for state, before in known:
            for event in (SAVED[3], RUN[3], ASKED[3], FAILED[4]):
                thread = f"{state} {before} {event}"
                old = self.with_status(ThreadEntry(thread, state, NOW, NOW), before)
                self.put(thread=thread, entry=old)
                self.touch(event, thread=thread, whole=True)
                found = self.known(thread)
                assert found.state == ("active" if state == "created" else state)
                expected = old if state == "archived" else self.with_status(found, event)
                assert found[-4:-1] == expected[-4:-1]

    def test_no_rows_settle_nothing(self) -> None:
        """Without rows, a thread is not registered, and has no status any more."""
        self.register("created", state="created")
        self.touch(ASKED[3], thread="waiting")
        for thread in ("created", "waiting", "unknown"):
            self.touch(StatusEvent(None, ""), thread=thread, whole=True, saves=False)
        assert self.known("created").state == "created"
        assert self.known("waiting")[1] == "active"
        assert self.known("waiting").status is None
        assert self.entry("unknown") is None

    def test_rows_that_go_raise_the_revision(self) -> None:
        """Hiding or dropping rows raises the revision, so that `EntryFence` notices it."""
        checkpoints, writes = (checkpoint(1), checkpoint(2)), (write(1), write(2))
        self.put(checkpoints=checkpoints, writes=writes, touch=EntryUpdate(saves=True))
        drops: list[dict[str, Any]] = [
            {"hide_checkpoints": (("", uid(1)),)},
            {"drop_checkpoints": (("", uid(1)),)},
            {"drop_writes": (("", uid(1), 1),)},
        ]
        for drop in drops:
            before = self.revision()
            self.put(fences=(EntryFence(before),), **drop)
            assert self.revision() > before
            with pytest.raises(ConflictError):
                self.put(fences=(EntryFence(before),), touch=EntryUpdate(size=1))
        self.put(thread="bare", checkpoints=(checkpoint(1),))
        self.put(thread="bare", drop_checkpoints=(("", uid(1)),))
        assert self.entry("bare") is None

    def test_a_refused_batch_tells_nothing(self) -> None:
        """A refused batch leaves the entry unchanged."""
        with pytest.raises(ConflictError):
            self.put(fences=(EntryFence(1),), touch=EntryUpdate(size=1, saves=True))
        assert self.entry() is None
        self.touch(SAVED[1])
        with pytest.raises(ConflictError):
            self.put(fences=(EntryFence(0),), touch=EntryUpdate(saves=True, event=ASKED[1]))
        assert self.unrevised() == ThreadEntry(THREAD, "active", NOW, NOW)

    # -- labels and settings --------------------------------------------------------

    def test_labels_take_the_place_of_those_with_the_same_beginning(self) -> None:
        """A metadata label replaces the label of the same key. Tags are only added."""
        self.touch(SAVED[1], labels=(USER, TAG))
        assert self.known().labels == tuple(sorted((USER, TAG)))
        before = self.revision()
        self.touch(labels=(OTHER_USER, metadata_label("user", "u3")))
        expected = sorted((OTHER_USER, TAG, metadata_label("user", "u3")))
        assert self.known().labels == tuple(expected)
        assert self.revision() > before

    def test_an_entry_is_set(self) -> None:
        """`entry=` sets all but times, size and name. `EntryFence` holds until the next change."""
        entry = ThreadEntry(THREAD, "created", NOW, NOW, 0, (TAG,))
        entry = entry._replace(pinned=True, ttl=60 * SECOND, origin=("origin", uid(7)))
        self.put(fences=(EntryFence(0),), entry=entry)
        assert self.unrevised() == entry
        self.touch(SAVED[1], at=NOW + 1, size=9)
        assert self.unrevised() == entry._replace(state="active", updated_at=NOW + 1, size=9)
        before = self.revision()
        edited = ThreadEntry("another", "archived", 1, 1, 99, (USER,), status="waiting")
        self.put(fences=(EntryFence(before),), entry=edited)
        assert self.unrevised() == ThreadEntry(THREAD, "archived", NOW, NOW + 1, 9, (USER,))
        assert self.revision() > before

    def test_records_take_the_place_of_their_kind_and_marks_of_nothing(self) -> None:
        """A record label replaces the record of its kind. Mark labels are only added."""
        marks = (mark_label("", uid(1)), mark_label("ns", uid(1), "best"), mark_label("ns", uid(1)))
        old, other = record_label("kept", ["a", 1, None]), record_label("retention", {"v": 1})
        self.touch(SAVED[1], labels=(TAG, *marks, old, other))
        assert self.known().labels == tuple(sorted((TAG, *marks, old, other)))
        new = record_label("kept", ["b", 2, 3])
        self.touch(labels=(new,))
        expected = tuple(sorted((TAG, *marks, new, other)))
        assert self.known().labels == expected
        self.register(THREAD, state="active", labels=expected[1:])
        assert self.known().labels == expected[1:]

    def test_labels_of_any_text(self) -> None:
        """Labels may be any text, with quotes and wildcards."""
        labels = [
            tag_label(text) for text in ("it's", '"', "%", "_", "\\", "ä\U0001f40d", "\n", " ")
        ]
        labels += [metadata_label("k'\"%", {"a": [1, 2.5, None, True, "x"]})]
        for number, label in enumerate(labels):
            self.touch(SAVED[1], thread=f"t{number}", labels=(label,))
        for number, label in enumerate(labels):
            assert self.known(f"t{number}").labels == (label,)
            assert self.found(ThreadQuery(labels=(label,))) == [f"t{number}"]

    # -- whole threads ---------------------------------------------------------------

    def test_a_dropped_thread_says_so_and_nothing_else(self) -> None:
        """The entry of a dropped thread has only its state and the time of deletion."""
        self.touch(ASKED[1], labels=(USER, TAG), size=5)
        before = self.revision()
        self.drop(now=NOW + 1)
        assert self.unrevised() == ThreadEntry(
            THREAD, "deleted", NOW + 1, NOW + 1, deleted_at=NOW + 1
        )
        assert self.revision() > before
        assert self.found(ThreadQuery(labels=(USER,))) == []
        assert self.found(ThreadQuery(labels=(USER,), states=("deleted",))) == []
        self.touch(SAVED[9], labels=(USER,))
        self.drop(now=0)
        assert self.entry() is None
        self.touch(SAVED[1], size=2)
        assert (self.known().labels, self.known().size) == ((), 2)

    def test_a_deleted_thread_that_is_used_again_starts_again(self) -> None:
        """A save on a deleted thread makes a new entry, with the new time."""
        self.touch(SAVED[1], labels=(USER,), size=5)
        self.drop(now=NOW + 1)
        self.touch(size=1, labels=(TAG,), at=NOW + 2)
        assert self.known().state == "deleted"
        assert self.known().labels == ()
        self.touch(SAVED[9], now=NOW + 3, labels=(TAG,), size=2)
        entry = ThreadEntry(THREAD, "active", NOW + 3, NOW + 3, 3, (TAG,), deleted_at=NOW + 1)
        assert self.unrevised() == entry

    def test_a_copy_is_registered_as_a_thread_of_its_own(self) -> None:
        """A copy has an entry with the labels of both threads, and no pin."""
        segments, rows = (segment(0),), (checkpoint(1),)
        touch = EntryUpdate(8, labels=(USER, TAG), saves=True, event=FAILED[1])
        self.put(segments=segments, checkpoints=rows, touch=touch)
        self.register("copy", at=NOW - 9, state="created", labels=(OTHER_USER,), pinned=True)
        self.commit(CopyThread(THREAD, "copy", now=NOW + 4))
        labels = tuple(sorted((OTHER_USER, TAG)))
        copied = ThreadEntry("copy", "active", NOW + 4, NOW + 4, 8, labels, pinned=True)
        assert self.unrevised("copy") == self.with_status(copied, FAILED[1])
        self.register(THREAD, pinned=True, ttl=5, labels=(TAG,), origin=("old", uid(2)))
        self.commit(CopyThread(THREAD, "other", now=NOW + 4))
        other = self.known("other")
        assert (other.pinned, other.ttl, other.labels, other.origin) == (False, 5, (TAG,), None)

    # -- searching -------------------------------------------------------------------

    def six_threads(self) -> None:
        """Put six threads, one of them deleted."""
        self.register("a", NOW + 1, size=50)
        self.register("b", NOW + 5, size=10, labels=(USER,), pinned=True, origin=("ab", uid(1)))
        self.register("c", NOW + 3, size=30, labels=(USER, TAG), ttl=4, origin=("a", uid(1)))
        fork: dict[str, Any] = {"state": "created", "origin": ("a", uid(2))}
        self.register("d", NOW + 3, size=40, labels=(TAG,), ttl=9, **fork)
        self.touch(ASKED[1], thread="e", now=NOW + 2, size=20, labels=(OTHER_USER,))
        self.touch(RUN[1], thread="a", at=NOW + 4)
        self.drop("f", NOW + 9)

    def test_entries_are_found(self) -> None:
        """`SearchThreads` and `CountThreads` apply each part of a query."""
        self.six_threads()
        for query, expected in (
            (ALL, "badce"),
            (ThreadQuery(states=("active",)), "bace"),
            (ThreadQuery(states=("deleted",)), "f"),
            (ThreadQuery(states=("created", "deleted")), "fd"),
            (ThreadQuery(labels=(USER,)), "bc"),
            (ThreadQuery(labels=(USER, TAG)), "c"),
            (ThreadQuery(labels=(tag_label("none"),)), ""),
            (ThreadQuery(states=("created",), labels=(TAG,)), "d"),
            (ThreadQuery(updated=(NOW + 3, None)), "badc"),
            (ThreadQuery(updated=(None, NOW + 3)), "e"),
            (ThreadQuery(updated=(NOW + 3, NOW + 4)), "dc"),
            (ThreadQuery(created=(None, NOW + 3)), "ae"),
            (ThreadQuery(created=(NOW + 3, None)), "bdc"),
            (ThreadQuery(statuses=("waiting",)), "e"),
            (ThreadQuery(statuses=("waiting", "unfinished", "failed")), "ae"),
            (ThreadQuery(statuses=("done",)), "bc"),
            (ThreadQuery(statuses=("done", "waiting"), size=20), "ce"),
            (ThreadQuery(statuses=("unfinished",), states=("created",)), ""),
            (ThreadQuery(pinned=True), "b"),
            (ThreadQuery(pinned=False), "adce"),
            (ThreadQuery(size=30), "adc"),
            (ThreadQuery(origin="a"), "dc"),
            (ThreadQuery(rested=NOW + 8), "c"),
            (ThreadQuery(rested=NOW + 7), ""),
            (ThreadQuery(labels=(USER,), size=20, updated=(NOW, NOW + 9)), "c"),
        ):
            assert "".join(self.found(query)) == expected, query
            assert self.count(**query._asdict()) == len(expected), query

    def test_pages_go_on_behind_an_entry(self) -> None:
        """Pages in every order return each entry once."""
        self.six_threads()
        for order, expected in ORDERS.items():
            for query in (ALL, ThreadQuery(states=("active", "created"))):
                assert self.page_by_page(query, order, descending=True) == expected[0], order
                assert self.page_by_page(query, order, descending=False) == expected[1], order

    def page_by_page(self, query: ThreadQuery, order: Order, *, descending: bool) -> str:
        """Search in pages of two."""
        names, after = "", None
        for _ in range(4):
            page = self.one(SearchThreads(query, order, descending, after, 2))
            names += "".join(entry.thread for entry in page)
            after = (getattr(page[-1], order), page[-1].thread) if page else after
        return names

    def test_a_label_that_many_have(self) -> None:
        """A label that many threads have finds all of them."""
        batches = []
        for number in range(300):
            entry = ThreadEntry(f"t{number:03}", "active", NOW, NOW + number)
            labels = (TAG, USER) if number % 50 else ()
            batches.append(Batch(entry.thread, NOW, entry=entry._replace(labels=labels)))
        assert self.backend.commit_many(batches) == [None] * 300
        assert self.found(ThreadQuery(labels=(TAG, USER)), limit=3) == ["t299", "t298", "t297"]
        assert self.count(labels=(USER,)) == 294
        read = SearchThreads(
            ThreadQuery(labels=(USER,)), "thread", descending=False, after=("t250", "t250"), limit=2
        )
        assert [entry.thread for entry in self.one(read)] == ["t251", "t252"]

    def test_entries_outlive_the_backend(self) -> None:
        """Entries are still stored after `close` and reopening."""
        self.six_threads()
        before = [self.entry(name) for name in "abcdef"]
        self.start_again()
        assert [self.entry(name) for name in "abcdef"] == before
        assert "".join(self.found()) == "badce"
