"""The cost of a call: round trips, encoded values, stored elements."""

import copy
import gc
import weakref
from typing import Annotated

import pytest
from kit.engine import (
    Chain,
    Counted,
    Steps,
    checkpoint,
    config,
    counted_saver,
    elements_stored,
    exactly,
    fresh,
    get_operation,
    run_config,
    values_of,
)
from kit.graphs import linear
from kit.values import Plain
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph.message import add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict

from threadkeep._core.engine import refs, rows
from threadkeep.errors import UnserializableError
from threadkeep.savers.saver import Saver

LONG = "x" * 90


@pytest.fixture
def made():
    return counted_saver()


def messages(count, start=0):
    return [HumanMessage(f"{i} {LONG}", id=str(i)) for i in range(start, start + count)]


def loaded_run(saver, value, channel="m"):
    """A thread with one checkpoint, and the config of a run that has just loaded it."""
    saver.put(config(), checkpoint(1, {channel: value}, {channel: 1}), {}, {})
    return saver.get_tuple(run_config())


# -- round trips -----------------------------------------------------------------------


def test_get_of_nothing_is_one_fetch(made):
    saver, backend, _ = made
    assert saver.get_tuple(config()) is None
    assert backend.asked() == (1, 0)


def test_get_of_a_head_that_the_process_knows_is_one_fetch(made):
    saver, backend, codec = made
    found = loaded_run(saver, messages(50))
    saver.put(found.config, checkpoint(2, {"m": messages(51)}, {"m": 2}), {}, {})
    del found
    backend.asked()
    codec.decoded = 0
    saver.get_tuple(run_config())
    assert backend.asked() == (1, 0)
    assert codec.decoded == 0


@pytest.mark.parametrize("at", [config(), run_config()])
def test_cold_get_is_two_fetches(made, at):
    saver, backend, _ = made
    chain = Chain(saver)
    for i in range(70):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"], n=i, d={str(i): LONG})
    saver.put_writes(chain.at, [("m", messages(3))], "task")
    backend.asked()
    assert fresh(saver).get_tuple(at).pending_writes
    assert backend.asked() == (2, 0)


def test_put_in_a_run_is_one_commit(made):
    saver, backend, _ = made
    at, value = loaded_run(saver, messages(50)).config, messages(50)
    backend.asked()
    for i in range(2, 300):
        value = [*value, *messages(1, i + 100)]
        at = saver.put(at, checkpoint(i, {"m": value}, {"m": i}), {"step": i}, {})
        assert backend.asked() == (0, 1)


def test_first_put_of_a_thread_is_one_commit(made):
    saver, backend, _ = made
    saver.get_tuple(run_config())
    backend.asked()
    saver.put(config(), checkpoint(1, {"m": messages(3)}, {"m": 1}), {}, {})
    assert backend.asked() == (0, 1)


@pytest.mark.parametrize("known", [True, False])
def test_put_writes_is_one_commit(made, known):
    """After a fetch if the thread is new to this process, as it may be archived."""
    saver, backend, _ = made
    at = loaded_run(saver, messages(50)).config
    writer = saver if known else fresh(saver)
    backend.asked()
    writer.put_writes(at, [("m", messages(2, 100)), ("n", 1)], "task")
    assert backend.asked() == (0 if known else 1, 1)


