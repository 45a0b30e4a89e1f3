"""Answers stored without the graph: a run without input continues with them.

LangGraph's InMemorySaver behaves the same with the same writes.
"""

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import pytest
from kit.backends import open_backend
from kit.places import at
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from threadkeep import KeyRing, MemorySaver
from threadkeep._core.langgraph_internals import NO_TASK
from threadkeep.errors import (
    InvalidArgumentError,
    StateError,
    ThreadkeepError,
    ThreadNotFoundError,
    UnknownTypeError,
    UnserializableError,
)
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.savers.showing import as_stored
from threadkeep.threads import answering

CONFIG = at("one")


class State(TypedDict, total=False):
    said: Annotated[list[Any], operator.add]


def built(saver: Any, **nodes: Callable[[Any], Any]) -> Any:
    """A graph whose nodes all begin at once."""
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


def asks(*questions: Any) -> Callable[[Any], Any]:
    return lambda _: {"said": [(question, interrupt(question)) for question in questions]}


def open_questions(saver: Any, thread: str = "one") -> dict[Any, str]:
    """Ids of the interrupts without an answer, by question."""
    found = saver.threads.interrupts(thread)
    return {one.value: one.id for one in found if not one.answered}


def answer(saver: Any, *questions: Any, thread: str = "one") -> None:
    """Answer questions with themselves in capitals."""
    ids = open_questions(saver, thread)
    saver.threads.answer(thread, {ids[question]: question.upper() for question in questions})
    given = {one.value: one.answer for one in saver.threads.interrupts(thread)}
    assert [given[question] for question in questions] == list(map(str.upper, questions))


def asked(result: Any) -> list[Any]:
    return sorted(one.value for one in result.get("__interrupt__", ()))


def said(result: Any) -> Any:
    return sorted(result["said"])


# -- graphs ------------------------------------------------------------------------------


def test_after_a_resume_that_names_no_interrupt(saver: Any) -> None:
    """LangGraph keeps its value at the checkpoint, for any later question."""
    graph = built(saver, a=asks("x", "y", "z"))
    graph.invoke({"said": []}, CONFIG)
    graph.invoke(Command(resume="first"), CONFIG)
    answer(saver, "y")
    assert asked(graph.invoke(None, CONFIG)) == ["z"]
    answer(saver, "z")
    assert said(graph.invoke(None, CONFIG)) == [("x", "first"), ("y", "Y"), ("z", "Z")]


def test_a_question_waits_if_it_was_stored_before_the_answer_of_its_run(saver: Any) -> None:
    """Threads of LangGraph store both at the same time."""
    graph, put_writes = built(saver, a=asks("x", "y")), saver.put_writes
    held: list[Any] = []

    def late(config: Any, writes: Any, task: str, path: str = "") -> None:
        if task == NO_TASK:
            held.append((config, writes, task, path))
            return
        put_writes(config, writes, task, path)
        while held:
            put_writes(*held.pop())

    graph.invoke({"said": []}, CONFIG)
    saver.put_writes = late
    graph.invoke(Command(resume="first"), CONFIG)
    assert list(open_questions(saver)) == ["y"]


