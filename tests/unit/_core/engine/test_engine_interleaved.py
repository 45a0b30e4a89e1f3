"""Operations of several threads and processes that interleave between requests."""

from pathlib import Path

import pytest
from kit.engine import (
    Chain,
    Steps,
    checkpoint,
    config,
    exactly,
    fresh,
    get_operation,
    memory_saver,
    put_operation,
    run_config,
    until_commit,
    values_of,
)
from kit.put_back import copy_rows
from langchain_core.messages import HumanMessage

from threadkeep._core import arguments
from threadkeep._core.engine import logs
from threadkeep._core.engine import put as write
from threadkeep.threads.retention import apply as housekeeping

LONG = "x" * 90
BIG = 400_000


@pytest.fixture
def saver():
    return memory_saver()


def putting(saver, at, number, values, versions=None):
    versions = versions or dict.fromkeys(values, number)
    return Steps(
        put_operation(saver, at, checkpoint(number, values, versions), {"step": number}, {}),
        saver._store.backend,
    )


def writing(saver, at, writes, task="task"):
    call = arguments.put_writes(at, writes, task, "")
    return Steps(write.save(saver._engine, call), saver._store.backend)


def pruning(saver, thread="t"):
    return Steps(housekeeping.prune(saver._engine, [thread], "keep_latest"), saver._store.backend)


def sound(saver):
    report = fresh(saver).check()
    assert report.ok, report.findings
    return True


def texts(count, start=0):
    return [f"{i} {LONG}" for i in range(start, start + count)]


# -- a put beside the writes that it absorbs -------------------------------------------


def test_put_does_not_depend_on_a_write_that_never_commits(saver):
    at = saver.put(config(), checkpoint(1, {"n": 0}, {"n": 1}), {}, {})
    value = [HumanMessage("x" * BIG, id=str(i)) for i in range(3)]
    waiting = writing(saver, at, [("m", value)])
    after = putting(saver, at, 2, {"n": 0, "m": value}).finish()
    waiting.close()
    assert exactly(values_of(fresh(saver), after)["m"]) == exactly(value)
    assert sound(saver)


def test_put_of_a_list_that_a_write_made_longer(saver):
    old = texts(30)
    at = saver.put(config(), checkpoint(1, {"m": old}, {"m": 1}), {}, {})
    value = [*old, LONG]
    waiting = writing(saver, at, [("m", value)])
    after = putting(saver, at, 2, {"m": value}).finish()
    waiting.close()
    assert values_of(fresh(saver), after) == {"m": value}
    assert sound(saver)


def test_put_after_two_writes_of_which_one_borrows_from_the_other(saver):
    at = saver.put(config(), checkpoint(1, {"n": 0}, {"n": 1}), {}, {})
    message = HumanMessage(LONG, id="1")
    first = writing(saver, at, [("m", [message])], "one")
    both = [message, HumanMessage(LONG, id="2")]
    second = writing(saver, at, [("m", both)], "two")
    after = putting(saver, at, 2, {"n": 0, "m": both}).finish()
    first.close()
    second.close()
    assert exactly(values_of(fresh(saver), after)["m"]) == exactly(both)
    assert sound(saver)


def test_writes_commit_after_the_put_that_carried_them(saver):
    at = saver.put(config(), checkpoint(1, {"n": 0}, {"n": 1}), {}, {})
    value = [HumanMessage(LONG, id="1"), {"k": LONG}]
    waiting = writing(saver, at, [("m", value)])
    after = putting(saver, at, 2, {"n": 0, "m": value}).finish()
    waiting.finish()
    again = fresh(saver).get_tuple(at)
    assert exactly(again.pending_writes) == exactly([("task", "m", value)])
    assert exactly(values_of(fresh(saver), after)["m"]) == exactly(value)
    assert sound(saver)


# -- two processes on one store --------------------------------------------------------


def test_a_put_that_seals_what_others_stored_keeps_its_own_writes(saver):
    """Both processes have used one position of a log that is worth sealing."""
    at, theirs = config(), fresh(saver)
    for count in range(1, logs.SEAL_EARLY + 1):
        worker = saver if count < 5 else theirs
        at = worker.put(at, checkpoint(count, {"m": texts(count)}, {"m": count}), {}, {})
    at = saver.get_tuple(run_config()).config
    value = [*texts(logs.SEAL_EARLY), LONG]
    waiting = writing(saver, at, [("m", [LONG])])
    put = until_commit(putting(saver, at, 99, {"m": value}))
    waiting.finish()
    after = put.finish()
    assert values_of(fresh(saver), after) == {"m": value}
    assert fresh(saver).get_tuple(at).pending_writes == [("task", "m", [LONG])]
    assert sound(saver)


# -- segments that are removed meanwhile -----------------------------------------------


def pruned_chain(saver):
    """Two checkpoints; the older one holds values that the newer one lacks."""
    chain = Chain(saver)
    first = chain.put(m=texts(30), other=texts(20, 100))
    chain.put(m=texts(30, 500), other=texts(20, 600))
    return first, chain.at


def test_prune_between_the_reads_of_a_put(saver):
    first, _ = pruned_chain(saver)
    mine = fresh(saver)  # remembers nothing: its put reads the parent, then the parent's values
    put = putting(mine, first, 3, {"m": [*texts(30), LONG]}, {"m": 9, "other": 1})
    put.step()
    pruning(saver).finish()
    mine.get_tuple(config())  # another thread of this process sees the new generation
    after = put.finish()
    assert sound(saver)
    assert values_of(fresh(saver), after)["m"] == [*texts(30), LONG]


