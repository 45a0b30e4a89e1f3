"""LangGraph's own databases are read as their savers read them, and nothing in them runs.

The oracle is LangGraph's own saver.
"""

import asyncio
import hashlib
import os
import pickle
import sqlite3
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ormsgpack
import psycopg
import pytest
from kit import postgres_server
from kit.engine import shown
from kit.forked import python
from kit.places import at
from kit.runs import Plain, story
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from pydantic import BaseModel

from threadkeep import MemorySaver
from threadkeep import SqliteSaver as OurSqliteSaver
from threadkeep._core.codec.codecs import Raw
from threadkeep.errors import CorruptionError, NotLangGraphError, OpenError, StatementTimeoutError
from threadkeep.monitor import savings
from threadkeep.monitor.savings import measure
from threadkeep.threads.transfer.reading import LangGraphReader

from .foreign import tables
from .test_adopt import KEY, assert_same, fill, official, theirs

DATABASES = ("sqlite", "postgres")


@pytest.fixture(scope="module", params=DATABASES)
def filled(request, tmp_path_factory):
    """A saver of LangGraph's that holds threads of most kinds, and a reader of the same."""
    folder = tmp_path_factory.mktemp("filled")
    with official(request.param, folder, partial(tables, "read")) as (saver, name):
        fill(saver)
        with LangGraphReader(str(name)) as reader:
            yield saver, reader


async def listed(reader: Any, thread: str, **options: Any) -> list[Any]:
    return [one async for one in reader.alist(at(thread), **options)]


@pytest.mark.drawn(1)
async def test_everything_is_the_same(filled):
    saver, reader = filled
    page = await reader.threads.asearch(limit=200)
    expected = theirs(saver)
    assert {one.id for one in page} == {place[0] for place in expected}
    found = [shown(one) for info in page for one in await listed(reader, info.id)]
    assert_same({one["place"]: one for one in found}, expected)
    for (thread, ns, id), one in expected.items():
        for config in (
            at(thread, checkpoint_ns=ns, checkpoint_id=id),
            at(thread, checkpoint_ns=ns),
        ):
            ours, other = await reader.aget_tuple(config), saver.get_tuple(config)
            assert shown(ours) == shown(other)
        assert one["place"] == (thread, ns, id)


async def test_windows_are_those_of_langgraph(filled):
    saver, reader = filled
    for info in await reader.threads.asearch(limit=200):
        whole = [one.config["configurable"] for one in saver.list(at(info.id))]
        first = [one.config["configurable"] for one in await listed(reader, info.id, limit=3)]
        assert first == whole[:3]
        before = at(info.id, checkpoint_id=first[-1]["checkpoint_id"])
        rest = await listed(reader, info.id, before=before, values="lazy")
        assert [one.config["configurable"] for one in rest] == whole[3:]
        own = [one.config["configurable"] for one in saver.list(at(info.id, checkpoint_ns=""))]
        ours = [one async for one in reader.alist(at(info.id, checkpoint_ns=""), values="lazy")]
        assert [one.config["configurable"] for one in ours] == own


async def test_a_window_reads_values_when_they_are_loaded(filled):
    saver, reader = filled
    expected = {one["place"]: one for one in theirs(saver).values()}
    async for one in reader.alist(at("plain"), values="lazy"):
        values, writes = one.checkpoint["channel_values"], one.pending_writes
        await values.aload()
        await writes.aload()
        whole = {**one.checkpoint, "channel_values": dict(values)}
        ours = shown(one._replace(checkpoint=whole, pending_writes=[*writes]))
        assert ours == expected[ours["place"]]


async def test_threads_are_paged_in_each_order(filled):
    _, reader = filled
    for order in ("updated_at", "created_at", "bytes", "thread"):
        for way in ("", "-"):
            whole = [one.id for one in await reader.threads.asearch(order=way + order, limit=200)]
            found, cursor = [], None
            while cursor is not None or not found:
                page = await reader.threads.asearch(order=way + order, limit=3, cursor=cursor)
                found, cursor = found + [one.id for one in page], page.cursor
            assert found == whole
            keys = [getattr(await reader.threads.aget(id), KEYS.get(order, order)) for id in whole]
            assert keys == sorted(keys, reverse=bool(way))


