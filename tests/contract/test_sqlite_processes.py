"""Several processes on one SQLite file: no lock errors, no lost commit, forks, crashes."""

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlite_children as children

from threadkeep._core.engine.model import ReadDamage, ReadThread
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.sqlite.maintenance import back_up
from threadkeep.errors import OpenError
from threadkeep.threads.transfer.bundles import (
    check_may_be_replaced,
    kind_of,
)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links are a right there")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "threads.db")


def opened(path):
    backend = SqliteBackend(path)
    assert backend.fetch([ReadDamage()]) == [[]]
    return backend


def test_eight_processes_by_four_threads_without_lock_errors(path):
    processes, threads, rounds = 8, 4, 3
    crowd = [
        children.start(children.hammer, path, worker, threads, rounds)
        for worker in range(1, processes + 1)
    ]
    for _, pipe in crowd:
        pipe.send("go")
    for process, pipe in crowd:
        assert pipe.poll(children.SECONDS)
        assert pipe.recv() == []
        process.join(children.SECONDS)
    backend = opened(path)
    (shared,) = backend.fetch([ReadThread("shared")])
    assert len(shared.segments) == processes * threads * rounds
    seqs = [row.seq for row in shared.orphans]
    assert seqs == list(range(1, 2 * processes * threads * rounds + 1))
    backend.close()


def refused_as_target(path):
    with pytest.raises(OpenError, match="live database"):
        check_may_be_replaced(Path(path))


def linked(path):
    link = Path(path).with_name("link.db")
    link.symlink_to(path)
    return link


LOOKS = {
    "a second store": lambda path: SqliteBackend(path).close(),
    "one for reading": lambda path: SqliteBackend(path, read_only=True).close(),
    "a backup": lambda path: back_up(path, Path(path + ".copy"), lambda *_: None),
    "the target of a backup": refused_as_target,
    "its kind": lambda path: kind_of(Path(path)),
}


@pytest.mark.parametrize(
    "look",
    [
        *(pytest.param(look, id=name) for name, look in LOOKS.items()),
        pytest.param(lambda path: kind_of(linked(path)), id="by a link", marks=needs_links),
    ],
)
def test_another_look_at_the_file_leaves_the_locks_of_its_process(path, look):
    first = opened(path)
    children.put(first, 1)
    wal = Path(path + "-wal")
    before = wal.stat().st_ino
    look(path)
    assert children.in_child(children.come_and_go, path, 2) == 2
    assert wal.exists()
    assert wal.stat().st_ino == before
    children.put(first, 3)
    first.close()
    last = opened(path)
    assert children.numbers(last) == [1, 2, 3]
    last.close()


@needs_links
def test_a_link_for_reading_shows_what_the_wal_holds(path):
    link = linked(path)
    writer = opened(path)
    children.put(writer, 1)
    with closing(SqliteBackend(link, read_only=True)) as reader:
        assert children.numbers(reader) == [1]
    writer.close()


@pytest.mark.parametrize("told_before", [1, 7, 30])
def test_a_killed_process_loses_no_acknowledged_commit(path, told_before):
    process, pipe = children.start(children.commit_forever, path)
    told = set()
    for _ in range(told_before):
        assert pipe.poll(children.SECONDS)
        told.add(pipe.recv())
    process.kill()
    process.join(children.SECONDS)
    try:
        while pipe.poll():
            told.add(pipe.recv())
    except EOFError:
        pass
    backend = opened(path)
    there = {(name, n) for name in ("t1", "t2") for n in children.numbers(backend, name)}
    assert told <= there
    assert len(there) <= len(told) + 2  # commits under way, one for each thread
    backend.close()


@needs_fork
def test_a_fork_goes_on_with_connections_of_its_own(path):
    assert children.in_child(children.fork_and_commit, path) == 0
    backend = opened(path)
    assert children.numbers(backend) == [1, 2, 3, 4]
    backend.close()


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads, on purpose
def test_a_fork_waits_for_calls_under_way(path):
    assert children.in_child(children.fork_under_load, path) == [0] * 8
    backend = opened(path)
    assert children.numbers(backend) == list(range(1, 9))
    backend.close()