def test_a_put_that_was_overtaken_by_a_prune_is_built_anew(saver):
    first, _ = pruned_chain(saver)
    mine = fresh(saver)
    put = putting(mine, first, 3, {"m": [*texts(30), LONG]}, {"m": 9, "other": 1})
    put.step()
    answer = put.carry_out()  # the parent's values, read in time
    pruning(saver).finish()
    mine.get_tuple(config())
    put._send(lambda: put._operation.send(answer))
    after = put.finish()
    assert sound(saver)
    assert values_of(fresh(saver), after)["m"] == [*texts(30), LONG]


def test_prune_while_a_put_waits_for_its_commit(saver):
    first, _ = pruned_chain(saver)
    put = until_commit(putting(saver, first, 3, {"m": [*texts(30), LONG]}, {"m": 9, "other": 1}))
    other = fresh(saver)
    pruning(other).finish()
    saver.get_tuple(config())
    after = put.finish()
    assert values_of(fresh(saver), after)["m"] == [*texts(30), LONG]
    assert sound(saver)


def test_prune_between_the_reads_of_a_load(saver):
    _, last = pruned_chain(saver)
    mine = fresh(saver)
    load = Steps(get_operation(mine, run_config()), mine._store.backend)
    load.step()
    chain = Chain(saver, start=2)
    chain.at = last
    chain.put(m=texts(3))
    pruning(saver).finish()
    mine.get_tuple(config())
    found = load.finish()
    assert found is not None
    mine.put(found.config, checkpoint(9, {"m": [1]}, {"m": 9}), {}, {})
    assert sound(saver)


def test_a_load_that_was_overtaken_is_not_remembered_as_new(saver):
    first, _ = pruned_chain(saver)
    mine = fresh(saver)
    load = Steps(
        get_operation(mine, {"configurable": {**first["configurable"], "__pregel_runtime": 1}}),
        mine._store.backend,
    )
    load.step()  # the row
    answer = load.carry_out()  # the segments, read in time
    pruning(saver).finish()
    mine.get_tuple(config())
    load._send(lambda: load._operation.send(answer))
    assert load.result is not None
    after = mine.put(first, checkpoint(9, {"m": [LONG, LONG]}, {"m": 9, "other": 1}), {}, {})
    assert sound(saver)
    assert values_of(fresh(saver), after)["m"] == [LONG, LONG]


def test_writes_of_a_process_that_has_loaded_nothing(saver):
    _, last = pruned_chain(saver)
    gone = saver.put(last, checkpoint(3, {}, {}), {"run_id": "r"}, {})
    mine = fresh(saver)
    message = HumanMessage(LONG, id="1")
    mine.put_writes(gone, [("m", [message])], "one")
    saver.delete_for_runs(["r"])
    mine.put_writes(last, [("m", [message])], "two")
    assert sound(saver)
    assert fresh(saver).get_tuple(last).pending_writes == [("two", "m", [message])]


def test_prune_gives_way_to_writers(saver):
    _, last = pruned_chain(saver)
    prune = pruning(saver)
    prune.step()  # has read the thread
    fresh(saver).put_writes(last, [("m", texts(2, 900))], "late")
    prune.finish()
    assert fresh(saver).get_tuple(last).pending_writes == [("late", "m", texts(2, 900))]
    assert len(list(saver.list(config()))) == 1
    assert sound(saver)


# -- rows that go back while a save reads -----------------------------------------------


def lose(saver, put_back, at):
    """Go back; then another process stores its text where the lost one was."""
    put_back()
    other = fresh(saver)
    other.get_tuple(run_config())
    other.put(at, checkpoint(3, {"m": [*texts(3), f"theirs {LONG}"]}, {"m": 3}), {}, {})


def test_a_put_that_reads_builds_on_nothing_that_was_lost_meanwhile():
    saver = memory_saver(working_set_bytes=1)  # remembers one thread
    at = saver.put(config(), checkpoint(1, {"m": texts(3)}, {"m": 1}), {}, {})
    value, put_back = [*texts(3), LONG], copy_rows("memory", Path(), saver)
    saver.get_tuple(config("other"))
    put = putting(saver, at, 4, {"m": value})
    saver.get_tuple(config("other"))  # (so the next call begins to remember the thread again)
    saver.put(at, checkpoint(2, {"m": value}, {"m": 2}), {}, {})
    lose(saver, put_back, at)
    after = put.finish()
    assert values_of(fresh(saver), after) == {"m": value}
    assert sound(saver)


def test_a_put_that_reads_again_builds_on_nothing_that_was_lost(saver):
    at = saver.put(config(), checkpoint(1, {"m": texts(3)}, {"m": 1}), {}, {})
    value, put_back = [*texts(3), LONG], copy_rows("memory", Path(), saver)
    mine = fresh(saver)
    put = putting(mine, at, 5, {"m": value})
    between = mine.put(at, checkpoint(2, {"m": value}, {"m": 2}), {}, {})
    lose(saver, put_back, at)
    mine.put(between, checkpoint(4, {"m": texts(3)}, {"m": 4}), {}, {})  # meets the loss first
    after = put.finish()
    assert values_of(fresh(saver), after) == {"m": value}
    assert sound(saver)


def test_writes_that_read_build_on_nothing_that_was_lost_meanwhile(saver):
    at = saver.put(config(), checkpoint(1, {"m": texts(3)}, {"m": 1}), {}, {})
    value, put_back = [*texts(3), LONG], copy_rows("memory", Path(), saver)
    mine = fresh(saver)
    waiting = writing(mine, at, [("m", value)])
    mine.put(at, checkpoint(2, {"m": value}, {"m": 2}), {}, {})
    lose(saver, put_back, at)
    waiting.finish()
    assert fresh(saver).get_tuple(at).pending_writes == [("task", "m", value)]
    assert sound(saver)
