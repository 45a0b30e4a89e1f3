"""Rows go back behind a saver between any two requests that move a whole thread.

After a loss, another worker may continue: its rows have the same numbers and positions.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS, SHARED, open_backend
from kit.engine import Chain, config, exactly, memory_saver
from kit.put_back import copy_rows
from kit.stepwise import Requests

from threadkeep.errors import CorruptionError, StateError

MOST = 40  # requests, of any one call


def grow(saver: Any, number: int, who: str) -> None:
    """Put checkpoint `number`: large values, of the same size by each saver."""
    text = f"{who} {random.Random(f'{who} {number}').randbytes(4000).hex()}"
    one = Chain(saver, start=number - 1).follow()
    one.put(said=[*one.values.get("said", []), text], page=text[::-1])


def values_in(saver: Any) -> dict[str, Any]:
    return {
        found.config["configurable"]["checkpoint_id"]: exactly(found.checkpoint["channel_values"])
        for found in saver.list(config())
    }


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Opens savers of a store of this name and number, with one cold store."""
    with ExitStack() as stack:

        def open_one(name: str, number: int) -> tuple[Any, Path]:
            folder = tmp_path / str(number)
            folder.mkdir(exist_ok=True)
            saver = open_backend(name, folder, cold=(folder / "cold").as_uri())
            return stack.enter_context(saver), folder

        yield open_one


def check(saver: Any, expected: dict[str, Any]) -> None:
    assert values_in(saver) == expected
    report = saver.check()
    assert report.ok, report.findings


@pytest.mark.drawn(1)
@pytest.mark.parametrize("act", ["archive", "offload", "restore"])
@pytest.mark.parametrize("name", SHARED)
def test_a_thread_that_moves_is_not_what_was_lost(name: str, act: str, opened: Any) -> None:
    """Another worker continues from the earlier state, as far as the lost one had come."""
    for back in count():
        (saver, folder), (other, _) = opened(name, back), opened(name, back)
        for number in (1, 2):
            grow(saver, number, "mine")
        put_back = copy_rows(name, folder, saver)
        for number in (3, 4):
            grow(saver, number, "lost")
        if act == "restore":
            assert saver.threads.offload("t", over=1024).segments
        requests = Requests(saver)

        def lose(put_back: Any = put_back, other: Any = other) -> None:
            put_back()
            for number in (3, 4):
                grow(other, number, "told")

        requests.before(back, lose)
        move = getattr(saver.threads, act)
        with suppress(StateError):  # (nothing is offloaded any more)
            move("t", over=1024) if act == "offload" else move("t")
        if requests.count <= back:
            assert back > 2
            return
        there, _ = opened(name, back)
        expected = values_in(there)
        assert expected.keys() == {f"{number:08d}" for number in range(1, 5)}
        assert "lost" not in str(expected)
        check(saver, expected)


@pytest.mark.parametrize("name", BACKENDS)
def test_an_archived_thread_comes_back_whole(name: str, opened: Any) -> None:
    for back in count():
        saver, folder = opened(name, back)
        for number in range(1, 5):
            grow(saver, number, "mine")
        expected = values_in(saver)
        saver.threads.archive("t")
        requests = Requests(saver)
        requests.before(back, copy_rows(name, folder, saver))
        check(saver, expected)
        if requests.count <= back or back == MOST:
            assert back > 2
            return


@pytest.mark.parametrize("name", BACKENDS)
def test_an_imported_thread_is_whole(name: str, opened: Any, tmp_path: Path) -> None:
    source = memory_saver()
    for number in range(1, 5):
        grow(source, number, "mine")
    expected, bundle = values_in(source), tmp_path / "t.tkb"
    source.threads.export_bundle("t", bundle)
    for back in count():
        saver, folder = opened(name, back)
        requests = Requests(saver)
        requests.before(back, copy_rows(name, folder, saver))
        with suppress(CorruptionError):  # (all of it was lost)
            saver.threads.import_bundle(bundle)
        made = requests.count
        saver.threads.import_bundle(bundle)  # (as after an interruption)
        check(saver, expected)
        if made <= back:
            assert back > 2
            return
