"""Functions that child processes run in the tests of SQLite (see `in_child`)."""

import multiprocessing
import os
import threading

from threadkeep._core.engine.model import Batch, ReadThread, Segment
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import ThreadkeepError
from threadkeep.testing.records import checkpoint, segment, write

# A fork server: children start fast, and none inherits this process's threads.
CONTEXT = multiprocessing.get_context("forkserver")
SECONDS = 60  # for a child that hangs


def start(work, *args):
    """Run `work(*args, pipe)` in a process; return the process and our end of the pipe."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=work, args=(*args, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def in_child(work, *args):
    """Run `work(*args, pipe)` in a process to its end; return what it sent."""
    process, pipe = start(work, *args)
    assert pipe.poll(SECONDS)
    answer = pipe.recv()
    process.join(SECONDS)
    assert process.exitcode == 0
    return answer


def put(backend, number, thread="t"):
    """Commit one checkpoint with its segment and its write."""
    backend.commit(
        Batch(
            thread,
            1,
            segments=(segment(number),),
            checkpoints=(checkpoint(number, number - 1, key_pos=number),),
            writes=(write(number),),
        )
    )


def numbers(backend, thread="t"):
    """The numbers of the checkpoints that are there, each whole."""
    (rows,) = backend.fetch([ReadThread(thread)])
    for stored in rows.checkpoints:
        assert stored.keyframe is not None
        assert len(stored.writes) == 1
    return [stored.row.key_pos for stored in rows.checkpoints]


# -- many writers --------------------------------------------------------------------


def hammer(path, worker, threads, rounds, pipe):
    """Open, commit and read from several threads, close; several times over."""
    failures = []

    def work(name):
        try:
            for number in range(1, rounds + 1):
                put(backend, number, name)
                shared = Segment(worker, int(name.split("/")[1]) * rounds + number, 1, b"s")
                backend.commit(Batch("shared", 1, segments=(shared,), writes=(write(0),)))
                assert numbers(backend, name)[-1] == number
        except (ThreadkeepError, AssertionError) as error:
            failures.append(repr(error))

    pipe.recv()
    for turn in range(2):
        backend = SqliteBackend(path)
        names = [f"{worker}/{thread}/{turn}" for thread in range(threads)]
        workers = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
        backend.close()
    pipe.send(failures)


def come_and_go(path, number, pipe):
    """Open, commit once and close: the last to close a database removes its WAL."""
    backend = SqliteBackend(path)
    put(backend, number)
    backend.close()
    pipe.send(number)


# -- sudden ends ---------------------------------------------------------------------


def commit_forever(path, pipe):
    """Commit from two threads, telling each number once its commit has returned."""
    backend = SqliteBackend(path)
    lock = threading.Lock()

    def work(first):
        for number in range(first, 1_000_000, 2):
            put(backend, number, f"t{first}")
            with lock:
                pipe.send((f"t{first}", number))

    threading.Thread(target=work, args=(1,)).start()
    work(2)


# -- forks ---------------------------------------------------------------------------


def fork_and_commit(path, pipe):
    """Commit in a process and its fork by turns; the parent closes first."""
    backend = SqliteBackend(path)
    put(backend, 1)
    assert numbers(backend) == [1]
    (parent_waits, child_tells), (child_waits, parent_tells) = os.pipe(), os.pipe()
    if os.fork() == 0:
        put(backend, 2)
        os.write(child_tells, b"2")
        os.read(child_waits, 1)
        put(backend, 4)
        os._exit(0 if numbers(backend) == [1, 2, 3, 4] else 1)
    os.read(parent_waits, 1)
    put(backend, 3)
    backend.close()
    os.write(parent_tells, b"3")
    _, status = os.wait()
    pipe.send(status)


def fork_under_load(path, pipe):
    """Fork again and again while other threads read and commit."""
    backend = SqliteBackend(path, synchronous="normal")
    stop = threading.Event()

    def work(thread):
        number = 0
        while not stop.is_set():
            number += 1
            put(backend, number, thread)
            numbers(backend, thread)

    threads = [threading.Thread(target=work, args=(f"load {n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    statuses = []
    for number in range(1, 9):
        if os.fork() == 0:
            put(backend, number)
            os._exit(0 if number in numbers(backend) else 1)
        statuses.append(os.wait()[1])
    stop.set()
    for thread in threads:
        thread.join()
    backend.close()
    pipe.send(statuses)


# -- without rights ------------------------------------------------------------------


def without_rights(path, pipe):
    """Open, read and write as a user who owns nothing here; tell each error's type and text."""
    if os.getuid() == 0:
        os.setuid(65534)
    told = {}
    try:
        backend = SqliteBackend(path, busy_timeout=0.1)
        told["read"] = numbers(backend)
        try:
            put(backend, 99)
        except ThreadkeepError as error:
            told["write"] = type(error).__name__
        told["read again"] = numbers(backend)
        backend.close()
    except ThreadkeepError as error:
        told["open"] = (type(error).__name__, str(error))
    pipe.send(told)


# -- limits --------------------------------------------------------------------------


def with_small_files(path, limit, pipe):
    """Commit until a limit on file sizes stops it; continue when it is lifted."""
    import resource  # noqa: PLC0415 - not on every platform

    backend = SqliteBackend(path, synchronous="normal")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    count, told = 0, None
    while told is None:
        try:
            backend.commit(Batch("t", 1, segments=(segment(count, data=os.urandom(20_000)),)))
            count += 1
        except ThreadkeepError as error:
            told = type(error).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    put(backend, count)
    (rows,) = backend.fetch([ReadThread("t")])
    pipe.send((told, count, len(rows.segments)))
