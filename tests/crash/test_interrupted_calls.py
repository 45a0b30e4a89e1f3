"""Ctrl-C in the middle of a call: the saver serves all other calls, and each with its own answer.

Python raises a KeyboardInterrupt after a call of a C function, or as a Python function begins. The
test raises one at each of these moments of a call in turn, and keeps the exception, as a notebook
does: what its frames hold is not collected.
"""

import itertools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import psycopg
import pytest
import redis
from kit.engine import checkpoint, config, run_config
from kit.postgres import empty_schema
from kit.postgres import url as postgres_url
from kit.redis import prefix_for
from kit.redis import url as redis_url
from kit.selection import drawn

from threadkeep import MemorySaver, PostgresSaver, RedisSaver, SqliteSaver

IDS = itertools.count(1)
SECONDS = 10  # more than any call takes
IN = ("threadkeep/_stores", "threadkeep/_run", "psycopg", "redis", "threading.py", "contextlib.py")


class Moments:
    """Counts the moments of a call at which an interrupt may come; raises one at number `at`."""

    def __init__(self, at: int = -1) -> None:
        self.at = at
        self.passed = 0

    def __call__(self, frame: Any, event: str, _: object) -> None:
        if event in ("call", "c_return") and any(p in frame.f_code.co_filename for p in IN):
            self.passed += 1
            if self.passed == self.at:
                raise KeyboardInterrupt

    def during(self, call: Callable[[], object]) -> BaseException | None:
        """Make the call; return what it raised."""
        sys.setprofile(self)
        try:
            call()
        except KeyboardInterrupt as error:
            return error
        finally:
            sys.setprofile(None)
        return None


def sqlite(folder, _, **options):
    return SqliteSaver(folder / "threads.db", **options)


def postgres_connection(_, stack):
    connection = stack.enter_context(psycopg.connect(postgres_url(), autocommit=True))
    return PostgresSaver(connection, schema=empty_schema())


def redis_client(folder, stack):
    client = stack.enter_context(redis.Redis.from_url(redis_url()))
    return RedisSaver(client, prefix=prefix_for(folder))


STORES = {
    "memory": lambda folder, stack: MemorySaver(),
    "sqlite": sqlite,
    "sqlite in memory": lambda folder, stack: SqliteSaver(":memory:"),
    "a connection to postgres": postgres_connection,
    "redis": lambda folder, stack: RedisSaver(redis_url(), prefix=prefix_for(folder)),
    "a client of redis": redis_client,
}
CALLS = {
    "get_tuple": lambda saver, number: saver.get_tuple(config("mine")),
    "put": lambda saver, number: save(saver, "mine", number),
    "put_writes": lambda saver, number: saver.put_writes(
        saver.get_tuple(config("mine")).config, [("x", number)], f"task {number}"
    ),
    "list": lambda saver, number: list(saver.list(config("mine"), limit=3)),
    "search": lambda saver, number: saver.threads.search(limit=2),
}


def save(saver, thread, step):
    values = {"x": [thread] * 3}
    saver.put(run_config(thread), checkpoint(next(IDS), values, {"x": 1}), {"step": step}, {"x": 1})


def works(saver, number):
    """Save and load two threads, and check that each answer is of its own thread."""
    for thread in ("mine", "yours"):
        save(saver, thread, number)
        found = saver.get_tuple(config(thread))
        assert found.checkpoint["channel_values"] == {"x": [thread] * 3}
        assert found.metadata["step"] == number
    assert {entry.id for entry in saver.threads.search(limit=2)} == {"mine", "yours"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("store", STORES)
def test_an_interrupt_at_any_moment_blocks_nobody(store, call, tmp_path, caplog):
    caplog.set_level("ERROR")  # (of runs that forked the thread)
    with ExitStack() as stack:
        saver = stack.enter_context(STORES[store](tmp_path, stack))
        interrupt_each(saver, CALLS[call], (store, call))


def interrupt_each(saver, call, about):
    others = ThreadPoolExecutor(1)
    works(saver, 0)
    call(saver, 0)  # (a first call may do more: what it reads and prepares stays in memory)
    moments = Moments()
    moments.during(lambda: call(saver, 0))
    raised = 0
    for number in drawn(range(1, moments.passed + 1), 40, about):
        error = Moments(number).during(partial(call, saver, number))
        raised += error is not None  # (values in memory may make the call shorter)
        others.submit(works, saver, number).result(timeout=SECONDS)
        works(saver, number)
    assert raised > 10
    others.shutdown()
