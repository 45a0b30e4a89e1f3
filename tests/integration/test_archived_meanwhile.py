"""Another process archives a thread before any request of a save: the save is built again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.engine import Chain, Passing, checkpoint, config
from langchain_core.messages import HumanMessage

from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import StateError
from threadkeep.savers.saver import Saver

LONG = "x" * 90


class Interrupted(Passing):
    """Calls `between` before the requests whose numbers are `at`."""

    asked = 0
    at = frozenset[int]()
    between: Callable[[], object]

    def meet(self, asked: Any, request: Callable[[], Any]) -> Any:
        self.asked += 1
        if self.asked - 1 in self.at:
            self.between()
        return request()


def saved(cold: Path, conflicts: Any, at: frozenset[int]) -> int:
    """Save a task's write and the next checkpoint; return how many requests that took."""
    store = MemoryBackend()
    backend = Interrupted(store)
    saver = Saver(backend, cold=cold.as_uri(), conflicts=conflicts)
    other = Saver(store, cold=cold.as_uri())

    def archive() -> None:
        try:
            other.threads.archive("t")
        except StateError:
            assert at  # (archived already)

    chain = Chain(saver)
    messages = [HumanMessage(f"{n} {LONG}", id=f"m{n}") for n in range(40)]
    for n in (20, 30):
        chain.put(m=messages[:n], doc=LONG * n)
    backend.asked, backend.at, backend.between = 0, at, archive
    saver.put_writes(chain.at, [("m", messages[30:])], "task")
    made = checkpoint(9, {"m": messages}, {"m": 9, "doc": 2})
    saver.put(chain.at, made, {}, {})
    asked, backend.at = backend.asked, frozenset()
    for reader in (saver, other):
        found = reader.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"]["m"] == messages
        assert found.checkpoint["channel_values"]["doc"] == LONG * 30
        (write,) = reader.get_tuple(chain.at).pending_writes  # type: ignore[union-attr]
        assert write == ("task", "m", messages[30:])
    assert other.check().ok
    return asked


@pytest.mark.drawn(1)
@pytest.mark.parametrize("conflicts", ["fork", "raise"])
def test_once_or_twice_at_any_request(conflicts: str, tmp_path: Path) -> None:
    saved(tmp_path / "none", conflicts, frozenset())
    most = saved(tmp_path / "first", conflicts, frozenset({0, 6})) + 2
    for first in range(most):
        for second in {first, first + 1, first + 3}:
            saved(tmp_path / f"{first} {second}", conflicts, frozenset({first, second}))


def test_in_a_loop(tmp_path: Path) -> None:
    """Archiving a thread before each of 40 requests only delays a run."""
    assert saved(tmp_path, "fork", frozenset(range(40))) > 40
