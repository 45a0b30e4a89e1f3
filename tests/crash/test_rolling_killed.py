"""A process on threadkeep killed beside one on LangGraph's saver: no answered turn is lost."""

import signal
import subprocess
from pathlib import Path

import pytest
from kit.backends import SHARED, url_of
from kit.forked import python
from kit.places import at
from kit.selection import some
from langgraph.checkpoint.sqlite import SqliteSaver

from tests.crash.note_taker import graph_on, turn
from threadkeep import open_saver

SECONDS = 60  # for a program that hangs
ROOT = Path(__file__).parents[2]
WRITES = 7  # of a turn, into LangGraph's tables
PROGRAM = """
import os, signal, sys
from tests.crash.note_taker import graph_on, turn
from threadkeep import open_saver
from threadkeep.threads.transfer.rolling import Rolling

left = int(sys.argv[3])
write = Rolling._write

def dying(*given):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    write(*given)

Rolling._write = dying
with open_saver(sys.argv[2], migrate_from=sys.argv[1], mirror_back=True) as saver:
    for number in range(2):
        said = f"{sys.argv[3]} {number}"
        turn(graph_on(saver), said)
        print(said, flush=True)
"""

ENDLESS = """
import sys
from itertools import count
from langgraph.checkpoint.sqlite import SqliteSaver
from tests.crash.note_taker import graph_on, turn
from threadkeep import open_saver

name, source, url = sys.argv[1:]
on_ours = lambda: open_saver(url, migrate_from=source, mirror_back=True)
with on_ours() if name == "new" else SqliteSaver.from_conn_string(source) as saver:
    for number in count():
        turn(graph_on(saver), f"{name} {number}")
        print(f"{name} {number}", flush=True)
"""


def test_both_killed_while_they_serve_one_thread(tmp_path: Path) -> None:
    source, url = str(tmp_path / "langgraph.db"), url_of("sqlite", tmp_path)
    with SqliteSaver.from_conn_string(source) as saver:
        old = graph_on(saver)
        turn(old, "first")
        told = {"first"}
        programs = [
            subprocess.Popen(
                [*python(), "-c", ENDLESS, name, source, url],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in ("old", "new")
        ]
        for program in programs:
            told |= {program.stdout.readline().strip() for _ in range(2)}
        for program in programs:
            program.kill()
            told |= {*program.communicate(timeout=SECONDS)[0].split("\n")[:-1]}
        turn(old, "last")
        with open_saver(url, migrate_from=source, mirror_back=True) as ours:
            new = graph_on(ours)
            assert new.get_state(at("t")).values == old.get_state(at("t")).values
            for graph in (old, new):
                history = graph.get_state_history(at("t"))
                assert told <= {note for one in history for note in one.values.get("notes", [])}
            assert {one.checkpoint["id"] for one in saver.list(at("t"))} <= {
                one.checkpoint["id"] for one in ours.list(at("t"))
            }
            assert ours.check().ok


@pytest.mark.drawn(1)
@pytest.mark.parametrize("store", SHARED)
def test_killed_between_the_two_stores(store: str, tmp_path: Path) -> None:
    source, url = str(tmp_path / "langgraph.db"), url_of(store, tmp_path)
    told: list[str] = []
    with SqliteSaver.from_conn_string(source) as saver:
        old = graph_on(saver)
        for dies_at in range(1, 2 * WRITES + 1, some(4, 1)):
            turn(old, f"old {dies_at}")
            told.append(f"old {dies_at}")
            command = [*python(), "-c", PROGRAM, source, url, str(dies_at)]
            killed = subprocess.run(
                command, check=False, cwd=ROOT, timeout=SECONDS, stdout=subprocess.PIPE, text=True
            )
            assert killed.returncode == -signal.SIGKILL, dies_at
            told += killed.stdout.splitlines()
            turn(old, "old again")
            with open_saver(url, migrate_from=source, mirror_back=True) as ours:
                new = graph_on(ours)
                assert new.get_state(at("t")).values == old.get_state(at("t")).values
                assert {*told} <= {*new.get_state(at("t")).values["notes"]}, dies_at
                assert ours.check().ok
        assert len(told) > some(4, 14)
