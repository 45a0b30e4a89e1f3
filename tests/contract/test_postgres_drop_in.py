"""Programs as they use LangGraph's PostgreSQL savers today, with one import line changed."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from kit.forked import python
from kit.places import at
from kit.postgres import empty_schema, url
from kit.rows import aput, place, put, value_at
from kit.runs import story, told
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep import AsyncPostgresSaver, KeyRing, PostgresSaver
from threadkeep.errors import ClosedError, InvalidArgumentError

SECONDS = 30


def two_turns(saver):
    graph = story(saver)
    graph.invoke({"log": ["one"]}, at())
    assert graph.invoke({"log": ["two"]}, at())["log"] == told("one", "two")
    history = list(graph.get_state_history(at()))
    assert history[0].values["log"] == told("one", "two")
    assert saver.check().ok
    return len(history)


async def two_async_turns(saver):
    graph = story(saver)
    await graph.ainvoke({"log": ["one"]}, at())
    assert (await graph.ainvoke({"log": ["two"]}, at()))["log"] == told("one", "two")
    history = [state async for state in graph.aget_state_history(at())]
    assert history[0].values["log"] == told("one", "two")
    return len(history)


def is_stored(schema, steps):
    """Another program sees it: nothing was left in a transaction or a pipeline."""
    with PostgresSaver(url(), schema=schema) as other:
        assert story(other).get_state(at()).values["log"] == told("one", "two")
        assert len(list(other.list(at()))) == steps
        assert other.check().ok


@pytest.fixture
def fresh():
    """A schema without tables: programs call `setup()` themselves."""
    name = f"{empty_schema()}_fresh"
    drop = f"DROP SCHEMA IF EXISTS {name} CASCADE"
    with psycopg.connect(url(), autocommit=True) as db:
        db.execute(drop)
        yield name
        db.execute(drop)


CONNECTIONS = [
    {"autocommit": True, "row_factory": dict_row, "prepare_threshold": 0},
    {"autocommit": False, "row_factory": dict_row},
    {"autocommit": True},
    {"autocommit": False, "prepare_threshold": None},
]


# -- what programs give: blocking ------------------------------------------------------


@pytest.mark.parametrize("options", CONNECTIONS)
def test_a_connection(fresh, options):
    with psycopg.connect(url(), **options) as given:
        saver = PostgresSaver(given, schema=fresh)
        saver.setup()
        steps = two_turns(saver)
        is_stored(fresh, steps)
        assert given.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        row = given.execute("SELECT 1 AS one").fetchone()
        assert row == ({"one": 1} if "row_factory" in options else (1,))


@pytest.mark.parametrize("options", CONNECTIONS)
def test_a_connection_with_a_pipeline(fresh, options):
    with psycopg.connect(url(), **options) as given, given.pipeline() as pipe:
        saver = PostgresSaver(given, pipe, schema=fresh)
        saver.setup()
        saver.setup()
        is_stored(fresh, two_turns(saver))


@pytest.mark.parametrize("options", CONNECTIONS)
def test_a_pool(fresh, options):
    with ConnectionPool(url(), max_size=4, kwargs=options, open=True) as given:
        saver = PostgresSaver(given, schema=fresh)
        saver.setup()
        is_stored(fresh, two_turns(saver))
        saver.close()
        with given.connection() as conn:
            conn.execute("SELECT 1")


@pytest.mark.parametrize("pipeline", [False, True])
def test_from_conn_string(fresh, pipeline):
    with PostgresSaver.from_conn_string(url(), pipeline=pipeline, schema=fresh) as saver:
        saver.setup()
        is_stored(fresh, two_turns(saver))


def test_a_transaction_that_the_program_has_begun_is_its_own():
    """It could be undone: nothing is saved in it; reading works."""
    schema = empty_schema()
    with psycopg.connect(url()) as given:
        saver = PostgresSaver(given, schema=schema)
        put(saver, place(), {"value": 1})
        with given.transaction(), pytest.raises(InvalidArgumentError, match="in a transaction"):
            put(saver, place(), {"value": 2}, value=2)
        given.execute("SELECT 1")  # (not in autocommit mode, psycopg begins one)
        with pytest.raises(InvalidArgumentError, match="pool"):
            put(saver, place(), {"value": 2}, value=2)
        assert value_at(saver, place()) == 1
        given.commit()
        put(saver, place(), {"value": 2}, value=2)
    with PostgresSaver(url(), schema=schema) as other:
        assert value_at(other, place()) == 2


def test_who_holds_the_lock_of_a_saver_may_begin_one():
    schema = empty_schema()
    with psycopg.connect(url()) as given, ThreadPoolExecutor(1) as other:
        saver = PostgresSaver(given, schema=schema, keys=KeyRing.generate())
        assert saver.conn is given
        with saver.lock, given.transaction():
            given.execute("SELECT 1")
            done = other.submit(put, saver, place(), {"value": 1})
            for _ in range(9):
                given.execute("SELECT 1")  # (without the lock, the put would be refused)
        done.result(SECONDS)
        assert value_at(saver, place()) == 1


async def test_so_may_who_holds_that_of_an_async_saver():
    schema = empty_schema()
    async with await psycopg.AsyncConnection.connect(url()) as given:
        saver = AsyncPostgresSaver(given, schema=schema)
        assert saver.conn is given
        assert saver.loop is asyncio.get_running_loop()
        async with saver.lock, given.transaction():
            await given.execute("SELECT 1")
            done = asyncio.create_task(aput(saver, place(), {"value": 1}))
            for _ in range(9):
                await given.execute("SELECT 1")
        await done


def test_a_transaction_begun_in_a_pipeline_is_the_programs_too():
    schema = empty_schema()
    with psycopg.connect(url(), autocommit=True) as given:
        given.execute("CREATE TEMP TABLE mine (n int)")
        with given.pipeline() as pipe:
            saver = PostgresSaver(given, pipe, schema=schema)
            given.execute("BEGIN")
            given.execute("INSERT INTO mine VALUES (1)")
            with pytest.raises(InvalidArgumentError, match="in a transaction"):
                put(saver, place(), {"value": 1})
            given.execute("COMMIT")
            put(saver, place(), {"value": 2})
        assert given.execute("SELECT count(*) FROM mine").fetchone() == (1,)
        assert value_at(saver, place()) == 2


@pytest.mark.parametrize("factory", [psycopg.ClientCursor, psycopg.RawCursor])
def test_a_connection_that_makes_other_cursors(factory):
    with psycopg.connect(url(), autocommit=True, cursor_factory=factory) as given:
        saver = PostgresSaver(given, schema=empty_schema())
        put(saver, place(), {"value": 1})
        assert value_at(saver, place()) == 1


# -- what programs give: awaited -------------------------------------------------------


@pytest.mark.parametrize("options", CONNECTIONS)
async def test_an_async_connection(fresh, options):
    async with await psycopg.AsyncConnection.connect(url(), **options) as given:
        saver = AsyncPostgresSaver(given, schema=fresh)
        await saver.setup()
        is_stored(fresh, await two_async_turns(saver))


@pytest.mark.parametrize("options", CONNECTIONS)
async def test_an_async_connection_with_a_pipeline(fresh, options):
    async with (
        await psycopg.AsyncConnection.connect(url(), **options) as given,
        given.pipeline() as pipe,
    ):
        saver = AsyncPostgresSaver(given, pipe, schema=fresh)
        await saver.setup()
        await saver.setup()
        is_stored(fresh, await two_async_turns(saver))


@pytest.mark.parametrize("options", CONNECTIONS)
async def test_an_async_pool(fresh, options):
    async with AsyncConnectionPool(url(), max_size=4, kwargs=options, open=False) as given:
        saver = AsyncPostgresSaver(given, schema=fresh)
        await saver.setup()
        is_stored(fresh, await two_async_turns(saver))


@pytest.mark.parametrize("pipeline", [False, True])
async def test_async_from_conn_string(fresh, pipeline):
    options = {"pipeline": pipeline, "schema": fresh}
    async with AsyncPostgresSaver.from_conn_string(url(), **options) as saver:
        await saver.setup()
        is_stored(fresh, await two_async_turns(saver))


async def test_one_saver_for_both_faces(fresh):
    async with PostgresSaver.from_conn_string(url(), schema=fresh) as saver:
        await saver.setup()
        await two_async_turns(saver)
        graph = story(saver)
        assert (await asyncio.to_thread(graph.get_state, at())).values["log"] == told("one", "two")


def test_the_synchronous_methods_of_a_saver_that_only_awaits_say_so():
    async def use():
        async with await psycopg.AsyncConnection.connect(url()) as given:
            for saver in (
                AsyncPostgresSaver(given, schema=empty_schema()),
                PostgresSaver(given, schema=empty_schema()),
            ):
                for call in (
                    lambda saver=saver: saver.get_tuple(place()),
                    lambda saver=saver: put(saver, place(), {"value": 1}),
                    lambda saver=saver: list(saver.list(None)),
                    lambda saver=saver: saver.delete_thread("thread"),
                    saver.close,
                ):
                    with pytest.raises(InvalidArgumentError, match="async methods"):
                        call()
            with pytest.raises(InvalidArgumentError, match="async methods"):
                saver.setup()

    asyncio.run(use())


async def test_other_threads_may_use_the_synchronous_methods(fresh):
    async with AsyncConnectionPool(url(), open=False) as given:
        saver = AsyncPostgresSaver(given, schema=fresh)
        await saver.setup()
        await asyncio.to_thread(put, saver, place(), {"value": 1})
        assert len(await asyncio.to_thread(lambda: list(saver.list(None)))) == 1
        await asyncio.to_thread(saver.delete_thread, place()["configurable"]["thread_id"])
        assert await asyncio.to_thread(saver.get_tuple, place()) is None
        await asyncio.to_thread(saver.close)


async def test_the_awaited_methods_of_a_saver_on_a_blocking_connection_work(fresh):
    with psycopg.connect(url()) as given:
        saver = PostgresSaver(given, schema=fresh)
        await saver.setup()
        is_stored(fresh, await two_async_turns(saver))
        await saver.aclose()


# -- arguments -------------------------------------------------------------------------


def test_a_pool_with_a_pipeline_is_refused():
    with (
        psycopg.connect(url()) as conn,
        conn.pipeline() as pipe,
        ConnectionPool(url(), min_size=1, open=True) as pool,
        pytest.raises(ValueError, match="one connection"),
    ):
        PostgresSaver(pool, pipe)


async def test_an_async_pool_with_a_pipeline_is_refused():
    async with (
        await psycopg.AsyncConnection.connect(url()) as conn,
        conn.pipeline() as pipe,
        AsyncConnectionPool(url(), min_size=1, open=False) as pool,
    ):
        with pytest.raises(ValueError, match="one connection"):
            AsyncPostgresSaver(pool, pipe)


class Noting(JsonPlusSerializer):
    dumped = 0

    def dumps_typed(self, obj):
        Noting.dumped += 1
        return super().dumps_typed(obj)


@pytest.mark.parametrize("positional", [False, True])
def test_a_serializer(positional):
    with psycopg.connect(url(), autocommit=True) as given:
        arguments = (given, None, Noting()) if positional else (given,)
        options = {} if positional else {"serde": Noting()}
        Noting.dumped = 0
        saver = PostgresSaver(*arguments, schema=empty_schema(), **options)
        config = put(saver, place(), {"value": [1, 2]})
        assert Noting.dumped > 0
        assert value_at(saver, config) == [1, 2]


def test_other_things_are_refused():
    for given in (None, 7, b"postgresql://", object()):
        with pytest.raises(InvalidArgumentError, match="Use a URL"):
            PostgresSaver(given)


# -- event loops -----------------------------------------------------------------------


async def a_turn(saver, thread):
    config = await aput(saver, place(thread), {"value": thread})
    found = await saver.aget_tuple(config)
    assert found.checkpoint["channel_values"]["value"] == thread


def test_two_event_loops_one_after_the_other():
    saver = PostgresSaver(url(), schema=empty_schema(), min_size=2)
    for number in range(3):
        asyncio.run(a_turn(saver, str(number)))
    assert value_at(saver, place("2")) == "2"
    asyncio.run(saver.aclose())
    gc.collect()  # an unclosed connection would warn now


def test_many_event_loops_at_once():
    saver = PostgresSaver(url(), schema=empty_schema())
    barrier = threading.Barrier(8)

    async def turns(number):
        for turn in range(4):
            await asyncio.to_thread(barrier.wait, SECONDS)
            await a_turn(saver, f"{number}/{turn}")

    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            runs = [pool.submit(asyncio.run, turns(number)) for number in range(8)]
            for run in runs:
                run.result(SECONDS)
    assert len(list(saver.list(None))) == 64
    saver.close()
    gc.collect()


def test_an_event_loop_may_end_while_its_pool_grows():
    """The pool's tasks that connect do not notice by themselves that they are cancelled."""
    saver = PostgresSaver(url(), schema=empty_schema(), min_size=8)

    def run_all():
        for number in range(5):
            asyncio.run(a_turn(saver, str(number)))
        asyncio.run(saver.aclose())

    running = threading.Thread(target=run_all, daemon=True)  # (so that no test waits for ever)
    running.start()
    running.join(SECONDS)
    assert not running.is_alive()
    gc.collect()


