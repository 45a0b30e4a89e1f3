"""Edits turn one text into the other, and are few."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from threadkeep.threads.diff import values
from threadkeep.threads.diff.values import LONG, Effort, text_edits

TEXT = st.text(st.sampled_from("ab \n,x\r"), max_size=120)
WORDS = st.lists(st.sampled_from(["a", "b ", " ", "  ", "x.", "\uff0c", "\u6570", "."])).map(
    "".join
)


def applied(text: str, found):
    made, at = "", 0
    for edit in found:
        made += text[at : edit.before_at]
        assert len(made) == edit.after_at
        assert text[edit.before_at :].startswith(edit.before)
        made += edit.after
        at = edit.before_at + len(edit.before)
    return made + text[at:]


@given(TEXT, TEXT, st.sampled_from([0, 100, 100_000]))
@example("a\n" * 30, "a\nb\n" * 30, 0)
@example("", "a" * LONG, 0)
def test_they_turn_one_into_the_other(a, b, steps):
    found = text_edits(a, b, Effort(steps))
    if max(len(a), len(b)) < LONG:
        assert found == ()
    else:
        assert applied(a, found) == b
        assert bool(found) == (a != b)


def test_a_word_in_a_long_line():
    words = " ".join(f"word{n}," for n in range(200_000))
    assert len(words) > 2_000_000
    (edit,) = text_edits(words, words.replace("word150000,", "other"), Effort())
    assert (edit.before, edit.after) == ("word150000,", "other")
    (edit,) = text_edits(words, words.replace("word", "other"), Effort())
    assert edit.after_at == 0


@given(WORDS, WORDS, WORDS, WORDS)
def test_ends_in_common_are_what_alignment_pairs(start, a, b, end):
    before, after = (start + middle + end + "x" * LONG for middle in (a, b))
    found = text_edits(before, after, Effort())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "_common_ends", lambda *_: (0, 0))
        assert text_edits(before, after, Effort()) == found


def test_one_word():
    a = "The quick brown fox jumps over the lazy dog, again."
    (edit,) = text_edits(a, a.replace("brown", "red"), Effort())
    assert (edit.before_at, edit.after_at, edit.before, edit.after) == (10, 10, "brown", "red")


def test_neighbouring_words_are_one_edit():
    a = "The quick brown fox jumps over the lazy dog, again."
    (edit,) = text_edits(a, a.replace("quick brown fox", "slow red ant"), Effort())
    assert (edit.before, edit.after) == ("quick brown fox", "slow red ant")


def test_a_word_in_a_long_text_of_many_lines():
    lines = [f"line {n} of many" for n in range(20_000)]
    a = "\n".join(lines)
    lines[10_000] = "line 10000 of very many"
    del lines[3]
    found = text_edits(a, "\n".join(lines), Effort())
    assert [(e.before.strip(), e.after.strip()) for e in found] == [
        ("line 3 of many", ""),
        ("", "very"),
    ]
