"""A process killed while it adopts threads: the next one continues, and the result is the same."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.backends import SHARED, url_of
from kit.engine import everything
from kit.forked import python
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from threadkeep import open_saver

SECONDS = 60  # for a program that hangs
CHECKPOINTS = 24
PROGRAM = """
import os, signal, sys
from threadkeep import open_saver
from threadkeep.threads.transfer import adopt

adopt._MOST_CHECKPOINTS = 5

def progress(what, done, total):
    if what == "checkpoints read" and done >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

with open_saver(sys.argv[2]) as saver:
    saver.threads.adopt(sys.argv[1], progress=progress)
"""


def fill(saver: Any) -> None:
    for thread in ("a", "b"):
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        said: list[Any] = []
        for number in range(CHECKPOINTS // 2):
            said = [*said, {"n": number, "text": "x" * 200}]
            made = {**empty_checkpoint(), "channel_values": {"said": said}}
            made["channel_versions"] = {"said": number + 1}
            config = saver.put(config, made, {"step": number}, {"said": number + 1})
            saver.put_writes(config, [("said", number), ("other", said)], "task", "~path")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("store", SHARED)
def test_killed_and_done_again(store: str, tmp_path: Path) -> None:
    source, url = tmp_path / "langgraph.db", url_of(store, tmp_path)
    with SqliteSaver.from_conn_string(str(source)) as saver:
        fill(saver)
    known = []
    for done in (5, 12, CHECKPOINTS):
        command = [*python(), "-c", PROGRAM, str(source), url, str(done)]
        killed = subprocess.run(command, check=False, timeout=SECONDS)
        assert killed.returncode == -signal.SIGKILL
        with open_saver(url) as saver:
            assert saver.check().ok
            known.append(len(everything(saver)))
    assert known[0] < known[1] < known[2] == CHECKPOINTS
    with open_saver(url) as saver:
        result = saver.threads.adopt(source, verify=True)
        counts = result.checkpoints, result.unchanged, result.verified
        assert counts == (0, CHECKPOINTS, CHECKPOINTS)
