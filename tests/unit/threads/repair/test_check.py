"""Altered rows: every reader refuses them, and `check` finds them."""

import random
from contextlib import suppress
from dataclasses import is_dataclass, replace
from functools import partial

import pytest
from kit.engine import (
    Chain,
    checkpoint,
    config,
    everything,
    fresh,
    memory_saver,
    rows_in_memory,
    run_config,
    shown,
)
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep.errors import ThreadkeepError

LONG = "x" * 90
LAST = config(checkpoint_id="00000006")


def build():
    """A thread with lists, patches, keyframes, writes, a fork and a DeltaChannel."""
    saver = memory_saver()
    chain = Chain(saver)
    text = "".join(f"line {i}\n" for i in range(400))
    for i in range(6):
        text = text.replace(f"line {i * 50}\n", f"edited {i}\n")
        message = HumanMessage(f"{i} {LONG}", id=str(i))
        chain.put(m=[*chain.values.get("m", []), message], doc=text, n=i, s={i, LONG})
        saver.put_writes(chain.at, [("m", [AIMessage(LONG, id=f"a{i}")]), ("n", i)], f"task {i}")
    made = checkpoint(90, {"m": [1, LONG]}, {"m": 90, "delta": 1}, odd={"k": (1, 2)})
    saver.put(chain.at, made, {"source": "fork", "odd": (1, 2)}, {})
    return saver


def rows_of(saver):
    """List all bytes and ids in rows: name, value, and a function that replaces it."""
    thread = rows_in_memory(saver)["t"]
    space = thread.namespaces[""]
    found = []
    for key, row in space.rows.items():
        for field in ("manifest", "metadata", "exact", "key_pos", "run", "parent"):
            if getattr(row, field) is not None:
                place = partial(alter, space.rows, key, field)
                found.append((f"{field} of {key}", getattr(row, field), place))
    for key, writes in space.writes.items():
        for i, row in enumerate(writes):
            for field in ("body", "run", "task_id"):
                name = f"{field} of write {i} of {key}"
                found.append((name, getattr(row, field), partial(alter, writes, i, field)))
    for number, log in thread.heap.items():
        for start, segment in log.segments.items():
            name = f"segment {start} of log {number}"
            found.append((name, segment.data, partial(alter, log.segments, start, "data")))
    return found


def alter(rows, key, field, value):
    change = replace if is_dataclass(rows[key]) else type(rows[key])._replace
    rows[key] = change(rows[key], **{field: value})


def altered(value, chance):
    """Flip a bit of a value, or remove or insert some bytes."""
    if isinstance(value, int):
        return value ^ 1 << chance.randrange(8)
    data = value.encode() if isinstance(value, str) else value
    at = chance.randrange(len(data))
    match chance.randrange(4):
        case 0:
            data = data[:at]
        case 1:
            data = data[:at] + chance.randbytes(3) + data[at:]
        case _:
            data = data[:at] + bytes((data[at] ^ 1 << chance.randrange(8),)) + data[at + 1 :]
    return data.decode(errors="replace") if isinstance(value, str) else data


def each(saver):
    return [saver.get_tuple(config(checkpoint_id=f"{i:08d}")) for i in range(1, 7)]


def history(saver):
    return saver.get_delta_channel_history(config=config(), channels=["delta", "n", "m"])


def put(saver):
    return saver.put(LAST, checkpoint(99, {"m": [LONG, 2]}, {"m": 99}), {}, {})


CALLS = {
    "get": lambda saver: saver.get_tuple(config()),
    "get for a run": lambda saver: saver.get_tuple(run_config()),
    "get each": each,
    "list": lambda saver: list(saver.list(config())),
    "filter": lambda saver: list(saver.list(config(), filter={"step": 3})),
    "history": history,
    "stats": lambda saver: saver.stats(),
    "prune": lambda saver: saver.prune(["t"]),
    "delete for runs": lambda saver: saver.delete_for_runs(["r"]),
    "put": put,
    "put writes": lambda saver: saver.put_writes(LAST, [("m", [LONG])], "late"),
    "copy": lambda saver: saver.copy_thread("t", "copy"),
}


def call_all(saver, name):
    """Check that every call succeeds or raises one of our errors."""
    for what, call in CALLS.items():
        # (The memory backend reads metadata itself: nothing in memory gets damaged.)
        if not (what == "delete for runs" and "metadata" in name):
            with suppress(ThreadkeepError):
                call(fresh(saver))


@pytest.mark.drawn(6)
@pytest.mark.parametrize("seed", range(120))
def test_an_altered_row(seed):
    chance = random.Random(seed)
    saver = build()
    name, value, put_there = chance.choice(rows_of(saver))
    other = altered(value, chance)
    if other == value:
        return
    put_there(other)
    report = fresh(saver).check()
    assert not report.ok, name
    assert all(finding.thread == "t" and finding.problem for finding in report.findings)
    call_all(saver, name)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("seed", range(60))
def test_an_error_or_the_very_checkpoint_that_was_put(seed):
    """A row's run decides if it counts, and only `check` verifies the run."""
    chance = random.Random(1000 + seed)
    saver = build()
    whole = everything(saver)
    places = [place for place in rows_of(saver) if not place[0].startswith("run")]
    name, value, put_there = chance.choice(places)
    put_there(altered(value, chance))
    reader = fresh(saver)
    for place, wanted in whole.items():
        with suppress(ThreadkeepError):
            assert shown(reader.get_tuple(config(checkpoint_id=place[2]))) == wanted, name


def test_a_segment_that_is_gone():
    saver = build()
    log = rows_in_memory(saver)["t"].heap[1]
    start = log.starts[0]
    log.drop(start, log.segments[start].count)
    report = fresh(saver).check()
    assert "missing" in str(report.findings[0])
    call_all(saver, "segment")


def test_a_damaged_value_is_no_hindrance_to_the_next_one():
    """A value saved whole doesn't need the previous value."""
    saver = build()
    damaged = 0
    for name, value, put_there in rows_of(saver):
        if name.startswith("segment") and b"edited" in value:
            put_there(value[:-1] + bytes((value[-1] ^ 1,)))
            damaged += 1
    assert damaged
    with pytest.raises(ThreadkeepError):
        fresh(saver).get_tuple(LAST)
    value = "a new text " * 900
    after = fresh(saver).put(LAST, checkpoint(99, {"doc": value}, {"doc": 99}), {}, {})
    assert fresh(saver).get_tuple(after).checkpoint["channel_values"] == {"doc": value}
