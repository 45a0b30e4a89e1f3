"""The registry on every store: entries made by graphs, searches and changes."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kit.engine import bytes_held
from kit.places import at
from kit.rows import place
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from threadkeep import MemorySaver
from threadkeep._core.engine import thread_summary
from threadkeep._core.engine.model import ReadThread
from threadkeep._core.engine.operation import fetch
from threadkeep.errors import InvalidArgumentError, ThreadExistsError, ThreadNotFoundError
from threadkeep.threads import ThreadInfo

from .test_thread_status import expected
from .test_threads_forks import Chat, _chat


def _known(saver: Any, thread: str) -> ThreadInfo:
    found = saver.threads.get(thread)
    assert found is not None
    return found


def _status(saver: Any) -> tuple[Any, str | None]:
    found = _known(saver, "one")
    return found.status, found.status_checkpoint


# -- lifecycle -----------------------------------------------------------------------


def test_a_run_registers_its_thread(saver: Any) -> None:
    before = datetime.now(UTC)
    _chat(saver).invoke({"said": ["hello"]}, at("one", user_id="u1"))
    found = _known(saver, "one")
    assert (found.id, found.state, found.status, found.tags) == ("one", "active", "done", ())
    assert found.metadata == {"user_id": "u1"}
    assert before - timedelta(seconds=1) <= found.created_at <= found.updated_at
    assert found.updated_at <= datetime.now(UTC) + timedelta(seconds=1)
    assert saver.threads.get("other") is None


def test_bytes_are_what_rows_and_segments_hold(saver: Any) -> None:
    graph = _chat(saver)
    for turn in range(60):  # enough for segments to be sealed
        graph.invoke({"said": [f"hello {turn} " + "x" * 300]}, at("one"))
    found = _known(saver, "one").bytes
    assert found == bytes_held(saver, "one")
    saver.prune(["one"])
    assert _known(saver, "one").bytes == bytes_held(saver, "one") < found / 2


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_an_interrupt_waits_and_an_answer_goes_on(saver: Any, durability: str) -> None:
    graph = _chat(saver)
    graph.invoke({"said": ["well?"]}, at("one"), durability=durability)
    found = _known(saver, "one")
    head = graph.get_state(at("one")).config["configurable"]["checkpoint_id"]
    assert (found.state, found.status, found.status_checkpoint) == ("active", "waiting", head)
    assert [t.id for t in saver.threads.search(status="waiting").threads] == ["one"]
    graph.invoke(Command(resume="then this"), at("one"), durability=durability)
    found = _known(saver, "one")
    assert (found.state, found.status, found.status_checkpoint) == ("active", "done", None)
    assert saver.threads.count(status="waiting") == 0


def _asking(saver: Any) -> Any:
    """Two tasks that ask at once; the one whose answer is "no" fails the first time."""
    failed = []

    def ask(state: Any) -> Any:
        answer = interrupt(state["said"][0])
        if answer == "no" and not failed:
            failed.append(answer)
            raise ValueError("once")
        return {"said": [answer]}

    graph = StateGraph(Chat)
    graph.add_node("ask", ask)
    asked = [Send("ask", {"said": [text]}) for text in ("this?", "that?")]
    graph.add_conditional_edges(START, lambda _: asked)
    return graph.compile(checkpointer=saver)


def head(saver: Any) -> str:
    return str(saver.get_tuple(at("one")).checkpoint["id"])


def test_waiting_means_what_langgraph_means(saver: Any) -> None:
    """The registry, the tree and the graph's state agree at every moment."""
    graph, config = _asking(saver), at("one")

    def waiting() -> int:
        state = graph.get_state(config)
        found, status = state.interrupts, expected(state)
        tree = saver.threads.branches("one")
        assert bool(tree.checkpoints[tree.head].waiting) is bool(found)
        assert _known(saver, "one").status == status
        assert sum(len(one.waiting) for one in tree.checkpoints.values()) == len(found)
        rows = saver._store.run(fetch(ReadThread("one")))
        event = thread_summary.of_rows(rows.checkpoints, (), 0).event
        assert event == thread_summary.status_of(rows.checkpoints)
        assert (event.status or "done") == status
        return len(found)

    graph.invoke({"said": ["well?"]}, config)
    assert (waiting(), _status(saver)) == (2, ("waiting", head(saver)))
    first, second = [one.id for one in graph.get_state(config).interrupts]
    graph.invoke(Command(resume={first: "yes"}), config)
    assert (waiting(), _status(saver)) == (1, ("waiting", head(saver)))
    with pytest.raises(ValueError, match="once"):
        graph.invoke(Command(resume={second: "no"}), config)
    # the task has the answer, and has not ended
    assert (waiting(), _status(saver)) == (1, ("failed", head(saver)))
    assert _known(saver, "one").failed_node == "ask"
    graph.invoke(None, config)
    assert (waiting(), _status(saver)) == (0, ("done", None))


