"""Turns a plan into a graph."""

import copy
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, RetryPolicy, Send, interrupt

from .plan import Node, Plan, Stage
from .values import Passed, PassedAlone, edit, flip, make, read, schema, steps

HANDLE = object()  # cannot be stored, but its channel is untracked
ATTEMPTS = 3


class BrokenError(Exception):
    """A node's own error."""


RETRY = RetryPolicy(initial_interval=0, jitter=False, max_attempts=ATTEMPTS, retry_on=BrokenError)


class Doing:
    """One node of a graph: carries out its operations, in order, the same way each time."""

    def __init__(self, plan: Plan, name: str, node: Node) -> None:
        self.plan, self.name, self.node = plan, name, node
        self.calls = 0

    def __call__(self, state: Any) -> Any:
        self.calls += 1
        log = read(state, "log") or []
        number = len(log) + len(self.name)
        said = [f"{self.name} {len(log)}"]
        if self.node.also.startswith("ask"):
            asked = 2 if self.node.also == "ask twice" else 1
            on = next(iter(log), None)
            said += [interrupt({"from": self.name, "on": on, "n": n}) for n in range(asked)]
        if self.node.also == "fail" and self.calls % 3 == 1:
            raise BrokenError(f"{self.name} is broken")
        update: dict[str, Any] = {"log": said}
        for op in self.node.does:
            _OPS[op](self, state, update, number)
        if self.node.also == "retry" and self.calls % ATTEMPTS:
            raise BrokenError(f"{self.name} is to be tried again")
        return update

    def message(self, number: int) -> Any:
        cls = HumanMessage if number % 2 else AIMessage
        text = "a" * self.plan.size
        content = text if number % 3 else [{"type": "text", "text": text}]
        return cls(content, id=f"{self.name} {number}" if self.plan.ids else None)


def _new_doc(do: Doing, state: Any, update: Any, number: int) -> None:
    update["doc"] = make(number, do.plan.size)


def _doc(do: Doing, state: Any, update: Any, number: int) -> Any:
    """The current document."""
    found = update.get("doc", read(state, "doc"))
    return make(number, do.plan.size) if found is None else found


def _copy_doc(do: Doing, state: Any, update: Any, number: int) -> None:
    doc = copy.deepcopy(_doc(do, state, update, number))
    for _ in edit(doc, number):
        pass
    update["doc"] = doc


def _edit_doc(do: Doing, state: Any, update: Any, number: int) -> None:
    doc = _doc(do, state, update, number)
    steps(edit(doc, number))
    update["doc"] = doc


def _flip_doc(do: Doing, state: Any, update: Any, number: int) -> None:
    doc = _doc(do, state, update, number)
    steps(flip(doc))
    update["doc"] = doc


def _edit_doc_quietly(do: Doing, state: Any, update: Any, number: int) -> None:
    steps(edit(_doc(do, state, update, number), number))


def _add_items(do: Doing, state: Any, update: Any, number: int) -> None:
    update.setdefault("items", []).append(make(number + 5, min(do.plan.size, 40)))


def _edit_items(do: Doing, state: Any, update: Any, number: int) -> None:
    _edit_items_quietly(do, state, update, number)
    update.setdefault("items", [])


def _edit_items_quietly(do: Doing, state: Any, update: Any, number: int) -> None:
    items = read(state, "items") or []
    if items:
        steps(edit(items[number % len(items)], number))


def _say(do: Doing, state: Any, update: Any, number: int) -> None:
    update.setdefault("messages", []).append(do.message(number))


def _say_again(do: Doing, state: Any, update: Any, number: int) -> None:
    messages = read(state, "messages") or []
    if messages:
        old = messages[number % len(messages)]
        update.setdefault("messages", []).append(AIMessage(f"instead {number}", id=old.id))