def test_put_on_an_unknown_parent_is_two_fetches_and_a_commit(made):
    saver, backend, _ = made
    at = loaded_run(saver, messages(50)).config
    other = fresh(saver)
    backend.asked()
    other.put(at, checkpoint(2, {"m": [*messages(50), *messages(1, 100)]}, {"m": 2}), {}, {})
    assert backend.asked() == (2, 1)


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_what_was_read_outside_of_runs_is_known_to_the_put_after_it(made, known):
    """As `update_state` does it."""
    saver, backend, codec = made
    loaded_run(saver, messages(50))
    other = saver if known else fresh(saver)
    other._engine = other._engine._replace(codec=codec)
    found = other.get_tuple(config())
    backend.asked()
    codec.encoded.clear()
    values = found.checkpoint["channel_values"]["m"]
    values[7].content = "changed"
    codec.decoded = 0
    at = other.put(
        found.config, checkpoint(2, {"m": [*values, *messages(1, 100)]}, {"m": 2}), {}, {}
    )
    assert backend.asked() == (0, 1)
    assert ({one.id for one in codec.encoded}, codec.decoded) == ({"7", "100"}, 0)
    assert exactly(values_of(saver, at)["m"]) == exactly([*values, *messages(1, 100)])


def test_a_run_is_not_lent_what_a_reader_holds(made):
    saver, _, _ = made
    loaded_run(saver, messages(3))
    held = [one.get_tuple(config()).checkpoint["channel_values"] for one in (saver, fresh(saver))]
    lent = saver.get_tuple(run_config()).checkpoint["channel_values"]["m"]
    assert not {*map(id, lent)} & {id(one) for values in held for one in values["m"]}


def test_a_run_is_not_lent_what_another_reader_holds_after_a_put(made):
    """As of `get_state`, beside an `update_state`."""
    loaded_run(made[0], messages(3))
    saver = fresh(made[0])
    found = saver.get_tuple(config())
    held = saver.get_tuple(config()).checkpoint["channel_values"]["m"]
    values = {**found.checkpoint["channel_values"], "n": 1}
    saver.put(found.config, checkpoint(2, values, {"m": 1, "n": 1}), {}, {})
    del found, values
    lent = saver.get_tuple(run_config()).checkpoint["channel_values"]["m"]
    assert not {*map(id, lent)} & {*map(id, held)}


def held_by(found):
    return {id(one) for one in found.checkpoint["channel_values"]["m"]}


def test_runs_under_way_share_nothing_after_a_put_of_one(made):
    saver, _, _ = made
    first = loaded_run(saver, messages(3))
    second = saver.get_tuple(run_config())
    values = {**first.checkpoint["channel_values"], "n": 1}
    saver.put(first.config, checkpoint(2, values, {"m": 1, "n": 1}), {}, {})
    del first, values
    for i in range(3, 9):  # (the second run's own checkpoint is forgotten meanwhile)
        at = config(checkpoint_id=f"{i - 1:08d}")
        saver.put(at, checkpoint(i, {"m": messages(1)}, {"m": 1, "n": i}), {}, {})
        third = saver.get_tuple(run_config())
        assert not held_by(third) & held_by(second)
        del third


def test_a_run_that_continues_on_what_another_has_loaded_shares_nothing(made):
    saver, _, _ = made
    loaded_run(saver, messages(3))
    begins = run_config()
    first = saver.get_tuple(begins)
    at, values = first.config, first.checkpoint["channel_values"]["m"]
    for i in range(2, 10):  # (its first checkpoint is forgotten meanwhile)
        values = [*values, *messages(1, i + 5)]
        at = {"configurable": {**begins["configurable"], **at["configurable"]}}
        at = saver.put(at, checkpoint(i, {"m": values}, {"m": i}), {}, {})
        other = saver.get_tuple(run_config())
        assert not held_by(other) & held_by(first)
        del other


def test_runs_that_begin_at_the_same_time_share_nothing(made):
    saver, backend, _ = made
    loaded_run(saver, messages(3))
    at = config(checkpoint_id="00000001")
    fresh(saver).put(at, checkpoint(2, {"m": messages(4)}, {"m": 2}), {}, {})
    begun = [Steps(get_operation(saver, run_config()), backend) for _ in range(2)]
    for steps in begun:
        steps.step()
    one, other = [steps.finish() for steps in begun]
    assert not held_by(one) & held_by(other)


