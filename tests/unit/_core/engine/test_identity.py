"""Comparisons by identity give the same answers compiled and in Python."""

import shutil
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core.engine.shadow import behind, portable_behind, portable_same_front, same_front

BOTH_FRONTS = list(dict.fromkeys([portable_same_front, same_front]))
BOTH_BEHIND = list(dict.fromkeys([portable_behind, behind]))
THINGS = [None, True, 1, 1.0, 1000, 1000.0, "text", [], (), {}]
ITEMS = st.lists(st.sampled_from(THINGS), max_size=12)


def test_it_is_compiled_where_it_can_be():
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    can = (
        shutil.which("cc") and headers.is_file() and not sysconfig.get_config_var("Py_GIL_DISABLED")
    )
    assert (behind is not portable_behind) or not can


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


@pytest.mark.skipif(behind is portable_behind, reason="not compiled")
def test_what_is_no_list_is_refused():
    with pytest.raises(TypeError):
        same_front([], ())
    with pytest.raises(TypeError):
        behind([], 0, ())
