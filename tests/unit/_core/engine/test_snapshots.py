"""An id that a load returned is found by its identity for as long as the program holds it."""

import copy
import sys
import threading

import pytest

from threadkeep._core.engine.snapshots import LoadEntry, Loads, own_copy

TEXT = "1ef4f797-8335-6428-8001-8a1503f9b875"


@pytest.fixture
def loads() -> Loads:
    return Loads()


def test_an_id_is_found_by_what_it_is_not_by_what_it_says(loads):
    first, second = loads.add(TEXT, 7, 3, 1), loads.add(TEXT, 8, 4, 0)
    assert (type(first), first, second) == (str, TEXT, TEXT)
    assert [(e.run, e.seen, e.flags) for e in map(loads.of, (first, second))] == [
        (7, 3, 1),
        (8, 4, 0),
    ]
    assert loads.of(TEXT) is loads.of(own_copy(first)) is loads.of(None) is None


@pytest.mark.parametrize(
    "passed_on",
    [
        copy.copy,
        copy.deepcopy,
        str,
        lambda x: copy.deepcopy({"configurable": {"checkpoint_id": x}})["configurable"][
            "checkpoint_id"
        ],
        lambda x: ({"id": ""} | {"id": x})["id"],
    ],
)
def test_what_passes_it_on_as_langgraph_does_keeps_it(loads, passed_on):
    mine = loads.add(TEXT, 7, 3, 1)
    assert loads.of(passed_on(mine)).run == 7


@pytest.mark.parametrize("text", ["", "x", "\xe9"])
def test_texts_that_python_has_once_are_not_remembered(loads, text):
    assert loads.add(text, 1, 0, 0) == text
    assert loads.of(text) is None


def test_a_load_has_ended_when_nobody_holds_its_id(loads):
    mine = loads.add(TEXT, 1, 0, 0)
    load = loads.of(mine)
    held = [mine]
    del mine
    assert not load.ended
    held.clear()
    assert load.ended


def test_what_ends_is_told_alike_however_often_python_has_run_the_code():
    # (the interpreter specializes instructions that run often)
    for _ in range(3000):
        text = own_copy(TEXT)
        load = LoadEntry(text, 1, 0, 0)
        assert not load.ended
        del text
        assert load.ended


def test_the_table_keeps_what_is_held_and_is_bounded(loads):
    held = [loads.add(TEXT, run, 0, 0) for run in range(1, 3001)]
    for run in range(20_000):
        loads.add(TEXT, run, 0, 0)
        assert len(loads) <= 2 * len(held) + 2
    assert [loads.of(text).run for text in held] == list(range(1, 3001))
    held.clear()
    loads.sweep()
    assert len(loads) == 0


def test_a_sweep_takes_time_in_proportion_to_what_was_added(loads, monkeypatch):
    swept = []
    real = Loads.sweep
    monkeypatch.setattr(Loads, "sweep", lambda self: (swept.append(len(self)), real(self)))
    held = [loads.add(TEXT, run, 0, 0) for run in range(50_000)]
    assert sum(swept) <= 2 * len(held)


def test_threads_add_and_find_at_the_same_time(loads):
    wrong = []

    def work(number):
        for run in range(5000):
            mine = loads.add(TEXT, number * 10_000 + run, 0, 0)
            load = loads.of(mine)
            if load is None or load.ended or load.run != number * 10_000 + run:
                wrong.append((number, run, load))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []
    loads.sweep()
    assert len(loads) == 0
