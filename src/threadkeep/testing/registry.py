"""Contract of the registry: changes of entries, searches and counts."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from threadkeep._core.engine.model import Batch, CopyThread
from threadkeep._core.engine.thread_entry import (
    Cause,
    EntryFence,
    EntryUpdate,
    SearchThreads,
    StateTransition,
    ThreadEntry,
    ThreadQuery,
    mark_label,
    metadata_label,
    record_label,
    tag_label,
    transition,
    transitions_to,
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


# Transitions by the number of their checkpoint: it is saved, or interrupted.
SAVED, INTERRUPTED = (
    [transition(cause, uid(number)) for number in range(10)]
    for cause in (Cause.SAVE, Cause.INTERRUPT)
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
        self, *transitions: StateTransition, thread: str = THREAD, now: int = NOW, **fields: Any
    ) -> None:
        """Commit a batch that only touches the entry."""
        self.put(thread=thread, now=now, touch=EntryUpdate(transitions=transitions, **fields))

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

    # -- transitions -----------------------------------------------------------------

    def test_a_save_makes_an_entry(self) -> None:
        """The first transition registers its thread, with the touch's time, else the batch's."""
        self.put(checkpoints=(checkpoint(1),), touch=EntryUpdate(size=2))
        assert self.entry() is None
        assert self.found() == []
        assert self.count() == 0
        self.put(checkpoints=(checkpoint(1),), touch=EntryUpdate(size=5, transitions=(SAVED[1],)))
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

    def test_an_interrupt_waits_for_an_answer_or_a_later_checkpoint(self) -> None:
        """An interrupt waits until an answer or a later checkpoint, in any order of transitions."""
        one = [SAVED[1], INTERRUPTED[1]]
        for number, (transitions, waits_at) in enumerate(
            (
                ([*one], 1),
                ([*one, SAVED[1]], 1),
                ([*one, SAVED[1], SAVED[2]], None),
                ([INTERRUPTED[3], SAVED[3], SAVED[2]], 3),
                ([*one, INTERRUPTED[2], INTERRUPTED[1]], 2),
            )
        ):
            thread = f"t{number}"
            for each in transitions:
                self.touch(each, thread=thread)
            entry = ThreadEntry(thread, "suspended" if waits_at else "active", NOW, NOW)
            expected = entry._replace(waits_at=uid(waits_at) if waits_at else None)
            assert self.unrevised(thread) == expected, transitions

    def test_the_rows_settle_where_a_thread_waits(self) -> None:
        """The rows of a thread say where it waits. Forked and archived states stay."""
        known = [(state, at) for state in ("active", "forked", "archived") for at in (None, 1, 8)]
        known += [("suspended", 1), ("suspended", 8), ("created", None)]
        settled = {"forked": "forked", "archived": "archived"}
        for number, (state, waited) in enumerate(known):
            for head, waits_at in ((3, None), (3, 3), (2, 4), (None, 4)):
                thread, at = f"{number} {head} {waits_at}", uid(waits_at) if waits_at else None
                self.register(thread, state=state, waits_at=uid(waited) if waited else None)
                self.touch(*transitions_to(uid(head) if head else None, at), thread=thread)
                found = self.known(thread)
                assert found.state == settled.get(state, "suspended" if at else "active")
                if state != "archived":
                    assert found.waits_at == at

    def test_no_rows_settle_nothing(self) -> None:
        """`transitions_to` of a thread without checkpoints only ends its interrupt."""
        self.register("created", state="created")
        self.touch(INTERRUPTED[3], thread="waiting")
        for thread in ("created", "waiting", "unknown"):
            self.touch(*transitions_to(None, None), thread=thread)
        assert self.known("created").state == "created"
        assert self.known("waiting")[1] == "active"
        assert self.entry("unknown") is None

    def test_rows_that_go_raise_the_revision(self) -> None:
        """Hiding or dropping rows raises the revision, so that `EntryFence` notices it."""
        checkpoints, writes = (checkpoint(1), checkpoint(2)), (write(1), write(2))
        self.put(checkpoints=checkpoints, writes=writes, touch=EntryUpdate(transitions=(SAVED[2],)))
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
            self.put(fences=(EntryFence(1),), touch=EntryUpdate(size=1, transitions=(SAVED[1],)))
        assert self.entry() is None
        self.touch(SAVED[1])
        with pytest.raises(ConflictError):
            self.put(fences=(EntryFence(0),), touch=EntryUpdate(transitions=(INTERRUPTED[1],)))
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
        edited = ThreadEntry("another", "suspended", 1, 1, 99, (USER,), waits_at=uid(3))
        self.put(fences=(EntryFence(before),), entry=edited)
        assert self.unrevised() == ThreadEntry(THREAD, "suspended", NOW, NOW + 1, 9, (USER,))
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
        self.touch(SAVED[1], INTERRUPTED[1], labels=(USER, TAG), size=5)
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
        touch = EntryUpdate(8, labels=(USER, TAG), transitions=(SAVED[1], INTERRUPTED[1]))
        self.put(segments=segments, checkpoints=rows, touch=touch)
        self.register("copy", at=NOW - 9, state="created", labels=(OTHER_USER,), pinned=True)
        self.commit(CopyThread(THREAD, "copy", now=NOW + 4))
        labels = tuple(sorted((OTHER_USER, TAG)))
        assert self.unrevised("copy") == ThreadEntry(
            "copy", "suspended", NOW + 4, NOW + 4, 8, labels, pinned=True, waits_at=uid(1)
        )
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
        self.touch(INTERRUPTED[1], thread="e", now=NOW + 2, size=20, labels=(OTHER_USER,))
        self.touch(thread="a", at=NOW + 4)
        self.drop("f", NOW + 9)

    def test_entries_are_found(self) -> None:
        """`SearchThreads` and `CountThreads` apply each part of a query."""
        self.six_threads()
        for query, expected in (
            (ALL, "badce"),
            (ThreadQuery(states=("active",)), "bac"),
            (ThreadQuery(states=("deleted",)), "f"),
            (ThreadQuery(states=("created", "suspended")), "de"),
            (ThreadQuery(labels=(USER,)), "bc"),
            (ThreadQuery(labels=(USER, TAG)), "c"),
            (ThreadQuery(labels=(tag_label("none"),)), ""),
            (ThreadQuery(states=("created",), labels=(TAG,)), "d"),
            (ThreadQuery(updated=(NOW + 3, None)), "badc"),
            (ThreadQuery(updated=(None, NOW + 3)), "e"),
            (ThreadQuery(updated=(NOW + 3, NOW + 4)), "dc"),
            (ThreadQuery(created=(None, NOW + 3)), "ae"),
            (ThreadQuery(created=(NOW + 3, None)), "bdc"),
            (ThreadQuery(waits=True), "e"),
            (ThreadQuery(waits=False), "badc"),
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
            for query in (ALL, ThreadQuery(states=("active", "created", "suspended"))):
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