def test_tasks_that_were_sent(saver: Any) -> None:
    builder = StateGraph(State)
    builder.add_node("ask", lambda state: asks(*state["said"])(state))
    builder.add_conditional_edges(START, lambda _: [Send("ask", {"said": [q]}) for q in "xy"])
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"said": []}, CONFIG)
    answer(saver, "y")
    answer(saver, "x")
    assert said(graph.invoke(None, CONFIG)) == [("x", "X"), ("y", "Y")]


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("checkpointer", [None, True])
def test_subgraphs(saver: Any, checkpointer: Any, durability: Any) -> None:
    innermost = built(None, c=asks("x", "y"))
    inner = built(checkpointer, b=innermost, d=asks("z"))
    graph = built(saver, a=inner, e=asks("w"))
    graph.invoke({"said": []}, CONFIG, durability=durability)
    assert sorted(open_questions(saver)) == ["w", "x", "z"]
    answer(saver, "x", "w")
    assert sorted(open_questions(saver)) == ["z"]
    assert asked(graph.invoke(None, CONFIG, durability=durability)) == ["y", "z"]
    answer(saver, "z")
    assert asked(graph.invoke(None, CONFIG, durability=durability)) == ["y"]
    answer(saver, "y")
    result = graph.invoke(None, CONFIG, durability=durability)
    assert said(result) == [("w", "W"), ("x", "X"), ("y", "Y"), ("z", "Z")]


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_graph_without_checkpoints_is_refused(ours: Any, is_sent: bool) -> None:
    builder = StateGraph(State).add_node("a", built(False, b=asks("x")))
    builder.add_conditional_edges(START, lambda _: [Send("a", {"said": []})] if is_sent else "a")
    graph = builder.compile(checkpointer=ours)
    graph.invoke({"said": []}, CONFIG)
    with pytest.raises(StateError, match="without checkpoints"):
        answer(ours, "x")
    assert said(graph.invoke(Command(resume="X"), CONFIG)) == [("x", "X")]


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_decisions_of_an_agent(saver: Any, mode: Any) -> None:
    calls = [{"name": "send_mail", "args": {"to": to}, "id": to} for to in ("a", "b")]
    model = GenericFakeChatModel(messages=iter([AIMessage("", tool_calls=calls), AIMessage("ok")]))
    model.__class__.bind_tools = lambda self, *_, **__: self  # type: ignore[method-assign,attr-defined]
    review = HumanInTheLoopMiddleware({"send_mail": True}, interrupt_mode=mode)
    agent = create_agent(model, [send_mail], middleware=[review], checkpointer=saver)
    agent.invoke({"messages": [HumanMessage("go")]}, CONFIG)
    edited = {"name": "send_mail", "args": {"to": "c"}}
    decisions = [{"type": "edit", "edited_action": edited}, {"type": "reject", "message": "no"}]
    asked = saver.threads.interrupts("one")
    if mode == "batched":
        assert [one["args"]["to"] for one in asked[0].value["action_requests"]] == ["a", "b"]
        given = {asked[0].id: {"decisions": decisions}}
    else:
        assert [one.value["args"]["to"] for one in asked] == ["a", "b"]
        assert asked[0].response_schema is not None
        given = {one.id: decision for one, decision in zip(asked, decisions, strict=True)}
    saver.threads.answer("one", given)
    texts = {m.tool_call_id: m.text for m in agent.invoke(None, CONFIG)["messages"][2:-1]}
    assert texts["a"].endswith("sent to c")
    assert "no" in texts["b"]


def test_langgraphs_saver_continues_with_the_same_writes(ours: Any) -> None:
    theirs = InMemorySaver()
    results = []
    for saver in (ours, theirs):
        graph = built(saver, a=built(None, b=asks("x", "y")), c=asks("z"))
        graph.invoke({"said": []}, CONFIG)
        results.append([])
        for questions in (("x",), ("y", "z")):
            if saver is ours:
                answer(saver, *questions)
            else:
                write_as_ours(theirs, questions)
            results[-1].append(graph.invoke(None, CONFIG))
    ours_said, theirs_said = [[(asked(one), said(one)) for one in each] for each in results]
    assert ours_said == theirs_said
    assert ours_said[-1] == ([], [("x", "X"), ("y", "Y"), ("z", "Z")])


def write_as_ours(saver: InMemorySaver, questions: Any) -> None:
    """Store answers by `put_writes`, in the deepest task that has asked."""
    newest: dict[str, Any] = {}
    for found in saver.list(at("one")):
        newest.setdefault(found.config["configurable"]["checkpoint_ns"], found)
    for ns in list(saver.storage["one"]):
        newest[ns] = saver.get_tuple(at("one", checkpoint_ns=ns))
    for question in questions:
        for _, found in sorted(newest.items(), reverse=True):
            writes = found.pending_writes
            task = next(
                (t for t, c, v in writes if c == "__interrupt__" and v[0].value == question), 0
            )
            if task:
                before = [v for t, c, v in writes if (t, c) == (task, "__resume__")]
                given = [*(before[0] if before else []), question.upper()]
                saver.put_writes(found.config, [("__resume__", given)], task)
                break


