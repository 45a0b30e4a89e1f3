"""PostgreSQL disappears and returns: restarts, dropped connections, failover."""

import asyncio
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product

import psycopg
import pytest
from kit.graphs_to_look_at import asks, named, refund
from kit.postgres import empty_schema, url
from kit.postgres_proxy import proxy
from kit.postgres_server import SECONDS, program, server
from kit.redis_servers import until
from kit.rows import aput, place, put, value_at
from kit.sync_face import FACES, SyncFace
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep import AsyncPostgresSaver, PostgresSaver
from threadkeep._stores import servers
from threadkeep._stores.postgres import connections, silence
from threadkeep._stores.postgres.backend import AsyncPostgresBackend, opened
from threadkeep.errors import ReadOnlyError, ThreadExistsError, UnreachableError

RUNS = 32
OURS = f"threadkeep faults {os.getpid()}"  # others test on the same server
STEPS = 3  # of each run before the fault, and as many after it


class Progress:
    """Progress of the runs: a fault comes when all have begun, and the end when all continue."""

    def __init__(self, runs=RUNS):
        self.kept = {f"run {number}": [] for number in range(runs)}
        self.changed = threading.Condition()
        self.over = False

    def note(self, run, config):
        with self.changed:
            self.kept[run].append(config["configurable"]["checkpoint_id"])
            self.changed.notify_all()

    def all_have(self, counts):
        return all(len(self.kept[run]) >= count for run, count in counts.items())

    def break_off(self, fault):
        """Let every run take some steps, then the fault, then some more steps."""
        with self.changed:
            self.wait(dict.fromkeys(self.kept, STEPS))
        fault()
        with self.changed:
            self.wait({run: len(kept) + STEPS for run, kept in self.kept.items()})
            self.over = True

    @contextmanager
    def ending_with_the_first_error(self):
        try:
            yield
        except BaseException:
            with self.changed:
                self.over = True
                self.changed.notify_all()
            raise

    def wait(self, counts):
        assert self.changed.wait_for(lambda: self.all_have(counts) or self.over, SECONDS)

    def check(self, saver):
        """All that was acknowledged is there, nothing else, and nothing of it is broken."""
        for run, kept in self.kept.items():
            stored = [found.checkpoint["id"] for found in saver.list(place(run))]
            assert stored == kept[::-1]
            written = [len(found.pending_writes) for found in saver.list(place(run))]
            assert min(written) >= 1
            assert value_at(saver, place(run))[-1] == len(kept) - 1
        assert saver.check().ok


def run_all(pool, saver, progress, fault):
    runs = [
        pool.submit(asyncio.run, run_on(SyncFace(saver), progress, run)) for run in progress.kept
    ]
    try:
        progress.break_off(fault)
    finally:
        progress.over = True
        for run in runs:
            run.result(SECONDS)


async def run_on(saver, progress, run):
    config, step = place(run), 0
    with progress.ending_with_the_first_error():
        while not progress.over:
            config = await aput(saver, config, {"value": list(range(step + 1))}, value=step + 1)
            await saver.aput_writes(config, [("value", step)], "task")
            assert (await saver.aget_tuple(place(run))).config == config
            progress.note(run, config)
            step += 1


@pytest.fixture(scope="module")
def own_server():
    with server("max_connections=60") as own:
        yield own


def drop_all(database):
    """Connections dropped by an administrator or a proxy, without notice."""
    with psycopg.connect(database, autocommit=True) as db:
        query = """SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
            WHERE application_name = %s"""
        return db.execute(query, (OURS,)).fetchone()[0]


def schema_on(database, name):
    """A schema with its tables, on a server of a test's own."""
    with PostgresSaver(database, schema=name, max_size=1) as saver:
        saver.setup()
    return {"schema": name}


# -- a server that restarts ------------------------------------------------------------


def test_nothing_is_lost_where_the_server_restarts_under_32_threads(own_server):
    progress = Progress()
    options = schema_on(own_server.url(), "threads")
    with PostgresSaver(own_server.url(), **options) as saver, ThreadPoolExecutor(RUNS) as pool:
        run_all(pool, saver, progress, own_server.restart)
        progress.check(saver)


