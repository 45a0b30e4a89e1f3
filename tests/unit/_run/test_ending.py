"""The end of a background thread, set while it waits and while it is in the middle of waiting."""

from __future__ import annotations

import gc
import threading
import weakref

from threadkeep._run.ending import End

WAIT = 10


class Owner:
    """Something that a thread belongs to; in a cycle, as owners often are."""

    def __init__(self) -> None:
        self.own = self


def test_it_ends_a_wait() -> None:
    end = End()
    assert not end.wait(0.001)
    ended = threading.Event()
    thread = threading.Thread(target=lambda: end.wait(3600) and ended.set())
    thread.start()
    end.set()
    thread.join(WAIT)
    assert ended.is_set()
    assert end.wait(3600)
    assert end.wait(threading.TIMEOUT_MAX)


def test_the_owner_that_is_collected_ends_it() -> None:
    owner, end = Owner(), End()
    reference = weakref.ref(owner, end.set)
    del owner
    gc.collect()
    assert reference() is None
    assert end.wait(3600)
