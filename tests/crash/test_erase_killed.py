"""A process killed during an erasure: a second erasure removes the rest from the files."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from kit.engine import Chain, everything
from kit.forked import python

from threadkeep import SqliteSaver
from threadkeep._core.codec.frame import Compression

SECONDS = 60  # for a program that hangs
MARKER = "marker-e2f6075d93"
PROGRAM = """
import os, signal, sys
from threadkeep import SqliteSaver
from threadkeep._stores.sqlite import connections, maintenance as scrubbing
from threadkeep.threads import erasure as erasing

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying:
    def __init__(self, db):
        self.db = db
    def __getattr__(self, name):
        return getattr(self.db, name)
    def execute(self, text, *values):
        if text.startswith("PRAGMA wal_checkpoint"):
            die()
        if text == "VACUUM" and sys.argv[2] == "in the middle of the file":
            self.db.set_progress_handler(die, 300)
        return self.db.execute(text, *values)

if sys.argv[2] == "between rows and files":
    scrubbing.scrub = die
elif sys.argv[2] == "between a family's rows and its tombstone":
    erasing.DropThread = die
else:
    inner = scrubbing.scrub
    def scrub(owner):
        plain = owner.writer
        owner.writer = lambda: Dying(plain())
        return inner(owner)
    scrubbing.scrub = scrub

with SqliteSaver(sys.argv[1]) as saver:
    saver.threads.erase("fork")
"""


@pytest.mark.parametrize(
    "when",
    [
        "between a family's rows and its tombstone",
        "between rows and files",
        "in the middle of the file",
        "before the file takes what the WAL has",
    ],
)
def test_killed_and_done_again(when: str, tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with SqliteSaver(path, compression=Compression(level=0)) as saver:
        chain = Chain(saver, "origin")
        for number in range(5):
            chain.put(said=["x" * 200] * number)
        kept = everything(saver)
        saver.threads.fork("origin", new_thread_id="fork")
        fork = Chain(saver, "fork", start=100)
        for number in range(30):
            fork.put(said=[f"{n} {MARKER}" for n in range(number)], long=MARKER * 300)
        killed = subprocess.run(
            [*python(), "-c", PROGRAM, str(path), when], check=False, timeout=SECONDS
        )
        assert killed.returncode == -signal.SIGKILL
        # (the killed process has left rows or files)
        assert any(MARKER.encode() in file.read_bytes() for file in tmp_path.iterdir())
        assert saver.check().ok
        assert saver.threads.erase("fork").ok
        files = {file.name: MARKER.encode() in file.read_bytes() for file in tmp_path.iterdir()}
        assert not any(files.values()), files
        assert everything(saver) == kept
        assert saver.check().ok