def test_a_run_of_an_older_checkpoint_shares_nothing_with_one_under_way(made):
    saver, _, _ = made
    found = loaded_run(saver, messages(3))
    values = {**found.checkpoint["channel_values"], "n": 1}
    saver.put(found.config, checkpoint(2, values, {"m": 1, "n": 1}), {}, {})
    del found, values
    newest = saver.get_tuple(run_config())
    at = run_config()
    at["configurable"]["checkpoint_id"] = "00000001"
    assert not held_by(saver.get_tuple(at)) & held_by(newest)


def test_a_page_of_a_list_is_two_fetches(made):
    saver, backend, _ = made
    chain = Chain(saver)
    for i in range(32):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"], n=i)
    backend.asked()
    assert len(list(saver.list(config(), limit=20))) == 20
    assert backend.asked() == (2, 0)
    pages = list(saver.list(config()))
    assert len(pages) == 32
    assert backend.asked()[0] <= 4


def test_a_list_decodes_each_element_once_for_a_page(made):
    saver, _, codec = made
    chain = Chain(saver)
    for i in range(30):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"])
    codec.decoded = 0
    assert len(list(saver.list(config(), limit=30))) == 30
    assert codec.decoded <= 31


def test_housekeeping(made):
    saver, backend, _ = made
    chain = Chain(saver)
    for i in range(5):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"])
    backend.asked()
    saver.prune(["t"])
    assert backend.asked() == (1, 1)
    saver.copy_thread("t", "copy")
    assert backend.asked() == (3, 1)  # (the comparison of the front, and the copy)
    saver.delete_thread("t")
    assert backend.asked() == (1, 1)


def tall(saver, count, metadata):
    """A path of checkpoints of two runs, each with a write; none has a value of channel d."""
    at = config()
    for i in range(count):
        versions = {"n": i + 1, "d": i + 1, "empty": 1}
        told = {"run_id": f"{i % 2}", **metadata}
        at = saver.put(at, checkpoint(i, {"n": i}, versions), told, versions)
        saver.put_writes(at, [("n", i), ("d", i)], "task")


@pytest.mark.parametrize("counters", [{}, {"counters_since_delta_snapshot": {"d": (1, 1)}}])
@pytest.mark.parametrize("call", ["prune", "delete_for_runs"])
def test_housekeeping_decodes_each_row_once(made, monkeypatch, call, counters):
    saver, _, _ = made
    count = 60
    tall(saver, count, counters)
    decoded = {"manifest": 0, "writes": 0}

    def counting(name, function):
        def wrapped(*given):
            decoded[name] += 1
            return function(*given)

        return wrapped

    monkeypatch.setattr(refs, "decode_manifest", counting("manifest", refs.decode_manifest))
    monkeypatch.setattr(rows, "unpack_writes", counting("writes", rows.unpack_writes))
    getattr(saver, call)({"prune": ["t"], "delete_for_runs": ["0"]}[call])
    assert decoded["manifest"] <= 2 * count  # each with its keyframe
    assert decoded["writes"] <= count


def test_housekeeping_decodes_what_it_keeps_where_no_channel_is_empty(made, monkeypatch):
    saver, _, _ = made
    chain = Chain(saver)
    for i in range(60):
        chain.put(n=i)
    decoded = []
    whole = refs.decode_manifest
    monkeypatch.setattr(refs, "decode_manifest", lambda *given: decoded.append(1) or whole(*given))
    saver.prune(["t"])
    assert len(decoded) == 2


# -- encodings -------------------------------------------------------------------------


def test_a_message_appended_to_a_thousand_is_the_only_one_encoded(made):
    saver, _, codec = made
    value = messages(1000)
    found = loaded_run(saver, value)
    value = found.checkpoint["channel_values"]["m"]
    codec.encoded.clear()
    new = AIMessage(LONG, id="new")
    saver.put(found.config, checkpoint(2, {"m": [*value, new]}, {"m": 2}), {"step": 2}, {})
    assert codec.encoded == [new]