def test_an_answer_to_one_does_not_end_what_others_wait_for(saver: Any) -> None:
    """In either order of their saves."""
    head = saver.put(place("one"), empty_checkpoint(), {}, {})
    saver.put_writes(head, [("__interrupt__", "this?")], "task 1")
    saver.put_writes(head, [("__interrupt__", "that?")], "task 2")
    saver.put_writes(head, [("said", "yes"), ("__resume__", ["yes"])], "task 1")
    assert _status(saver) == ("waiting", head["configurable"]["checkpoint_id"])


def test_an_update_of_a_waiting_thread_ends_its_question(saver: Any) -> None:
    graph = _chat(saver)
    graph.invoke({"said": ["well?"]}, at("one"))
    graph.update_state(at("one"), {"said": ["never mind"]}, as_node="ask")
    assert graph.get_state(at("one")).next == ()
    assert _status(saver) == ("done", None)


def test_a_created_thread_is_active_once_something_is_saved(saver: Any) -> None:
    created = saver.threads.create("one", metadata={"user_id": "u1"}, tags=["new"], ttl=60)
    assert (created.state, created.ttl, created.bytes) == ("created", timedelta(seconds=60), 0)
    assert saver.get_tuple(at("one")) is None
    _chat(saver).invoke({"said": ["hello"]}, at("one", plan="pro"))
    found = _known(saver, "one")
    assert found.state == "active"
    assert found.metadata == {"user_id": "u1", "plan": "pro"}
    assert (found.tags, found.ttl) == (("new",), timedelta(seconds=60))
    assert found.created_at == created.created_at
    with pytest.raises(ThreadExistsError, match="exist_ok"):
        saver.threads.create("one")
    assert saver.threads.create("one", tags=["ignored"], exist_ok=True) == found


def test_a_deleted_thread_says_so_until_it_is_used_again(saver: Any) -> None:
    graph = _chat(saver)
    graph.invoke({"said": ["well?"]}, at("one", user_id="u1"))
    saver.threads.tag("one", "urgent")
    saver.delete_thread("one")
    found = _known(saver, "one")
    assert (found.state, found.bytes, found.metadata, found.tags) == ("deleted", 0, {}, ())
    assert found.deleted_at == found.updated_at
    assert saver.threads.search().threads == ()
    assert [t.id for t in saver.threads.search(state="deleted").threads] == ["one"]
    assert saver.threads.count(metadata={"user_id": "u1"}) == 0
    for call in (saver.threads.tag, saver.threads.pin):
        with pytest.raises(ThreadNotFoundError):
            call("one")
    graph.invoke({"said": ["hello"]}, at("one", user_id="u2"))
    assert _known(saver, "one").state == "active"
    assert _known(saver, "one").metadata == {"user_id": "u2"}
    saver.delete_thread("one")
    assert saver.threads.create("one").state == "created"


