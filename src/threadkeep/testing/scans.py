"""The contract of `ScanCheckpoints`: which rows, in which order, page by page."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

import json
from itertools import product
from typing import Any

from threadkeep.engine.model import HIDDEN, ScanCheckpoints, StoredCheckpoint
from threadkeep.testing.records import THREAD, Contract, checkpoint, segment, uid, write

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