async def test_nothing_is_lost_where_the_server_restarts_under_32_tasks(own_server):
    progress = Progress()
    options = schema_on(own_server.url(), "tasks")
    async with AsyncPostgresSaver(own_server.url(), **options) as saver:
        try:
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
                for run in progress.kept:
                    group.create_task(run_on(saver, progress, run))
                await asyncio.to_thread(progress.break_off, own_server.restart)
        finally:
            progress.over = True
    with PostgresSaver(own_server.url(), **options) as saver:
        progress.check(saver)


@pytest.mark.parametrize("statement_timeout", [None, 20])
def test_the_first_call_after_a_restart_works(own_server, statement_timeout):
    """Also a pipelined one; more connections are idle, and dead, than one."""
    options = schema_on(own_server.url(), f"idle{statement_timeout}")
    options |= {"min_size": 3, "max_size": 3, "statement_timeout": statement_timeout}
    with PostgresSaver(own_server.url(), **options) as saver:
        config = put(saver, place(), {"value": 1})
        own_server.restart()
        assert value_at(saver, config) == 1
        own_server.restart()
        put(saver, config, {"value": 2}, value=2)
        own_server.restart()
        assert saver.check().ok
        own_server.restart()
        saver.setup()


# -- connections that the server drops -------------------------------------------------


@pytest.mark.drawn(1)
@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_idle_connections_that_were_dropped_are_not_noticed(face):
    options = {"schema": empty_schema(), "application_name": OURS, "min_size": 2}
    async with AsyncPostgresSaver(url(), **options) as used:
        saver = face(used)
        config = await aput(saver, place(), {"value": 0})
        for step in range(1, 3):
            assert await asyncio.to_thread(drop_all, url()) >= 1
            config = await aput(saver, config, {"value": step}, value=step + 1)
            assert await asyncio.to_thread(drop_all, url()) >= 1
            await saver.aput_writes(config, [("value", step)], "task")
            assert await asyncio.to_thread(drop_all, url()) >= 1
            found = await saver.aget_tuple(place())
            assert found.checkpoint["channel_values"]["value"] == step
        found = [len(one.pending_writes) async for one in saver.alist(place())]
        assert found == [1, 1, 0]


NAMED = {"application_name": OURS}


def test_a_programs_own_pool_may_be_dropped_too():
    with ConnectionPool(url(), min_size=2, max_size=4, kwargs=NAMED, open=True) as pool:
        saver = PostgresSaver(pool, schema=empty_schema())
        config = put(saver, place(), {"value": 0})
        assert drop_all(url()) >= 1
        put(saver, config, {"value": 1}, value=2)
        assert drop_all(url()) >= 1
        assert value_at(saver, place()) == 1


async def test_a_programs_own_async_pool_may_be_dropped_too():
    options = {"min_size": 2, "max_size": 4, "kwargs": NAMED, "open": False}
    async with AsyncConnectionPool(url(), **options) as pool:
        saver = AsyncPostgresSaver(pool, schema=empty_schema())
        config = await aput(saver, place(), {"value": 0})
        assert await asyncio.to_thread(drop_all, url()) >= 1
        config = await aput(saver, config, {"value": 1}, value=2)
        assert (await saver.aget_tuple(place())).config == config


def test_a_programs_own_connection_that_is_lost_is_an_error_at_once():
    """Only its owner can connect again."""
    with psycopg.connect(url(), autocommit=True, **NAMED) as given:
        schema = empty_schema()
        saver = PostgresSaver(given, schema=schema)
        config = put(saver, place(), {"value": 0})
        assert drop_all(url()) == 1
        for _ in range(2):
            with pytest.raises(UnreachableError, match="new connection") as caught:
                put(saver, config, {"value": 1}, value=2)
            assert caught.value.retryable
    with PostgresSaver(url(), schema=schema) as other:
        assert value_at(other, place()) == 0


# -- answers that are lost -------------------------------------------------------------


def test_what_was_done_and_not_acknowledged_is_done_once():
    """The connection breaks after the commit; it is retried, without an error."""
    options = {"schema": empty_schema(), "conflicts": "raise"}
    with proxy(url()) as way, PostgresSaver(way.url, **options) as saver:
        config = put(saver, place(), {"value": [0]})
        way.lose_the_next_answer()
        config = put(saver, config, {"value": [0, 1]}, value=2)
        assert way.has_lost_it
        way.lose_the_next_answer()
        saver.put_writes(config, [("value", [7])], "task")
        assert way.has_lost_it
        (written,) = saver.get_tuple(config).pending_writes
        assert written == ("task", "value", [7])
        for act in (
            lambda: saver.copy_thread("thread", "copy"),
            lambda: saver.prune(["copy"]),
            lambda: saver.delete_thread("thread"),
        ):
            way.lose_the_next_answer()
            act()
            assert way.has_lost_it
        assert saver.counters().retries > 0  # (the pool itself may meet some of the losses)
        assert [found.checkpoint["channel_values"]["value"] for found in saver.list(None)] == [
            [0, 1]
        ]
        assert saver.check().ok