def test_closing_while_another_loop_is_open():
    saver = PostgresSaver(url(), schema=empty_schema())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(a_turn(saver, "one"))
    saver.close()
    with pytest.raises(ClosedError):
        loop.run_until_complete(a_turn(saver, "two"))
    loop.close()
    gc.collect()


def test_what_is_closed_is_closed_for_good():
    saver = PostgresSaver(url(), schema=empty_schema())
    put(saver, place(), {"value": 1})
    saver.close()
    saver.close()
    with pytest.raises(ClosedError):
        saver.get_tuple(place())
    with pytest.raises(ClosedError):
        saver.setup()

    async def use():
        with pytest.raises(ClosedError):
            await saver.aget_tuple(place())
        await saver.aclose()

    asyncio.run(use())


def test_a_saver_that_nobody_closes_makes_no_noise():
    saver = PostgresSaver(url(), schema=empty_schema())
    put(saver, place(), {"value": 1})
    asyncio.run(a_turn(saver, "two"))
    del saver
    gc.collect()


async def test_64_runs_share_a_connection_to_save_and_use_all_of_the_pool_to_load():
    options = {
        "schema": empty_schema(),
        "max_size": 8,
        "application_name": f"threadkeep {os.getpid()}",
    }
    async with AsyncPostgresSaver(url(), **options) as saver:
        await a_turn(saver, "first")
        loop = asyncio.get_running_loop()
        pool = (await saver._store.backend.asynchronous._source._loops[loop]).pool
        busy = []

        async def run(number):
            config = place(str(number))
            for step in range(4):
                config = await aput(saver, config, {"value": step}, value=step + 1)
                stats = pool.get_stats()
                busy.append(stats["pool_size"] - stats["pool_available"])

        await asyncio.gather(*(run(number) for number in range(64)))
        assert max(busy) < 8

        async def load(number):
            saver.clear_cache(str(number))
            await saver.aget_tuple(place(str(number)))
            stats = pool.get_stats()
            busy.append(stats["pool_size"] - stats["pool_available"])

        await asyncio.gather(*(load(number) for number in range(64)))
        assert max(busy) == 8
        with psycopg.connect(url()) as db:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            assert db.execute(query, (options["application_name"],)).fetchone() == (8,)