def _unsay(do: Doing, state: Any, update: Any, number: int) -> None:
    messages = read(state, "messages") or []
    written = {m.id for m in update.get("messages", [])}
    if messages and messages[-1].id not in written:
        update.setdefault("messages", []).append(RemoveMessage(id=messages[-1].id))


def _mend(do: Doing, state: Any, update: Any, number: int) -> None:
    messages = read(state, "messages") or []
    written = {m.id for m in update.get("messages", [])}
    if messages and (m := messages[number % len(messages)]).id not in written:
        steps(_mended(m, number))
        update.setdefault("messages", []).append(m)


def _mended(message: Any, number: int) -> Any:
    if isinstance(message.content, list):
        message.content.append({"type": "text", "text": f"more {number}"})
    else:
        message.content += f" more {number}"
    yield
    message.additional_kwargs[f"seen {number}"] = [number]
    yield
    message.model_fields_set.add("name")
    yield
    message.name = f"name {number}"


def _file(do: Doing, state: Any, update: Any, number: int) -> None:
    update["files"] = {f"file {number % 4}": {"lines": ["line"] * (number % 5), "n": number}}


def _edit_files(do: Doing, state: Any, update: Any, number: int) -> None:
    files = read(state, "files") or {}
    if files and "files" not in update:
        name = sorted(files)[number % len(files)]
        steps(edit(files[name], number))
        update["files"] = {name: files[name]}


def _publish(do: Doing, state: Any, update: Any, number: int) -> None:
    update["topic"] = [number, {"by": do.name}] if number % 2 else f"topic {number}"


def _scratch(do: Doing, state: Any, update: Any, number: int) -> None:
    update["scratch"] = {"n": number}


def _handle(do: Doing, state: Any, update: Any, number: int) -> None:
    update["handle"] = HANDLE


def _any(do: Doing, state: Any, update: Any, number: int) -> None:
    update["whichever"] = [number, (number,)]


def _alias(do: Doing, state: Any, update: Any, number: int) -> None:
    update["whichever"] = _doc(do, state, update, number)


def _delta(do: Doing, state: Any, update: Any, number: int) -> None:
    update["delta"] = [number, {"seen": len(read(state, "delta") or [])}]


def _delta_over(do: Doing, state: Any, update: Any, number: int) -> None:
    update["delta"] = Overwrite((read(state, "delta") or [])[-2:])


_OPS: dict[str, Callable[[Doing, Any, dict[str, Any], int], None]] = {
    "new doc": _new_doc,
    "copy doc": _copy_doc,
    "edit doc": _edit_doc,
    "flip doc": _flip_doc,
    "edit doc quietly": _edit_doc_quietly,
    "add items": _add_items,
    "edit items": _edit_items,
    "edit items quietly": _edit_items_quietly,
    "say": _say,
    "say again": _say_again,
    "unsay": _unsay,
    "mend": _mend,
    "file": _file,
    "edit files": _edit_files,
    "publish": _publish,
    "scratch": _scratch,
    "handle": _handle,
    "any": _any,
    "alias": _alias,
    "delta": _delta,
    "delta over": _delta_over,
}


# -- the graph ---------------------------------------------------------------------------


