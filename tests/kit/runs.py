"""Overlapping runs: a run stops inside a node until the test resumes it."""

import operator
import threading
from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Any

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from kit.places import at

WAIT = 20.0  # seconds; only a broken test ever waits that long


class Gate:
    """A place in a node where a run waits until the test opens it."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def pass_through(self) -> None:
        self._reached.set()
        assert self._open.wait(WAIT), "nobody opened the gate"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(WAIT), "no run came to the gate"

    def open(self) -> None:
        self._open.set()


class Run(threading.Thread):
    """One call in a thread of its own; `finish` gives what it returned or raised."""

    def __init__(self, call: Any, *args: Any, **options: Any) -> None:
        super().__init__(daemon=True)
        self._call = lambda: call(*args, **options)
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def finish(self) -> Any:
        self.join(WAIT)
        assert not self.is_alive(), "the run did not end"
        return self.error if self.error is not None else self.result


class HeldBack(BaseCheckpointSaver[Any]):
    """A saver whose first put waits at a gate, as on a slow line."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        super().__init__()
        self.inner = inner
        self.gates = [gate]

    def put(self, *args: Any) -> Any:
        if self.gates:
            self.gates.pop().pass_through()
        return self.inner.put(*args)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.inner.put_writes(config, writes, task_id, task_path)

    def get_tuple(self, config: Any) -> Any:
        return self.inner.get_tuple(config)

    def list(self, config: Any, **options: Any) -> Any:
        return self.inner.list(config, **options)

    def get_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        return self.inner.get_delta_channel_history(config=config, channels=channels)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)


def extend(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return reduce(operator.add, writes, state)


class Plain(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Delta(TypedDict, total=False):
    log: Annotated[list[Any], DeltaChannel(extend, list, snapshot_frequency=100)]


SCHEMAS = {"plain": Plain, "delta": Delta}


def story(saver: Any, schema: Any = Plain, gates: dict[str, Gate] | None = None) -> Any:
    """first -> second: each adds "<who>-<node>", where the newest input says who.

    The gate named "<who>-<node>" holds that node back.
    """

    def node(name: str) -> Any:
        def tell(state: Any) -> Any:
            who = [x for x in state["log"] if "-" not in x][-1]
            line = f"{who}-{name}"
            if gates and line in gates:
                gates[line].pass_through()
            return {"log": [line]}

        return tell

    builder = StateGraph(schema)
    builder.add_node("first", node("first"))
    builder.add_node("second", node("second"))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile(checkpointer=saver)


def told(*names: str) -> list[str]:
    """Return the log of `story` after these runs in turn."""
    return [line for who in names for line in (who, f"{who}-first", f"{who}-second")]


def leaves(graph: Any, thread: str = "thread") -> list[Any]:
    """The states that no other state descends from, newest first."""
    states = list(graph.get_state_history(at(thread)))
    parents = {s.parent_config["configurable"]["checkpoint_id"] for s in states if s.parent_config}
    return [s for s in states if s.config["configurable"]["checkpoint_id"] not in parents]
