"""Background collection: at intervals and on put, without delaying saves."""

import gc
import logging
import os
import threading
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.places import at
from kit.runs import Delta, story, told

import threadkeep
from threadkeep import Retention, SqliteSaver
from threadkeep._core.engine.model import Batch
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import BackendError, InvalidArgumentError
from threadkeep.savers.saver import Saver
from threadkeep.threads.retention.background import Gained

WAIT = 20.0  # seconds; only a broken test ever waits that long
LAST = Retention(keep_last=1)


class Watched(MemoryBackend):
    """Reports removals of checkpoints; fails at first if asked to."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.removed = threading.Event()
        self.failures = failures

    def commit(self, change: Any) -> None:
        if isinstance(change, Batch) and change.drop_checkpoints:
            if self.failures:
                self.failures -= 1
                raise BackendError
            super().commit(change)
            self.removed.set()
        else:
            super().commit(change)


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.is_alive()}


def _talk(saver: Any, turns: int = 3) -> Any:
    graph = story(saver)
    for turn in range(turns):
        graph.invoke({"log": [f"{turn}"]}, at())
    return graph


# -- from time to time -------------------------------------------------------------------


def test_it_collects_until_it_is_closed() -> None:
    backend = Watched()
    with Saver(backend, retention=LAST, gc_every=timedelta(milliseconds=5)) as saver:
        _talk(saver)
        assert backend.removed.wait(WAIT)
        assert "threadkeep-gc" in _threads()
    assert "threadkeep-gc" not in _threads()
    saver.close()


async def test_it_ends_with_an_awaited_close() -> None:
    async with threadkeep.open_saver("memory://", retention=LAST, gc_every=0.005) as saver:
        await saver.aget_tuple(at())
    assert "threadkeep-gc" not in _threads()


def test_what_fails_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    backend = Watched(failures=1)
    caplog.set_level(logging.WARNING, "threadkeep")
    with Saver(backend, retention=LAST, gc_every=0.005) as saver:
        _talk(saver)
        assert backend.removed.wait(WAIT)
    assert "collect" in caplog.text


def test_it_does_not_keep_a_saver_alive() -> None:
    saver = Saver(Watched(), retention=LAST, gc_every=3600)
    gone, collector = weakref.ref(saver), saver._collector
    assert collector is not None
    thread = collector._thread
    assert thread is not None
    del saver
    gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert gone() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_of_a_fork_does_not_collect(tmp_path: Path) -> None:
    with SqliteSaver(str(tmp_path / "a.db"), retention=LAST, gc_every=3600) as saver:
        _talk(saver, turns=1)
        child = os.fork()
        if not child:
            status = 1
            try:
                saver.close()  # (does not wait)
                status = 0 if "threadkeep-gc" not in _threads() else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert "threadkeep-gc" in _threads()


def test_closing_does_not_wait_for_all_threads() -> None:
    backend = Watched()
    saver = Saver(backend, retention=LAST)
    reached, go = threading.Event(), threading.Event()
    inner = backend.fetch

    def fetch(reads: Any) -> Any:
        if threading.current_thread().name == "threadkeep-gc":
            reached.set()
            assert go.wait(WAIT)
        return inner(reads)

    for name in ("a", "b", "c"):
        for turn in range(2):
            story(saver).invoke({"log": [f"{turn}"]}, at(name))
    backend.fetch = fetch  # type: ignore[method-assign]
    other = Saver(backend, retention=LAST, gc_every=0.005)
    assert reached.wait(WAIT)
    assert other._collector is not None
    other._collector._end.set()
    go.set()
    other._collector.close()
    backend.fetch = inner  # type: ignore[method-assign]
    left = [len(list(saver.list(at(name)))) for name in ("a", "b", "c")]
    assert left[1:] == [8, 8]
    other.close()


# -- on put ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("schema", ["plain", "delta"])
def test_a_thread_is_kept_short_while_it_grows(name: str, schema: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"conflicts": "raise"} if schema == "delta" else {}
    with open_backend(
        name, tmp_path, retention=Retention(keep_last=3), gc_on_put=5, **options
    ) as saver:
        graph = story(saver, Delta) if schema == "delta" else story(saver)
        for turn in range(8):
            graph.invoke({"log": [f"{turn}"]}, at())
            assert len(list(saver.list(at()))) < 3 + 5
        assert graph.get_state(at()).values["log"] == told(*map(str, range(8)))
        assert saver.check().ok


@pytest.mark.parametrize("name", BACKENDS)
async def test_the_same_awaited(name: str, tmp_path: Path) -> None:
    async with open_backend(name, tmp_path, retention=LAST, gc_on_put=4) as saver:
        graph = story(saver)
        for turn in range(4):
            await graph.ainvoke({"log": [f"{turn}"]}, at())
        state = await graph.aget_state(at())
        assert state.values["log"] == told(*map(str, range(4)))
        assert len([found async for found in saver.alist(at())]) <= 4


def test_a_put_that_cannot_collect_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    with Saver(Watched(failures=99), retention=LAST, gc_on_put=1) as saver:
        graph = _talk(saver)
        assert graph.get_state(at()).values["log"] == told("0", "1", "2")
    assert "Thread 'thread'" in caplog.text


def test_checkpoints_are_counted_by_thread() -> None:
    gained = Gained(3)
    assert [gained.is_enough("a") for _ in range(7)] == [False, False, True] * 2 + [False]
    assert not gained.is_enough("b")
    assert [gained.is_enough("a") for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    "options",
    [{"gc_every": 0}, {"gc_every": "1h"}, {"gc_on_put": 0}, {"gc_on_put": True}, {"retention": 5}],
)
def test_options_that_have_no_meaning_are_refused(options: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        threadkeep.open_saver("memory://", **options)
