"""Filters of stores: what LangGraph leaves undefined, and what it refuses."""

from datetime import date

import numpy as np
import pytest

from threadkeep._stores.items.filters import Filter, parse
from threadkeep.errors import InvalidArgumentError

VALUE = {
    "n": 5,
    "price": "12",
    "day": "2026-03-01",
    "tags": ["a", "b"],
    "owner": {"name": "Ada", "age": 36},
    "missing": None,
    "at": date(2026, 3, 1),
    "vector": np.zeros(2),
}


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        ({"price": {"$gt": 9}}, True),  # as numbers: as texts, "12" < "9"
        ({"price": {"$gt": "9"}}, True),
        ({"day": {"$gte": "2026-02-01", "$lt": "2026-04-01"}}, True),
        ({"day": {"$gt": 3}}, False),
        ({"nowhere": {"$lt": 3}}, False),
        ({"at": {"$gt": date(2026, 2, 1)}}, True),
        ({"at": {"$gt": "2026"}}, False),
        ({"vector": 0}, False),
        ({"vector": {"$ne": 0}}, True),
        ({"tags": {"$gt": 1}}, False),
        ({"owner": {"age": {"$gte": 36}}}, True),
        ({"owner": {"age": {"$gte": 36}, "name": {"$ne": "Ada"}}}, False),
        ({"tags": ["a", {"$ne": "c"}]}, True),
        ({"nowhere": None, "missing": None}, True),
        ({"$or": [{"n": 4}, {"owner": {"name": "Ada"}}]}, True),
        ({"$and": [{"n": 5}, {"n": {"$lt": 5}}]}, False),
        ({"n": {"$or": [{"$lt": 2}, {"$gte": 5}]}}, True),
        ({"owner": {"$and": [{"name": "Ada"}, {"age": 36}]}}, True),
        ({"owner": {}}, True),
        ({"n": {}}, False),
    ],
)
def test_a_filter_holds(wanted, holds):
    assert Filter(wanted).holds(VALUE) is holds


@pytest.mark.parametrize(
    "wanted",
    [
        {"n": {"$near": 3}},
        {"$not": [{"n": 1}]},
        {"n": {"$gt": None}},
        {"n": {"$gt": [1]}},
        {"$or": []},
        {"$or": {"n": 1}},
        {"$and": ["n"]},
        {"n": {"$gt": 1, "other": 2}},
        ["n"],
    ],
)
def test_what_cannot_be_tested_is_an_error_before_any_item_is_read(wanted):
    with pytest.raises(InvalidArgumentError):
        parse(wanted)


def test_an_unknown_operator_is_named_with_those_that_are_known():
    with pytest.raises(InvalidArgumentError, match=r"\$near.*\n.*\$and, \$or"):
        parse({"n": {"$near": 3}})


def test_databases_are_told_only_what_each_match_fulfils():
    wanted = {
        "a": 1,
        "b": {"$gt": "x"},
        "c": {"$gt": "1"},
        "d": {"e": {"$lt": 2}},
        "$or": [{"f": 1}],
    }
    found = {(*one.path, one.operator): one.value for one in Filter(wanted).hints}
    assert found == {("a", "$eq"): 1, ("b", "$gt"): "x", ("d", "e", "$lt"): 2}
