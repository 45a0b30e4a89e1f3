"""Round trips to PostgreSQL: on a distant server, they are the cost of a call."""

import uuid

import psycopg
import pytest
from kit.postgres import empty_schema, url
from kit.postgres_proxy import proxy
from kit.rows import aput, place, put
from kit.sync_face import FACES

from threadkeep import AsyncPostgresSaver, PostgresSaver
from threadkeep._core.engine.model import (
    Batch,
    ReadCheckpoint,
    ReadSegments,
    ReadSizes,
    ReadThread,
    Span,
)
from threadkeep._core.engine.usage import ReadUsage
from threadkeep._core.langgraph_internals import RUNTIME
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep.testing.records import NOW, checkpoint, segment, uid, write

WARM = 12  # rounds until each statement has been prepared
WORDS = [str(uuid.UUID(int=n**9)) for n in range(300)]  # too many to be stored in the row


@pytest.fixture
def way():
    with proxy(url()) as found:
        yield found


async def loaded(saver):
    """Begin a run, which is lent what the last run left; it ends at once."""
    config = place()
    config["configurable"][RUNTIME] = object()
    return (await saver.aget_tuple(config)).config


ONE = {"max_size": 1, "min_size": 1}  # so that statements are prepared on all connections


def test_the_proxy_counts():
    with proxy(url()) as way, psycopg.connect(way.url, autocommit=True) as db:
        with way.trips(0):
            pass
        with way.trips(3):
            for _ in range(3):
                db.execute("SELECT repeat('x', 1000000)")
        with way.trips(1), db.pipeline():
            for _ in range(3):
                db.execute("SELECT repeat('x', 1000)")
        with pytest.raises(AssertionError, match="1 round trips"), way.trips(2):
            db.execute("SELECT 1")


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
@pytest.mark.parametrize("more", [{}, {"statement_timeout": 20}, {"prepare_threshold": None}])
async def test_a_call_is_one_round_trip(way, more, face):
    options = {"schema": empty_schema(), **ONE, **more}
    async with (
        AsyncPostgresSaver(way.url, **options) as used,
        AsyncPostgresSaver(way.url, **options) as unused,
    ):
        saver, fresh = face(used), face(unused)
        config = place()
        for step in range(WARM):
            config = await aput(saver, config, {"value": WORDS[: 200 + step]}, value=step + 1)
            await saver.aput_writes(config, [("value", WORDS[:2])], "task")
            config = await loaded(saver)
            await saver.aget_tuple(place(checkpoint=uid(1)))
            await fresh.aget_tuple(place())
        with way.trips(1):
            config = await aput(saver, config, {"value": WORDS[:250]}, value=WARM + 1)
        with way.trips(1):
            await saver.aput_writes(config, [("value", WORDS[:2])], "task")
        config = await loaded(saver)
        with way.trips(1):
            config = await aput(saver, config, {"value": WORDS[:251]}, value=WARM + 2)
        with way.trips(1):
            config = await loaded(saver)
        with way.trips(1):
            assert await saver.aget_tuple(place(checkpoint=uid(1))) is None
        with way.trips(2):  # `fresh` has seen nothing of what this run put
            found = await fresh.aget_tuple(place())
        assert found.checkpoint["channel_values"]["value"] == WORDS[:251]


def test_several_statements_are_one_round_trip(way):
    backend = PostgresBackend(way.url, schema=empty_schema(), **ONE)
    rows = {"segments": (segment(0),), "checkpoints": (checkpoint(1),), "writes": (write(1),)}
    backend.commit(Batch("thread", NOW, **rows))
    several = [
        [ReadThread("thread")],
        [ReadSizes(None, 10)],
        [ReadUsage(NOW, NOW, 10)],
        [
            ReadCheckpoint("thread", "", uid(1)),
            ReadCheckpoint("thread", ""),
            ReadSegments("thread", (Span(1, 0, 1),)),
        ],
    ]
    for reads in several:
        for _ in range(WARM):
            before = backend.fetch(reads)
        with way.trips(1):
            assert backend.fetch(reads) == before
    backend.close()


def test_a_programs_own_connection_costs_one_more_for_its_transaction(way):
    """Without autocommit mode: BEGIN with the statement or before it, COMMIT after it."""
    schema = empty_schema()
    for autocommit, most in ((True, 1), (False, 3)):
        with psycopg.connect(way.url, autocommit=autocommit) as given:
            saver = PostgresSaver(given, schema=schema)
            config = place(str(autocommit))
            for step in range(WARM):
                config = put(saver, config, {"value": WORDS[: 200 + step]}, value=step + 1)
            with way.trips(most):
                put(saver, config, {"value": WORDS[:250]}, value=WARM + 1)