def test_runs_say_who_they_are_for(saver: Any) -> None:
    """The last run's config counts, without LangGraph's keys and values that are not scalars."""
    graph = _chat(saver)
    metadata = {"user_id": "u1", "run_id": "r", "langgraph_x": 1, "deep": {"a": 1}, "n": 1.5}
    metadata |= {"thread_id": "one", "run_attempt": 1}
    graph.invoke({"said": ["hello"]}, {**at("one"), "metadata": metadata})
    assert _known(saver, "one").metadata == {"user_id": "u1", "n": 1.5}
    graph.invoke({"said": ["hello"]}, at("one", user_id="u2", long="x" * 2000))
    assert _known(saver, "one").metadata == {"user_id": "u2", "n": 1.5}


def test_an_agent_leaves_only_what_the_program_gives() -> None:
    with MemorySaver() as saver:
        model = GenericFakeChatModel(messages=iter([AIMessage("hello")]))
        agent = create_agent(model, name="support", checkpointer=saver)
        given = {"user_id": "u1", "lsid": 7}
        agent.invoke({"messages": [HumanMessage("hi")]}, {**at("one"), "metadata": given})
        kept = saver.get_tuple(at("one")).metadata
        assert {"ls_integration", "lc_agent_name"} <= kept.keys()  # (of the checkpoint)
        assert _known(saver, "one").metadata == given


def test_the_last_run_counts_whoever_says_it(another: Any) -> None:
    one, other = another(), another()
    for saver, user in ((one, "u1"), (other, "u2"), (one, "u1")):
        _chat(saver).invoke({"said": ["hello"]}, at("t", user_id=user))
        assert _known(one, "t").metadata == {"user_id": user}
    one.threads.update("t", metadata={"user_id": None})
    _chat(one).invoke({"said": ["hello"]}, at("t", user_id="u1"))
    assert _known(other, "t").metadata == {"user_id": "u1"}


# -- finding -------------------------------------------------------------------------


def test_a_page_is_a_sequence() -> None:
    with MemorySaver() as saver:
        for number in range(3):
            saver.threads.create(f"t{number}")
        page = saver.threads.search(order="thread")
        assert [thread.id for thread in page] == ["t0", "t1", "t2"]
        assert (len(page), page[-1].id, [one.id for one in page[:2]]) == (3, "t2", ["t0", "t1"])
        assert bool(page)
        assert not saver.threads.search(tags=["none"])


def test_pages_by_cursor(saver: Any) -> None:
    for number in range(7):
        saver.threads.create(f"t{number}", metadata={"even": number % 2 == 0})
    for order in ("thread", "-thread", "created_at", "-updated_at", "bytes"):
        names, cursor = [], None
        while True:
            page = saver.threads.search(order=order, limit=3, cursor=cursor)
            names += [thread.id for thread in page]
            cursor = page.cursor
            if cursor is None:
                break
        assert len(names) == 7
        assert len(set(names)) == 7
        if order.endswith("thread"):
            assert names == sorted(names, reverse=order.startswith("-"))
    assert [t.id for t in saver.threads.scan(metadata={"even": True})] == ["t0", "t2", "t4", "t6"]
    assert saver.threads.count(metadata={"even": False}) == 3


def test_ids_by_their_beginning(saver: Any) -> None:
    every = ["order-1", "order-1é", "order-2", "order_1", "Order-1", "ordé", "o"]
    for name in every:
        saver.threads.create(name)
    for prefix in ("", "o", "order-", "order-1", "ordé", "x", "ORDER", "order-2 "):
        want = sorted(name for name in every if name.startswith(prefix))
        for order in ("thread", "-updated_at", "bytes"):
            page = saver.threads.search(id_prefix=prefix, order=order)
            assert sorted(thread.id for thread in page) == want, (prefix, order)
        assert saver.threads.count(id_prefix=prefix) == len(want)
    page = saver.threads.search(id_prefix="order-", order="thread", limit=2)
    rest = saver.threads.search(id_prefix="order-", order="thread", limit=2, cursor=page.cursor)
    assert len({t.id for t in (*page, *rest)}) == 3