# -- forks -----------------------------------------------------------------------------


@pytest.mark.drawn(1)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads, on purpose
@pytest.mark.parametrize("end", ["os._exit", "sys.exit"])
def test_a_fork_while_pools_are_open(end, tmp_path):
    """The child and the parent continue, each with its own connections; the child ends normally."""
    program = f"""
import asyncio, gc, os, sys, warnings
from kit.rows import aput, place, put, value_at
from threadkeep import PostgresSaver
warnings.simplefilter("error")
saver = PostgresSaver({url()!r}, schema={empty_schema()!r}, min_size=2)
put(saver, place("before"), {{"value": 1}})
asyncio.run(aput(saver, place("async before"), {{"value": 1}}))
child = os.fork()
name = "parent" if child else "child"
for step in range(3):
    put(saver, place(name), {{"value": step}}, value=step + 1)
    assert value_at(saver, place("before")) == 1
    asyncio.run(aput(saver, place("async " + name), {{"value": step}}, value=step + 1))
if child == 0:
    gc.collect()
    if {end!r} == "os._exit":
        os._exit(0)
    sys.exit(0)
pid, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
put(saver, place("after"), {{"value": 1}})
assert sorted(f.config["configurable"]["thread_id"] for f in saver.list(None) if f.checkpoint[
    "channel_values"]["value"] in (1, 2)).count("child") == 2
assert saver.check().ok
saver.close()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*python(), "-W", "error", "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    # psycopg's pool says so where a loop ends while it connects.
    noise = [line for line in done.stderr.splitlines() if "error connecting" not in line]
    assert noise == []
