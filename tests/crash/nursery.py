"""Raises children that run conversations on one store until they are killed.

Run as a program: for each line "URL seed" on stdin it forks a child (everything is
imported by then, so that a child starts at once) and reports on stdout: `pid N`, a line
`ack THREAD ID DIGEST` for each checkpoint as soon as its put has returned, `dead` when
the child is gone.
"""

import hashlib
import importlib
import operator
import os
import random
import sys
import threading
from functools import wraps
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send

from threadkeep import MemorySaver, Retention, open_saver
from threadkeep.savers.saver import Saver
from threadkeep.threads.retention import lease

COLLECTING = "--collecting"  # all but the newest checkpoints are removed meanwhile
KEPT = 5
CONVERSATIONS = ("first", "second", "third")


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    files: dict[str, str]


def digest(values: dict[str, Any]) -> str:
    """A short text that two states share only if they are the same."""
    messages = [(m.type, m.id, m.content) for m in values.get("messages", [])]
    known = (messages, values.get("notes", []), values.get("files", {}))
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def acknowledging(saver: Saver) -> Saver:
    """The saver, made to say so as soon as a checkpoint is stored."""
    inner = saver.put

    @wraps(inner)
    def put(config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        told = digest(checkpoint["channel_values"])
        stored = inner(config, checkpoint, metadata, new_versions)
        if not config["configurable"].get("checkpoint_ns"):
            thread = config["configurable"]["thread_id"]
            say(f"ack {thread} {checkpoint['id']} {told}")
        return stored

    saver.put = put
    return saver


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one write, so that lines of threads never mix


def graph(saver: Saver, chance: random.Random) -> Any:
    def model(state: State) -> dict[str, Any]:
        text = f"answer {chance.random()} " * chance.randrange(1, 8)
        files = {**state.get("files", {}), f"file {chance.randrange(9)}": text}
        return {"messages": [AIMessage(text)], "files": files}

    def fan(state: State) -> list[Send]:
        return [Send("tool", {"n": n}) for n in range(chance.randrange(1, 4))]

    def tool(given: dict[str, int]) -> dict[str, Any]:
        found = ToolMessage(f"result {chance.random()}", tool_call_id=f"call {given['n']}")
        return {"messages": [found], "notes": [f"note {chance.random()}"]}

    builder: StateGraph[State] = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", fan, ["tool"])
    builder.add_edge("tool", END)
    return builder.compile(checkpointer=saver)


def converse(url: str, seed: int) -> None:
    """Talk in every conversation at once, for ever."""
    options: dict[str, Any] = {"synchronous": "normal"} if url.startswith("sqlite") else {}
    if COLLECTING in sys.argv:
        lease.LIFETIME = 0.005  # (that of a killed child delays the next one's collections)
        limits = Retention(keep_last=KEPT, channels={"files": "latest"})
        options |= {"retention": limits, "gc_every": 0.005, "gc_on_put": 7}
    saver = acknowledging(open_saver(url, **options))

    def talk(thread: str) -> None:
        chance = random.Random(f"{seed} {thread}")
        talking = graph(saver, chance)
        config = {"configurable": {"thread_id": thread}}
        while True:
            talking.invoke({"messages": [HumanMessage(f"question {chance.random()}")]}, config)

    talks = [threading.Thread(target=talk, args=(thread,)) for thread in CONVERSATIONS]
    for one in talks:
        one.start()
    for one in talks:
        one.join()


def warm_up() -> None:
    """Import modules that are imported at their first use: once, not in every child."""
    for backend in ("sqlite", "postgres", "redis", "mysql"):
        importlib.import_module(f"threadkeep._stores.{backend}")
    with MemorySaver() as saver:
        talking = graph(saver, random.Random(0))
        talking.invoke({"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "t"}})
    assert threading.active_count() == 1  # a child would not have the others


def main() -> None:
    warm_up()
    for line in sys.stdin:
        url, seed = line.rsplit(maxsplit=1)
        child = os.fork()
        if not child:
            say(f"pid {os.getpid()}")  # by the child: its own lines come after it
            converse(url, int(seed))
            return
        os.waitpid(child, 0)
        say("dead")


if __name__ == "__main__":
    main()