def test_a_change_of_threads_whose_answer_was_lost_is_made_once(monkeypatch):
    """The change is repeated, and finds its own thread, not another one of its name."""
    real = AsyncPostgresBackend.make
    with proxy(url()) as way, PostgresSaver(way.url, schema=empty_schema()) as saver:
        refund(saver).invoke(asks("Please"), named("t"))
        threads, first = saver.threads, saver.threads.interrupts("t")[0]

        async def lost(self, *args):
            monkeypatch.setattr(AsyncPostgresBackend, "make", real)
            way.lose_the_next_answer()
            return await real(self, *args)

        for act in (
            lambda: threads.create("new", tags=["mine"]),
            lambda: threads.fork("t", new_thread_id="fork"),
            lambda: threads.edit("fork", {"messages": []}),
            lambda: threads.answer("t", {first.id: "yes"}),
            lambda: threads.tag("t", "word"),
        ):
            monkeypatch.setattr(AsyncPostgresBackend, "make", lost)
            act()
            assert way.has_lost_it
        assert threads.get("fork").forked_from[0] == "t"
        for act in (lambda: threads.create("new"), lambda: threads.fork("t", None, "fork")):
            with pytest.raises(ThreadExistsError):
                act()
        assert [one.answered for one in threads.interrupts("t")] == [True, False]
        assert len([*saver.list(place("fork"))]) == 1 + len([*saver.list(place("t"))])
        assert saver.check().ok


def test_a_copy_onto_another_thread_is_refused_whatever_was_lost():
    with proxy(url()) as way, PostgresSaver(way.url, schema=empty_schema()) as saver:
        put(saver, place("one"), {"value": 1})
        put(saver, place("two"), {"value": 2})
        way.lose_the_next_answer()
        with pytest.raises(ThreadExistsError):
            saver.copy_thread("one", "two")
        assert way.has_lost_it
        assert value_at(saver, place("two")) == 2


# -- calls that are cancelled ----------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"statement_timeout": 20}])
async def test_cancelled_calls_give_their_connections_back(more):
    schema = empty_schema()
    options = {"schema": schema, "max_size": 4, "timeout": 5, **more}
    async with AsyncPostgresSaver(url(), **options) as saver:
        config = await aput(saver, place(), {"value": 1})
        with psycopg.connect(url()) as rival:
            rival.execute(f"SELECT FROM {schema}.threads FOR UPDATE")
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY({})"
            waiting = waiting.format("pg_blocking_pids(pid)")
            for _ in range(3):
                calls = [aput(saver, place(), {"value": n}, value=n) for n in range(12)]
                tasks = [asyncio.create_task(call) for call in calls]
                while not rival.execute(waiting).fetchone():  # noqa: ASYNC110 - only the server knows
                    await asyncio.sleep(0)  # (until one waits for the lock)
                for task in tasks:
                    task.cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert {type(one) for one in done} == {asyncio.CancelledError}
        await asyncio.gather(*(aput(saver, place(str(n)), {"value": n}) for n in range(8)))
        # (a call that began may be stored, though its caller stopped waiting)
        found = [one.config async for one in saver.alist(place())]
        assert found[-1] == config
        assert (await saver.acheck()).ok


@pytest.mark.parametrize("own", [False, True])
async def test_a_call_that_is_cancelled_as_it_gives_its_connection_to_another(own):
    one = {"min_size": 1, "max_size": 1, "timeout": 5}
    async with AsyncConnectionPool(url(), open=False, **one) as pool:
        backend = opened(url(), **one).asynchronous if own else opened(pool)

        async def call():
            async with backend.lend():
                await steps(4)

        await call()  # (now the pool is open)
        for before, after in product(range(8), range(12)):
            first = asyncio.create_task(call())
            await steps(before)
            other = asyncio.create_task(call())
            await steps(after)
            first.cancel()
            await other
        await backend.close()


async def steps(count):
    """Let the event loop take some steps."""
    for _ in range(count):
        await asyncio.sleep(0)