@pytest.mark.parametrize(("count", "size"), [(2, 90), (8, 300_000)])
@pytest.mark.parametrize("first", ["write", "put"])
def test_messages_that_are_written_and_put_are_encoded_once(made, first, count, size):
    saver, _, codec = made
    found = loaded_run(saver, messages(20))
    value = found.checkpoint["channel_values"]["m"]
    new = [AIMessage("x" * size, id=f"new-{n}") for n in range(count)]
    calls = {
        "write": lambda: saver.put_writes(found.config, [("m", list(new))], "task"),
        "put": lambda: saver.put(
            found.config, checkpoint(2, {"m": [*value, *new]}, {"m": 2}), {}, {}
        ),
    }
    calls.pop(first)()
    codec.encoded.clear()
    calls.popitem()[1]()
    assert codec.encoded == []


def test_a_put_that_failed_holds_nothing(made):
    saver, _, codec = made
    found = loaded_run(saver, messages(20))
    value = found.checkpoint["channel_values"]["m"]
    big = AIMessage("x" * 100_000, id="big")
    gone = weakref.ref(big)
    with pytest.raises(UnserializableError):
        saver.put(found.config, checkpoint(2, {"m": [*value, big, object()]}, {"m": 2}), {}, {})
    del big
    codec.encoded.clear()
    gc.collect()
    assert gone() is None


def test_a_dict_that_only_loses_keys_is_remembered_once(made):
    saver, _, _ = made
    value = {f"key {n}": [LONG, n] for n in range(20)}
    found = loaded_run(saver, value)
    at, known = found.config, saver._engine.memory("t").recent.values
    for n in range(2, 10):
        del value[f"key {n}"]
        at = saver.put(at, checkpoint(n, {"m": dict(value)}, {"m": n}), {}, {})
    assert len(known) <= 10


def test_a_large_text_in_a_write_before_its_checkpoint_is_a_patch(made):
    saver, _, _ = made
    text = "".join(f"line {n}\n" for n in range(20_000))
    found = loaded_run(saver, text)
    soon = {"configurable": {**found.config["configurable"], "checkpoint_id": "00000002"}}
    before = saver.stats().by_thread[0].bytes
    edited = text.replace("line 777\n", "line seven\n")
    saver.put_writes(soon, [("m", edited)], "task")
    assert saver.stats().by_thread[0].bytes - before < 200
    saver.put(found.config, checkpoint(2, {"m": text}, {"m": 1}), {}, {})
    assert saver.get_tuple(soon).pending_writes == [("task", "m", edited)]


def test_a_changed_write_is_encoded_again(made):
    saver, _, codec = made
    found = loaded_run(saver, messages(20))
    value = found.checkpoint["channel_values"]["m"]
    new = AIMessage(LONG, id="new")
    saver.put_writes(found.config, [("m", [new])], "task")
    codec.encoded.clear()
    new.content = "other"
    at = saver.put(found.config, checkpoint(2, {"m": [*value, new]}, {"m": 2}), {}, {})
    assert codec.encoded == [new]
    assert values_of(fresh(saver), at)["m"][-1].content == "other"


def test_nothing_is_encoded_for_channels_that_keep_their_version(made):
    saver, _, codec = made
    found = loaded_run(saver, messages(100))
    values = found.checkpoint["channel_values"]
    codec.encoded.clear()
    saver.put(found.config, checkpoint(2, values, {"m": 1}), {"step": 2}, {})
    assert codec.encoded == []


@pytest.mark.parametrize("warm", [True, False])
def test_a_run_that_was_lent_its_values_encodes_only_what_is_new(made, warm):
    saver, _, codec = made
    loaded_run(saver, messages(100))
    if warm:
        saver.get_tuple(run_config())
    found = saver.get_tuple(run_config())
    value = found.checkpoint["channel_values"]["m"]
    codec.encoded.clear()
    new = AIMessage(LONG, id="new")
    saver.put(found.config, checkpoint(2, {"m": [*value, new]}, {"m": 2}), {}, {})
    assert codec.encoded == [new]


