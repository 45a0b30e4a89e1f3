"""A process killed while threads leave for LangGraph's saver: the next one continues."""

import signal
import subprocess
from pathlib import Path

import pytest
from kit.forked import python
from kit.places import at
from kit.runs import Delta, story, told
from langgraph.checkpoint.sqlite import SqliteSaver

from threadkeep import open_saver

SECONDS = 60  # for a program that hangs
PROGRAM = """
import os, signal, sys
from langgraph.checkpoint.sqlite import SqliteSaver
from threadkeep import open_saver

left = int(sys.argv[3])

def counted(call):
    def write(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return write

SqliteSaver.put, SqliteSaver.put_writes = map(counted, (SqliteSaver.put, SqliteSaver.put_writes))
with open_saver(sys.argv[1]) as saver:
    saver.threads.leave(sys.argv[2])
"""


@pytest.mark.drawn(1)
@pytest.mark.parametrize("killed_at", [(1, 2, 9), (4, 7, 5)])
def test_killed_and_done_again(killed_at: tuple[int, ...], tmp_path: Path) -> None:
    url, target = f"sqlite:///{tmp_path / 'threads.db'}", str(tmp_path / "langgraph.db")
    names = "a", "b", "c"
    with open_saver(url) as saver:
        for who in names:
            story(saver, Delta).invoke({"log": [who]}, at("t"))
        total = len(list(saver.list(None)))
    known = [0]
    for number in killed_at:
        command = [*python(), "-c", PROGRAM, url, target, str(number)]
        killed = subprocess.run(command, check=False, timeout=SECONDS)
        assert killed.returncode == -signal.SIGKILL
        with SqliteSaver.from_conn_string(target) as there:
            known.append(len(list(there.list(None))))
            log = story(there, Delta).get_state(at("t")).values.get("log", [])
            assert told(*names)[: len(log)] == log
    assert sorted(set(known)) == known
    with open_saver(url) as saver:
        done = saver.threads.leave(target, verify=True)
        assert (done.checkpoints, done.unchanged) == (total - known[-1], known[-1])
        assert (done.verified, done.differences) == (total, {})
    with SqliteSaver.from_conn_string(target) as there:
        assert story(there, Delta).get_state(at("t")).values["log"] == told(*names)
