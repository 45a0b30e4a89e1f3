"""`setup()` and `check` name the threads in which LangGraph's tables beside ours differ."""

import logging
import os

import psycopg
import pytest
from kit.places import at
from kit.postgres import role_of, url, url_as
from kit.runs import story
from langgraph.checkpoint.postgres import PostgresSaver as LangGraphsSaver

from threadkeep import KeyRing, PostgresSaver
from threadkeep.threads.repair.check import Kind

THEIRS, OURS = (f"tk_beside_{name}_{os.getpid()}" for name in ("theirs", "ours"))
PLACE = f"{{}}?options=-csearch_path%3D{THEIRS}"
TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


@pytest.fixture
def theirs():
    with psycopg.connect(url(), autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {THEIRS}")
        with LangGraphsSaver.from_conn_string(PLACE.format(url())) as saver:
            saver.setup()
            for thread in ("same", "deleted", "continued"):
                story(saver).invoke({"log": ["one"]}, at(thread))
            yield saver
        db.execute(f"DROP SCHEMA IF EXISTS {THEIRS}, {OURS} CASCADE")


def opened(place=None, **options):
    return PostgresSaver(place or PLACE.format(url()), schema=OURS, **options)


def notes_of(saver):
    report = saver.check()
    assert report.ok
    assert {one.kind for one in report.notes} <= {Kind.BESIDE}
    return [one.problem for one in report.notes]


@pytest.mark.parametrize("is_asked_first", [True, False])
def test_threads_that_differ_are_named(theirs, caplog, is_asked_first):
    with opened() as saver, caplog.at_level(logging.WARNING, "threadkeep"):
        saver.setup()
        assert "Missing here: 'continued', 'deleted', 'same'." in caplog.text
        saver.threads.adopt(f"{url()}?schema={THEIRS}")
        caplog.clear()
        saver.setup()
        assert not caplog.text
        assert notes_of(saver) == []
        story(saver).invoke({"log": ["two"]}, at("same"))
        story(saver).invoke({"log": ["two"]}, at("begun here"))
        story(theirs).invoke({"log": ["two"]}, at("continued"))
        for table in TABLES:
            theirs.conn.execute(f"DELETE FROM {table} WHERE thread_id = 'deleted'")
        if is_asked_first:
            (text,) = notes_of(saver)
        else:
            saver.setup()
            text = caplog.text
        assert "Newer there: 'continued'." in text
        assert "Deleted there after a copy: 'deleted'." in text
        assert THEIRS in text
        assert "'same'" not in text
        assert "begun here" not in text


def test_what_this_store_has_deleted_or_archived(theirs, tmp_path):
    with opened(cold=f"file://{tmp_path}") as saver:
        saver.setup()
        saver.threads.adopt(f"{url()}?schema={THEIRS}")
        saver.delete_thread("same")
        saver.threads.archive("deleted")
        (text,) = notes_of(saver)
        assert "Missing here: 'same'." in text
        assert "'deleted'" not in text


async def test_with_keys_and_awaited(theirs):
    async with opened(keys=KeyRing.generate()) as saver:
        await saver.asetup()
        report = await saver.acheck()
        assert "Missing here: " in report.notes[0].problem


def test_tables_that_this_role_may_not_read_are_left_alone(theirs, caplog):
    role = role_of("LOGIN SUPERUSER")
    with psycopg.connect(url(), autocommit=True) as db, opened() as saver:
        saver.setup()
        db.execute(f"ALTER ROLE {role} NOSUPERUSER")
        db.execute(f"GRANT USAGE ON SCHEMA {OURS}, {THEIRS} TO {role}")
        db.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {OURS} TO {role}")
        with opened(url_as(PLACE.format(url()), role)) as other:
            other.setup()
            assert notes_of(other) == []


def test_many_are_counted(theirs):
    with opened() as saver:
        saver.setup()
        theirs.conn.execute(
            "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint)"
            " SELECT 'thread ' || n, '', '1', '{}' FROM generate_series(1, 1200) n"
        )
        (text,) = notes_of(saver)
        assert "Missing here: 'continued', 'deleted', 'same', " in text
        assert " and 1,198 more." in text
