"""Databases for tests of migrations: set up, looked into, written to meanwhile."""

import multiprocessing
import subprocess
import threading

import psycopg

from kit.forked import python
from kit.postgres_server import SECONDS
from kit.rows import place, put, value_at
from threadkeep import PostgresSaver

ADVISORY = "SELECT pg_advisory_lock(hashtextextended('threadkeep \"threadkeep\"', 0))"
"""Takes the lock that migrations take."""


def execute(database, text, *values):
    with psycopg.connect(database, autocommit=True) as db:
        cursor = db.execute(text, values)
        return cursor.fetchall() if cursor.description else []


def migrate(url):
    """`threadkeep migrate` as a process."""
    command = [*python(), "-m", "threadkeep", "migrate", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    return done.returncode, done.stdout, done.stderr


def wait_for_a_lock(database, waiting):
    """Until some lock is waited for; `waiting` is the future of the call that waits for it."""
    with psycopg.connect(database, autocommit=True) as watch:
        while not watch.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
            assert not waiting.done()


def works(saver):
    config = put(saver, place(), {"value": 1})
    saver.put_writes(config, [("value", 2)], "task")
    assert value_at(saver, place()) == 1
    saver.delete_thread("thread")
    assert saver.check().ok


def _set_up(url, options, ready, go, answers):
    with PostgresSaver(url, max_size=1, **options) as saver:
        ready.release()
        go.wait(SECONDS)
        try:
            saver.setup()
        except Exception as error:  # noqa: BLE001 - handed to the test
            answers.put(repr(error))
        else:
            answers.put("")


def set_up_at_once(database, processes, **options):
    """Call `setup()` in this many processes; all must succeed."""
    context = multiprocessing.get_context("forkserver")
    ready, go, answers = context.Semaphore(0), context.Event(), context.Queue()
    children = [
        context.Process(target=_set_up, args=(database, options, ready, go, answers), daemon=True)
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    for _ in children:
        assert ready.acquire(timeout=SECONDS)
    go.set()
    errors = [error for _ in children if (error := answers.get(timeout=SECONDS))]
    assert not errors, errors
    for child in children:
        child.join(SECONDS)
        assert child.exitcode == 0


class Writer(threading.Thread):
    """Puts one checkpoint after the other until it is stopped."""

    def __init__(self, database):
        super().__init__()
        self.database, self.over, self.error, self.steps = database, False, None, 0
        self.has_written = threading.Event()
        self.start()
        assert self.has_written.wait(SECONDS)

    def run(self):
        try:
            with PostgresSaver(self.database) as saver:
                while not self.over:
                    self.steps += 1
                    put(saver, place(), {"value": self.steps}, value=self.steps)
                    self.has_written.set()
        except Exception as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def finish(self):
        self.over = True
        self.join(SECONDS)
        assert self.error is None
        return self.steps
