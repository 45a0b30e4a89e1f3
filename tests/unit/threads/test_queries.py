"""Queries for threads."""

from datetime import UTC, datetime, timedelta

import pytest

from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import queries


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", {}),
        ("order-17", {"id_prefix": "order-17"}),
        ("order/17 & more?", {"id_prefix": "order/17 & more?"}),
        ("user:7", {"id_prefix": "user:7"}),
        ('"a=b" ', {"id_prefix": "a=b"}),
        ('id:"state:x"', {"id_prefix": "state:x"}),
        ("user_id=u-1", {"metadata": {"user_id": "u-1"}}),
        (
            'a=3 b="3" c=null d=1.5 e=[1,"x y"]',
            {"metadata": {"a": 3, "b": "3", "c": None, "d": 1.5, "e": [1, "x y"]}},
        ),
        ("a=NaN", {"metadata": {"a": "NaN"}}),
        ("a=", {"metadata": {"a": ""}}),
        ("url=https://x.example/?a=b", {"metadata": {"url": "https://x.example/?a=b"}}),
        ('"a key"=x', {"metadata": {"a key": "x"}}),
        ('#vip tag:"two words"', {"tags": ["vip", "two words"]}),
        ("state:active state:archived", {"state": ["active", "archived"]}),
        ("status:waiting is:pinned", {"status": ["waiting"], "pinned": True}),
        ("status:failed status:unfinished", {"status": ["failed", "unfinished"]}),
        ("node:model", {"failed_node": "model"}),
        ('node:"call model"', {"failed_node": "call model"}),
        ("fork:order-17", {"forked_from": "order-17"}),
        ("size:>10MB", {"min_bytes": 10_000_000}),
        ("size:1.5k", {"min_bytes": 1500}),
        ("updated:<7d", {"updated_after": timedelta(days=7)}),
        ("created:>2w", {"created_before": timedelta(days=14)}),
        ("updated:<2026-01-31", {"updated_before": datetime(2026, 1, 31, tzinfo=UTC)}),
        (
            "updated:2026-01-31",
            {
                "updated_after": datetime(2026, 1, 31, tzinfo=UTC),
                "updated_before": datetime(2026, 2, 1, tzinfo=UTC),
            },
        ),
    ],
)
def test_a_query_is_filters(text, want):
    assert queries.filters_of(text) == want


@pytest.mark.parametrize(
    "text",
    [
        *("state:asleep", "state:suspended", "status:asleep", "status:active", "node:"),
        *("is:lost", "is:waiting", "fork:", "size:<1MB", "size:much", "updated:soon"),
        *("updated:2026-02-30", "updated:9999-12-31", '#"open', 'a="open', '"a"b'),
    ],
)
def test_a_wrong_term_is_named(text):
    with pytest.raises(InvalidArgumentError) as refused:
        queries.filters_of(text)
    assert text.partition(":")[0] in str(refused.value) or '"' in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        *("u-1", "3", "null", "two words", 'a "quote"', "", "a=b", "{", "é\n", 3, 1.5, True, None),
        *([1, "x y"], {"a": {"b": "c d"}}),
    ],
)
def test_a_label_finds_itself(value):
    for key in ("user_id", "a key", "is:x", "#k", 'q"', "a=b"):
        found = queries.filters_of(f"order {queries.metadata_term(key, value)} is:pinned")
        assert found == {"id_prefix": "order", "metadata": {key: value}, "pinned": True}
    if isinstance(value, str) and value:
        assert queries.filters_of(queries.tag_term(value)) == {"tags": [value]}


def test_terms_are_added_and_removed():
    text = queries.toggled("order #vip updated:<1d", "updated:<7d")
    assert text == "order #vip updated:<7d"
    assert queries.toggled(text, "state:active") == "order #vip updated:<7d state:active"
    assert queries.toggled(text, "#vip") == "order updated:<7d"
