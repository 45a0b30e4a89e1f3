"""Erased threads leave no bytes in Redis' files."""

import os

import pytest
from kit.engine import Chain
from kit.redis_servers import Server, cluster
from kit.remnants import remnants

from threadkeep import open_saver
from threadkeep._core.codec.frame import Compression
from threadkeep._stores.redis import server as redis_server
from threadkeep.errors import UnfinishedErasureError

MARKER = "marker-2b96d5c071"
PLAIN = Compression(level=0)


def fill(saver, thread="x", said=MARKER):
    chain = Chain(saver, thread)
    for number in range(10):
        chain.put(said=[f"{said} {n}" for n in range(number)], long=said * 100)
        saver.put_writes(chain.at, [("said", said)], f"task {number}")
    saver.threads.update(thread, metadata={"name": said})


FILES = ("--appendonly", "yes", "--rdbcompression", "no", "--auto-aof-rewrite-percentage", "0")


@pytest.mark.parametrize("which", ["locked", "newer"])
async def test_files_are_written_anew(which):
    """Since version 7 the append-only file is several, in a folder."""
    program = os.environ.get("TK_TEST_REDIS_NEW_BIN", "") if which == "newer" else ""
    if which == "newer" and not program:
        pytest.skip("no newer Redis: see scripts/services")
    with (
        Server(*FILES, program=program) as server,
        open_saver(server.url, compression=PLAIN) as saver,
    ):
        server.admin.config_set("save", "3600 1000000")
        for thread, said in (("x", MARKER), ("y", "else"), ("z", MARKER)):
            fill(saver, thread, said)
        server.admin.save()
        assert len(remnants(server.folder, MARKER)) >= 2
        saver.threads.erase("x")
        assert remnants(server.folder, MARKER)  # z is there
        report = await saver.threads.aerase(metadata={"name": MARKER})
        await saver.aclose()
        assert [one.thread for one in report.threads] == ["z"]
        assert remnants(server.folder, MARKER) == {}
        assert "Redis' append-only file, rewritten" in report.cleared
        assert "Redis' snapshot, rewritten" in report.cleared


def test_a_server_without_files_is_told_of():
    with Server() as server, open_saver(server.url) as saver:
        fill(saver)
        report = saver.threads.erase("x")
        assert report.cleared[-1] == "the server's memory"
        assert any("Snapshots are disabled" in line for line in report.remains)
        assert remnants(server.folder, MARKER) == {}


def test_a_user_who_may_not_is_told_what_to_call():
    with Server(*FILES) as server:
        server.admin.acl_setuser(
            "agent",
            enabled=True,
            passwords=["+secret"],
            keys=["tk:*"],
            categories=["+@all", "-@dangerous"],
        )
        url = f"redis://agent:secret@127.0.0.1:{server.port}/0"
        with open_saver(url, compression=PLAIN) as saver:
            fill(saver)
            report = saver.threads.erase("x")
            assert any("BGREWRITEAOF" in line and "may not" in line for line in report.remains)
            assert remnants(server.folder, MARKER)


def test_a_file_that_cannot_be_written_is_an_error(monkeypatch):
    monkeypatch.setattr(redis_server, "_PATIENCE", 0.2)
    slow = ("--rdb-key-save-delay", "1000000")
    with Server(*FILES, *slow) as server, open_saver(server.url, compression=PLAIN) as saver:
        fill(saver)
        with pytest.raises(UnfinishedErasureError, match="BGREWRITEAOF"):
            saver.threads.erase("x")
        assert saver.threads.get("x").state == "deleted"


def test_the_nodes_of_a_cluster_are_left_to_whoever_runs_them():
    with open_saver(cluster().url, prefix="erased") as saver:
        fill(saver)
        report = saver.threads.erase("x")
        assert any("on each" in line for line in report.remains)
        assert saver.get_tuple({"configurable": {"thread_id": "x"}}) is None