KEYS = {"thread": "id"}


async def test_two_checkpoints_are_compared(filled):
    _, reader = filled
    new, old = (await listed(reader, "plain"))[:2]
    found = await reader.threads.adiff_checkpoints(old.config, new.config)
    (change,) = found.channels["log"].changes
    assert (change.kind, change.after) == ("added", "c-second")
    assert found.before.checkpoint == old.checkpoint["id"]


@pytest.mark.drawn(1)
async def test_savings_are_those_of_an_adoption(filled):
    """A sample takes the bytes that its threads take once they are adopted."""
    saver, reader = filled
    threads = [*await reader.threads.asearch(order="-bytes", limit=200)]
    found = measure(reader, 200)
    assert (found.left_out, found.is_largest) == (0, True)
    with MemorySaver() as ours:
        ours.threads.adopt(saver if isinstance(saver, SqliteSaver) else reader._database)
        for one, info in zip(found.samples, threads, strict=True):
            assert (one.thread, one.checkpoints) == (info.id, info.checkpoints)
            assert one.theirs == pytest.approx(info.bytes, rel=0.01)
            assert one.ours == pytest.approx(ours.threads.get(one.thread).bytes, rel=0.1)


def test_a_state_that_is_too_large_for_a_sample_ends_no_measurement(tmp_path, monkeypatch):
    with SqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        for thread, size in (("large", 20_000), ("small", 2_000)):
            whole = {**empty_checkpoint(), "channel_values": {"log": "x" * size}}
            saver.put(at(thread, checkpoint_ns=""), whole, {}, {"log": 1})
    monkeypatch.setattr(savings, "_MOST_BYTES", 20_000)
    with LangGraphReader(str(tmp_path / "a.db")) as reader:
        assert [one.thread for one in measure(reader).samples] == ["small"]


class Order(BaseModel):
    number: int
    notes: str


