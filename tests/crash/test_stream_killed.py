"""A run that is killed in the middle of a node leaves its text, but for the last moments."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from kit.backends import SHARED
from kit.forked import python
from kit.selection import drawn

from tests.crash.streamer import CONFIG, graph
from tests.crash.test_killed import url_of
from threadkeep import open_saver
from threadkeep.streaming import stream_saved

ROOT = Path(__file__).parents[2]
INTERVAL = 0.4
SLOW = 0.3  # seconds that a save may take longer than the one before, on a busy machine


def kill_after(url: str, seconds: float) -> tuple[float, list[tuple[float, str]]]:
    """Let a run stream for so long; when it was killed, and the tokens that its caller saw."""
    command = [*python(), "-m", "tests.crash.streamer", url, str(INTERVAL)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        first = run.stdout.readline()
        end = float(first.split()[0]) + seconds
        seen = [first]
        while time.monotonic() < end:
            seen.append(run.stdout.readline())
        os.kill(run.pid, signal.SIGKILL)
        killed = time.monotonic()
        seen += run.stdout.readlines()
    lines = [line.decode().split() for line in seen]
    return killed, [(float(line[0]), line[1]) for line in lines if len(line) == 2]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("store", SHARED)
@pytest.mark.parametrize("seconds", drawn([1.0, 1.3, 1.9], 1))
def test_text_is_there_until_an_interval_before(store: str, seconds: float, tmp_path: Path) -> None:
    url = url_of(store, 0, tmp_path)
    killed, seen = kill_after(url, seconds)
    with open_saver(url) as saver:
        (found,) = saver.partial("thread")
        assert (found.status, found.messages[0].id) == ("pending", "answer")
        stored = found.text.split()
        assert stored == [str(number) for number in range(len(stored))]
        lost = [at for at, number in seen if int(number) >= len(stored)]
        assert not lost or killed - min(lost) <= INTERVAL + SLOW
        resumed: Any = graph(saver)
        assert resumed.get_state(CONFIG).next == ("bot",)
        assert (
            found.checkpoint_id == resumed.get_state(CONFIG).config["configurable"]["checkpoint_id"]
        )
        assert resumed.invoke(None, CONFIG)["messages"][-1].content == "done"
        assert saver.partial("thread")[0].text == found.text
        list(stream_saved(resumed, None, CONFIG))
        assert [one.status for one in saver.partial("thread")] == ["completed", "discarded"]
        assert saver.check().ok