# -- refusals ----------------------------------------------------------------------------


def test_answers_that_reach_nobody_are_refused(saver: Any) -> None:
    graph = built(saver, a=asks("x"), b=asks("y"))
    graph.invoke({"said": []}, CONFIG)
    first, second = saver.threads.interrupts("one")
    with pytest.raises(StateError, match="does not wait") as refused:
        saver.threads.answer("one", {first.id: 1, "0" * 32: 2})
    assert first.id in refused.value.hint
    assert len(open_questions(saver)) == 2, "nothing was stored"
    saver.threads.answer("one", {first.id: "X"}, first.checkpoint_id)
    with pytest.raises(StateError, match="has an answer"):
        saver.threads.answer("one", {first.id: "X", second.id: "Y"})
    assert len(open_questions(saver)) == 1
    saver.threads.answer("one", {second.id: "Y"})
    saver.threads.answer("one", {first.id: "changed"}, replace=True)
    assert said(graph.invoke(None, CONFIG)) == [("x", "changed"), ("y", "Y")]
    with pytest.raises(StateError, match="moved on"):
        saver.threads.answer("one", {first.id: "X"}, first.checkpoint_id)
    with pytest.raises(StateError, match="does not wait"):
        saver.threads.answer("one", {first.id: "X"})


def test_wrong_arguments_are_refused(ours: Any) -> None:
    with pytest.raises(ThreadNotFoundError):
        ours.threads.answer("one", {"id": 1})
    assert ours.threads.interrupts("one") == []
    built(ours, a=asks("x")).invoke({"said": []}, CONFIG)
    (one,) = ours.threads.interrupts("one")
    for wrong in ({}, "yes", None, [one.id]):
        with pytest.raises(InvalidArgumentError):
            ours.threads.answer("one", wrong)
    with pytest.raises(InvalidArgumentError):
        ours.threads.answer("one", {one.id: 1}, replace="yes")
    with pytest.raises(UnserializableError):
        ours.threads.answer("one", {one.id: threading.Lock()})
    assert list(open_questions(ours)) == ["x"]


def test_one_of_many_who_answer_at_once_wins(another: Any) -> None:
    savers = [another() for _ in range(4)]
    graph = built(savers[0], a=built(None, b=asks("x")), c=asks("y"))
    graph.invoke({"said": []}, CONFIG)
    ids = open_questions(savers[0])
    begin = threading.Barrier(len(savers))
    won, lost = [], []

    def go(number: int) -> None:
        begin.wait(20)
        try:
            savers[number].threads.answer("one", {ids["x"]: number})
            won.append(number)
        except StateError as error:
            lost.append(error)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(len(savers))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(won), len(lost)) == (1, 3)
    answer(savers[1], "y")
    assert said(graph.invoke(None, CONFIG)) == [("x", won[0]), ("y", "Y")]


# -- beside others -----------------------------------------------------------------------


def test_an_answer_while_a_run_asks_again_is_not_used_for_the_next_question(saver: Any) -> None:
    meanwhile: list[Callable[[], Any]] = []

    def ask(_: Any) -> Any:
        if meanwhile:
            meanwhile.pop()()
        return {"said": [interrupt("x"), interrupt("y")]}

    graph = built(saver, a=ask)
    graph.invoke({"said": []}, CONFIG)
    (one,) = saver.threads.interrupts("one")
    meanwhile.append(lambda: saver.threads.answer("one", {one.id: "X"}))
    assert asked(graph.invoke(None, CONFIG)) == ["x"]
    assert open_questions(saver) == {}, "the next run has the answer"
    with pytest.raises(StateError):
        saver.threads.answer("one", {one.id: "again"})
    assert asked(graph.invoke(None, CONFIG)) == ["y"]
    assert list(open_questions(saver)) == ["y"]


