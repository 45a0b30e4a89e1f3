"""The agent's process: python -m demo.worker JSON.

It reports on stdout, one JSON object a line: `said` (a message), `saved` (a checkpoint is
acknowledged), `turn` (a turn is over), `resumed`, `forked`, `waiting`, `failed`. Nothing is
reported before it is true, as the process may be killed at any time.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver

from demo.agent import CONFIG, Agent, at_checkpoint, build, open_saver
from demo.model import Model, Questions, recorded, scripted
from demo.tools import Stopwatch, make_tools

MIDDLE = 3  # the checkpoint of a turn with the model's first answer
LONGEST = 200  # characters of a message that are reported


def report(event: str, **more: Any) -> None:
    line = json.dumps({"event": event, **more}) + "\n"
    os.write(1, line.encode())  # one call: whole lines, whatever thread, whenever killed


def report_failure(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Report one line in place of Python's traceback, which is written to the log."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    report("failed", error=" ".join([f"{kind.__name__}:", *lines[:2]]))
    traceback.print_exception(kind, error, trace)


def report_message(message: BaseMessage) -> None:
    who = {"human": "you", "tool": "tool"}.get(message.type, "agent")
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    text = ", ".join(
        f"{call['name']}({', '.join(str(value) for value in call['args'].values())})"
        for call in calls
    )
    report("said", who=who, text=" ".join((text or message.text).split())[:LONGEST])


class Turns:
    """Reports each checkpoint; in turn `halt` it stops at the third one, to be killed."""

    def __init__(self, saver: BaseCheckpointSaver[Any], halt: int | None) -> None:
        self.halt = halt
        self.turn: int | None = None
        self.count = 0
        self.put = saver.put
        saver.put = self.put_and_report  # type: ignore[method-assign]

    def begin(self, turn: int) -> None:
        self.turn, self.count = turn, 0

    def put_and_report(self, *arguments: Any, **named: Any) -> RunnableConfig:
        """Put, and report the checkpoint once the saver has acknowledged it."""
        config = self.put(*arguments, **named)
        report("saved", checkpoint=config["configurable"]["checkpoint_id"])
        self.count += 1
        if self.halt is not None and self.turn == self.halt and self.count == MIDDLE:
            report("waiting")
            os.read(0, 1)  # nothing comes; it ends where our parent has gone
        return config


def choose_model(name: str, record: str, tools: Sequence[BaseTool]) -> Model:
    """Return the scripted model, a recorded one, or a real one by `provider:name`."""
    if record:
        return recorded(Path(record))
    if name == "offline":
        return scripted
    from langchain.chat_models import init_chat_model  # noqa: PLC0415 - slow, seldom needed

    invoke: Model = init_chat_model(name).bind_tools(tools).invoke
    return invoke


def run(task: dict[str, Any]) -> None:
    """Do what the task says: run turns up to the last one, or fork from a checkpoint."""
    root, stopwatch = Path(task["dir"]), Stopwatch()
    tools = make_tools(root, stopwatch)
    model = choose_model(task["model"], task["record"], tools)
    with open_saver(task["saver"], Path(task["file"])) as saver:
        turns = Turns(saver, task["halt"])
        agent = build(model, tools, saver, stopwatch)
        if task["fork"]:
            fork(agent, task["fork"], Questions(root)[task["turns"]])
            return
        finish_turn(agent)
        questions = Questions(root)
        for turn in range(turns_done(agent), task["turns"]):
            turns.begin(turn)
            start, spent = perf_counter(), stopwatch.seconds
            ask(agent, questions[turn])
            seconds = perf_counter() - start - (stopwatch.seconds - spent)
            report("turn", turn=turn, ms=seconds * 1_000)


def finish_turn(agent: Agent) -> None:
    """Finish the turn that was under way, if any."""
    state = agent.get_state(CONFIG)
    if state.tasks:  # not `next`: it leaves out a task whose writes are there already
        messages = len(state.values.get("messages", []))
        report("resumed", next=state.tasks[0].name, messages=messages)
        ask(agent, None)
        report("turn", turn=turns_done(agent) - 1, ms=None)


def ask(agent: Agent, question: str | None, config: RunnableConfig = CONFIG) -> None:
    """Run one turn, or the rest of one, and report its messages."""
    asked = [HumanMessage(question)] if question else []
    for message in asked:
        report_message(message)
    values = {"messages": asked} if asked else None
    for update in agent.stream(values, config, stream_mode="updates"):
        for written in update.values():
            for message in written.get("messages", ()):
                report_message(message)


def turns_done(agent: Agent) -> int:
    messages = agent.get_state(CONFIG).values.get("messages", [])
    return sum(isinstance(message, HumanMessage) for message in messages)


def fork(agent: Agent, checkpoint: str, question: str) -> None:
    """Ask another question at an earlier checkpoint: a branch of its own from there."""
    config = at_checkpoint(checkpoint)
    before = len(agent.get_state(config).values["messages"])
    ask(agent, question, config)
    after = len(agent.get_state(CONFIG).values["messages"])
    report("forked", before=before, after=after)


if __name__ == "__main__":
    sys.excepthook = report_failure
    run(json.loads(sys.argv[1]))
