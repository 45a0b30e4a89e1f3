"""The memory of a process is bounded, and dropped when it may be outdated."""

import gc
import threading
import tracemalloc

import pytest
from kit.engine import Chain, config, counted_saver, exactly, fresh, run_config, values_of
from langchain_core.messages import HumanMessage

from threadkeep import MemorySaver
from threadkeep._core.engine.model import HeadFence, ThreadState
from threadkeep._core.engine.snapshots import CheckpointSnapshot
from threadkeep._core.engine.thread_memory import ThreadMemory
from threadkeep._core.engine.tips import Link
from threadkeep._core.engine.working_set import WorkingSet
from threadkeep.errors import ThreadDeletedError

LONG = "x" * 90


def messages(count):
    return [HumanMessage(f"{i} {LONG}", id=str(i)) for i in range(count)]


def seen(memory, generation, **how):
    """The store's answer names this generation."""
    proof = memory.proof
    tips = set() if proof is None else proof.tips
    assert memory.reconcile(ThreadState(generation, 0), proof, tips, **how)


@pytest.fixture
def made():
    return counted_saver()


def test_a_commit_that_ends_while_a_read_is_noted_stays_proven(monkeypatch):
    """The read is older than the commit, and saw one of another process."""
    memory = ThreadMemory(threading.Lock, lambda _: 0)
    memory.reconcile(ThreadState(0, 0, tips=(1,)), None)
    proof = memory.proof
    before = frozenset(proof.tips)
    ours = Link(proof)
    ours.tie(3)
    monkeypatch.setattr(memory.logs, "follow", lambda _: ours.committed())
    memory.reconcile(ThreadState(0, 0, tips=(2, 1)), proof, before)
    assert 3 in proof.tips


# -- bounds ----------------------------------------------------------------------------


def test_the_last_64_runs_that_left_a_head_behind_are_remembered():
    memory = ThreadMemory(threading.Lock, lambda _: 0)
    seen(memory, 0)

    def publish(name, parent, *, begins):
        state = CheckpointSnapshot("", name, 0, None, None, {}, b"", None)
        return memory.publish(memory.proof, (), state, HeadFence("", parent), begins=begins)

    publish("base", None, begins=True)
    publish("head", "base", begins=True)
    for i in range(65):
        assert publish(f"first {i:02}", "base", begins=True) == "head"
    seen(memory, 1)  # (segments were removed)
    seen(memory, 0)
    publish("head", None, begins=True)
    for i in range(64, 0, -1):  # a continuing run takes no more memory
        assert publish(f"first {i:02}-next", f"first {i:02}", begins=False) is None
    assert publish("first 00-next", "first 00", begins=False) == "head"


def test_threads_are_forgotten_when_room_is_needed():
    saver, _, _ = counted_saver(working_set_bytes=400_000)
    chains = [Chain(saver, f"thread {i}") for i in range(50)]
    for chain in chains:
        chain.put(m=messages(40))
    kept = len(saver._engine.working_set)
    assert 1 <= kept < 40
    for chain in chains:
        assert exactly(values_of(saver, chain.at)["m"]) == exactly(messages(40))


def test_the_thread_used_last_is_kept():
    saver, backend, _ = counted_saver(working_set_bytes=100_000)
    chains = [Chain(saver, f"thread {i}") for i in range(20)]
    for chain in chains:
        chain.put(m=messages(40))
        backend.asked()
        chain.put(m=messages(41))
        assert backend.asked() == (0, 1)


def test_a_forgotten_thread_is_continued_at_the_first_attempt(made):
    saver, _, _ = made
    chain = Chain(saver)
    chain.put(m=[])
    for count in range(1, 8):
        saver._engine.working_set.forget("t")
        said = [*values_of(saver, chain.at)["m"], *messages(count)[-1:]]
        saver.put_writes(chain.at, [("m", said[-1])], f"task {count}")
        chain.put(m=said)
    assert saver.counters().retries == 0


def test_reading_many_threads_does_not_fill_the_memory():
    saver, _, _ = counted_saver(working_set_bytes=100_000)
    for i in range(2000):
        saver.get_tuple(config(f"absent {i}"))
    assert len(saver._engine.working_set) <= 30


def test_a_thread_of_large_values_is_weighed():
    saver, _, _ = counted_saver(working_set_bytes=1_000_000)
    for i in range(6):
        chain = Chain(saver, f"thread {i}")
        chain.put(doc="x" * 300_000)
        chain.put(doc="x" * 300_001)
    assert len(saver._engine.working_set) <= 2


def test_a_window_over_a_long_history_does_not_grow_heavy():
    saver, _, _ = counted_saver()
    chain = Chain(saver)
    for i in range(600):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"][-20:])
    memory = saver._engine.working_set.thread("t")
    assert memory.weight < 500_000