def test_a_sample_needs_no_classes(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        config, log = at("t", checkpoint_ns=""), list[Order]()
        for number in range(20):
            log = [*log, Order(number=number, notes="fragile " * 20)]
            whole = {**empty_checkpoint(), "channel_values": {"log": log}}
            whole["channel_versions"] = {"log": number + 1}
            config = saver.put(config, whole, {}, {"log": number + 1})
    with LangGraphReader(str(tmp_path / "a.db")) as reader:
        (sample,) = measure(reader).samples
        assert type(reader.get_tuple(at("t")).checkpoint["channel_values"]["log"][0]) is Raw
    assert sample.checkpoints == 20
    assert sample.theirs > 4 * sample.ours


def test_an_interrupt_waits(tmp_path):
    """And an answered one does not."""
    from kit.graphs_to_look_at import asks, refund  # noqa: PLC0415 - imports LangChain's messages
    from langgraph.types import Command  # noqa: PLC0415 - likewise

    with SqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        graph = refund(saver)
        graph.invoke(asks("Please"), at("t"))
        with LangGraphReader(str(tmp_path / "a.db")) as reader:
            head = saver.get_tuple(at("t")).checkpoint["id"]
            found = reader.threads.get("t")
            assert (found.status, found.status_checkpoint) == ("waiting", head)
            waiting = graph.get_state(at("t")).interrupts
            graph.invoke(Command(resume={one.id: "yes" for one in waiting}), at("t"))
            found = reader.threads.get("t")
            assert (found.status, found.status_checkpoint) == (None, None)


# -- what a store of a stranger holds ------------------------------------------------------


def ext(code: int, *parts: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, ormsgpack.packb([*parts]))


def store(path: Path, **values: Any) -> str:
    """Write a checkpoint with these values, whose extensions are given."""
    whole = {**empty_checkpoint(), "channel_values": values, "channel_versions": {}}
    data = ormsgpack.packb(whole)
    return store_payload(path, "msgpack", data)


def store_payload(path: Path, kind: str, data: bytes) -> str:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()
        id = empty_checkpoint()["id"]
        row = ("t", "", id, None, kind, data, b'{"step": 1}')
        saver.conn.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        saver.conn.commit()
    return id


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module that can be imported, and leaves a file if it is."""
    (tmp_path / "evil_module.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('was-run').touch()\n"
        "def call(*args, **kwargs):\n    Path(__file__).with_name('was-called').touch()\n"
        "class Thing:\n    __init__ = call\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path
    assert not (tmp_path / "was-run").exists()
    assert "evil_module" not in sys.modules


def test_no_code_of_a_payload_runs(trap, monkeypatch):
    monkeypatch.setattr(os, "system", lambda _: (trap / "was-run").touch())
    store(
        trap / "a.db",
        single=ext(0, "os", "system", "true"),
        many=ext(1, "evil_module", "call", [1, 2]),
        named=ext(2, "evil_module", "Thing", {"size": 3}),
        method=ext(3, "pathlib", "Path", "x", "touch"),
        model=ext(5, "no_such_module", "Model", {"inner": ext(0, "os", "system", "x")}, "dump"),
        nothing=ext(0, "subprocess", "run", ["true"]),
        odd=ext(9, 1),
        empty=ext(5),
    )
    with LangGraphReader(str(trap / "a.db")) as reader:
        found = reader.get_tuple(at("t")).checkpoint["channel_values"]
    assert all(type(one) is Raw for one in found.values())
    assert found["single"] == {"__class__": "os.system", "value": "true"}
    assert found["named"] == {"__class__": "evil_module.Thing", "size": 3}
    assert found["model"]["inner"] == {"__class__": "os.system", "value": "x"}


class Bomb:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (eval, (f"__import__('pathlib').Path({str(self.folder)!r}, 'was-run').touch()",))


def test_a_pickle_is_not_loaded(trap):
    store_payload(trap / "a.db", "pickle", pickle.dumps(Bomb(trap)))
    with LangGraphReader(str(trap / "a.db")) as reader:
        found = reader.get_tuple(at("t"))
        assert found.checkpoint["channel_values"]["(state)"]["__class__"] == "pickle"
        assert found.metadata == {"step": 1}
        (listed,) = reader.list(at("t"), values="lazy")
        assert dict(listed.checkpoint["channel_values"]).keys() == set()
        listed.checkpoint["channel_values"].load()
        assert [*listed.checkpoint["channel_values"]] == ["(state)"]


def test_a_json_constructor_is_not_called(trap):
    data = (
        b'{"channel_values": {"a": {"lc": 2, "type": "constructor", "id": ["evil_module", "Thing"],'
        b' "kwargs": {"size": 3}}, "b": {"lc": 1, "type": "secret", "id": ["HOME"]}}}'
    )
    store_payload(trap / "a.db", "json", data)
    with LangGraphReader(str(trap / "a.db")) as reader:
        found = reader.get_tuple(at("t")).checkpoint["channel_values"]
    assert found["a"] == {"__class__": "evil_module.Thing", "size": 3}
    assert found["b"]["__class__"] == "HOME"


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000,  # lists in lists
        b"\xdd\xff\xff\xff\xff\x01",  # a list of four billion
        b"\xdb\xff\xff\xff\xffx",  # a text of 4 GB
        b"\xdf\xff\xff\xff\xff",
        b"",
        ormsgpack.packb({"channel_values": 1, "ts": []}),
        ormsgpack.packb(
            {"channel_values": {}, "ts": [], "channel_versions": [], "versions_seen": 1}
        ),
    ],
    ids=["deep", "long list", "long text", "long dict", "empty", "no values", "other kinds"],
)
def test_a_damaged_payload_is_shown_as_such(tmp_path, data):
    store_payload(tmp_path / "a.db", "msgpack", data)
    with LangGraphReader(str(tmp_path / "a.db")) as reader:
        found = reader.get_tuple(at("t"))
        assert type(found.checkpoint["channel_values"]) is dict
        assert type(found.checkpoint["channel_versions"]) is dict
        assert isinstance(found.checkpoint["ts"], str)
        assert len([*reader.list(at("t"), values="lazy")]) == 1


@pytest.mark.parametrize("column", ["checkpoint", "metadata"])
@pytest.mark.parametrize("value", [7, "x", None])
def test_a_row_of_other_types_hides_no_thread(tmp_path, column, value):
    """Its own thread names the damage, if it cannot be read."""
    store_payload(tmp_path / "a.db", "msgpack", ormsgpack.packb({}))
    with sqlite3.connect(tmp_path / "a.db") as db:
        db.execute(f"UPDATE checkpoints SET {column} = ?", (value,))
    db.close()
    with LangGraphReader(str(tmp_path / "a.db")) as reader:
        assert [one.id for one in reader.threads.search()] == ["t"]
        with suppress(CorruptionError):
            assert len([*reader.list(at("t"), values="lazy")]) == 1


def test_objects_in_objects_have_an_end(tmp_path):
    inner = ormsgpack.packb(1)
    for _ in range(3000):
        inner = ormsgpack.packb(["m", "C", ormsgpack.Ext(0, inner)])
    store(tmp_path / "a.db", deep=ormsgpack.Ext(0, inner))
    with LangGraphReader(str(tmp_path / "a.db")) as reader:
        found = reader.get_tuple(at("t")).checkpoint["channel_values"]["deep"]
    assert found["__class__"] == "m.C"


async def test_encrypted_values_need_the_key(tmp_path):
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    with official("sqlite", tmp_path, serde=serde) as (saver, name):
        story(saver, Plain).invoke({"log": ["a"]}, at("t"))
        with LangGraphReader(str(name)) as reader:
            head = (await listed(reader, "t", values="lazy"))[0].checkpoint
            await head["channel_values"].aload()
            value = head["channel_values"]["(state)"]
            assert value["__class__"] == "encrypted"
            assert "LangGraph's EncryptedSerializer" in value["hint"]
            info = await reader.threads.aget("t")
            assert head["ts"] == info.updated_at.isoformat()
        with LangGraphReader(str(name), KEY) as reader:
            assert shown(await reader.aget_tuple(at("t"))) == shown(saver.get_tuple(at("t")))


# -- a file and a server of others ---------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    """A file of LangGraph's with the thread `t`."""
    file = tmp_path / "a.db"
    with SqliteSaver.from_conn_string(str(file)) as saver:
        story(saver, Plain).invoke({"log": ["a"]}, at("t"))
    return file


def test_a_file_stays_as_it_is_while_a_program_writes(path):
    before = hashlib.sha256(path.read_bytes()).digest()
    with LangGraphReader(str(path)) as reader:
        assert len([*reader.list(at("t"))]) == 4
        assert reader.threads.get("new") is None
        assert hashlib.sha256(path.read_bytes()).digest() == before
        code = (
            "import sys; sys.path[:0] = ['tests', 'src']\n"
            "from kit.places import at\nfrom kit.runs import Plain, story\n"
            "from langgraph.checkpoint.sqlite import SqliteSaver\n"
            "with SqliteSaver.from_conn_string(sys.argv[1]) as saver:\n"
            "    story(saver, Plain).invoke({'log': ['b']}, at('new'))\n"
        )
        subprocess.run([*python(), "-c", code, str(path)], check=True)
        assert [one.id for one in reader.threads.search()] == ["new", "t"]
    with sqlite3.connect(path) as db:
        names = {
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
    db.close()
    assert names == {"checkpoints", "writes"}


def test_a_writer_is_not_locked_out(path):
    """Reads leave no transaction open, also after an error."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = DELETE")  # (where a reader that stays locks writers out)
    with LangGraphReader(str(path)) as reader:
        [*reader.list(at("t"), values="lazy")]
        with pytest.raises(ValueError, match="limit"):
            reader.threads.search(limit=0)
        db.execute("PRAGMA busy_timeout = 0")
        db.execute("DELETE FROM checkpoints")
        db.commit()
        assert [*reader.list(at("t"))] == []
    db.close()


def test_a_folder_that_nobody_may_write_to(path, monkeypatch):
    """SQLite then reads the file without a WAL, until a program makes one."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with LangGraphReader(str(path)) as reader:
        assert [one.id for one in reader.threads.search()] == ["t"]
        assert [one.name for one in path.parent.iterdir()] == ["a.db"]
        with SqliteSaver.from_conn_string(str(path)) as saver:
            story(saver, Plain).invoke({"log": ["b"]}, at("new"))
            assert [one.id for one in reader.threads.search()] == ["new", "t"]
        assert [one.id for one in reader.threads.search()] == ["new", "t"]


def test_a_file_that_was_replaced_is_opened_again(tmp_path):
    for name, thread in (("a.db", "old"), ("b.db", "new")):
        with SqliteSaver.from_conn_string(str(tmp_path / name)) as saver:
            story(saver, Plain).invoke({"log": ["a"]}, at(thread))
    with LangGraphReader(str(tmp_path / "a.db")) as reader:
        assert reader.threads.get("old")
        (tmp_path / "b.db").replace(tmp_path / "a.db")
        assert [one.id for one in reader.threads.search()] == ["new"]


def test_a_file_may_come_back(path):
    away = path.with_name("b.db")
    with LangGraphReader(str(path)) as reader:
        path.rename(away)
        with pytest.raises(OpenError, match="no file"):
            reader.threads.search()
        away.rename(path)
        assert [one.id for one in reader.threads.search()] == ["t"]


def test_a_store_that_rests_fills_no_memory(path):
    with LangGraphReader(str(path)) as reader:
        for number in range(200):
            assert reader.threads.get(f"t{number}") is None
            assert reader.threads.get("t")
        assert len(reader._shared._source._pages) <= 64


def test_a_question_has_an_end(path, monkeypatch):
    with LangGraphReader(str(path)) as reader:
        endless = (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
        )
        reader._shared._source.limit(0.05)
        with pytest.raises(StatementTimeoutError, match="SQLite"):
            reader._shared.read(lambda source: source.rows(endless, ()))
        assert reader.threads.get("t")


def test_our_own_files_are_refused(tmp_path):
    with OurSqliteSaver(tmp_path / "a.db"):
        pass
    with pytest.raises(NotLangGraphError, match="threadkeep store already"):
        LangGraphReader(str(tmp_path / "a.db"))


@pytest.mark.parametrize("database", DATABASES)
def test_views_are_no_tables(database, tmp_path):
    with official(database, tmp_path, partial(tables, "views")) as (saver, name):
        saver.setup()
        LangGraphReader(str(name)).close()
        saver.conn.execute("ALTER TABLE checkpoints RENAME TO others")
        saver.conn.execute("CREATE VIEW checkpoints AS SELECT * FROM others")
        with pytest.raises(NotLangGraphError, match="no tables"):
            LangGraphReader(str(name))


async def test_a_server_may_restart(tmp_path):
    with postgres_server.server() as server:
        with PostgresSaver.from_conn_string(server.url()) as saver:
            saver.setup()
            story(saver, Plain).invoke({"log": ["a"]}, at("t"))
        with LangGraphReader(server.url()) as reader:
            assert len(await listed(reader, "t")) == 4
            server.restart()
            found = await asyncio.gather(*[listed(reader, "t") for _ in range(5)])
            assert [len(one) for one in found] == [4] * 5
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                reader._shared._source._db.execute("DELETE FROM checkpoints")
            reader._shared._source.end()
            with pytest.raises(StatementTimeoutError):
                reader._shared.read(lambda source: source.rows("SELECT pg_sleep(9)::text", ()))
            assert await reader.threads.aget("t")
