"""Differences of two versions of a list or dict: always right, and small if possible."""

import copy
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.engine import exactly
from kit.values import VALUES, Plain, changes

from threadkeep._core.engine import differences, shadow
from threadkeep._core.engine.differences import Piece, SeenSequence, compare, to_watch
from threadkeep._core.engine.shadow import Shadow


@pytest.fixture(params=["compiled", "portable"], scope="module", autouse=True)
def _both_ways(request):
    """Both implementations of the comparisons: compiled and in Python."""
    before = differences.behind, differences.same_front
    if request.param == "portable":
        differences.behind, differences.same_front = (
            shadow.portable_behind,
            shadow.portable_same_front,
        )
    yield
    differences.behind, differences.same_front = before


def seen_of(value):
    """Return the record of a list or dict."""
    keys = list(value) if isinstance(value, dict) else None
    items = list(value.values()) if isinstance(value, dict) else list(value)
    return SeenSequence(keys, items, Shadow.of(to_watch(keys, items)), len(items))


def parts(value):
    """Return exactly the contents of a version: its elements, or its items."""
    return [exactly(part) for part in (value.items() if isinstance(value, dict) else value)]


def rebuilt(pieces, old_parts, new_parts):
    """Rebuild the new version from pieces, which must cover it in order."""
    out = []
    for piece in pieces:
        assert piece.start == len(out)
        assert piece.start < piece.stop
        if piece.old is None:
            out += new_parts[piece.start : piece.stop]
        else:
            out += old_parts[piece.old : piece.old + piece.stop - piece.start]
    return out


def kept(pieces):
    return sum(piece.stop - piece.start for piece in pieces if piece.old is not None)


def difference(seen, new):
    now = compare(new, seen)
    if now.pieces is not None:
        return now.pieces
    kept = [Piece(0, 0, now.first)] if now.first else []
    return [*kept, Piece(None, now.first, now.first + len(now.items))] if now.items else kept


@st.composite
def edited_lists(draw):
    """A list as seen, and after edits of it, some in place."""
    old = draw(st.lists(VALUES, max_size=8))
    before, seen = parts(old), seen_of(old)
    new = list(old)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(new)))
        to = draw(st.integers(0, len(new)))
        match draw(
            st.sampled_from(["insert", "cut", "move", "double", "copy", "reverse", "in place"])
        ):
            case "insert":
                new[at:at] = draw(st.lists(VALUES, max_size=2))
            case "cut":
                del new[at:to]
            case "move":
                new[to:to] = [new.pop(at)] if at < len(new) else []
            case "double":
                new[to:to] = new[at : at + 2]
            case "copy":
                new[at:to] = copy.deepcopy(new[at:to])
            case "reverse":
                new[at:to] = reversed(new[at:to])
            case "in place":
                ways = [way for item in new for way in changes(item)]
                if ways:
                    draw(st.sampled_from(ways)).made()
    return before, seen, new


@given(edited_lists())
def test_pieces_give_exactly_the_new_list(edit):
    before, seen, new = edit
    assert rebuilt(difference(seen, new), before, parts(new)) == parts(new)


@given(
    st.dictionaries(st.text(max_size=2), VALUES, max_size=6),
    st.dictionaries(st.text(max_size=2), VALUES, max_size=4),
    st.data(),
)
def test_pieces_give_exactly_the_new_dict(old, other, data):
    before, seen = parts(old), seen_of(old)
    keys = data.draw(st.permutations([*old, *other]))
    new = {key: {**other, **old}[key] for key in dict.fromkeys(keys)}
    for key in data.draw(st.lists(st.sampled_from(keys), max_size=2) if keys else st.just([])):
        new.pop(key, None)
    ways = [way for item in new.values() for way in changes(item)]
    if ways and data.draw(st.booleans()):
        data.draw(st.sampled_from(ways)).made()
    assert rebuilt(difference(seen, new), before, parts(new)) == parts(new)


@given(st.lists(VALUES, max_size=5), st.dictionaries(st.text(max_size=2), VALUES, max_size=5))
@example([None], {"": None})
def test_a_list_that_becomes_a_dict_keeps_nothing(items, mapping):
    assert kept(difference(seen_of(items), mapping)) == 0
    assert kept(difference(seen_of(mapping), items)) == 0


def objects(count, start=0):
    return [Plain(f"text {i}", {"n": i}) for i in range(start, start + count)]


