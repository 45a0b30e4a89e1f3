"""A difference applied to the first value gives the second, and is minimal for usual changes."""

import copy
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.engine import exactly
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from threadkeep._core.codec import NativeCodec
from threadkeep.threads.diff import Change
from threadkeep.threads.diff.values import Effort, differences

CODEC = NativeCodec()


def diff(a: Any, b: Any, steps: int | None = None) -> tuple[Change, ...]:
    effort = None if steps is None else Effort(steps)
    return differences(a, b, CODEC.encode, effort)


def told(a: Any, b: Any) -> list[Any]:
    """Kind, places and values of each change."""
    return [(c.kind, c.before_at, c.after_at, c.before, c.after) for c in diff(a, b)]


def applied(value: Any, changes: list[Change], depth: int = 0) -> Any:
    """Apply changes of parts from `depth` on to a value."""
    if not changes:
        return value
    whole = [c for c in changes if len(c.after_at) == depth and c.kind == "changed"]
    if whole:
        (change,) = whole
        assert exactly(change.before) == exactly(value)
        return change.after
    if isinstance(value, dict):
        return applied_to_dict(value, changes, depth)
    return applied_to_list(value, changes, depth)


def deeper(changes: list[Change], step: Any, depth: int) -> list[Change]:
    """Select the changes inside one part of the old value."""
    return [
        c
        for c in changes
        if len(c.before_at) > depth
        and (type(c.before_at[depth]), c.before_at[depth]) == (type(step), step)
        and not (len(c.before_at) == depth + 1 and c.kind in ("added", "removed"))
    ]


def ends_here(changes: list[Change], kind: str, depth: int) -> list[Change]:
    return [c for c in changes if c.kind == kind and len(c.before_at) == depth + 1]


def applied_to_dict(value: Any, changes: list[Change], depth: int) -> Any:
    made = dict(value)
    for change in ends_here(changes, "removed", depth):
        assert exactly(made.pop(change.before_at[-1])) == exactly(change.before)
    made = {k: applied(v, deeper(changes, k, depth), depth + 1) for k, v in made.items()}
    for change in ends_here(changes, "added", depth):
        assert change.after_at[-1] not in made
        made[change.after_at[-1]] = change.after
    return made


def applied_to_list(value: Any, changes: list[Change], depth: int) -> Any:
    removed = {c.before_at[-1]: c.before for c in ends_here(changes, "removed", depth)}
    added = {c.after_at[-1]: c for c in ends_here(changes, "added", depth)}
    for i, before in removed.items():
        assert exactly(value[i]) == exactly(before)
    left = []
    for i, element in enumerate(value):
        if i not in removed:
            inner = deeper(changes, i, depth)
            assert all(c.after_at[depth] == inner[0].after_at[depth] for c in inner)
            left.append((applied(element, inner, depth + 1), inner))
    made: list[Any] = []
    for j in range(len(left) + len(added)):
        if j in added:
            assert added[j].before_at[-1] <= len(value)
            made.append(added[j].after)
        else:
            element, inner = left.pop(0)
            assert not inner or inner[0].after_at[depth] == j
            made.append(element)
    return made


def unordered(value: Any) -> Any:
    """The exact form without the order of dicts' keys."""
    if isinstance(value, dict):
        return {k: unordered(v) for k, v in sorted(value.items())}
    if isinstance(value, list):
        return [unordered(v) for v in value]
    return exactly(value)


