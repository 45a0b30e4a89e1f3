"""Progress of moves, by itself."""

import asyncio
from collections.abc import Iterator
from typing import Any

from threadkeep.threads.transfer.meter import Meter

Heard = list[tuple[str, int, int]]


def test_totals_are_known_with_the_last_thread() -> None:
    heard: Heard = []
    meter = Meter(lambda *told: heard.append(told), "read", 2)
    meter.begin("a", 10, 500)
    meter.add(4, 100)
    meter.end()
    meter.begin("b", 5, 50)
    meter.add(5, 20)
    meter.end()
    assert heard == [
        ("bytes read", 100, 0),
        ("checkpoints read", 4, 0),
        ("bytes read", 500, 0),
        ("checkpoints read", 10, 0),
        ("threads read", 1, 2),
        ("bytes read", 520, 550),
        ("checkpoints read", 15, 15),
        ("bytes read", 550, 550),
        ("threads read", 2, 2),
    ]


def test_a_thread_that_is_begun_again_counts_once() -> None:
    heard: Heard = []
    meter = Meter(lambda *told: heard.append(told), "written", 1, {"a": 9})
    for _ in range(3):
        meter.begin("a")
        meter.add(6)
    meter.end()
    counts = [(done, total) for what, done, total in heard if what == "checkpoints written"]
    assert counts == [(6, 9), (6, 9), (6, 9), (9, 9)]


def test_each_thread_is_visited() -> None:
    heard: Heard = []
    meter = Meter(lambda *told: heard.append(told), "copied", 2)
    seen: list[str] = []

    def visit(thread: str) -> Iterator[Any]:
        seen.append(thread)
        yield from ()

    assert list(meter.each(["a", "b"], visit)) == []  # type: ignore[arg-type]
    assert (seen, heard) == (["a", "b"], [("threads copied", 1, 2), ("threads copied", 2, 2)])


def test_without_a_function_no_loop_is_needed() -> None:
    async def made() -> Meter:
        return Meter(None, "read")

    meter = asyncio.run(made())  # (whose loop is closed)
    meter.begin("a", 3)
    meter.end()
