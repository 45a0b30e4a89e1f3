"""Contract of reads of the threads whose ids begin with a prefix."""
# ruff: noqa: S101 - tests are made of asserts

from __future__ import annotations

from threadkeep._core.engine.model import (
    FindThreads,
    ReadSizes,
    ScanCheckpoints,
    StoredCheckpoint,
)
from threadkeep._core.engine.thread_entry import EntryUpdate, SearchThreads, ThreadEntry
from threadkeep._core.engine.thread_entry import ThreadQuery as Query
from threadkeep.testing.records import NOW, Contract, checkpoint, uid

# Ascending. Each prefix has neighbours that begin with nearly the same.
_NAMES = (
    *("a", "a\0", "a\0b", "a\1", "a ", "a !", "a %", "a a", "a a\0", "a aa", "a ä", "a!"),
    *("a%", "aa", "b ", "\ud7ff", "\ud7ff1", "\ue000", "\U0010ffff", "\U0010ffff a"),
)
_PREFIXES = ("", "a ", "a\0", "a a", "a%", "a", "\ud7ff", "\U0010ffff", "a \U0010ffff", "c")


class PrefixContract(Contract):
    """A prefix limits reads to the threads whose ids begin with it."""

    def _fill(self) -> None:
        for number, name in enumerate(_NAMES):
            at = NOW + 7 * number % 5
            entry = ThreadEntry(name, "active", at, at, status=(None, "waiting")[number % 2])
            labels = ('"urgent"',) if number % 3 else ()
            self.put(
                thread=name,
                now=at,
                checkpoints=(checkpoint(number % 4), checkpoint(number % 3, ns="child")),
                entry=entry._replace(labels=labels),
                touch=EntryUpdate(size=number),
            )

    def test_a_prefix_limits_listings(self) -> None:
        """`FindThreads` and `ReadSizes` list the threads that begin with `prefix`, in order."""
        self._fill()
        for prefix in _PREFIXES:
            names = [name for name in _NAMES if name.startswith(prefix)]
            for after in (None, "", "a", "a ", "a a", "b", "\U0010ffff z"):
                some = [name for name in names if after is None or name > after]
                assert self.threads(after, 99, prefix=prefix) == some
                assert self.threads(after, 2, prefix=prefix, empty=True) == some[:2]
                sizes = self.one(ReadSizes(after, 3, prefix)).threads
                assert [one.thread for one in sizes] == some[:3]
        runs = (checkpoint(9, metadata='{"run_id": "r"}'),)
        for thread in ("a !", "a%", "b "):
            self.put(thread=thread, checkpoints=runs)
        assert self.one(FindThreads(None, 9, ("r",), prefix="a ")) == ["a !"]
        assert self.one(FindThreads("a !", 9, ("r",), prefix="a")) == ["a%"]

    def test_a_prefix_limits_scans(self) -> None:
        """`ScanCheckpoints` of all threads returns rows of those that begin with `prefix`."""
        self._fill()
        everything = ScanCheckpoints(None, None, None, None, {}, None, 99)
        rows: list[StoredCheckpoint] = self.one(everything)
        for prefix in _PREFIXES:
            expected = [row for row in rows if row.thread.startswith(prefix)]
            scan = everything._replace(prefix=prefix)
            assert self.one(scan) == expected
            found, after = list[StoredCheckpoint](), None
            while page := self.one(scan._replace(after=after, limit=3)):
                found += page
                after = (page[-1].row.id, page[-1].thread, page[-1].row.ns)
            assert found == expected
            some = self.one(scan._replace(ns="child", id=uid(1)))
            assert some == [
                one for one in expected if (one.row.ns, one.row.id) == ("child", uid(1))
            ]

    def test_a_prefix_limits_searches(self) -> None:
        """`SearchThreads` and `CountThreads` find the entries that begin with `prefix`."""
        self._fill()
        every = SearchThreads(Query(), "updated_at", descending=False, after=None, limit=99)
        entries: list[ThreadEntry] = self.one(every)
        for prefix in _PREFIXES:
            names = [one.thread for one in entries if one.thread.startswith(prefix)]
            assert self.count(prefix=prefix) == len(names)
            waiting = Query(statuses=("waiting",), labels=('"urgent"',))
            expected = [one.thread for one in self.one(every._replace(query=waiting))]
            query = waiting._replace(prefix=prefix)
            found = [one.thread for one in self.one(every._replace(query=query))]
            assert found == [name for name in expected if name.startswith(prefix)]
            assert self.count(**query._asdict()) == len(found)
            for order in ("updated_at", "created_at", "size", "thread"):
                whole = every._replace(order=order, descending=True)
                wanted = [one.thread for one in self.one(whole) if one.thread.startswith(prefix)]
                whole = whole._replace(query=Query(prefix=prefix), limit=2)
                paged = list[str]()
                while page := self.one(whole):
                    paged += [one.thread for one in page]
                    whole = whole._replace(after=(getattr(page[-1], order), page[-1].thread))
                assert paged == wanted