class Builder:
    """Adds one stage after the other; `ends` are the nodes before the next stage."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.schema = schema(plan.schema, plan.frequency, plan.accumulate)
        self.graph = StateGraph(self.schema)
        self.ends: list[str] = [START]
        self.join = False

    def build(self) -> Any:
        for number, stage in enumerate(self.plan.stages):
            getattr(self, f"_{stage.kind}")(f"s{number}", stage)
            self.join = stage.join and len(self.ends) > 1
        for end in self.ends:
            self.graph.add_edge(end, END)
        return self.graph

    def _add(self, name: str, node: Node) -> str:
        self._add_to(self.graph, name, node)
        return name

    def _add_to(self, graph: Any, name: str, node: Node) -> None:
        retry = RETRY if node.also == "retry" else None
        graph.add_node(name, Doing(self.plan, name, node), retry_policy=retry)

    def _enter(self, *names: str) -> None:
        for name in names:
            if self.join:
                self.graph.add_edge(list(self.ends), name)
            else:
                for end in self.ends:
                    self.graph.add_edge(end, name)
        self.ends = list(names)

    def _gate(self, name: str) -> str:
        """One node before a stage, for its conditional edges."""
        gate = self._add(f"{name}gate", Node())
        self._enter(gate)
        return gate

    def _one(self, name: str, stage: Stage) -> None:
        (node,) = stage.nodes
        self._enter(self._add(name, node))
        if node.also == "goto":
            self.graph.add_node(f"{name}go", lambda s: Command(goto=f"{name}gone"))
            self.graph.add_node(f"{name}gone", Doing(self.plan, f"{name}gone", Node()))
            self.graph.add_edge(name, f"{name}go")
            self.ends = [f"{name}gone"]

    def _beside(self, name: str, stage: Stage) -> None:
        self._enter(*(self._add(f"{name}{'abc'[i]}", node) for i, node in enumerate(stage.nodes)))

    def _spread(self, name: str, stage: Stage) -> None:
        work = Doing(self.plan, name, stage.nodes[0])

        def worker(job: Any) -> Any:
            box = read(job, "doc")
            if work.node.also == "ask":
                interrupt(f"about {box['i']}")
            steps(edit(box, box["i"]))
            return {"log": [f"{name} {box['i']}"], "items": [box]}

        self.graph.add_node(name, worker)
        gate = self._gate(name)
        sends = self._sends(name, stage.width)
        self.graph.add_conditional_edges(gate, sends, [name])
        self.ends = [name]

    def _sends(self, name: str, width: int) -> Callable[[Any], list[Send]]:
        def spread(state: Any) -> list[Send]:
            start = len(read(state, "log"))
            return [
                Send(name, {"log": [f"sent {i}"], "doc": {"i": start + i, "lines": [{"n": i}]}})
                for i in range(width)
            ]

        return spread

    def _either(self, name: str, stage: Stage) -> None:
        gate = self._gate(name)
        names = [self._add(f"{name}{'ab'[i]}", node) for i, node in enumerate(stage.nodes)]
        self.graph.add_conditional_edges(gate, lambda s: names[len(read(s, "log")) % 2], names)
        self.ends = names

    def _again(self, name: str, stage: Stage) -> None:
        self._enter(self._add(name, stage.nodes[0]))
        out = f"{name}out"

        def onward(state: Any) -> str:
            visits = sum(1 for line in read(state, "log") if str(line).startswith(f"{name} "))
            return name if visits % stage.width else out

        self.graph.add_node(out, Doing(self.plan, out, Node()))
        self.graph.add_conditional_edges(name, onward, [name, out])
        self.ends = [out]

    def _subgraph(self, name: str, stage: Stage, output: Any, *, memory: bool) -> Any:
        inner: Any = StateGraph(self.schema, output_schema=output)
        names = [f"{name}{'xyz'[i]}" for i in range(len(stage.nodes))]
        for at, node in zip(names, stage.nodes, strict=True):
            self._add_to(inner, at, node)
        for start, stop in zip([START, *names], [*names, END], strict=True):
            inner.add_edge(start, stop)
        return inner.compile(checkpointer=True if memory else None)

    def _inner(self, name: str, stage: Stage) -> None:
        inner = self._subgraph(name, stage, PassedAlone, memory=stage.memory)
        self.graph.add_node(name, inner)
        self._enter(name)

    def _inners(self, name: str, stage: Stage) -> None:
        self.graph.add_node(name, self._subgraph(name, stage, Passed, memory=False))
        gate = self._gate(name)
        self.graph.add_conditional_edges(gate, self._sends(name, stage.width), [name])
        self.ends = [name]


def built(plan: Plan) -> Any:
    """Return the graph of a plan. It counts the calls of its nodes, so build one per play."""
    return Builder(plan).build()
