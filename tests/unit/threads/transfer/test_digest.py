"""Digests: the same for the same content, however it is stored; others for any other."""

import dataclasses

import pytest
from kit.engine import Chain, config, fresh, memory_saver, run_on
from langchain_core.messages import HumanMessage

from threadkeep._core.codec.frame import Compression, pack, unpack
from threadkeep._core.engine.model import HIDDEN, CopyThread, Segment
from threadkeep.errors import CorruptionError
from threadkeep.threads.transfer import digest, whole_thread

LONG = "x" * 90


def whole(saver, thread="t"):
    return run_on(whole_thread.read_thread(thread), saver._store.backend)


def digests(saver, thread="t"):
    return digest.of_checkpoints(whole(saver, thread))


def fill(saver, thread="t", count=12):
    chain = Chain(saver, thread)
    policy = "rule " * 1000
    for i in range(count):
        said = HumanMessage(f"{i} {LONG}", id=f"m{i}")
        chain.put(
            m=[*chain.values.get("m", []), said], last={"said": said, "n": i}, policy=f"{policy}{i}"
        )
        saver.put_writes(chain.at, [("n", i), ("m", [LONG * i])], "b", "~p")
    return chain


def test_every_checkpoint_has_one_and_all_differ():
    saver = memory_saver()
    fill(saver)
    found = digests(saver)
    assert list(found) == [("", f"{i:08d}") for i in range(1, 13)]
    assert len(set(found.values())) == 12
    assert all(len(one) == digest.SIZE for one in found.values())


def test_it_does_not_depend_on_where_elements_lie():
    """Two stores, whose logs have other numbers, and which seal at other times."""
    one, other = memory_saver(), memory_saver(compression=Compression(0))
    Chain(other, start=-1).put(**{name: [LONG * 9] for name in "abcd"})  # they take logs 1 to 4
    for saver in (one, other):
        fill(saver)
    logs = [[segment.log for segment in whole(saver).segments] for saver in (one, other)]
    assert (max(logs[0]), max(logs[1])) == (4, 8)
    assert digests(one).items() < digests(other).items()


def test_it_does_not_depend_on_segments():
    saver = memory_saver()
    fill(saver)
    thread = whole(saver)
    single = []
    for segment in thread.segments:
        for at, part in enumerate(unpack(segment.data), segment.start):
            single.append(Segment(segment.log, at, 1, pack([part], Compression(0))))
    assert len(single) > len(thread.segments)
    apart = dataclasses.replace(thread, segments=tuple(single))
    assert digest.of_checkpoints(apart) == digest.of_checkpoints(thread)


def test_a_copy_of_the_thread_has_the_same():
    saver = memory_saver()
    fill(saver)
    saver._store.backend.commit(CopyThread("t", "u", 1))
    assert digests(saver, "u") == digests(saver)


def test_whatever_differs_shows():
    def one(**changed):
        saver = memory_saver()
        given = {"m": [1], "n": 1, "metadata": {"step": 1}, "write": 1, "path": "", **changed}
        chain = Chain(saver)
        at, made, _, new = chain.arguments(m=given["m"], n=given["n"])
        made["ts"] = given.get("ts", made["ts"])
        made["versions_seen"] = given.get("seen", {})
        made["channel_versions"]["n"] = given.get("version", 1)
        stored = saver.put(at, made, given["metadata"], new)
        saver.put_writes(stored, [(given.get("channel", "n"), given["write"])], "t", given["path"])
        (found,) = digests(saver).values()
        return found

    assert one() == one()
    others = [
        one(m=[1, 2]),
        one(n=1.0),
        one(n=True),
        one(metadata={"step": 2}),
        one(metadata={"step": (1,)}),
        one(write=2),
        one(channel="m"),
        one(path="p"),
        one(ts="2024-05-01T10:20:30.123457+00:00"),
        one(seen={"a": {"n": 1}}),
        one(version=2),
        one(version="1"),
    ]
    assert len({one(), *others}) == len(others) + 1


def test_writes_that_led_to_a_later_child_count_too():
    """Two runs from one checkpoint: what the second one wrote shows in its own child."""

    def two(value):
        saver = memory_saver()
        chain = Chain(saver)
        chain.put(n=0)
        loads = [fresh(saver).get_tuple(config(checkpoint_id="00000001")) for _ in range(2)]
        for number, found in enumerate(loads):
            written = "first" if number == 0 else value
            saver.put_writes(found.config, [("n", written)], f"task{number}")
            later = Chain(saver, start=1 + number)
            later.at = found.config
            later.put(n=number)
        return digests(saver)

    assert two("a") == two("a")
    changed = {key for key, one in two("a").items() if two("b")[key] != one}
    assert changed == {("", "00000003")}


def test_what_is_hidden_is_told_apart():
    saver = memory_saver()
    fill(saver, count=2)
    thread = whole(saver)
    row = thread.checkpoints[0]
    hidden = dataclasses.replace(
        thread, checkpoints=(row._replace(flags=row.flags | HIDDEN), *thread.checkpoints[1:])
    )
    a, b = digest.of_checkpoints(thread), digest.of_checkpoints(hidden)
    assert [a[key] == b[key] for key in a] == [False, True]


def test_damage_is_an_error_that_names_the_checkpoint():
    saver = memory_saver()
    fill(saver, count=3)
    thread = dataclasses.replace(whole(saver), segments=())
    with pytest.raises(CorruptionError, match="00000001"):
        digest.of_checkpoints(thread)
