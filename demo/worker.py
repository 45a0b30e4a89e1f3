"""The agent's process: python -m demo.worker JSON. It says on stdout what it has done.

One JSON object a line, each written at once and whole: `saved` (a checkpoint is
acknowledged), `turn` (a turn is over), `resumed`, `forked`, `waiting`, `failed`.
Invariant: nothing is said before it is true, as this process may be killed at any time.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, messages_from_dict

from demo.agent import CONFIG, Agent, build, place
from demo.model import RecordedModel, ScriptedModel
from demo.questions import Questions
from demo.savers import acknowledging, opened
from demo.stopwatch import Stopwatch
from demo.tools import make_tools

MIDDLE = 3


def say(event: str, **more: Any) -> None:
    line = json.dumps({"event": event, **more}) + "\n"
    os.write(1, line.encode())  # one call: whole lines, whatever thread, whenever killed


def say_failure(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """In place of Python's own last words: one line for the story, the rest for the log."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    say("failed", error=" ".join([f"{kind.__name__}:", *lines[:2]]))
    traceback.print_exception(kind, error, trace)


class Progress:
    """Tells of each checkpoint; in turn `halt` it goes no further than the third one.

    There it waits, as it would for a slow tool, until it is killed. The third is the
    model's answer, after the input and the step that takes it in: the middle of a turn.
    """

    def __init__(self, halt: int | None) -> None:
        self.halt = halt
        self.turn: int | None = None
        self.count = 0

    def begin(self, turn: int) -> None:
        self.turn, self.count = turn, 0

    def saved(self, checkpoint: str) -> None:
        say("saved", checkpoint=checkpoint)
        self.count += 1
        if self.halt is not None and self.turn == self.halt and self.count == MIDDLE:
            say("waiting")
            os.read(0, 1)  # nothing comes; it ends where our parent has gone


def choose_model(name: str, record: Path | None) -> BaseChatModel:
    """The scripted model, a recorded one, or a real one by `provider:name`."""
    if record is not None:
        messages = messages_from_dict(json.loads(record.read_text(encoding="utf-8")))
        return RecordedModel(record=[m for m in messages if isinstance(m, AIMessage)])
    if name == "offline":
        return ScriptedModel()
    from langchain.chat_models import init_chat_model  # noqa: PLC0415 - slow, seldom needed

    model: BaseChatModel = init_chat_model(name)
    return model


def run(task: dict[str, Any]) -> None:
    """Do what the task says: run turns up to the last one, or fork from a checkpoint."""
    root, stopwatch = Path(task["dir"]), Stopwatch()
    record = Path(task["record"]) if task["record"] else None
    model = choose_model(task["model"], record)
    with opened(task["saver"], Path(task["file"])) as saver:
        progress = Progress(task["halt"])
        acknowledging(saver, progress.saved)
        agent = build(model, make_tools(root, stopwatch), saver, stopwatch)
        if task["fork"]:
            fork(agent, task["fork"], Questions(root)[task["turns"]])
        else:
            go_on(agent, Questions(root), task["turns"], stopwatch, progress)


def go_on(
    agent: Agent, questions: Questions, turns: int, stopwatch: Stopwatch, progress: Progress
) -> None:
    """Finish the turn that was under way, if any, then run the others."""
    state = agent.get_state(CONFIG)
    if state.tasks:  # not `next`: it leaves out a task whose writes are there already
        say("resumed", next=state.tasks[0].name, messages=len(state.values.get("messages", [])))
        agent.invoke(None, CONFIG)
        say("turn", turn=turns_done(agent) - 1, ms=None)
    for turn in range(turns_done(agent), turns):
        progress.begin(turn)
        start, spent = perf_counter(), stopwatch.seconds
        agent.invoke({"messages": [HumanMessage(questions[turn])]}, CONFIG)
        taken = perf_counter() - start - (stopwatch.seconds - spent)
        say("turn", turn=turn, ms=taken * 1_000)


def turns_done(agent: Agent) -> int:
    messages = agent.get_state(CONFIG).values.get("messages", [])
    return sum(isinstance(message, HumanMessage) for message in messages)


def fork(agent: Agent, checkpoint: str, question: str) -> None:
    """Ask another question at an earlier checkpoint: a branch of its own from there."""
    config = place(checkpoint)
    before = len(agent.get_state(config).values["messages"])
    after = agent.invoke({"messages": [HumanMessage(question)]}, config)
    say("forked", before=before, after=len(after["messages"]))


if __name__ == "__main__":
    sys.excepthook = say_failure
    run(json.loads(sys.argv[1]))
