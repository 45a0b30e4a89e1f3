"""A process killed during a repair: removed rows are in the file, and a second repair finishes."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.backends import SHARED, url_of
from kit.damage import damaging, rows_of
from kit.engine import Chain, everything
from kit.forked import python

from threadkeep import open_saver
from threadkeep.errors import CorruptionError
from threadkeep.threads.repair import read_quarantine

SECONDS = 60  # for a program that hangs
THREADS = [f"t{number}" for number in range(5)]
PROGRAM = """
import os, signal, sys
from threadkeep import open_saver
from threadkeep.threads.repair import repair as repairing

inner, left = repairing.carry_out, [int(sys.argv[3])]

def carry_out(engine, batch):
    if not left[0] and sys.argv[4] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    done = yield from inner(engine, batch)
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return done

repairing.carry_out = carry_out
with open_saver(sys.argv[1]) as saver:
    saver.threads.repair(file=sys.argv[2])
"""


def whole_part(file: Path) -> tuple[set[str], bool]:
    """The checkpoints in a quarantine file, and True if the file is complete."""
    found: set[str] = set()
    try:
        for taken in read_quarantine(file):
            found |= {f"{taken.whole.thread} {row.id}" for row in taken.whole.checkpoints}
    except CorruptionError as error:
        return found, "cut short" not in str(error)
    return found, True


def ids(saver: Any) -> set[str]:
    return {f"{t} {s.row.id}" for t in THREADS for s in rows_of(saver, t).checkpoints}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("store", SHARED)
def test_killed_and_done_again(store: str, when: str, tmp_path: Path) -> None:
    url = url_of(store, tmp_path)
    with open_saver(url) as saver:
        for thread in THREADS:
            chain = Chain(saver, thread)
            for number in range(4):
                chain.put(said=["x" * 200] * number, n=number)
        whole, sound = ids(saver), everything(saver)
        harm = damaging(store, saver, tmp_path)
        for thread in THREADS:
            harm.manifest(thread, "00000003")
    files = [tmp_path / "first.tkq", tmp_path / "second.tkq"]
    command = [*python(), "-c", PROGRAM, url, str(files[0]), "2", when]
    killed = subprocess.run(command, check=False, timeout=SECONDS)
    assert killed.returncode == -signal.SIGKILL
    with open_saver(url) as saver:
        kept, is_whole = whole_part(files[0])
        assert not is_whole
        assert len(whole - ids(saver)) == (2 if when == "before" else 3)
        assert whole - ids(saver) <= kept
        done = saver.threads.repair(file=files[1])
        assert done.ok
        assert saver.check().ok
        assert whole - ids(saver) == {f"{thread} 00000003" for thread in THREADS}
        assert kept | whole_part(files[1])[0] == whole - ids(saver)
        assert whole_part(files[1])[1]
        left = everything(saver)
        assert left == {place: one for place, one in sound.items() if place[2] != "00000003"}
