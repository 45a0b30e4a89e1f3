"""A saver with `search="messages"` is killed at any moment: its index has all or nothing."""

import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from kit.backends import open_backend, url_of
from langchain_core.messages import HumanMessage

from threadkeep import open_saver
from threadkeep._core.engine.thread_entry import CountThreads, ThreadQuery

WRITER = """
import sys, itertools, threadkeep
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
url, first = sys.argv[1], int(sys.argv[2])
with threadkeep.open_saver(url, search="messages") as saver:
    print("ready", flush=True)
    for n in itertools.count(first):
        config = {"configurable": {"thread_id": f"t{n % 3}", "checkpoint_ns": ""}}
        found = saver.get_tuple(config)
        talk = list(found.checkpoint["channel_values"]["messages"]) if found else []
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": [*talk, HumanMessage(f"said{n}")]}
        checkpoint["channel_versions"] = {"messages": len(talk) + 1}
        config = found.config if found else config
        metadata = {"source": "loop", "step": n}
        saver.put(config, checkpoint, metadata, {"messages": len(talk) + 1})
"""


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_killed_writers(name: str, tmp_path: Any) -> None:
    with open_backend(name, tmp_path):
        url = url_of(name, tmp_path)
        for attempt in range(6):
            child = subprocess.Popen(
                [sys.executable, "-c", WRITER, url, str(attempt * 100_000)],
                stdout=subprocess.PIPE,
                env=os.environ,
            )
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(random.uniform(0.02, 0.3))
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
        with open_saver(url) as saver:
            backend: Any = saver.backend
            assert backend.fetch([CountThreads(ThreadQuery(unindexed=True))]) == [0]
            said: set[str] = set()
            for n in range(3):
                found = saver.get_tuple({"configurable": {"thread_id": f"t{n}"}})
                if found is not None:
                    talk: list[HumanMessage] = found.checkpoint["channel_values"]["messages"]
                    said |= {str(one.content) for one in talk}
            assert len(said) > 20
            for word in said:
                assert backend.fetch([CountThreads(ThreadQuery(words=(word,)))]) == [1], word
