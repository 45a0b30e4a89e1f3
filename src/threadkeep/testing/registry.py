"""The contract of the registry: entries, what changes them, finding and counting them."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from threadkeep.engine.model import CopyThread, DropThread, FindThreads
from threadkeep.engine.thread_entry import (
    Cause,
    CountThreads,
    EntryFence,
    Move,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    Touch,
    mark_label,
    metadata_label,
    move,
    record_label,
    tag_label,
)
from threadkeep.errors import ConflictError
from threadkeep.testing.records import NOW, THREAD, Contract, checkpoint, segment, uid

if TYPE_CHECKING:
    from threadkeep.engine.thread_entry import Order

SECOND = 1_000_000
USER = metadata_label("user_id", "u1")
OTHER_USER = metadata_label("user_id", "u2")
TAG = tag_label("urgent")
ALL = ThreadQuery()
# The threads of `six_threads` in each order, descending and ascending; equal ones go by their ids.
ORDERS: dict[Order, tuple[str, str]] = {
    "updated_at": ("badce", "ecdab"),
    "created_at": ("bdcea", "aecdb"),
    "size": ("adceb", "becda"),
    "thread": ("edcba", "abcde"),
}


def saved(number: int) -> Move:
    """The move of a saved checkpoint `uid(number)`."""
    return move(Cause.SAVE, uid(number))


def interrupted(number: int) -> Move:
    """The move of an interrupt at `uid(number)`."""
    return move(Cause.INTERRUPT, uid(number))


def resumed(number: int) -> Move:
    """The move of an answer to an interrupt at `uid(number)`."""
    return move(Cause.RESUME, uid(number))


class RegistryContract(Contract):
    """Entries of threads: what changes them, and how they are found."""

    def entry(self, thread: str = THREAD) -> ThreadEntry | None:
        """The thread's entry."""
        found = self.one(ReadEntry(thread))
        assert found is None or isinstance(found, ThreadEntry)
        return found

    def known(self, thread: str = THREAD) -> ThreadEntry:
        """The thread's entry, which must exist."""
        found = self.entry(thread)
        assert found is not None
        return found

    def told(self, thread: str = THREAD) -> ThreadEntry:
        """The thread's entry but for its revision, which grows in steps of the backend's own."""
        return self.known(thread)._replace(revision=0)

    def revision(self) -> int:
        """The entry's revision."""
        return self.known().revision

    def touch(self, *moves: Move, thread: str = THREAD, now: int = NOW, **fields: Any) -> None:
        """Commit a batch that only touches the entry."""
        self.put(thread=thread, now=now, touch=Touch(moves=moves, **fields))

    def register(self, thread: str, at: int = NOW, **fields: Any) -> None:
        """Set the entry of a thread."""
        entry = ThreadEntry(thread, fields.pop("state", "active"), at, at)._replace(**fields)
        self.put(thread=thread, now=at, entry=entry, touch=Touch(size=entry.size))

    def found(
        self, query: ThreadQuery = ALL, order: Order = "updated_at", **fields: Any
    ) -> list[str]:
        """The ids of the matching entries, latest first."""
        read = SearchThreads(query, order, descending=True, after=None, limit=100)
        return [entry.thread for entry in self.one(read._replace(**fields))]

    # -- moves -----------------------------------------------------------------------

    def test_what_was_never_registered_has_no_entry(self) -> None:
        """A thread has no entry until a batch touches it."""
        assert self.entry() is None
        self.put(checkpoints=(checkpoint(1),))
        assert self.entry() is None
        assert self.found() == []
        assert self.one(CountThreads(ALL)) == 0

    def test_a_save_makes_an_entry(self) -> None:
        """The first checkpoint registers its thread, as of the batch's time or the touch's."""
        self.put(checkpoints=(checkpoint(1),), touch=Touch(size=7, moves=(saved(1),)))
        assert self.told() == ThreadEntry(THREAD, "active", NOW, NOW, 7)
        assert self.revision() > 0
        self.touch(saved(1), thread="thread-2", at=NOW - 5)
        assert self.known("thread-2")[:4] == ("thread-2", "active", NOW - 5, NOW - 5)

    def test_a_touch_that_changes_nothing_keeps_the_revision(self) -> None:
        """Times and sizes do not count as changes."""
        self.touch(saved(1))
        before = self.revision()
        self.touch(saved(2), at=NOW + 5, size=3)
        self.touch(at=NOW + 2, size=4)
        assert self.told() == ThreadEntry(THREAD, "active", NOW, NOW + 5, 7)
        assert self.revision() == before

    def test_sizes_are_added_and_set(self) -> None:
        """With `whole` a size is the size from now on; it outlives that there is no entry."""
        self.touch(size=5)
        assert self.entry() is None
        self.touch(saved(1), size=6)
        assert self.known().size == 11
        self.touch(size=4, whole=True)
        self.touch(size=-1)
        assert self.known().size == 3

    def test_an_interrupt_suspends_until_a_later_checkpoint(self) -> None:
        """A later checkpoint ends the wait, not the one where the thread waits."""
        self.touch(saved(1))
        self.touch(interrupted(1))
        assert self.told() == ThreadEntry(THREAD, "suspended", NOW, NOW, waits_at=uid(1))
        self.touch(saved(1))
        assert self.known().waits_at == uid(1)
        self.touch(saved(2))
        assert self.told() == ThreadEntry(THREAD, "active", NOW, NOW)

    def test_an_interrupt_may_come_before_its_checkpoint(self) -> None:
        """The order of saves is not promised."""
        self.touch(interrupted(1), saved(1))
        assert self.known().state == "suspended"
        self.touch(interrupted(3), thread="thread-2")
        self.touch(saved(3), saved(2), thread="thread-2")
        assert self.known("thread-2").waits_at == uid(3)

    def test_an_answer_ends_the_wait_where_it_waits(self) -> None:
        """And a task that asks again waits again."""
        self.touch(saved(1), interrupted(2))
        self.touch(resumed(1))
        assert self.known().state == "suspended"
        before = self.revision()
        self.touch(resumed(2))
        assert self.told() == ThreadEntry(THREAD, "active", NOW, NOW)
        after = self.revision()
        assert after > before
        self.touch(resumed(2))
        assert self.revision() == after
        self.touch(interrupted(2))
        assert self.known().waits_at == uid(2)

    def test_a_refused_batch_tells_nothing(self) -> None:
        """The registry is a part of the change."""
        with pytest.raises(ConflictError):
            self.put(fences=(EntryFence(1),), touch=Touch(size=1, moves=(saved(1),)))
        assert self.entry() is None
        self.touch(saved(1))
        with pytest.raises(ConflictError):
            self.put(fences=(EntryFence(0),), touch=Touch(moves=(interrupted(1),)))
        assert self.told() == ThreadEntry(THREAD, "active", NOW, NOW)

    # -- labels and what is set ------------------------------------------------------

    def test_labels_take_the_place_of_those_with_the_same_beginning(self) -> None:
        """One piece of metadata for each key, any number of tags."""
        self.touch(saved(1), labels=(USER, TAG))
        assert self.known().labels == tuple(sorted((USER, TAG)))
        before = self.revision()
        self.touch(labels=(OTHER_USER, metadata_label("user", "u3")))
        expected = sorted((OTHER_USER, TAG, metadata_label("user", "u3")))
        assert self.known().labels == tuple(expected)
        assert self.revision() > before

    def test_an_entry_is_set(self) -> None:
        """Everything but times and size; the fence holds as long as nobody else has set it."""
        entry = ThreadEntry(THREAD, "created", NOW, NOW, 0, (TAG,))
        entry = entry._replace(pinned=True, ttl=60 * SECOND, origin=("origin", uid(7)))
        self.put(fences=(EntryFence(0),), entry=entry)
        assert self.told() == entry
        self.touch(saved(1), at=NOW + 1, size=9)
        assert self.told() == entry._replace(state="active", updated_at=NOW + 1, size=9)
        before = self.revision()
        edited = ThreadEntry(THREAD, "suspended", 1, 1, 99, (USER,), waits_at=uid(3))
        self.put(fences=(EntryFence(before),), entry=edited)
        assert self.told() == ThreadEntry(THREAD, "suspended", NOW, NOW + 1, 9, (USER,))
        assert self.revision() > before

    def test_records_take_the_place_of_their_kind_and_marks_of_nothing(self) -> None:
        """Labels of our own, which are kept, copied and dropped, and looked up by nobody."""
        marks = (mark_label("", uid(1)), mark_label("ns", uid(1), "best"), mark_label("ns", uid(1)))
        old, other = record_label("kept", ["a", 1, None]), record_label("retention", {"v": 1})
        self.touch(saved(1), labels=(TAG, *marks, old, other))
        assert self.known().labels == tuple(sorted((TAG, *marks, old, other)))
        new = record_label("kept", ["b", 2, 3])
        self.touch(labels=(new,))
        expected = tuple(sorted((TAG, *marks, new, other)))
        assert self.known().labels == expected
        self.register(THREAD, state="active", labels=expected[1:])
        assert self.known().labels == expected[1:]

    def test_labels_of_any_text(self) -> None:
        """Quotes, wildcards and characters of all kinds are just text."""
        labels = [
            tag_label(text) for text in ("it's", '"', "%", "_", "\\", "ä\U0001f40d", "\n", " ")
        ]
        labels += [metadata_label("k'\"%", {"a": [1, 2.5, None, True, "x"]})]
        for number, label in enumerate(labels):
            self.touch(saved(1), thread=f"t{number}", labels=(label,))
        for number, label in enumerate(labels):
            assert self.known(f"t{number}").labels == (label,)
            assert self.found(ThreadQuery(labels=(label,))) == [f"t{number}"]

    # -- whole threads ---------------------------------------------------------------

    def test_a_dropped_thread_says_so_and_nothing_else(self) -> None:
        """Nothing of what was known is left."""
        self.touch(saved(1), interrupted(1), labels=(USER, TAG), size=5)
        before = self.revision()
        self.backend.commit(DropThread(THREAD, now=NOW + 1))
        assert self.told() == ThreadEntry(THREAD, "deleted", NOW + 1, NOW + 1, deleted_at=NOW + 1)
        assert self.revision() > before
        assert self.found(ThreadQuery(labels=(USER,))) == []
        assert self.found(ThreadQuery(labels=(USER,), states=("deleted",))) == []

    def test_a_drop_without_a_tombstone_leaves_no_entry(self) -> None:
        """The thread was never there."""
        self.touch(saved(1), labels=(USER,), size=5)
        self.backend.commit(DropThread(THREAD, now=0))
        assert self.entry() is None
        self.touch(saved(1), size=2)
        assert self.known().labels == ()
        assert self.known().size == 2

    def test_a_deleted_thread_that_is_used_again_begins_anew(self) -> None:
        """As of the new time."""
        self.touch(saved(1), labels=(USER,), size=5)
        self.backend.commit(DropThread(THREAD, now=NOW + 1))
        self.touch(size=1, labels=(TAG,), at=NOW + 2)
        assert self.known().state == "deleted"
        assert self.known().labels == ()
        self.touch(saved(9), now=NOW + 3, labels=(TAG,), size=2)
        entry = ThreadEntry(THREAD, "active", NOW + 3, NOW + 3, 3, (TAG,), deleted_at=NOW + 1)
        assert self.told() == entry

    def test_a_copy_is_registered_as_a_thread_of_its_own(self) -> None:
        """With the labels of both, and no pin."""
        segments, rows = (segment(0),), (checkpoint(1),)
        touch = Touch(8, labels=(USER, TAG), moves=(saved(1), interrupted(1)))
        self.put(segments=segments, checkpoints=rows, touch=touch)
        self.register("copy", at=NOW - 9, state="created", labels=(OTHER_USER,), pinned=True)
        self.backend.commit(CopyThread(THREAD, "copy", now=NOW + 4))
        labels = tuple(sorted((OTHER_USER, TAG)))
        assert self.told("copy") == ThreadEntry(
            "copy", "suspended", NOW + 4, NOW + 4, 8, labels, pinned=True, waits_at=uid(1)
        )
        self.register(THREAD, pinned=True, ttl=5, labels=(TAG,), origin=("old", uid(2)))
        self.backend.commit(CopyThread(THREAD, "other", now=NOW + 4))
        other = self.known("other")
        assert (other.pinned, other.ttl, other.labels, other.origin) == (False, 5, (TAG,), None)

    def test_threads_by_name_alone_are_found_as_empty(self) -> None:
        """A thread that was only created holds nothing."""
        self.register("created", state="created")
        assert self.one(FindThreads(None, 10)) == []
        assert self.one(FindThreads(None, 10, empty=True)) == ["created"]

    # -- searching -------------------------------------------------------------------

    def six_threads(self) -> None:
        """Six threads, five of them not deleted."""
        self.register("a", NOW + 1, size=50)
        self.register("b", NOW + 5, size=10, labels=(USER,), pinned=True)
        self.register("c", NOW + 3, size=30, labels=(USER, TAG), ttl=4)
        self.register("d", NOW + 3, size=40, state="created", labels=(TAG,), ttl=9)
        self.touch(interrupted(1), thread="e", now=NOW + 2, size=20, labels=(OTHER_USER,))
        self.touch(thread="a", at=NOW + 4)
        self.backend.commit(DropThread("f", now=NOW + 9))

    def test_entries_are_found(self) -> None:
        """Each part of a query, latest first; counted alike."""
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
            (ThreadQuery(rested=NOW + 8), "c"),
            (ThreadQuery(rested=NOW + 7), ""),
            (ThreadQuery(labels=(USER,), size=20, updated=(NOW, NOW + 9)), "c"),
        ):
            assert "".join(self.found(query)) == expected, query
            assert self.one(CountThreads(query)) == len(expected), query

    def test_forks_are_found_by_their_origin(self) -> None:
        """Whatever the checkpoint."""
        self.register("one", origin=("a", uid(1)))
        self.register("two", NOW + 1, origin=("a", uid(2)))
        self.register("three", origin=("ab", uid(1)))
        assert self.found(ThreadQuery(origin="a")) == ["two", "one"]

    def test_pages_go_on_behind_an_entry(self) -> None:
        """In every order, each entry once."""
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
        """The same, however common it is."""
        for number in range(300):
            self.register(f"t{number:03}", NOW + number, labels=(TAG, USER) if number % 50 else ())
        assert self.found(ThreadQuery(labels=(TAG, USER)), limit=3) == ["t299", "t298", "t297"]
        assert self.one(CountThreads(ThreadQuery(labels=(USER,)))) == 294
        read = SearchThreads(
            ThreadQuery(labels=(USER,)), "thread", descending=False, after=("t250", "t250"), limit=2
        )
        assert [entry.thread for entry in self.one(read)] == ["t251", "t252"]

    def test_entries_outlive_the_backend(self) -> None:
        """Entries are there after `close` and a new start, as rows are."""
        self.six_threads()
        before = [self.entry(name) for name in "abcdef"]
        again = self.reopen(self.folder)
        if again is None:
            pytest.skip("what this store holds dies with it")
        self.backend.close()
        self.backend = again
        assert [self.entry(name) for name in "abcdef"] == before
        assert "".join(self.found()) == "badce"
