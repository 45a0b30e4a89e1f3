"""Many clients that commit to one thread of PostgreSQL take turns after a refusal."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from time import monotonic

import psycopg
import pytest
from kit.postgres import empty_schema, url
from kit.postgres_proxy import proxy
from kit.redis_servers import until
from kit.rows import place, put
from kit.tips import link
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep import PostgresSaver
from threadkeep._core.engine.model import Batch, ReadThread
from threadkeep._stores.committing import Heads, MakeMoves, committing
from threadkeep._stores.postgres.backend import AsyncPostgresBackend, PostgresBackend, Turn, opened
from threadkeep._stores.records import new_tip
from threadkeep.errors import LockedError, StatementTimeoutError, UnreachableError
from threadkeep.testing.records import NOW, checkpoint, segment, write

CLIENTS, COMMITS = 8, 12
MOST = 3  # moves of a commit: as known, as read (or for a thread that begins), and in turn


def batch(key, thread="t"):
    rows = {"segments": (segment(key),), "checkpoints": (checkpoint(key),)}
    return Batch(thread, NOW, link=link(new_tip()), writes=(write(key),), **rows)


@pytest.fixture
def attempts(monkeypatch):
    """The number of moves that were sent for each commit."""
    found, real = [], AsyncPostgresBackend.make
    commit_many = AsyncPostgresBackend.commit_many
    here = threading.local()

    async def make(self, *args):
        here.count += 1
        return await real(self, *args)

    async def counted(self, changes):
        here.count = 0
        refused = await commit_many(self, changes)
        found.append(here.count)
        return refused

    monkeypatch.setattr(AsyncPostgresBackend, "make", make)
    monkeypatch.setattr(AsyncPostgresBackend, "commit_many", counted)
    return found


def stormed(backends):
    """Commit to one thread from all backends at once; return the number of stored checkpoints."""
    begin = threading.Barrier(len(backends))
    errors = []

    def work(number, backend):
        begin.wait()
        try:
            for step in range(COMMITS):
                backend.commit(batch(number * 1000 + step))
        except Exception as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work, args=one) for one in enumerate(backends)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert errors == []
    (rows,) = backends[0].fetch([ReadThread("t")])
    return len(rows.checkpoints)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_no_commit_is_overtaken_again_and_again(isolation, attempts):
    options = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
    where, schema = make_conninfo(url(), options=options), empty_schema()
    with ExitStack() as stack:
        pool = stack.enter_context(
            ConnectionPool(where, min_size=2, kwargs={"autocommit": True}, open=True)
        )
        sources = [*[where] * (CLIENTS - 2), pool, pool]
        backends = [opened(source, schema=schema, max_size=1) for source in sources]
        for one in backends:
            stack.callback(one.close)
        assert stormed(backends) == CLIENTS * COMMITS
    assert max(attempts) <= MOST


@pytest.mark.parametrize("fault", ["terminate", "lose the answer"])
def test_a_turn_whose_connection_is_lost(fault, monkeypatch):
    """The commit continues without locks, and is made once."""
    real, schema, done = Turn.answer, empty_schema(), []
    with proxy(url()) as way, psycopg.connect(url(), autocommit=True) as db:

        async def answer(self, request):
            if isinstance(request, MakeMoves) and self._conn is not None:
                done.append(request)
                if fault == "terminate":
                    db.execute("SELECT pg_terminate_backend(%s)", [self._conn.info.backend_pid])
                else:
                    way.lose_the_next_answer()
            return await real(self, request)

        monkeypatch.setattr(Turn, "answer", answer)
        where = url() if fault == "terminate" else way.url
        with (
            closing(PostgresBackend(where, schema=schema)) as mine,
            closing(PostgresBackend(url(), schema=schema)) as other,
        ):
            mine.commit(batch(0))
            other.commit(batch(1))
            mine.commit(batch(2))
            (rows,) = other.fetch([ReadThread("t")])
    assert len(done) == 1
    assert [len(one.writes) for one in rows.checkpoints] == [1, 1, 1]


async def test_awaited_commits_share_a_pool_of_one_connection():
    schema = empty_schema()
    keywords = {"autocommit": True}
    async with (
        AsyncConnectionPool(url(), min_size=1, max_size=1, kwargs=keywords, open=False) as mine,
        AsyncConnectionPool(url(), min_size=1, max_size=1, kwargs=keywords, open=False) as other,
    ):
        backends = [opened(pool, schema=schema) for pool in (mine, other)]

        async def work(number):
            for step in range(COMMITS):
                await backends[number % 2].commit(batch(number * 1000 + step))

        await asyncio.gather(*map(work, range(CLIENTS)))
        (rows,) = await backends[0].fetch([ReadThread("t")])
        assert len(rows.checkpoints) == CLIENTS * COMMITS
        for backend in backends:
            await backend.close()


def test_a_client_that_stops_in_its_turn_keeps_others_waiting_for_seconds_only(monkeypatch):
    """The server ends its transaction, and it commits without locks when it continues."""
    real, schema = Turn.answer, empty_schema()
    holds, continues = threading.Event(), threading.Event()

    async def answer(self, request):
        if isinstance(request, MakeMoves) and self._conn is not None and not holds.is_set():
            holds.set()
            assert continues.wait(60)
        return await real(self, request)

    with (
        closing(PostgresBackend(url(), schema=schema)) as first,
        closing(PostgresBackend(url(), schema=schema)) as other,
    ):
        first.commit(batch(0))
        other.commit(batch(1))
        monkeypatch.setattr(Turn, "answer", answer)
        stopped = threading.Thread(target=first.commit, args=(batch(2),))
        stopped.start()
        assert holds.wait(60)
        begun = monotonic()
        other.commit(batch(3))
        waited = monotonic() - begun
        continues.set()
        stopped.join()
        (rows,) = other.fetch([ReadThread("t")])
        assert len(rows.checkpoints) == 4
        assert waited < 20


def test_a_head_is_waited_for_once():
    """Otherwise a save would take several times the store's time limit."""
    changes = [batch(0), batch(1, "u")]
    for error in (StatementTimeoutError(), LockedError(), UnreachableError()):
        steps = committing(Heads(), changes)
        next(steps)
        with pytest.raises(type(error)):
            steps.throw(error)