def test_the_limit_bounds_what_is_really_taken():
    limit = 8_000_000
    saver = MemorySaver(working_set_bytes=limit)
    backend = saver._store.backend
    tracemalloc.start()
    try:
        for thread in range(8):
            chain = Chain(saver, f"thread {thread}")
            for i in range(24):
                document = f"{thread} {i} " * 15_000
                saver.put_writes(chain.put(doc=document), [("doc", document + "x")], "task")
        taken, _ = tracemalloc.get_traced_memory()
        del chain, document, saver
        gc.collect()
        assert taken - tracemalloc.get_traced_memory()[0] <= 1.5 * limit
    finally:
        tracemalloc.stop()
    del backend


@pytest.mark.parametrize(
    "value",
    [
        lambda i: [HumanMessage(f"{i} {LONG}") for _ in range(20)],
        lambda i: [HumanMessage(f"{i} " * 1000) for _ in range(10)],
        lambda i: [f"{i} {n} {LONG}" for n in range(100)],
        lambda i: [*range(i * 10**6, i * 10**6 + 1000)],
        lambda i: f"{i} " * 20_000,
        lambda i: {f"key {n}": {"name": LONG, "tags": [str(n), i]} for n in range(100)},
    ],
    ids=["messages", "long messages", "texts", "numbers", "a text", "nested dicts"],
)
def test_the_weight_of_a_thread_is_about_its_memory(value):
    saver = MemorySaver()
    working_set = saver._engine.working_set
    tracemalloc.start()
    try:
        chain = Chain(saver)
        for i in range(8):
            new = value(i)
            chain.put(v=[*chain.values.get("v", []), *new] if isinstance(new, list) else new)
            saver.put_writes(chain.at, [("v", new)], "task")
        weight = working_set.thread("t").weight
        del chain, new
        before, _ = tracemalloc.get_traced_memory()
        working_set.forget("t")
        taken = before - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.5 <= weight / taken <= 2


def test_the_bytes_of_committed_segments_are_let_go():
    saver, _, _ = counted_saver()
    chain = Chain(saver)
    for i in range(20):
        saver.put_writes(chain.put(doc=[LONG, i]), [("doc", [LONG * 2, i])], "task")
    memory = saver._engine.working_set.thread("t")
    homes = [known.home for known in memory.recent.values.values()]
    assert homes
    assert all(home.committed and not home.segments for home in homes)


# -- remembered values are right -------------------------------------------------------


def test_lent_objects_are_lent_to_nobody_else(made):
    saver, _, _ = made
    Chain(saver).put(m=messages(5))
    first = saver.get_tuple(run_config())
    second = saver.get_tuple(run_config())
    reader = saver.get_tuple(config())
    found = [one.checkpoint["channel_values"]["m"] for one in (first, second, reader)]
    assert len({id(m) for value in found for m in value}) == 15
    found[0][0].content = "mine"
    assert [value[0].content for value in found[1:]] == [f"0 {LONG}"] * 2


def test_a_run_is_lent_what_the_last_one_left(made):
    saver, _, _ = made
    Chain(saver).put(m=messages(5))
    first = saver.get_tuple(run_config())
    ids = [id(m) for m in first.checkpoint["channel_values"]["m"]]
    keep = first.checkpoint["channel_values"]["m"]
    del first
    second = saver.get_tuple(run_config())
    assert [id(m) for m in second.checkpoint["channel_values"]["m"]] == ids
    assert second.checkpoint["channel_values"]["m"] is not keep


def test_changed_objects_are_not_lent(made):
    saver, _, _ = made
    Chain(saver).put(m=messages(5), d={"k": [1], "l": LONG}, s=[[1]])
    first = saver.get_tuple(run_config())
    values = first.checkpoint["channel_values"]
    values["m"][2].content = "changed by a reader"
    values["d"]["k"].append(2)
    values["s"][0].append(2)
    del first
    found = saver.get_tuple(run_config()).checkpoint["channel_values"]
    assert exactly(found["m"]) == exactly(messages(5))
    assert found["d"]["k"] == [1]
    assert found["s"] == [[1]]


def test_another_allowlist_decodes_again(made):
    saver, _, codec = made
    Chain(saver).put(m=messages(5))
    saver.get_tuple(run_config())
    clone = saver.with_allowlist([("tests", "Nothing")])
    codec.decoded = 0
    found = clone.get_tuple(run_config())
    assert exactly(found.checkpoint["channel_values"]["m"]) == exactly(messages(5))