class Item(BaseModel):
    name: str
    tags: dict[str, list[int]]


class State(BaseModel):
    """Validation creates new lists and dicts at every step."""

    items: list[Item]
    notes: list[dict[str, str]]
    log: dict[str, dict[str, str]]


@pytest.mark.parametrize(
    "rebuild", [copy.deepcopy, lambda state: State.model_validate(state.model_dump())]
)
def test_a_state_rebuilt_at_every_step_encodes_only_what_is_new(made, rebuild):
    saver, _, codec = made
    state = State(
        items=[Item(name=f"{i} {LONG}", tags={"t": [i]}) for i in range(50)],
        notes=[{"text": f"{i} {LONG}"} for i in range(50)],
        log={str(i): {"text": LONG} for i in range(50)},
    )
    chain = Chain(saver)
    chain.put(items=state.items, notes=state.notes, log=state.log)
    for i in range(50, 55):
        state = rebuild(state)
        state.items.append(Item(name=f"{i} {LONG}", tags={}))
        state.notes.append({"text": f"{i} {LONG}"})
        state.log[str(i)] = {"text": LONG}
        codec.encoded.clear()
        chain.put(items=state.items, notes=state.notes, log=state.log)
        assert len(codec.encoded) == 3
        assert exactly(values_of(fresh(saver), chain.at)["items"]) == exactly(state.items)
    assert values_of(fresh(saver), chain.at)["log"] == state.log


def test_objects_inside_containers_that_are_rebuilt(made):
    saver, _, codec = made
    inner = [Plain(f"{i} {LONG}", {"n": [i]}) for i in range(50)]
    chain = Chain(saver)
    chain.put(m=[{"inner": one, "i": i} for i, one in enumerate(inner)])
    codec.encoded.clear()
    chain.put(m=[{"inner": one, "i": i} for i, one in enumerate(inner)])
    assert codec.encoded == []


# -- values stored once ----------------------------------------------------------------


class Chat(TypedDict):
    messages: Annotated[list, add_messages]


def chat_graph(saver, turns):
    def answer(state):
        number = len(state["messages"])
        return {"messages": [AIMessage(f"answer {number} {LONG}", id=f"a{number}")]}

    graph = linear(saver, Chat, answer=answer)
    at = {"configurable": {"thread_id": "t"}}
    for i in range(turns):
        graph.invoke(
            {"messages": [HumanMessage(f"{i} {LONG}" * 8, id=f"h{i}")]}, at, durability="sync"
        )
    return graph.get_state(at).values["messages"]


def test_every_message_of_a_chat_is_stored_once():
    backend = Counted()
    saver = Saver(backend)
    assert len(chat_graph(saver, 20)) == 40
    # Beside the messages there may be keyframes.
    assert 40 <= elements_stored(backend) <= 44
    assert fresh(saver).check().ok


def test_a_chat_turn_is_one_fetch_and_five_commits():
    backend = Counted()
    chat_graph(Saver(backend), 1)
    fetches, commits = backend.asked()
    assert commits == 5
    assert fetches <= 4  # one of the test itself, and one before the first change of a store


def test_no_garbage_is_looked_for_while_a_long_thread_is_read():
    saver, _, codec = counted_saver()
    chain = Chain(saver)
    chain.put(m=messages(2000))
    begun = []

    def note(phase, info):
        begun.extend([info["generation"]] * (phase == "start"))

    gc.collect()
    gc.callbacks.append(note)
    try:
        found = values_of(saver, chain.at)["m"]
    finally:
        gc.callbacks.remove(note)
    assert len(found) == 2000
    assert len(begun) <= 2  # one once it is allowed again
    assert gc.isenabled()
    assert codec.decoded