# -- a server that accepts everything and answers nothing ------------------------------


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(servers, "_PATIENCE", 0.05)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_a_server_that_falls_silent_keeps_nobody_waiting(face, impatient):
    options = {"schema": empty_schema(), "timeout": 0.3}
    with proxy(url()) as between:
        async with AsyncPostgresSaver(between.url, **options) as limited:
            saver = face(limited)
            config = await aput(saver, place(), {"value": 1})
            between.is_silent.set()
            with pytest.raises(UnreachableError):
                await saver.aget_tuple(place())
            with pytest.raises(UnreachableError):
                await aput(saver, config, {"value": 2}, value=2)


async def test_a_server_that_is_silent_from_the_beginning():
    """psycopg waits for two seconds at least."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d"
        saver = PostgresSaver(address, timeout=0.3)
        calls = asyncio.to_thread(saver.get_tuple, place()), saver.aget_tuple(place())
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in found] == [UnreachableError] * 2
        await saver.aclose()


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_a_slow_statement_is_not_silence(own_server, face, monkeypatch):
    asked = threading.Semaphore(0)
    answers = silence.answers

    def counted(*arguments):
        asked.release()
        return answers(*arguments)

    monkeypatch.setattr(silence, "answers", counted)
    options = schema_on(own_server.url(), f"slow{int(face is SyncFace)}") | {"timeout": 0.2}
    async with AsyncPostgresSaver(own_server.url(), **options) as limited:
        saver = face(limited)
        config = await aput(saver, place(), {"value": 1})
        with psycopg.connect(own_server.url()) as rival:
            rival.execute(f"SELECT FROM {options['schema']}.threads FOR UPDATE")
            save = partial(aput, saver, config, {"value": 2}, value=2)
            # (in a thread, since the sync face blocks its event loop)
            saving = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(save())))
            for _ in range(3):
                assert await asyncio.to_thread(asked.acquire, timeout=SECONDS)
            assert not saving.done()
            rival.rollback()
            await saving


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_server_that_is_away_for_long_is_asked_again_without_long_pauses(
    awaited, monkeypatch, caplog
):
    """The pauses of psycopg's pool double: so many attempts would take an hour."""
    monkeypatch.setattr(connections, "_RECONNECTING", 0.05)
    with server() as own:
        async with AsyncPostgresSaver(own.url(), **schema_on(own.url(), "away")) as saver:
            await aput(saver, place(), {"value": 1})
            put(saver, place("other"), {"value": 1})
            own.stop()
            call = (
                aput(saver, place(), {"value": 2})
                if awaited
                else asyncio.to_thread(put, saver, place("other"), {"value": 2})
            )
            waiting = asyncio.create_task(call)
            failed = "error connecting in 'threadkeep'"
            await asyncio.to_thread(until, lambda: caplog.text.count(failed) >= 24)
            assert not waiting.done()
            await asyncio.to_thread(own.start)
            await waiting


# -- another server that takes over ----------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    """A server, and another that repeats each of its commits before they are acknowledged."""
    with server("synchronous_standby_names=*", "synchronous_commit=remote_apply") as first:

        def copied(data):
            where = ("-h", "127.0.0.1", "-p", str(first.port), "-U", "threadkeep")
            program("pg_basebackup", "-D", data, "-R", "-c", "fast", "--no-sync", *where)

        with server("synchronous_standby_names=", base=copied) as second:
            yield first, second


def test_a_standby_can_be_read_and_not_written_and_takes_over(pair):
    first, second = pair
    options = schema_on(first.url(), "failover")
    with PostgresSaver(first.url(), **options) as saver:
        config = put(saver, place("before"), {"value": 1})
    with PostgresSaver(second.url(), **options) as saver:
        assert value_at(saver, place("before")) == 1
        assert saver.stats().checkpoints == 1
        assert saver.check().ok
        with pytest.raises(ReadOnlyError, match="target_session_attrs=read-write"):
            put(saver, config, {"value": 2}, value=2)

    def fail_over():
        first.stop()
        second.control("promote")

    progress = Progress(8)
    hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    both = f"postgresql://threadkeep@{hosts}/postgres?target_session_attrs=read-write"
    with PostgresSaver(both, **options) as saver, ThreadPoolExecutor(RUNS) as pool:
        run_all(pool, saver, progress, fail_over)
        progress.check(saver)
