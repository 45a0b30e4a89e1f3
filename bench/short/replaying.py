"""The calls that LangGraph makes for one conversation, recorded once and replayed.

The calls come from a real run over the floor. A replay gives them a thread of its own, and
messages of its own; values that a saver loads replace the recorded ones, as in a run. Only
calls on a thread of about twenty messages are measured.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from bench.conversations import Conversation
from bench.floor import ReferenceSaver
from bench.lanes import config_of
from bench.savers import KINDS
from bench.short.counting import Counter
from bench.short.playing import conversations
from bench.workloads import Replay

LONG_ENOUGH = 24  # messages
MEASURED = range(16, 25)  # messages in the thread
CALLS = ("put", "put_writes", "get_tuple")


@dataclass
class Call:
    """One call: the saver's method, its arguments, the messages in the thread before it."""

    name: str
    config: dict[str, Any]
    given: tuple[Any, ...]
    messages: int
    result: Any = None  # of get_tuple


class Recorder(ReferenceSaver):
    """The floor, with a record of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.messages = 0

    def note(self, name: str, config: Any, *given: Any) -> Call:
        call = Call(name, dict(config["configurable"]), given, self.messages)
        self.calls.append(call)
        return call

    def get_tuple(self, config: Any) -> Any:
        call = self.note("get_tuple", config)
        call.result = super().get_tuple(config)
        return call.result

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        values = {**checkpoint, "channel_values": dict(checkpoint["channel_values"])}
        self.note("put", config, values, dict(metadata), dict(new_versions))
        self.messages = len(values["channel_values"].get("messages", ()))
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.note("put_writes", config, list(writes), task_id, task_path)
        super().put_writes(config, writes, task_id, task_path)


def record(data: str | None) -> list[Call]:
    """The calls of the first conversation that is long enough, or of the longest."""
    found = conversations(data, None)
    long = (c for c in found if messages(c) >= LONG_ENOUGH)
    recorder = Recorder()
    asyncio.run(run(recorder, next(long, max(found, key=messages))))
    return recorder.calls


def messages(conversation: Conversation) -> int:
    return sum(1 + len(turn.replies) for turn in conversation.turns)


async def run(saver: Recorder, conversation: Conversation) -> None:
    replay = Replay("", [conversation], awaits=True)
    graph = replay.graph(saver, delta=False)
    for call in replay.turns():
        await graph.ainvoke(call.input, config_of("recorded"))


class Loaded:
    """The values that a saver loaded, in place of the recorded ones.

    Lists and dicts are rebuilt around them, once each: the same list stays the same list.
    """

    def __init__(self) -> None:
        self.instead: dict[int, Any] = {}
        self.kept: list[Any] = []  # an id is one object's as long as that is there

    def learn(self, recorded: Any, loaded: Any) -> None:
        """Note what stands for a recorded value and for the values in it."""
        self.instead[id(recorded)] = loaded
        self.kept += (recorded, loaded)
        if isinstance(recorded, list):
            for old, new in zip(recorded, loaded, strict=True):
                self.instead[id(old)] = new
        elif isinstance(recorded, dict):
            for key, old in recorded.items():
                self.instead[id(old)] = loaded[key]

    def value(self, recorded: Any) -> Any:
        if id(recorded) not in self.instead:
            self.kept.append(recorded)
            self.instead[id(recorded)] = self.rebuilt(recorded)
        return self.instead[id(recorded)]

    def rebuilt(self, recorded: Any) -> Any:
        if isinstance(recorded, list):
            return [self.instead.get(id(one), one) for one in recorded]
        if isinstance(recorded, dict):
            return {key: self.instead.get(id(one), one) for key, one in recorded.items()}
        return recorded


def replay(
    saver: BaseCheckpointSaver[Any], calls: Sequence[Call], thread: str
) -> Iterator[tuple[Call, Callable[[], Any]]]:
    """Yield each call, and the function that makes it."""
    loaded = Loaded()
    for call in calls:
        config: Any = {"configurable": {**call.config, "thread_id": thread}}
        if call.name == "get_tuple":
            found: list[Any] = []
            yield call, lambda: found.append(saver.get_tuple(config))  # noqa: B023 - called at once
            if found[0] is not None:
                values = found[0].checkpoint["channel_values"]
                for channel, value in call.result.checkpoint["channel_values"].items():
                    loaded.learn(value, values[channel])
        elif call.name == "put":
            checkpoint, metadata, new = call.given
            values = {k: loaded.value(v) for k, v in checkpoint["channel_values"].items()}
            given: Any = ({**checkpoint, "channel_values": values}, metadata, new)
            yield call, lambda: saver.put(config, *given)  # noqa: B023 - called at once
        else:
            yield call, lambda: saver.put_writes(config, *call.given)  # noqa: B023 - called at once


def played(saver: BaseCheckpointSaver[Any], calls: Sequence[Call], thread: str) -> None:
    for _, make in replay(saver, calls, thread):
        make()


def microseconds(kind: str, file: str, data: str | None, threads: int) -> dict[str, float]:
    """CPU microseconds of each kind of call, the mean of all, after one thread to warm up."""
    calls = record(data)
    used = dict.fromkeys(CALLS, 0.0)
    counts = dict.fromkeys(CALLS, 0)
    with KINDS[kind].open(Path(file)) as saver:
        played(saver, deepcopy(calls), "warm")
        for number in range(threads):
            for call, make in replay(saver, deepcopy(calls), f"replayed {number}"):
                start = process_time()
                make()
                if call.messages in MEASURED:
                    used[call.name] += process_time() - start
                    counts[call.name] += 1
    return {name: used[name] / counts[name] * 1e6 for name in CALLS if counts[name]}


def counted(kind: str, file: str, data: str | None, threads: int, library: str) -> int:
    """Count the instructions of each measured call, under valgrind; how many were counted.

    The counts are in valgrind's files, each named after its call.
    """
    calls, counter = record(data), Counter(library)
    copies = [deepcopy(calls) for _ in range(threads + 1)]
    gc.freeze()  # collections skip all earlier objects
    sys.setswitchinterval(10)  # seconds: valgrind is slow, and switches are not counted
    counts = 0
    with KINDS[kind].open(Path(file)) as saver:
        played(saver, copies.pop(), "warm")
        counter.start()
        for number, own in enumerate(copies):
            for call, make in replay(saver, own, f"counted {number}"):
                if call.messages in MEASURED:
                    counter.count(call.name, make)
                    counts += 1
                else:
                    make()
    return counts
