"""A graph and a script of turns, as plain data that prints, shrinks and can be typed by hand."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

EDITS = {
    "edit doc": "doc",
    "flip doc": "doc",
    "edit items": "items",
    "mend": "messages",
    "edit files": "files",
}
"""Operations that change a value in place and return it, and its channel."""
QUIET = ("edit doc quietly", "edit items quietly", "alias")
"""Those that change a value, or come to, without its channel being written."""
MAKES = (
    "new doc",
    "copy doc",
    "add items",
    "say",
    "say again",
    "unsay",
    "file",
    "publish",
    "scratch",
    "handle",
    "any",
    "delta",
    "delta over",
)
_ALONE = (*QUIET, *EDITS, "new doc", "copy doc", "delta over", "scratch", "handle")
_AT_ONCE = ("beside", "spread", "inners")
_SEVERAL = (*_AT_ONCE, "inner")
FORKS = ("fork", "fork with input", "fork with update")
SHARED = ("doc", "items", "messages", "files", "whichever", "__pregel_tasks", "__start__")
"""Channels whose values may hold what nodes edit in place."""


@dataclass(frozen=True)
class Node:
    """Operations on the state, and other actions: ask, ask twice, fail, retry."""

    does: tuple[str, ...] = ()
    also: str = ""

    @property
    def edits(self) -> bool:
        """Return True if nodes edit values in place."""
        return any(op in EDITS or op in QUIET for op in self.does)


@dataclass(frozen=True)
class Stage:
    """A part of the graph that is entered when the previous one is done.

    Kinds: one (node), beside (its nodes in parallel), spread (one `Send` for each of `width`),
    either (of two nodes), again (a node, `width` times), inner (its nodes as a subgraph, with or
    without memory of its own), inners (a subgraph for each of `width`).
    """

    kind: str
    nodes: tuple[Node, ...]
    width: int = 2
    join: bool = False  # the next stage waits for all nodes of this one
    memory: bool = False


@dataclass(frozen=True)
class Turn:
    """One call by the user of the graph; `pick` chooses among the existing checkpoints."""

    kind: str
    pick: int = 0


@dataclass(frozen=True)
class Plan:
    """A graph, a script, and their configuration."""

    stages: tuple[Stage, ...] = (Stage("one", (Node(),)),)
    turns: tuple[Turn, ...] = (Turn("invoke"),)
    schema: str = "typed dict"
    durability: str = "async"
    api: str = "sync"
    backend: str = "sqlite"
    options: str = "default"  # of the saver
    frequency: int = 3  # of snapshots of the DeltaChannel
    accumulate: bool = True  # the Topic
    ids: bool = True  # messages bring an id
    size: int = 3  # of the values
    stop: tuple[str, int] | None = None  # a static interrupt: before or after, and which node
    seed: int | None = None  # of the switches to other threads; None for few

    @property
    def edits(self) -> bool:
        """Return True if nodes edit values in place."""
        return any(node.edits for s in self.stages for node in s.nodes) or self.has("spread")

    def has(self, *words: str) -> bool:
        """Return True if a stage is of this kind, or a node does this."""
        nodes = [node for stage in self.stages for node in stage.nodes]
        said = {*(s.kind for s in self.stages), *(op for node in nodes for op in node.does)}
        return not said.isdisjoint(words)

    @property
    def loose_values(self) -> frozenset[str]:
        """Channels whose stored values may be of a slightly later time."""
        if self.durability != "async":
            return self._dumped
        grown = {"items"} if self.has("add items", "edit items", "spread") else set()
        grown |= {"topic"} if self.has("publish") and self.accumulate else set()
        grown |= {"join"} if any(stage.join for stage in self.stages) else set()
        return frozenset((*grown, *(SHARED if self.edits else ()), *self._dumped))

    @property
    def loose_writes(self) -> frozenset[str]:
        """The same of pending writes, which no durability except "exit" waits for."""
        shared = SHARED if self.edits and self.durability != "exit" else ()
        return frozenset((*shared, *self._dumped))

    @property
    def _dumped(self) -> frozenset[str]:
        """Channels whose models LangGraph's saver turns into plain dicts."""
        inner = self.schema == "pydantic" and self.has("inner", "inners")
        return frozenset({"__start__"} if inner else ())


def sound(plan: Plan) -> Plan:
    """Return the plan without anything that LangGraph itself leaves to chance.

    - In a step of several nodes only the first edits in place, and none fails. - The user sends no
    other node into such graphs, nor into one with a retried node, which could then
      run twice in a step and counts its calls.
    - With durability "exit" LangGraph's sync API, if a node asks, may leave before it has saved the
      writes of the nodes beside it.
    - With durability "async", an edited value is written in the same step (subgraph nodes cannot do
      so with the items, which they do not hand back). If a node edits, none beside it or around it
      stops the run. If any value was edited, no run starts from an older checkpoint.
    """
    if plan.has("inner", "inners"):
        plan = _doing_without(plan, "handle")  # there, values that cannot be stored are inputs
    stages = tuple(_sound_stage(stage, plan) for stage in plan.stages)
    plan = replace(plan, stages=stages)
    if plan.edits or any(node.also == "fail" for s in stages for node in s.nodes):
        plan = _without(plan, "send", "update as")
    tried = any(node.also == "retry" for s in stages for node in s.nodes)
    if tried or plan.has("inner", "inners", "spread"):
        plan = _without(plan, "send")
    return _without(plan, *FORKS) if plan.loose_values else plan


