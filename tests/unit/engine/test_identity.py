"""Comparisons by identity: compiled and in Python, the same answers."""

from __future__ import annotations

import gc
import shutil
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.engine.identity import (
    apart,
    behind,
    intact,
    portable_apart,
    portable_behind,
    portable_intact,
    portable_same_front,
    same_front,
)

from .values import VALUES, changes

BOTH = list(dict.fromkeys([portable_intact, intact]))
BOTH_APART = list(dict.fromkeys([portable_apart, apart]))
BOTH_FRONTS = list(dict.fromkeys([portable_same_front, same_front]))
BOTH_BEHIND = list(dict.fromkeys([portable_behind, behind]))
THINGS = [None, True, 1, 1.0, 1000, 1000.0, "text", [], (), {}]
ITEMS = st.lists(st.sampled_from(THINGS), max_size=12)


def test_it_is_compiled_where_it_can_be():
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    can = (
        shutil.which("cc") and headers.is_file() and not sysconfig.get_config_var("Py_GIL_DISABLED")
    )
    assert (intact is not portable_intact) or not can


def rows(containers):
    dicts = [c for c in containers if type(c) is dict]
    sets = [c for c in containers if type(c) is set]
    keys = [key for d in dicts for key in d]
    return tuple(containers), gc.get_referents(*containers), dicts, keys, sets, [*map(len, sets)]


@given(st.lists(VALUES, max_size=5), st.data())
def test_both_agree(containers, data):
    watched = rows(containers)
    assert portable_intact(*watched)
    assert intact(*watched)
    ways = [way for c in containers for way in changes(c)]
    if ways:
        data.draw(st.sampled_from(ways)).made()
    assert intact(*watched) == portable_intact(*watched)


@pytest.mark.parametrize("compare", BOTH)
@pytest.mark.parametrize("place", range(1, 6))
@pytest.mark.parametrize("change", ["one more", "one less", "another"])
def test_every_row_is_compared(compare, place, change):
    watched = rows([["a", "b"], {"key": 1, "other": 2}, {3, 4}])
    assert compare(*watched)
    row = watched[place]
    if change == "one more":
        row.append(row[-1])
    elif change == "one less":
        row.pop()
    else:
        row[-1] = {"another"} if place == 4 else {} if place == 2 else 77
    assert not compare(*watched)


@pytest.mark.parametrize("compare", BOTH)
def test_renaming_a_key(compare):
    watched = rows([{"only": 1}])
    value = watched[0][0].pop("only")
    watched[0][0]["renamed"] = value
    assert not compare(*watched)


@pytest.mark.parametrize("compare", BOTH)
def test_equal_is_not_the_same(compare):
    numbers = [1, 1.0, True]
    watched = rows([numbers])
    numbers[0] = True
    assert not compare(*watched)


@pytest.mark.parametrize("compare", BOTH)
def test_nothing_at_all_is_intact(compare):
    assert compare((), [], [], [], [], [])
    assert compare((1, "text"), [], [], [], [], [])  # neither refers to anything


@pytest.mark.parametrize("tell", BOTH_APART)
def test_what_is_met_once(tell):
    def group(*chunks):
        return tuple([(rows(chunk),) for chunk in chunks])

    a, b, c, fixed = [1], {"b": 1}, {3}, (1, 2)
    assert tell([]) == []
    assert tell([group(), group([]), group([a, b], [c])]) == [True, True, True]
    assert tell([group([a, b]), group([c], [b]), group([{}])]) == [True, False, True]
    assert tell([group([a], [a])]) == [False]
    assert tell([group([fixed, a]), group([fixed], [fixed, frozenset()])]) == [True, True]
    assert tell([group([[] for _ in range(3000)])]) == [True]


# -- lists ---------------------------------------------------------------------------


@pytest.mark.parametrize("front", BOTH_FRONTS)
@given(ITEMS, ITEMS)
def test_a_common_front(front, one, other):
    count = front(one, other)
    assert all(a is b for a, b in zip(one[:count], other[:count], strict=True))
    assert count == min(len(one), len(other)) or one[count] is not other[count]
    assert front(one, one[:5]) == min(5, len(one))


@pytest.mark.parametrize("rest", BOTH_BEHIND)
@given(ITEMS, ITEMS, st.integers(-1, 14))
def test_what_comes_behind(rest, old, new, size):
    found = rest(old, size, old[: max(size, 0)] + new)
    if 0 <= size <= len(old):
        assert list(map(id, found)) == list(map(id, new))
    else:
        assert found is None


@pytest.mark.parametrize("rest", BOTH_BEHIND)
def test_nothing_comes_behind_another_list(rest):
    old = [1000, "a", []]
    assert rest(old, 3, old) == []
    assert rest(old, 3, old[:2]) is None
    assert rest(old, 3, [1000, "a", [], "new"]) is None  # another empty list
    assert rest(old, 2, [1000, "a", [], "new"]) == [[], "new"]
    assert rest(old, 1, [1000.0]) is None
    assert rest([], 0, []) == []
    grown = rest(old, 2, old)
    assert grown is not old


def test_what_is_no_list_is_refused():
    with pytest.raises(TypeError):
        same_front([], ())
    with pytest.raises(TypeError):
        behind([], 0, ())
    with pytest.raises(TypeError):
        intact((), (), [], [], [], [])
    with pytest.raises(TypeError):
        intact((), [])
    with pytest.raises(TypeError):
        apart(())