@pytest.mark.parametrize("how", ["delete", "prune", "delete for runs"])
def test_another_process_removes_what_is_remembered(made, how):
    saver, _, _ = made
    chain = Chain(saver)
    chain.put(m=messages(5))
    old = chain.put(m=messages(6))
    chain.put(m=[])
    other = fresh(saver)
    match how:
        case "delete":
            other.delete_thread("t")
        case "prune":
            other.prune(["t"])
        case _:
            saver.put(chain.at, {**chain.arguments(n=1)[1]}, {"run_id": "r"}, {})
            other.delete_for_runs(["r"])
    chain.at = old
    if how == "delete":
        with pytest.raises(ThreadDeletedError):
            chain.put(m=messages(7))
        chain.at = config()
    chain.put(m=messages(7))
    assert exactly(values_of(fresh(saver), chain.at)["m"]) == exactly(messages(7))
    assert fresh(saver).check().ok


def test_a_deleted_thread_starts_afresh(made):
    saver, _, _ = made
    for _ in range(3):
        chain = Chain(saver)
        chain.put(m=messages(5))
        chain.put(m=messages(6))
        assert len(list(saver.list(config()))) == 2
        saver.delete_thread("t")
        assert saver.get_tuple(config()) is None
    assert fresh(saver).check().ok


# -- the working set alone -------------------------------------------------------------


def test_a_limit_smaller_than_one_thread():
    working_set = WorkingSet(1, threading.RLock, lambda bits: 5)
    for name in "abc":
        working_set.thread(name)
        working_set.note_use(name, working_set.thread(name))
    assert len(working_set) == 1
    working_set.forget("c")
    working_set.forget("c")
    assert len(working_set) == 0


def test_idle_threads_take_an_eighth_of_the_limit():
    working_set = WorkingSet(80 * 4096, threading.RLock, lambda bits: 5)

    def use(*numbers):
        for number in numbers:
            working_set.note_use(f"{number}", working_set.thread(f"{number}"))

    use(*range(70))
    for _ in range(3):
        use(*range(70))
    assert len(working_set) == 70  # all of them are used in turn
    for _ in range(10):
        use(*range(20))
    kept = [working_set.thread(f"{number}") for number in range(20)]
    for _ in range(10):
        use(*range(20))
    assert [working_set.thread(f"{number}") for number in range(20)] == kept
    assert len(working_set) == 20
    for _ in range(80):
        use(0, 1)
    assert len(working_set) == 10
    use(*range(100, 200))
    assert len(working_set) == 80


def test_of_a_long_list_only_the_last_version_is_known():
    saver, _, _ = counted_saver()
    chain = Chain(saver)
    said = [f"{count} {LONG}" for count in range(60)]
    for count in range(60, 90):
        said = [*said, f"{count} {LONG}"]
        chain.put(m=said)
        saver.put_writes(chain.at, [("short", [count])], f"task {count}")
    recent = saver._engine.working_set.thread("t").recent
    assert [known.value for known in recent.values.values() if known.is_long] == [said]


def test_log_numbers_and_positions():
    memory = WorkingSet(10**9, threading.RLock, lambda bits: 2**bits - 1).thread("t")
    seen(memory, 0, is_new=True)
    assert memory.logs.reserve("", "a", 3) == (1, 0)
    assert memory.logs.reserve("", "a", 2) == (1, 3)
    assert memory.logs.reserve("", "b", 1) == (2, 0)
    assert memory.logs.reserve("child", "a", 1) == (2**31 - 1, 0)
    memory.logs.start("", "a")
    assert memory.logs.reserve("", "a", 1) == (3, 0)
    memory.logs.resume("", "c", 9, 20)
    assert memory.logs.reserve("", "c", 1) == (9, 20)
    memory.logs.resume("", "c", 9, 5)
    assert memory.logs.reserve("", "c", 1) == (9, 21)
    assert memory.logs.reserve("", "d", 1) == (10, 0)
    seen(memory, 1)
    assert memory.logs.reserve("", "a", 1)[1] == 0


def test_logs_of_the_last_64_subgraphs_stay_open():
    numbers = iter(range(10**6))
    logs = WorkingSet(10**9, threading.RLock, lambda _: next(numbers)).thread("t").logs
    root = logs.reserve("", "a", 1)[0]
    first = logs.reserve("sub:0", "a", 1)[0]
    for number in range(1, 500):
        logs.reserve(f"sub:{number}", "a", 1)
    assert logs.reserve("sub:499", "a", 1)[1] == 1
    assert logs.reserve("", "a", 1) == (root, 1)
    assert logs.reserve("sub:0", "a", 1)[0] != first
    assert len(logs._logs) == len(logs._by_number) == 65


def test_many_threads_reserve_at_once():
    memory = WorkingSet(10**9, threading.RLock, lambda bits: 7).thread("t")
    seen(memory, 0)
    found = []

    def work():
        found.extend((*memory.logs.reserve("", "a", 1 + i % 3), 1 + i % 3) for i in range(300))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    taken = [pos for _, start, count in found for pos in range(start, start + count)]
    assert sorted(taken) == list(range(len(taken)))