def test_an_answer_to_a_head_that_is_removed_meanwhile(
    saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(saver, a=asks("x")).invoke({"said": []}, CONFIG)
    (one,) = saver.threads.interrupts("one")
    save = answering.put.save

    def removing(engine: Any, call: Any) -> Any:
        monkeypatch.undo()
        saver.delete_checkpoints("one", [one.checkpoint_id])
        return (yield from save(engine, call))

    monkeypatch.setattr(answering.put, "save", removing)
    with pytest.raises(StateError):
        saver.threads.answer("one", {one.id: "X"})
    assert saver.check().findings == ()


def test_an_answer_that_a_node_refuses_is_replaced(saver: Any) -> None:
    def ask(_: Any) -> Any:
        number = interrupt("x")
        if not isinstance(number, int):
            raise TypeError("a number, please")
        return {"said": [number]}

    graph = built(saver, a=ask)
    graph.invoke({"said": []}, CONFIG)
    answer(saver, "x")
    for _ in range(2):
        with pytest.raises(TypeError):
            graph.invoke(None, CONFIG)
    (one,) = saver.threads.interrupts("one")
    assert one.answered
    saver.threads.answer("one", {one.id: 7}, replace=True)
    assert graph.invoke(None, CONFIG) == {"said": [7]}


def givers(saver: Any, thread: str = "one") -> dict[Any, Any]:
    return {one.value: one.answered_by for one in saver.threads.interrupts(thread)}


def test_the_name_of_a_giver_stays_with_the_answer(saver: Any, tmp_path: Any) -> None:
    built(saver, a=asks("x", "y"), b=asks("z")).invoke({"said": []}, CONFIG)
    ids = open_questions(saver)
    with MemorySaver() as copy:
        saver.threads.answer("one", {ids["x"]: "yes"}, by="Zoë")
        saver.threads.mirror(copy)
        saver.threads.answer("one", {ids["z"]: "yes"}, by="Bo")
        assert [*saver.threads.mirror(copy).extended] == ["one"]
        assert givers(copy) == givers(saver) == {"x": "Zoë", "z": "Bo"}
    given = {one.value: one.answered_at for one in saver.threads.interrupts("one")}
    assert given["x"] < given["z"]
    saver.threads.fork("one", None, "fork")
    assert givers(saver, "fork") == givers(saver)
    saver.threads.answer("one", {ids["x"]: "yes"}, replace=True)
    assert givers(saver) == {"x": None, "z": "Bo"}, "the same answer, of somebody else"
    with pytest.raises(StateError):
        saver.threads.answer("one", {ids["z"]: "no"}, by="Late")
    assert givers(saver) == {"x": None, "z": "Bo"}


def test_the_second_answer_of_a_task_keeps_the_name_of_the_first(saver: Any) -> None:
    graph = built(saver, a=lambda _: {"said": [interrupt("x"), interrupt("y")]})
    graph.invoke({"said": []}, CONFIG)
    for question, name in (("x", "Zoë"), ("y", "Bo")):
        saver.threads.answer("one", {open_questions(saver)[question]: "yes"}, by=name)
        assert givers(saver) == {question: name}
        result = graph.invoke(None, CONFIG)
    assert said(result) == ["yes", "yes"]
    with pytest.raises(InvalidArgumentError, match="by"):
        saver.threads.answer("one", {"x": 1}, by="")


def test_the_registry_and_forks(saver: Any) -> None:
    graph = built(saver, a=asks("x"))
    graph.invoke({"said": []}, CONFIG)
    before = saver.threads.get("one")
    answer(saver, "x")
    after = saver.threads.get("one")
    assert (after.status, after.status_checkpoint) == ("waiting", before.status_checkpoint)
    assert after.updated_at > before.updated_at
    with_answer = saver.threads.fork("one", None, "two")
    assert open_questions(saver, "two") == {}
    assert said(graph.invoke(None, CONFIG)) == [("x", "X")]
    saver.threads.fork("one", before.status_checkpoint, "three")
    assert list(open_questions(saver, "three")) == ["x"], "as it was before the answer"
    answer(saver, "x", thread="three")
    for fork in (with_answer.id, "three"):
        assert said(graph.invoke(None, at(fork))) == [("x", "X")]
    assert saver.check().findings == ()


@contextmanager
def wrapped(kind: str, folder: Any) -> Iterator[Any]:
    options: dict[str, Any] = {
        "keys": {"keys": KeyRing.generate()},
        "conflicts": {"conflicts": "raise"},
        "cold": {"cold": (folder / "cold").as_uri()},
    }.get(kind, {})
    with open_backend("sqlite", folder, **options) as saver:
        if kind == "tenant":
            yield saver.for_tenant("acme")
        elif kind == "layered":
            with LayeredCheckpointSaver(saver) as layered:
                yield layered
        else:
            yield saver


@pytest.mark.parametrize("kind", ["keys", "conflicts", "cold", "tenant", "layered"])
def test_with_other_parts(tmp_path: Any, kind: str) -> None:
    with wrapped(kind, tmp_path) as saver:
        graph = built(saver, a=built(None, b=asks("x", "y")), c=asks("z"))
        graph.invoke({"said": []}, CONFIG)
        if kind == "cold":
            saver.threads.archive("one")
        answer(saver, "x", "z")
        with suppress(ThreadkeepError):  # (only with a cold store)
            saver.threads.archive("one")
        assert asked(graph.invoke(None, CONFIG)) == ["y"]
        answer(saver, "y")
        assert said(graph.invoke(None, CONFIG)) == [("x", "X"), ("y", "Y"), ("z", "Z")]
        assert saver.check().findings == ()


def test_large_answers(saver: Any) -> None:
    graph = built(saver, a=asks("x", "y"))
    graph.invoke({"said": []}, CONFIG)
    for size in (300_000, 3):
        (one,) = [one for one in saver.threads.interrupts("one") if not one.answered]
        saver.threads.answer("one", {one.id: ["é" * size]})
        result = graph.invoke(None, CONFIG)
    assert said(result) == [("x", ["é" * 300_000]), ("y", ["é" * 3])]


def test_questions_of_classes_that_a_program_lacks(tmp_path: Any) -> None:
    """As the page answers: it has no class of the application."""
    with open_backend("sqlite", tmp_path, pickle_fallback=True) as saver:
        graph = built(saver, a=lambda _: {"said": [interrupt(Question("x"))]})
        graph.invoke({"said": []}, CONFIG)
        (one,) = saver.threads.interrupts("one")
        assert one.value.text == "x"
        with open_backend("sqlite", tmp_path) as other:
            with pytest.raises(UnknownTypeError):
                other.threads.interrupts("one")
            other.threads.answer("one", {one.id: "X"}, one.checkpoint_id)
            assert as_stored(other).threads.interrupts("one")[0].answered
        assert graph.invoke(None, CONFIG) == {"said": ["X"]}


class Question:
    """A class that only one program can load."""

    def __init__(self, text: str) -> None:
        self.text = text


def test_many_subgraph_steps_since_the_head(ours: Any) -> None:
    """More checkpoints than a page of the scan."""
    inner = StateGraph(State)
    inner.add_node("work", lambda _: {"said": [1]})
    inner.add_node("ask", asks("x"))
    inner.add_edge(START, "work")
    inner.add_conditional_edges("work", lambda s: "ask" if len(s["said"]) > 150 else "work")
    graph = built(ours, a=asks("y"), b=inner.compile(checkpointer=None))
    graph.invoke({"said": []}, CONFIG | {"recursion_limit": 400})
    assert sorted(open_questions(ours)) == ["x", "y"]
    answer(ours, "x", "y")
    assert graph.invoke(None, CONFIG)["said"].count(1) == 151
