"""The steps of the demo: run, kill, check, resume, fork, compare. Every number is measured here."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, messages_to_dict

from demo.agent import CONFIG, OURS, THEIRS, at_checkpoint, open_saver

LAST = 20  # turns that "the last turns" means
Event: TypeAlias = dict[str, Any]  # what `demo.worker` reports, a line each
Watch: TypeAlias = Callable[[Event], None]


class DemoError(Exception):
    """The demo cannot continue: the message has the reason, in one line."""


@contextmanager
def agent_process(task: dict[str, Any], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that runs the agent; when the block is left, it has ended."""
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "demo.worker", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=Path(__file__).parent.parent,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end it
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@dataclass(frozen=True)
class Plan:
    """The options of the command line."""

    dir: Path
    model: str
    turns: int
    work: Path

    def file(self, saver: str) -> Path:
        return self.work / f"{saver}.db"

    @property
    def log(self) -> Path:
        return self.work / "agent.log"


@dataclass
class Run:
    """The conversation on one saver: acknowledged messages, times and sizes."""

    plan: Plan
    saver: str
    times: dict[int, float] = field(default_factory=dict)  # turn -> ms, without model and tools
    sizes: dict[int, int] = field(default_factory=dict)  # turn -> bytes of the database
    ends: dict[int, str] = field(default_factory=dict)  # turn -> its last checkpoint
    saved: list[str] = field(default_factory=list)
    newest: dict[str, Event] = field(default_factory=dict)  # by name

    @property
    def file(self) -> Path:
        return self.plan.file(self.saver)

    @property
    def bytes(self) -> int:
        """Bytes of the database, its write-ahead log written back."""
        with closing(sqlite3.connect(self.file)) as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
        return int(pages * size)

    @property
    def checkpoints(self) -> int:
        return len(set(self.saved))

    @property
    def median(self) -> float:
        return median(self.times.values())

    @property
    def last(self) -> float:
        return median(self.times[turn] for turn in sorted(self.times)[-LAST:])

    def play(
        self, watch: Watch, *, halt: int | None = None, fork: str = "", record: str = ""
    ) -> None:
        """Run the agent to its last turn, or until it is killed in turn `halt`.

        Raises:
            DemoError: if the agent failed.
        """
        plan = self.plan
        task = {"saver": self.saver, "file": str(self.file), "dir": str(plan.dir)}
        more = {"model": plan.model, "turns": plan.turns, "halt": halt, "fork": fork}
        with agent_process({**task, **more, "record": record}, plan.log) as process:
            for line in process.stdout or ():
                event = json.loads(line)
                if event["event"] == "failed":
                    raise DemoError(f"the agent stopped: {event['error']} (more in {plan.log})")
                self.note(event)
                watch(event)
                if event["event"] == "waiting":
                    process.kill()
            if process.wait() not in {0, -signal.SIGKILL}:
                raise DemoError(f"the agent ended with code {process.returncode}: see {plan.log}")

    def note(self, event: Event) -> None:
        self.newest[event["event"]] = event
        if event["event"] == "saved":
            self.saved.append(event["checkpoint"])
        elif event["event"] == "turn":
            turn = event["turn"]
            if event["ms"] is not None:  # a turn that was resumed has no time of its own
                self.times[turn] = event["ms"]
            self.sizes[turn] = self.bytes
            self.ends[turn] = self.saved[-1]


@dataclass(frozen=True)
class Fork:
    """A branch from the end of turn `turn`: messages before and after its own turn."""

    turn: int
    before: int
    after: int
    grown: int  # bytes of the file
    main: int  # messages of the other branch, still there


def clear(plan: Plan) -> None:
    """Make the work folder, without what an earlier demo left in it.

    Raises:
        DemoError: if it cannot be written.
    """
    try:
        plan.work.mkdir(parents=True, exist_ok=True)
        for pattern in (f"{OURS}.db*", f"{THEIRS}.db*", "agent.log", "record.json"):
            for old in plan.work.glob(pattern):
                old.unlink()
    except OSError as error:
        raise DemoError(f"cannot write to {plan.work}: {error.strerror}") from error


def run_and_kill(run: Run, watch: Watch) -> None:
    """Run the agent, and kill it in the middle of the turn after half of them."""
    run.play(watch, halt=run.plan.turns // 2)
    if "waiting" not in run.newest:
        raise DemoError("the agent ended before it could be killed")


def check_nothing_lost(run: Run) -> None:
    """Check that every acknowledged checkpoint is in the file."""
    with open_saver(run.saver, run.file) as saver:
        found = {found.checkpoint["id"] for found in saver.list(CONFIG)}
    lost = [checkpoint for checkpoint in run.saved if checkpoint not in found]
    if lost:
        raise DemoError(f"{len(lost)} acknowledged checkpoints are gone, the first: {lost[0]}")


def fork(run: Run, watch: Watch) -> Fork:
    """Ask another question where a quarter of the turns were done."""
    turn, before = run.plan.turns // 4, run.bytes
    branch = Run(run.plan, run.saver)
    branch.play(watch, fork=run.ends[turn])
    told = branch.newest["forked"]
    main = len(messages_at_end(run))
    return Fork(turn + 1, told["before"], told["after"], run.bytes - before, main)


def messages_at_end(run: Run) -> list[Any]:
    """Return the messages at the end of the last turn, read back from the file."""
    with open_saver(run.saver, run.file) as saver:
        found = saver.get_tuple(at_checkpoint(run.ends[run.plan.turns - 1]))
    if found is None:
        raise DemoError(f"the last turn is gone from {run.file}")
    messages: list[Any] = found.checkpoint["channel_values"]["messages"]
    return messages


def compare(ours: Run, watch: Watch) -> Run:
    """Run the same conversation on LangGraph's saver: what the model said is played back."""
    said = [message for message in messages_at_end(ours) if isinstance(message, AIMessage)]
    record = ours.plan.work / "record.json"
    record.write_text(json.dumps(messages_to_dict(said)), encoding="utf-8")
    theirs = Run(ours.plan, THEIRS)
    theirs.play(watch, record=str(record))
    for file in (*ours.plan.work.glob(f"{THEIRS}.db*"), record):
        file.unlink()
    return theirs
