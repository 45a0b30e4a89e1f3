"""What the demo does, step by step: run, kill, check, resume, fork, compare.

Only the order of things and what is counted live here; what is said about it is
`screen`'s. Invariant: every number shown is counted here, none is known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from langchain_core.messages import AIMessage, messages_to_dict

from demo.agent import CONFIG, place
from demo.agent_process import AgentProcess, Task
from demo.errors import DemoError
from demo.savers import OURS, THEIRS, opened

LAST = 20  # turns that "the last turns" means


@dataclass(frozen=True)
class Plan:
    """What was asked for on the command line."""

    dir: Path
    model: str
    turns: int
    work: Path

    def file(self, saver: str) -> Path:
        return self.work / f"{saver}.db"

    @property
    def log(self) -> Path:
        return self.work / "agent.log"

    def task(self, saver: str, **more: Any) -> Task:
        values = {"dir": str(self.dir), "model": self.model, "turns": self.turns, **more}
        return Task(saver=saver, file=str(self.file(saver)), **values)


@dataclass
class Run:
    """What one saver has acknowledged, and how long its turns took."""

    saver: str
    times: dict[int, float] = field(default_factory=dict)  # ms, without model and tools
    ends: dict[int, str] = field(default_factory=dict)  # turn -> its last checkpoint
    saved: list[str] = field(default_factory=list)
    bytes: int = 0

    def hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "saved":
            self.saved.append(event["checkpoint"])
        elif event["event"] == "turn":
            if event["ms"] is not None:  # a turn that was resumed has no time of its own
                self.times[event["turn"]] = event["ms"]
            self.ends[event["turn"]] = self.saved[-1]

    @property
    def checkpoints(self) -> int:
        return len(set(self.saved))

    @property
    def median(self) -> float:
        return median(self.times.values())

    @property
    def last(self) -> float:
        newest = sorted(self.times)[-LAST:]
        return median(self.times[turn] for turn in newest)


@dataclass(frozen=True)
class Resumed:
    """Where the killed agent stood: the node that was next, the messages that were there."""

    next: str
    messages: int


@dataclass(frozen=True)
class Fork:
    """A branch from the end of turn `turn`: messages before and after its own turn."""

    turn: int
    before: int
    after: int
    bytes: int  # what the file grew by
    main: int  # messages at the end of the branch left behind, still there


def size(file: Path) -> int:
    """The bytes of a database with its log and index files."""
    return sum(part.stat().st_size for part in file.parent.glob(file.name + "*"))


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


def run_and_kill(plan: Plan, run: Run, step: Callable[[int], None]) -> None:
    """Run the agent, and kill it in the middle of the turn after half of them."""
    with AgentProcess(plan.task(OURS, halt=plan.turns // 2), plan.log) as agent:
        for event in agent:
            run.hear(event)
            step(len(run.ends))
            if event["event"] == "waiting":
                agent.kill()
                return
    raise DemoError("the agent ended before it could be killed")


def missing(plan: Plan, run: Run) -> list[str]:
    """The acknowledged checkpoints that are not in the file."""
    with opened(OURS, plan.file(OURS)) as saver:
        there = {found.checkpoint["id"] for found in saver.list(CONFIG)}
    return [checkpoint for checkpoint in run.saved if checkpoint not in there]


def resume(plan: Plan, run: Run, step: Callable[[int], None]) -> Resumed | None:
    """Run a new process to the end of the last turn; where it had to go on."""
    found = None
    with AgentProcess(plan.task(OURS), plan.log) as agent:
        for event in agent:
            run.hear(event)
            if event["event"] == "resumed":
                found = Resumed(event["next"], event["messages"])
            step(len(run.ends))
    run.bytes = size(plan.file(OURS))
    return found


def fork(plan: Plan, run: Run) -> Fork:
    """Ask another question where a quarter of the turns were done."""
    turn = plan.turns // 4
    with AgentProcess(plan.task(OURS, fork=run.ends[turn]), plan.log) as agent:
        (told,) = [event for event in agent if event["event"] == "forked"]
    grown = size(plan.file(OURS)) - run.bytes
    return Fork(turn + 1, told["before"], told["after"], grown, len(main_branch(plan, run)))


def main_branch(plan: Plan, run: Run) -> list[Any]:
    """The messages at the end of the last turn, read back from the file."""
    with opened(OURS, plan.file(OURS)) as saver:
        found = saver.get_tuple(place(run.ends[plan.turns - 1]))
    if found is None:
        raise DemoError(f"the last turn is gone from {plan.file(OURS)}")
    messages: list[Any] = found.checkpoint["channel_values"]["messages"]
    return messages


def compare(plan: Plan, run: Run, step: Callable[[int], None]) -> Run:
    """The same conversation on LangGraph's saver: what the model said is played back."""
    said = [m for m in main_branch(plan, run) if isinstance(m, AIMessage)]
    record = plan.work / "record.json"
    record.write_text(json.dumps(messages_to_dict(said)), encoding="utf-8")
    theirs = Run(THEIRS)
    with AgentProcess(plan.task(THEIRS, record=str(record)), plan.log) as agent:
        for event in agent:
            theirs.hear(event)
            step(len(theirs.ends))
    theirs.bytes = size(plan.file(THEIRS))
    for file in (*plan.work.glob(f"{THEIRS}.db*"), record):
        file.unlink()
    return theirs
