"""Readable forms of values and trees of checkpoints."""

import json
from collections import deque
from datetime import date
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from threadkeep.cli.commands.forks import draw
from threadkeep.cli.readable import kind, size_as_json
from threadkeep.threads.diff import plain
from threadkeep.threads.forks import BranchCheckpoint, tree


class Colour(Enum):
    RED = "red"


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


def cyclic():
    value = []
    value.append(value)
    return value


def deep():
    value = []
    for _ in range(5_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ({"a": (1, 2.5, None, True)}, {"a": [1, 2.5, None, True]}),
        ({1: {2}, None: deque([3])}, {"1": [2], "None": [3]}),
        (Colour.RED, "red"),
        (date(2024, 5, 1), "2024-05-01"),
        (float("inf"), "Infinity"),
        (b"\xff", "_w=="),
        ({"half": "\udc80"}, {"half": "\udc80"}),
        ({"half": ["\udc80", 1, None, b"x"]}, {"half": ["\udc80", 1, None, "b'x'"]}),
        (10**40, 10**40),
        ([16**5000], ["0x1" + 5000 * "0"]),
        (HumanMessage("hi", id="1"), {**plain(HumanMessage("hi").__dict__), "id": "1"}),
    ],
)
def test_values_as_json_knows_them(value, want):
    assert plain(value) == want


@pytest.mark.parametrize("value", [cyclic(), deep(), Broken(), {"in": [Broken()]}, object()])
def test_odd_values_have_some_form(value):
    assert json.dumps(plain(value))
    assert size_as_json(value) > 0


def test_what_a_value_is():
    shown = [kind(v) for v in ([1, 2], {"a": 1}, "text", b"data", 5, Colour.RED, deque([1]))]
    assert shown == ["list of 2", "dict of 1", "str", "bytes", "int", "Colour", "deque of 1"]
    assert size_as_json("aé") == 5
    assert size_as_json("\udc80") == 5


# -- the tree --------------------------------------------------------------------------


def a_tree(parents, ns="", around=None):
    """A tree by the parent of each checkpoint; `around` are the parents that metadata names."""
    shown = {
        id: BranchCheckpoint(id, up, "", {"parents": around or {}}) for id, up in parents.items()
    }
    return tree("t", ns, shown, {})


def laid(*trees, meant=None):
    every = {(one.checkpoint_ns, id) for one in trees for id in one.checkpoints}
    return draw(trees, every if meant is None else meant)


def drawn(branches):
    """The trees as nested lists of ids, without the lines before their roots."""
    return [
        [
            id if not node.children else (id, drawn(node.children))
            for node in branch.children
            if (id := str(node.label).split()[0]) not in ("...", "namespace")
        ]
        for branch in branches
    ]


def test_the_branch_with_the_newest_checkpoint_goes_straight_on():
    one = a_tree({"1": None, "2": "1", "3": "2", "4": "1", "5": "2"})
    assert drawn(laid(one)) == [[("1", [["4"]]), ("2", [["3"]]), "5"]]


def test_a_subgraph_stands_under_its_step():
    inner, outer = "a:1|b:2", "a:1"
    trees = [
        a_tree({"5": None}, inner, {"": "1", outer: "4"}),
        a_tree({"1": None, "2": "1"}),
        a_tree({"3": None, "4": "3"}, outer, {"": "1"}),
        a_tree({"6": None}, "elsewhere", {"": "absent"}),
    ]
    assert drawn(laid(*trees)) == [[("1", [["3", ("4", [["5"]])]]), "2"], []]
    (root,) = laid(a_tree({"6": None}, "elsewhere", {"": "absent"}))
    assert drawn(root.children) == [["6"]]


def test_what_lies_behind_the_limit_is_a_beginning():
    one = a_tree({"1": None, "2": "1", "3": "2", "4": "3", "5": "2"})
    meant = {("", id) for id in ("3", "4", "5")}
    assert drawn(laid(one, meant=meant)) == [["3", "4"], ["5"]]


names_drawn = ["1", "2", "3", "4", "5", "6"]
names = st.sampled_from(names_drawn)
spaces = st.sampled_from(["", "a", "ab", "abc"])
lines = st.dictionaries(names, st.none() | names, min_size=1)


@given(
    st.dictionaries(spaces, st.tuples(lines, st.dictionaries(spaces, names, max_size=3))),
    st.sets(st.tuples(spaces, names)),
)
def test_each_checkpoint_is_there_once_whatever_they_say_of_their_parents(given, left_out):
    trees = [a_tree(parents, ns, around) for ns, (parents, around) in given.items()]
    meant = {(one.checkpoint_ns, id) for one in trees for id in one.checkpoints} - left_out
    waiting, seen = [("", one) for one in laid(*trees, meant=meant)], []
    while waiting:
        space, node = waiting.pop()
        word, *more = str(node.label).split() or [""]
        if word == "namespace":
            space = more[0]
        elif word in names_drawn:
            seen.append((space, word))
        waiting += [(space, one) for one in node.children]
    assert sorted(seen) == sorted(meant)


def test_ten_thousand_in_a_row_and_as_many_forks():
    row = {f"{n:06}": f"{n - 1:06}" if n else None for n in range(10_000)}
    forks = {f"{n:06}x": f"{n:06}" for n in range(0, 10_000, 2)}
    (branch,) = laid(a_tree({**row, **forks}))
    assert len(branch.children) == 10_000
