"""Both ways of telling identities agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.engine import identity

DIRECT = identity._direct_pointers
ITEMS = st.lists(st.one_of(st.none(), st.integers(), st.text(), st.just([]), st.floats()))


@given(ITEMS)
def test_direct_and_portable_agree(items):
    assert DIRECT(items) == identity.portable_pointers(items)


@given(ITEMS, st.lists(st.integers(0, 60)))
def test_lists_that_grew_and_shrank(items, cuts):
    items = items * 3
    for cut in cuts:
        del items[cut : cut + 2]
        items += [cut, None]
        assert DIRECT(items) == identity.portable_pointers(items)


def test_this_interpreter_uses_the_direct_way():
    assert identity.pointers is DIRECT


@pytest.mark.parametrize("pointers", [DIRECT, identity.portable_pointers])
def test_equal_is_not_identical(pointers):
    one, other = [1], [1]
    assert pointers([one, 2]) == pointers([one, 2])
    assert pointers([one]) != pointers([other])
    assert pointers([1]) != pointers([True])
    assert pointers([1]) != pointers([1.0])
    assert pointers([]) == b""