def _without(plan: Plan, *kinds: str) -> Plan:
    turns = [replace(t, kind="history") if t.kind in kinds else t for t in plan.turns]
    return replace(plan, turns=tuple(turns))


def _sound_stage(stage: Stage, plan: Plan) -> Stage:
    first, *rest = stage.nodes
    if plan.durability == "async":
        quiet = (*QUIET, "edit items") if stage.kind == "inner" else QUIET
        first, *rest = [_less(node, quiet) for node in stage.nodes]
    if stage.kind == "beside":
        rest = [_less(node, _ALONE) for node in rest]
    nodes = [first, *rest]
    if stage.kind in _AT_ONCE and (plan.durability, plan.api) == ("exit", "sync"):
        nodes = [replace(n, also="") if "ask" in n.also else n for n in nodes]
    edits = stage.kind == "spread" or any(node.edits for node in nodes)
    if edits and plan.durability == "async" and stage.kind in _SEVERAL:
        nodes = [n if n.also == "retry" else replace(n, also="") for n in nodes]
    return replace(stage, nodes=tuple(nodes))


def _doing_without(plan: Plan, *ops: str) -> Plan:
    stages = [replace(s, nodes=tuple(_less(n, ops) for n in s.nodes)) for s in plan.stages]
    return replace(plan, stages=tuple(stages))


def _less(node: Node, ops: tuple[str, ...]) -> Node:
    return replace(node, does=tuple(op for op in node.does if op not in ops))


_ALSO = {
    "one": ["", "", "", "ask", "ask twice", "fail", "retry", "goto"],
    "beside": ["", "", "ask", "ask twice", "retry"],
    "spread": ["", "ask"],
    "either": ["", "ask", "fail", "retry"],
    "again": ["", "", "ask", "retry"],
    "inner": ["", "", "ask", "ask twice", "fail", "retry"],
    "inners": ["", "ask"],
}
_MANY = {"beside": (2, 3), "either": (2, 2), "inner": (1, 3), "inners": (1, 2)}
_KINDS = ("one", "one", "beside", "spread", "either", "again", "inner", "inners")
_TURNS = [
    *("invoke", "invoke", "invoke", "resume", "resume", "continue", "update", "update as"),
    *("fork", "fork with input", "fork with update", "copy", "scribble", "reopen", "elsewhere"),
    *("history", "state", "send"),
]


@st.composite
def _stages(draw: st.DrawFn, ops: tuple[str, ...], kinds: tuple[str, ...]) -> Stage:
    kind = draw(st.sampled_from(kinds))
    least, most = _MANY.get(kind, (1, 1))
    does = st.lists(st.sampled_from(ops), max_size=4, unique=True).map(tuple)
    node = st.builds(Node, does, st.sampled_from(_ALSO[kind]))
    nodes = draw(st.lists(node, min_size=least, max_size=most).map(tuple))
    width = draw(st.integers(1, 3))
    return Stage(kind, nodes, width, draw(st.booleans()), draw(st.booleans()))


def _plans(
    ops: tuple[str, ...], kinds: tuple[str, ...], durabilities: list[str], sizes: list[int]
) -> Any:
    turn = st.builds(Turn, st.sampled_from(_TURNS), st.integers(0, 9))
    stops = st.sampled_from(["interrupt_before", "interrupt_after"])
    return st.builds(
        Plan,
        stages=st.lists(_stages(ops, kinds), min_size=1, max_size=4).map(tuple),
        turns=st.lists(turn, min_size=1, max_size=6).map(tuple),
        schema=st.sampled_from(["typed dict", "dataclass", "pydantic"]),
        durability=st.sampled_from(durabilities),
        api=st.sampled_from(["sync", "async"]),
        backend=st.sampled_from(["sqlite", "memory"]),
        options=st.sampled_from(["default", "default", "forgetful"]),
        frequency=st.sampled_from([1, 2, 3, 100]),
        accumulate=st.booleans(),
        ids=st.booleans(),
        size=st.sampled_from(sizes),
        stop=st.none() | st.tuples(stops, st.integers(0, 9)),
        seed=st.none() | st.integers(0, 9),
    ).map(sound)


_EDITS = (*EDITS, *EDITS, *EDITS, "new doc", "add items", "say", "file")
PLANS = _plans((*MAKES, *EDITS, *QUIET), _KINDS, ["async", "sync", "exit"], [1, 3, 40, 300])
EDITED = _plans(_EDITS, ("one", "again", "again", "inner"), ["async", "async", "sync"], [40, 300])
