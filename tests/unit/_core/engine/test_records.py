"""Records made by the compiled constructor: the same results, and the same errors."""

import copy
import gc
import inspect
import pickle
import sys
from typing import Any, NamedTuple, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core.engine import records
from threadkeep._core.engine.model import Batch, Span
from threadkeep._core.engine.records import quick

compiled = pytest.mark.skipif(records.construct is None, reason="it could not be compiled")


class Plain(NamedTuple):
    first: Any
    second: Any = "two"
    third: Any = ...
    fourth: Any = ()


@quick
class Quick(NamedTuple):
    first: Any
    second: Any = "two"
    third: Any = ...
    fourth: Any = ()


class Derived(Quick):
    def __new__(cls, first: Any) -> Self:
        return super().__new__(cls, first, "derived")


def outcome(cls: Any, positional: list[int], named: dict[str, int]) -> object:
    try:
        return tuple(cls(*positional, **named))
    except TypeError as error:
        return str(error).replace(cls.__name__, "")


NAMES = ("first", "second", "third", "fourth", "fifth", "")


@given(st.lists(st.integers(), max_size=6), st.dictionaries(st.sampled_from(NAMES), st.integers()))
def test_every_call_is_answered_as_by_namedtuple(
    positional: list[int], named: dict[str, int]
) -> None:
    assert outcome(Quick, positional, named) == outcome(Plain, positional, named)
    fresh = {"".join(list(name)): value for name, value in named.items()}  # (not interned)
    assert outcome(Quick, positional, fresh) == outcome(Plain, positional, fresh)


@compiled
def test_no_function_of_the_class_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **names: object) -> Any:
        raise AssertionError(args, names)

    monkeypatch.setattr(Quick, "__new__", refuse)
    assert Quick(1, 2, 3, 4) == Quick(1, fourth=4, second=2, third=3) == (1, 2, 3, 4)


def test_a_record_is_like_any_namedtuple() -> None:
    made = Quick([1], third=3)
    assert type(made) is Quick
    assert repr(made) == "Quick(first=[1], second='two', third=3, fourth=())"
    assert made._replace(second=2) == ([1], 2, 3, ())
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    assert Derived(1) == (1, "derived", ..., ())
    assert list(inspect.signature(Span).parameters) == ["log", "start", "stop"]


def test_references_are_counted() -> None:
    value, kind = [0], sys.getrefcount(Quick)
    before = sys.getrefcount(value)
    for _ in range(100):
        made = Quick(value, second=value, third=value)
        with pytest.raises(TypeError):
            Quick(value, fifth=value)
        with pytest.raises(TypeError):
            Quick(second=value)
    assert sys.getrefcount(value) == before + 3
    assert gc.is_tracked(made)
    value.append(made)  # a cycle
    del made
    assert sys.getrefcount(Quick) == kind + 1
    value.clear()
    assert (sys.getrefcount(value), sys.getrefcount(Quick)) == (before, kind)


def test_a_batch_has_its_defaults() -> None:
    assert Batch("t", now=1) == Batch.__new__(Batch, "t", 1)
    with pytest.raises(TypeError, match="now"):
        Batch(thread="t")  # type: ignore[call-arg]


@compiled
def test_only_a_namedtuple_is_taken() -> None:
    assert records.construct is not None
    for cls in (int, tuple, type("Other", (), {})):
        with pytest.raises(TypeError):
            records.construct(cls, ("a",), (...,))
    with pytest.raises(TypeError):
        records.construct(Plain, ("first",), ())