EDITS = {
    "append": lambda x: x + objects(2, 2000),
    "prepend": lambda x: objects(2, 2000) + x,
    "insert": lambda x: x[:400] + objects(2, 2000) + x[400:],
    "delete": lambda x: x[:400] + x[402:],
    "delete many": lambda x: x[:300] + x[600:],
    "replace": lambda x: x[:400] + objects(1, 2000) + x[401:],
    "reverse": lambda x: x[::-1],
    "rotate": lambda x: x[250:] + x[:250],
    "shuffle": lambda x: random.Random(3).sample(x, len(x)),
    "double": lambda x: x + x[:1],
    "window": lambda x: x[100:] + objects(100, 2000),
    "two edits": lambda x: x[:10] + objects(1, 2000) + x[11:900] + objects(1, 3000) + x[901:],
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("edit", EDITS)
def test_what_is_still_there_is_kept(edit):
    old = objects(1000)
    new = EDITS[edit](old)
    pieces = difference(seen_of(old), new)
    assert rebuilt(pieces, parts(old), parts(new)) == parts(new)
    there = len({id(item) for item in new} & {id(item) for item in old})
    assert kept(pieces) == there


@pytest.mark.parametrize(
    "edit", ["append", "insert", "delete", "replace", "two edits", "window", "prepend"]
)
def test_few_edits_are_few_pieces(edit):
    old = objects(1000)
    assert len(difference(seen_of(old), EDITS[edit](old))) <= 5


@pytest.mark.parametrize("edit", ["append", "insert", "delete", "replace"])
def test_a_list_rebuilt_by_value_keeps_both_ends(edit):
    old = objects(1000)
    new = copy.deepcopy(EDITS[edit](old))
    assert kept(difference(seen_of(old), new)) >= 998


def test_a_dict_where_one_of_many_changes():
    old = {f"file {i}": Plain(i) for i in range(500)}
    new = old | {"file 250": Plain("changed")}
    pieces = difference(seen_of(old), new)
    assert kept(pieces) == 499
    assert len(pieces) == 3


def test_in_place_changes_are_cut_out():
    old = objects(1000)
    seen = seen_of(old)
    old[3].b["n"] = "changed"
    old[500].a = "changed"
    pieces = difference(seen, old)
    assert [p for p in pieces if p.old is None] == [Piece(None, 3, 4), Piece(None, 500, 501)]
    assert kept(pieces) == 998


# -- versions that share a list --------------------------------------------------------


def followed(seen, *new):
    return seen.followed(list(new), seen.shadow.extended(Shadow.of(list(new))))


def test_a_version_that_grew_leaves_the_older_one_as_it_was():
    first = seen_of(["a", "b"])
    second = followed(first, "c")
    third = followed(second, "d", "e")
    assert (first.items, second.items) == (["a", "b"], ["a", "b", "c"])
    assert third.items == ["a", "b", "c", "d", "e"]
    assert (first.size, second.size, third.size) == (2, 3, 5)
    assert first.every is third.every


def test_two_versions_grow_from_one():
    first = seen_of(["a"])
    one, other = followed(first, "b"), followed(first, "c")
    assert (first.items, one.items, other.items) == (["a"], ["a", "b"], ["a", "c"])
    found = [compare(["a", "b", "x"], seen) for seen in (one, other, first)]
    assert [(now.items, now.first) for now in found] == [
        (["x"], 2),
        (["a", "b", "x"], 0),
        (["b", "x"], 1),
    ]


def test_what_is_read_is_a_copy():
    seen = seen_of(["a"])
    seen.items.append("b")
    assert seen.items == ["a"]


def test_a_list_that_only_grows_is_not_copied():
    value = [Plain(n) for n in range(50)]
    seen = seen_of(value)
    now = compare([*value, "new"], seen)
    assert (now.items, now.first, now.watched) == (["new"], 50, None)
    value[7].a = "changed in place"
    now = compare([*value, "new"], seen)
    assert (len(now.items), now.first, now.start) == (51, 0, 7)
    assert len(now.watched.copies) == 44


def test_a_list_that_lost_its_front_and_grew_is_two_pieces():
    value = [[number] for number in range(40)]
    seen = seen_of(value)
    now = compare([*value[3:], "new"], seen)
    assert (now.pieces, now.lost) == ([Piece(3, 0, 37), Piece(None, 37, 38)], 3)
    assert now.watched.copies == ["new"]
    assert compare(value[3:], seen).pieces == [Piece(3, 0, 37)]
    value[2].append("gone with the front")
    assert compare(value[3:], seen).lost == 3
    value[20].append("changed in place")
    assert difference(seen, value[3:])[1] == Piece(None, 17, 18)


def test_an_edit_of_a_list_of_other_objects_keeps_what_follows():
    seen = seen_of([{"n": n} for n in range(50)])
    value = [{"n": n} for n in range(51)]
    value[20]["n"] = "edited"
    now = compare(value, seen)
    assert [(p.old, p.start, p.stop) for p in now.pieces] == [
        (0, 0, 20),
        (None, 20, 21),
        (21, 21, 50),
        (None, 50, 51),
    ]