CLIENT = """
import sys
from kit.rows import place, put
from threadkeep import PostgresSaver

where, schema = sys.argv[1:]
with PostgresSaver(where, schema=schema, application_name=schema) as saver:
    put(saver, place("50 %s"), {"value": 0})
    print("ready", flush=True)
    sys.stdin.readline()
    put(saver, place("50 %s"), {"value": 1})
"""


def test_a_client_that_stops_while_it_waits_for_its_turn_does_not_keep_it():
    """The server gives it the lock, and ends its transaction."""
    schema = empty_schema()
    waits = "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    command = [sys.executable, "-c", CLIENT, url(), schema]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    where = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        PostgresSaver(url(), schema=schema) as other,
        psycopg.connect(url()) as rival,
        psycopg.connect(url(), autocommit=True) as db,
        subprocess.Popen(command, **pipes, env=where) as client,
        ThreadPoolExecutor() as pool,
    ):
        assert client.stdout.readline() == b"ready\n"
        put(other, place("50 %s"), {"value": 2})
        rival.execute(f"SELECT FROM {schema}.threads FOR NO KEY UPDATE")
        client.stdin.write(b"\n")
        client.stdin.flush()
        until(lambda: db.execute(waits, [schema]).fetchall())
        client.send_signal(signal.SIGSTOP)
        rival.rollback()
        try:
            pool.submit(put, other, place("50 %s"), {"value": 3}).result(20)
        finally:
            client.send_signal(signal.SIGCONT)
        assert client.wait(60) == 0
        assert len([*other.list(place("50 %s"))]) == 4