def test_times_are_moments_or_how_long_ago(saver: Any) -> None:
    saver.threads.create("one")
    now = datetime.now(UTC)
    assert saver.threads.count(created_after=timedelta(minutes=1)) == 1
    assert saver.threads.count(created_before=timedelta(minutes=1)) == 0
    assert saver.threads.count(updated_after=now + timedelta(minutes=1)) == 0
    assert saver.threads.count(updated_before=now + timedelta(minutes=1)) == 1


def test_metadata_and_tags_change(saver: Any) -> None:
    saver.threads.create("one", metadata={"a": 1, "b": [1, {"c": None}]})
    saver.threads.tag("one", "x", "y", "x")
    found = saver.threads.untag("one", "y", "never there")
    assert found.tags == ("x",)
    found = saver.threads.update("one", metadata={"a": None, "d": "ä"}, ttl=timedelta(hours=1))
    assert found.metadata == {"b": [1, {"c": None}], "d": "ä"}
    assert found.ttl == timedelta(hours=1)
    assert saver.threads.update("one", ttl=0).ttl is None
    assert saver.threads.pin("one").pinned
    assert [t.id for t in saver.threads.search(pinned=True, tags=["x"]).threads] == ["one"]
    assert not saver.threads.unpin("one").pinned
    assert saver.threads.count(metadata={"b": [1, {"c": None}]}) == 1
    assert saver.threads.count(metadata={"a": 1}) == 0


def test_changes_at_the_same_time_are_all_kept(another: Any) -> None:
    one, other = another(), another()
    one.threads.create("t")
    one.threads.tag("t", "mine")
    other.threads.tag("t", "yours")
    _chat(one).invoke({"said": ["hello"]}, at("t", user_id="u1"))
    assert other.threads.update("t", metadata={"plan": "pro"}).tags == ("mine", "yours")
    assert _known(one, "t").metadata == {"plan": "pro", "user_id": "u1"}


async def test_awaited_changes_at_the_same_time(saver: Any) -> None:
    await saver.threads.acreate("one")
    await asyncio.gather(*(saver.threads.atag("one", f"tag {n}") for n in range(4)))
    assert len((await saver.threads.aget("one")).tags) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "asleep"),
        ("metadata", ["user"]),
        ("metadata", {"a": float("nan")}),
        ("metadata", {"a": object()}),
        ("metadata", {"a": {1: 2}}),
        ("metadata", {"a": "\0"}),
        ("metadata", {"a": "x" * 2000}),
        ("metadata", {"a": "\ud800"}),
        ("tags", "one"),
        ("tags", [""]),
        ("tags", [3]),
        ("updated_after", "yesterday"),
        ("created_before", datetime(2026, 1, 1)),  # noqa: DTZ001 - without a time zone
        ("state", "suspended"),
        ("state", 1),
        ("status", "asleep"),
        ("status", "active"),
        ("status", ["waiting", None]),
        ("status", True),
        ("failed_node", 7),
        ("failed_node", "\ud800"),
        ("has_interrupt", True),
        ("older_than", -1),
        ("older_than", "1h"),
        ("pinned", "yes"),
        ("min_bytes", -1),
        ("min_bytes", 1.5),
        ("forked_from", True),
        ("id_prefix", 7),
        ("id_prefix", "\ud800"),
        ("order", "size"),
        ("limit", 0),
        ("limit", 1001),
        ("limit", None),
        ("cursor", "!"),
        ("cursor", "WyIteCIsMSwiYSJd"),
        ("cursor", 7),
    ],
)
def test_wrong_searches_are_refused(ours: Any, name: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        ours.threads.search(**{name: value})
    assert refused.value.hint


def test_wrong_threads_are_refused(ours: Any) -> None:
    for ttl in (-1, 0, True, "1h", timedelta(0), float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentError, match="ttl"):
            ours.threads.create("one", ttl=ttl)
    with pytest.raises(InvalidArgumentError, match="thread"):
        ours.threads.create(True)
    with pytest.raises(InvalidArgumentError, match="at most 200"):
        ours.threads.create("one", tags=[f"tag {n}" for n in range(201)])
    assert ours.threads.get("one") is None
    with pytest.raises(ThreadNotFoundError):
        ours.threads.update("one", metadata={"a": 1})
