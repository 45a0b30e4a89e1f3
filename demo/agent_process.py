"""The agent's process seen from outside: start it, read what it reports, kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TypeAlias

Event: TypeAlias = dict[str, Any]  # what `demo.worker` reports, a line each


class DemoError(Exception):
    """The demo cannot go on: the message says why, in one line."""


class AgentProcess:
    """One process that runs the agent; iterate over it for its events.

    Leaving its `with` block ends the process, whatever happened inside.
    """

    def __init__(self, task: dict[str, Any], log: Path) -> None:
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo.worker", json.dumps(task)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(__file__).parent.parent,
                start_new_session=True,  # Ctrl-C reaches us alone, and we end it
            )

    def __iter__(self) -> Iterator[Event]:
        """Yield the events up to the end of the process, also of a killed one.

        Raises:
            DemoError: if the process failed.
        """
        assert self.process.stdout is not None  # noqa: S101 - for the type checker
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "failed":
                raise DemoError(f"the agent stopped: {event['error']} (more in {self.log})")
            yield event
        code = self.process.wait()
        if code not in {0, -signal.SIGKILL}:
            raise DemoError(f"the agent's process ended with code {code}: see {self.log}")

    def kill(self) -> None:
        """End it without a chance to finish anything."""
        os.kill(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
