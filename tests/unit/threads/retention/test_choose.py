"""Choice of checkpoints to keep: each limit, and the rules that always hold."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep import Retention
from threadkeep._core import policies as policy
from threadkeep._core.engine.model import HIDDEN, CheckpointRow, Child, StoredCheckpoint, WriteRow
from threadkeep._core.engine.refs import Inline
from threadkeep._core.engine.rows import pack_writes, with_body
from threadkeep.errors import CorruptionError, InvalidArgumentError, NewerFormatError
from threadkeep.threads.retention.choose import GRACE, choose

NOW = 1_800_000_000_000_000
DAY = 86_400 * 1_000_000
LONG_AGO = NOW - 100 * DAY


def write(ns: str, checkpoint: str, channel: str) -> WriteRow:
    row = WriteRow(ns, checkpoint, 0, 0, "task", "", b"", seq=1)
    body = pack_writes([(-1, channel, Inline(b"x"))])
    return with_body(row, body)


def stored(
    id: str,
    *,
    ns: str = "",
    parent: str | None = None,
    time: int | str = LONG_AGO,
    flags: int = 0,
    asks: bool = False,
    child: str | None = None,
    **metadata: Any,
) -> StoredCheckpoint:
    row = CheckpointRow(
        ns, id, parent, 0, 0, flags, time, json.dumps(metadata), None, 1, 0, b"manifest"
    )
    writes = (write(ns, id, "__interrupt__"),) if asks else ()
    return StoredCheckpoint("t", row, None, writes, Child(child, 0, 0) if child else None)


def chain(*sources: str, ns: str = "", **more: Any) -> list[StoredCheckpoint]:
    """A chain of checkpoints a, b, c, ... with these sources."""
    ids = [chr(ord("a") + i) for i in range(len(sources))]
    return [
        stored(
            id,
            ns=ns,
            parent=ids[i - 1] if i else None,
            child=ids[i + 1] if i + 1 < len(ids) else None,
            source=sources[i],
            **more,
        )
        for i, id in enumerate(ids)
    ]


def left(rows: list[StoredCheckpoint], *marked: tuple[str, str], **limits: Any) -> str:
    """Ids that stay in the root namespace."""
    found = choose(rows, Retention(**limits), marked, NOW)
    return "".join(sorted(id for ns, id in found.keys if not ns))


TURNS = chain("input", "loop", "loop", "input", "loop", "update", "input", "loop")


def test_each_limit() -> None:
    assert left(TURNS) == "abcdefgh"
    assert left(TURNS, keep_last=3) == "fgh"
    assert left(TURNS, keep="turn_ends") == "cfh"
    assert left(TURNS, keep="run_ends") == "cfh"  # (no run says its name)
    assert left(TURNS, keep="turn_ends", keep_last=2) == "fh"
    assert left(TURNS, max_age=timedelta(days=1)) == "h"
    assert left(TURNS, max_age=timedelta(days=101)) == "abcdefgh"


def test_runs_end_where_their_name_does() -> None:
    runs = ["r1", "r1", "r2", "r1", None, None, "r2", None]
    rows = [
        stored(id, source="input" if id in "ah" else "loop", **({"run_id": r} if r else {}))
        for id, r in zip("abcdefgh", runs, strict=True)
    ]
    assert left(rows, keep="run_ends") == "dfgh"


def test_the_ends_of_turns_stay_the_ends() -> None:
    rows = chain(*["input", "loop", "loop"] * 3)
    ends = [s for s in rows if s.row.id in "cfi"]
    for keep in ("turn_ends", "run_ends"):
        assert left(ends, keep=keep) == left(rows, keep=keep) == "cfi"
    more = stored("j", parent="i", source="loop")  # the last turn continues
    assert left([*ends, more], keep="turn_ends") == "cfj"
    hidden = [stored("e", flags=HIDDEN, parent="d"), stored("f", parent="e"), *rows[6:]]
    assert left([stored("c"), *hidden], keep="turn_ends") == "cfi"


def test_a_branch_in_use_stays_when_it_is_looked_at_again() -> None:
    rows = [
        stored("a", child="b"),
        stored("b", parent="a", child="c"),
        stored("c", parent="b", time=NOW - GRACE // 2),  # a run may be about to continue
        stored("d", parent="a"),
    ]
    assert left(rows, keep_last=1) == "bcd"
    assert left([one for one in rows if one.row.id in "bcd"], keep_last=1) == "bcd"


def test_age_is_measured_at_each_checkpoint() -> None:
    rows = [stored(id, time=NOW - i * DAY) for i, id in zip((4, 3, 2, 1), "abcd", strict=True)]
    found = choose(rows, Retention(max_age=timedelta(days=3)), (), NOW)
    assert {id for _, id in found.keys} == set("bcd")
    assert found.until == NOW  # (b is of the last moment)
    found = choose(rows, Retention(max_age=timedelta(days=2.5)), (), NOW)
    assert found.until == NOW + DAY // 2
    assert left([stored("a", time="yesterday"), stored("b")], max_age=1) == "ab"


def test_what_is_marked_or_waits_or_is_the_head_stays() -> None:
    assert left(TURNS, ("", "b"), ("", "absent"), keep_last=1) == "bh"
    waiting = [stored("a"), stored("b", asks=True), stored("c")]
    assert left(waiting, keep_last=1) == "bc"


def test_an_interrupt_that_was_passed_by_waits_no_more() -> None:
    rows = [stored("a"), stored("b", asks=True, child="c"), stored("c", parent="b"), stored("d")]
    assert left(rows, keep_last=1) == "d"
    # If it stays for another reason, the next collection needs its child too.
    found = choose(rows, Retention(keep_last=3), (), NOW)
    assert found.ends == {("", "b"): ("", "c")}


def test_the_young_tip_of_a_branch_stays_for_an_hour() -> None:
    def rows(age: int) -> list[StoredCheckpoint]:
        tip = stored("b", parent="a", time=NOW - age)
        return [stored("a", child="b"), tip, stored("c", parent="a")]

    assert left(rows(GRACE), keep_last=1) == "abc"  # (its parent shows that it is a tip)
    assert choose(rows(GRACE - 5), Retention(keep_last=1), (), NOW).until == NOW + 5
    assert left(rows(GRACE + 1), keep_last=1) == "c"
    assert left(rows(0)[1:], keep_last=1) == "c"  # (without a parent it may not be a tip)


def subgraph(parent: str, ns: str = "inner:1", **more: Any) -> list[StoredCheckpoint]:
    return chain("input", "loop", ns=ns, parents={"": parent}, **more)


def inner(rows: list[StoredCheckpoint], *marked: tuple[str, str], **limits: Any) -> set[Any]:
    return {key for key in choose(rows, Retention(**limits), marked, NOW).keys if key[0]}


def test_a_subgraph_goes_with_its_task() -> None:
    rows = [*TURNS, *subgraph("c"), *subgraph("h", ns="inner:2")]
    assert inner(rows, keep_last=1) == {("inner:2", "b")}
    assert inner(rows, keep_last=6) == {(f"inner:{i}", id) for i in (1, 2) for id in "ab"}
    assert inner([*TURNS, *subgraph("c", ns="inner")], keep_last=1) == {("inner", "b")}


def test_a_nested_subgraph_goes_with_the_one_around_it() -> None:
    nested = chain("input", ns="inner:1|deep:2", parents={"": "c", "inner:1": "b"})
    rows = [*TURNS, *subgraph("c"), *nested]
    assert inner(rows, keep_last=1) == set()
    assert inner(rows, keep_last=6) >= {("inner:1|deep:2", "a")}


def test_a_marked_checkpoint_of_a_subgraph_keeps_what_it_was_made_under() -> None:
    rows = [*TURNS, *subgraph("c")]
    assert left(rows, ("inner:1", "a"), keep_last=1) == "ch"
    assert inner(rows, ("inner:1", "a"), keep_last=1) == {("inner:1", "a"), ("inner:1", "b")}


def test_a_subgraph_whose_task_is_not_there_may_be_early() -> None:
    young = subgraph("not yet", time=NOW - GRACE)
    assert inner([*TURNS, *young], keep_last=1) == {("inner:1", "b")}
    assert choose([*TURNS, *young], Retention(keep_last=1), (), NOW).until == NOW
    assert inner([*TURNS, *subgraph("gone")], keep_last=1) == set()


def test_hidden_ones_are_not_counted() -> None:
    rows = [stored("a"), stored("b", flags=HIDDEN), stored("c", flags=HIDDEN)]
    assert left(rows, keep_last=1) == "a"


def test_damaged_metadata_is_said() -> None:
    row = stored("a").row._replace(metadata="{")
    with pytest.raises(CorruptionError, match="metadata"):
        choose([StoredCheckpoint("t", row, None)], Retention(keep_last=1), (), NOW)


# -- whatever is said ------------------------------------------------------------------


@st.composite
def threads(draw: Any) -> list[StoredCheckpoint]:
    """Checkpoints of a few namespaces, sorted."""
    rows = []
    for ns in ("", "inner", "inner:1", "inner:1|deep:2"):
        for number in range(draw(st.integers(0, 6))):
            metadata = {
                "source": draw(st.sampled_from(["input", "loop", "update"])),
                "run_id": draw(st.sampled_from(["r1", "r2", 5, None])),
            }
            if ns:
                parents = {above: f"{draw(st.integers(0, 7))}" for above in ("", "inner:1")}
                metadata["parents"] = draw(st.sampled_from([parents, {}, None]))
            row = stored(
                f"{number}",
                ns=ns,
                parent=draw(st.sampled_from([None, *[f"{i}" for i in range(number)]])),
                time=draw(st.sampled_from([LONG_AGO, NOW - DAY, NOW - 5, NOW, "odd"])),
                flags=draw(st.sampled_from([0, 0, 0, HIDDEN])),
                asks=draw(st.booleans()),
                child=draw(st.sampled_from([None, f"{number + 1}"])),
                **metadata,
            )
            rows.append(row)
    return rows


limits = st.fixed_dictionaries(
    {},
    optional={
        "keep_last": st.integers(1, 4),
        "max_age": st.sampled_from([1, timedelta(days=2)]),
        "keep": st.sampled_from(["all", "run_ends", "turn_ends"]),
    },
)


@given(threads(), limits, st.data())
def test_whatever_is_said(rows: Any, given: Any, data: Any) -> None:
    shown = {(s.row.ns, s.row.id) for s in rows if not s.row.flags & HIDDEN}
    marked = data.draw(st.sets(st.sampled_from(sorted(shown)))) if shown else set()
    found = choose(rows, Retention(**given), marked, NOW)
    assert marked <= found.keys <= shown
    for ns in ("", "inner"):  # these belong to no task
        heads = [key for key in sorted(shown) if key[0] == ns][-1:]
        assert set(heads) <= found.keys
    assert set(found.spare) <= found.keys - marked
    assert found.without(0) == found.keys
    every = found.without(len(found.spare))
    assert marked <= every <= found.keys - set(found.spare)
    # A second choice keeps the same, and more limits never keep more.
    again = [s for s in rows if (s.row.ns, s.row.id) in found.keys or s.row.flags & HIDDEN]
    if given.get("keep", "all") == "all":
        assert choose(again, Retention(**given), marked, NOW).keys == found.keys
    tighter = Retention(**{"keep_last": 1, **given})
    assert choose(rows, tighter, marked, NOW).keys <= found.keys


# -- what can be said --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": True}, "keep_last"),
        ({"max_age": -1}, "max_age"),
        ({"max_age": "1d"}, "max_age"),
        ({"ttl": float("nan")}, "ttl"),
        ({"max_bytes": 1.5}, "max_bytes"),
        ({"max_count": -1}, "max_count"),
        ({"keep": "some"}, "keep"),
        ({"keep_tagged": 1}, "keep_tagged"),
    ],
)
def test_what_has_no_meaning_is_refused(given: Any, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match) as caught:
        Retention(**given)
    assert caught.value.hint


def test_a_policy_comes_back_from_its_json() -> None:
    one = Retention(keep_last=3, max_age=60, ttl=timedelta(days=1), keep="run_ends", max_bytes=0)
    assert policy.read(json.loads(json.dumps(one.as_json()))) == one
    assert one.max_age == timedelta(minutes=1)
    assert Retention().as_json() == {"v": 1}
    with pytest.raises(NewerFormatError, match="newer release"):
        policy.read({"v": 2})
    for broken in ({}, {"v": 1, "keep_last": "x"}, {"v": 1, "what": 1}, [], None):
        with pytest.raises(CorruptionError):
            policy.read(broken)
