"""Values as trees: limits, paths, and values that are large, deep, circular or hostile."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from kit.graphs_to_look_at import PIXEL
from langchain_core.messages import AIMessage

from threadkeep._core.codec.codecs import CLASS, Raw
from threadkeep.errors import NotFoundError
from threadkeep.ui.text import as_json
from threadkeep.ui.values import WINDOW, one_line, part_at, tree


def lines(entry: Any) -> list[Any]:
    return [(one.key, one.kind, one.text) for one in entry.entries]


def test_a_tree_has_keys_types_and_texts() -> None:
    root = tree({"a": 1, (1, "b"): None, 2: float("nan"), "t": True, "s": "text"})
    assert lines(root) == [
        ("a", "number", "1"),
        ('[1, "b"]', "nothing", "null"),
        ("2", "number", "NaN"),
        ("t", "truth value", "true"),
        ("s", "text", "text"),
    ]


@dataclass
class Order:
    number: str
    note: str = ""


def test_classes_have_fields_and_their_empty_ones_come_last() -> None:
    root = tree([Order("ORDER-17"), Raw({CLASS: "shop.<b>Order</b>", "gift": [], "number": 1})])
    order, raw = root.entries
    assert (order.kind, order.is_class, lines(order)) == (
        "Order",
        True,
        [("number", "text", "ORDER-17")],
    )
    assert order.empty == ["note"]
    assert (raw.kind, lines(raw), raw.empty) == (
        "shop.<b>Order</b>",
        [("number", "number", "1")],
        ["gift"],
    )


def test_an_entry_is_found_again_by_its_path() -> None:
    value = {"rows": [{"id": n, "inner": {"deep": [n] * 3}} for n in range(300)]}
    root = tree(value, "0.", 290)
    assert [one.path for one in root.entries] == [f"0.{n}." for n in range(290, 300)]
    (inner,) = [one for one in root.entries[-1].entries if one.key == "inner"]
    assert part_at(value, inner.path) == {"deep": [299] * 3}
    for wrong in ("9.", "0.300.", "0.-1.", "0.x.", f"{'9' * 5000}.", "0.0.0.0."):
        with pytest.raises(NotFoundError):
            tree(value, wrong)


def test_long_lists_are_windows() -> None:
    root = tree(list(range(10**6)))
    assert (len(root.entries), root.rest, root.length) == (WINDOW, WINDOW, 10**6)
    assert tree(list(range(150)), "", WINDOW).rest is None


def count(entry: Any) -> int:
    return sum(1 + count(one) for one in entry.entries)


def test_an_answer_has_at_most_200_entries_and_parts_can_be_opened() -> None:
    value = [[{"a": 1, "b": [1, 2, 3]} for _ in range(50)] for _ in range(90)]
    root = tree(value)
    assert count(root) <= 200
    closed = [one for one in root.entries if one.rest == 0]
    assert closed
    assert len(tree(value, closed[0].path).entries) == 50


def test_depth_and_circles_have_an_end() -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    circle: dict[str, Any] = {"list": []}
    circle["list"].append(circle)
    for value in (deep, circle):
        entry = tree(value)
        while entry.entries:
            (entry,) = entry.entries
        assert entry.rest == 0
        assert entry.path.count(".") < 20
        assert tree(value, entry.path).entries
        assert as_json(value)


def test_texts_are_cut_together() -> None:
    root = tree(["x " * 30_000] * 4)
    assert sum(len(one.text) for one in root.entries) <= 100_000 + 200
    assert [one.is_cut for one in root.entries] == [False, True, True, True]


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (f"data:image/png;base64,{PIXEL}", "image/png, 70 bytes"),
        ("data:text/html;charset=utf-8;base64,PHA+", "text/html, 3 bytes"),
        ("aB3" * 400, "base64, 900 bytes"),
        (b"1234", "4 bytes"),
    ],
)
def test_bytes_and_base64_are_told_by_type_and_size(value: Any, note: str) -> None:
    (entry,) = tree([value]).entries
    assert (entry.form, entry.text) == ("note", note)
    assert one_line([value]) == note


def test_json_in_a_text_is_a_tree() -> None:
    text = '{"number": "ORDER-17", "stops": ["Rotterdam"]}'
    (entry,) = tree([text]).entries
    assert entry.kind == "JSON"
    assert lines(entry)[0] == ("number", "text", "ORDER-17")
    assert tree([text], entry.entries[1].path).entries[0].text == "Rotterdam"
    for other in ("{not json", "[" * 150_000, "[]"):
        assert tree([other]).entries[0].entries == []


def test_hostile_values_have_a_form() -> None:
    value = {
        "k" * 10**6: 1,
        "\ud800": "\ud800",
        "\u202e\n<b>": 10**6_000,
        "s": {1, "a"},
        "i": float("-inf"),
    }
    root = tree(value)
    assert max(len(one.key) for one in root.entries) <= 120
    assert [one.key for one in root.entries][1:3] == ["\\ud800", "\\u202e\\n<b>"]
    assert root.entries[2].text.startswith("0x")
    assert json.loads(as_json(value))["s"]


def test_messages_are_told_in_a_line() -> None:
    call = {"name": "find", "args": {}, "id": "1"}
    assert one_line(AIMessage("Hello\nyou", tool_calls=[call])) == "ai: Hello you → find"
    assert one_line({"role": "user", "content": "x" * 999}).startswith("user: xxx")
    assert one_line({"a": [1], "b": {}, "c": 2}) == "a: […], b: {…}, c: 2"