SCALARS = (
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from([0.0, -0.0, 1.0, "a", "b"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from("abcd"), inner),
    max_leaves=20,
)


@given(VALUES, VALUES, st.sampled_from([None, 0, 30]))
@example([0, 1, 0, 1, 0], [1, 0, 1, 0, 1], None)
@example([1], [True], None)
@example([0.0], [-0.0], None)
@example({"a": [1, 2]}, {"a": [2, 1]}, None)
def test_applied_to_the_first_it_gives_the_second(a: Any, b: Any, steps: int | None) -> None:
    kept = copy.deepcopy((a, b))
    changes = diff(a, b, steps)
    assert exactly((a, b)) == exactly(kept)
    assert unordered(applied(a, list(changes))) == unordered(b)
    assert bool(changes) == (exactly(a) != exactly(b))


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_lists_of_a_few_different_elements(a: Any, b: Any) -> None:
    for steps in (None, 0, 50):
        assert applied(a, list(diff(a, b, steps))) == b


ELEMENTS = st.lists(st.tuples(st.integers(0, 8), st.sampled_from("xy")), max_size=12)


@given(ELEMENTS, ELEMENTS)
def test_lists_of_things_with_ids(a: Any, b: Any) -> None:
    before, after = ([{"id": id, "text": text} for id, text in one] for one in (a, b))
    assert unordered(applied(before, list(diff(before, after)))) == unordered(after)


# -- lists -----------------------------------------------------------------------------


def test_an_edited_message_is_changed_where_it_stands_on_both_sides() -> None:
    a = [HumanMessage("hi", id="1"), AIMessage("hello", id="2"), HumanMessage("bye", id="3")]
    b = [AIMessage("hello there", id="2"), HumanMessage("bye", id="3"), AIMessage("bye", id="4")]
    assert told(a, b) == [
        ("removed", (0,), (0,), a[0], None),
        ("changed", (1, "content"), (0, "content"), "hello", "hello there"),
        ("added", (3,), (2,), None, b[2]),
    ]


def test_messages_of_other_ids_are_never_taken_for_each_other() -> None:
    a, b = [HumanMessage("same", id="1")], [HumanMessage("same", id="2")]
    assert [kind for kind, *_ in told(a, b)] == ["removed", "added"]


def test_a_message_of_another_class_under_its_id_is_changed_whole() -> None:
    a, b = [HumanMessage("hi", id="1")], [AIMessage("hi", id="1")]
    assert told(a, b) == [("changed", (0,), (0,), a[0], b[0])]


def test_messages_without_ids_are_matched_by_what_they_say() -> None:
    a = [HumanMessage(text) for text in "abc"]
    b = [HumanMessage(text) for text in "axbc"]
    assert told(a, b) == [("added", (1,), (1,), None, b[1])]


def test_parts_of_a_message_are_told_one_by_one() -> None:
    call = {"name": "search", "args": {"q": "cats"}, "id": "c1", "type": "tool_call"}
    a = AIMessage(
        "", id="1", tool_calls=[call], additional_kwargs={"at": datetime(2024, 1, 1, tzinfo=UTC)}
    )
    b = copy.deepcopy(a)
    b.tool_calls[0]["args"]["q"] = "dogs"
    b.additional_kwargs["new"] = 1
    at = ("tool_calls", 0, "args", "q")
    assert told([a], [b]) == [
        ("added", (0, "additional_kwargs", "new"), (0, "additional_kwargs", "new"), None, 1),
        ("changed", (0, *at), (0, *at), "cats", "dogs"),
    ]


def test_what_moved_is_removed_and_added() -> None:
    kinds = [c.kind for c in diff(list("abcdef"), list("bcdefa"))]
    assert kinds == ["removed", "added"]


# -- dicts and others ------------------------------------------------------------------


def test_sets_have_no_order() -> None:
    a, b = {0, 8}, {8, 0}
    assert list(a) != list(b)
    for encode in (CODEC.encode, lambda value: repr(value).encode()):
        assert differences(a, b, encode) == ()
    assert told([a, 1], [b, 2]) == [("changed", (1,), (1,), 1, 2)]
    assert told({1}, {True}) == [("changed", (), (), {1}, {True})]
    assert told(frozenset("a"), frozenset("b"))[0][0] == "changed"


def test_deep_parts_are_told_whole() -> None:
    a: Any = 1
    b: Any = 2
    for _ in range(20):
        a, b = [a], [b]
    ((kind, at, *_),) = told(a, b)
    assert kind == "changed"
    assert at == (0,) * 8


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Note:
    text: str
    tags: Any


OF_KEYS = ({"same": 1, "gone": 2, "in": {"deep": [1]}}, {"same": 1, "in": {"deep": [2]}, "new": 3})
TOLD = {
    "an appended element": (["a"], ["a", "b"], [("added", (1,), (1,), None, "b")]),
    "an element in front": (["a", "b"], ["z", "a", "b"], [("added", (0,), (0,), None, "z")]),
    "a removed element": (["a", "b", "c"], ["b", "c"], [("removed", (0,), (0,), "a", None)]),
    "in place of another": (["a", "b", "c"], ["a", "x", "c"], [("changed", (1,), (1,), "b", "x")]),
    "1 and True": ([1, 2], [True, 2], [("changed", (0,), (0,), 1, True)]),
    "1 and 1.0": ({"a": 1}, {"a": 1.0}, [("changed", ("a",), ("a",), 1, 1.0)]),
    "keys 1 and True": (
        *({1: "x"}, {True: "x"}),
        [("removed", (1,), (1,), "x", None), ("added", (True,), (True,), None, "x")],
    ),
    "dicts key by key": (
        *OF_KEYS,
        [
            ("removed", ("gone",), ("gone",), 2, None),
            ("changed", ("in", "deep", 0), ("in", "deep", 0), 1, 2),
            ("added", ("new",), ("new",), None, 3),
        ],
    ),
    "the order of keys": (
        *({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        [("reordered", (), (), ["a", "b"], ["b", "a"])],
    ),
    "a named tuple": (Point(1, 2), Point(1, 3), [("changed", ("y",), ("y",), 2, 3)]),
    "a tuple": ((1, 2), (1, 3), [("changed", (1,), (1,), 2, 3)]),
    "a list and a tuple": ([1], (1,), [("changed", (), (), [1], (1,))]),
    "a deque": (deque([1]), deque([1, 2]), [("added", (1,), (1,), None, 2)]),
    "a dataclass": (
        *(Note("a", [1]), Note("a", [2])),
        [("changed", ("tags", 0), ("tags", 0), 1, 2)],
    ),
    "None and 0": (None, 0, [("changed", (), (), None, 0)]),
}


@pytest.mark.parametrize(("a", "b", "changes"), TOLD.values(), ids=TOLD)
def test_each_change_is_told_with_its_places(a: Any, b: Any, changes: list[Any]) -> None:
    assert repr(told(a, b)) == repr(changes)  # (1, 1.0 and True differ)


def test_arrays_are_compared_by_what_they_hold() -> None:
    a = {"v": np.arange(6)}
    assert told(a, {"v": np.arange(6)}) == []
    assert [kind for kind, *_ in told(a, {"v": np.arange(7)})] == ["changed"]


class Hostile:
    """A type that no codec knows and whose code must not run."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = None  # type: ignore[assignment]


def test_what_cannot_be_encoded_is_the_same_only_if_it_is_itself() -> None:
    one, other = Hostile(), Hostile()
    assert diff([one], [one]) == ()
    ((kind, *_),) = told([one, 1], [other, 1])
    assert kind == "changed"
    ((kind, at, *_),) = told({"a": one, "b": 1}, {"a": one, "b": 2})
    assert (kind, at) == ("changed", ("b",))


# -- effort ----------------------------------------------------------------------------

LONG = 2_400


def message(number: int, text: str) -> Any:
    if number % 3 == 2:
        return ToolMessage(text, id=f"m{number}", tool_call_id="c")
    return (HumanMessage, AIMessage)[number % 3](text, id=f"m{number}")


def talk(count: int) -> list[Any]:
    return [message(n, f"message {n} {'word ' * 100}") for n in range(count)]


def backwards(count: int) -> list[Any]:
    return [message(n, f"message {n} {'word ' * 100}"[::-1]) for n in range(count)]


HARD = {
    "all anew": lambda: (talk(LONG), [m.model_copy(update={"id": f"n{m.id}"}) for m in talk(LONG)]),
    "all edited": lambda: (talk(LONG), backwards(LONG)),
    "the other way round": lambda: (talk(LONG), talk(LONG)[::-1]),
    "all alike": lambda: ([0, 1] * (LONG // 2), [1, 0] * (LONG // 2)),
    "alike in threes": lambda: ([0, 0, 1] * (LONG // 3), [1, 1, 0] * (LONG // 3)),
    "long texts": lambda: ("a b " * 50_000, "b a " * 50_000),
    "long lines": lambda: ("x y\n" * 50_000, "y\nx\n" * 50_000),
    "one long word": lambda: ("a" * 500_000, "b" * 500_000),
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", HARD)
def test_effort_has_a_bound(name: str) -> None:
    a, b = HARD[name]()
    start = time.process_time()
    assert diff(a, b)
    assert time.process_time() - start < 3  # (a loaded machine; about half a second alone)


def test_one_edit_in_a_long_list_is_found() -> None:
    a, b = talk(LONG), talk(LONG)
    b[1200] = HumanMessage("other", id="m1200")
    del b[5]
    kinds = [(c.kind, c.before_at, c.after_at) for c in diff(a, b)]
    assert kinds == [("removed", (5,), (5,)), ("changed", (1200, "content"), (1199, "content"))]
