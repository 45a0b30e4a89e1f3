"""Repair threads with altered rows: sound rows stay, broken ones are removed."""

import random
from contextlib import suppress

import pytest
from kit.engine import (
    Chain,
    config,
    counted_saver,
    everything,
    fresh,
    memory_saver,
    rows_in_memory,
    shown,
)

from threadkeep.errors import InvalidArgumentError, OpenError, ThreadkeepError, ThreadNotFoundError
from threadkeep.threads.repair import read_quarantine
from threadkeep.threads.repair import repair as rows
from threadkeep.threads.repair.check import Kind

from .test_check import altered, build, rows_of


def loadable(saver, places):
    """Load every place that is readable."""
    found = {}
    for place in places:
        with suppress(ThreadkeepError):
            loaded = fresh(saver).get_tuple(config(place[0], place[1], place[2]))
            if loaded is not None:
                found[place] = shown(loaded)
    return found


def stored(saver):
    """List the parts to alter: none that the memory backend itself uses, or that still load."""
    return [place for place in rows_of(saver) if not place[0].startswith(("run", "parent"))]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("seed", range(150))
def test_what_was_sound_stays_and_the_rest_goes(seed, tmp_path):
    chance = random.Random(seed)
    saver = build()
    whole = everything(saver)
    places = stored(saver)
    for _, value, put_there in chance.sample(places, chance.randrange(1, 4)):
        put_there(altered(value, chance))
    before = loadable(saver, whole)
    damaged = not fresh(saver).check().ok
    planned = fresh(saver).threads.repair(dry_run=True)
    assert loadable(saver, whole) == before
    report = fresh(saver).threads.repair(file=tmp_path / "out.tkq")
    assert (report.repaired, report.unrepaired) == (planned.repaired, planned.unrepaired)
    assert bool(report.repaired) == damaged == (tmp_path / "out.tkq").exists()
    again = fresh(saver).check()
    assert (again.findings, again.notes) == ((), ())
    after = loadable(saver, whole)
    for place, wanted in before.items():
        assert {**after[place], "writes": []} == {**wanted, "writes": []}
    for one in report.repaired:
        for head in one.heads:
            assert head.after == max((p[2] for p in after if p[1] == head.namespace), default=None)
    assert fresh(saver).threads.repair(file=tmp_path / "more.tkq").repaired == ()
    Chain(fresh(saver), "t").put(n=1)
    assert fresh(saver).check().ok


@pytest.mark.drawn(4)
@pytest.mark.parametrize("seed", range(40))
def test_the_file_holds_the_bytes_as_they_were(seed, tmp_path):
    chance = random.Random(seed)
    saver = build()
    name, value, put_there = chance.choice(stored(saver))
    other = altered(value, chance)
    put_there(other)
    report = fresh(saver).threads.repair(file=tmp_path / "out.tkq")
    if other == value:
        assert report.repaired == ()
        return
    (taken,) = read_quarantine(report.file)
    parts = {
        *(part for row in taken.whole.checkpoints for part in row),
        *(part for row in taken.whole.writes for part in row),
        *(segment.data for segment in taken.whole.segments),
    }
    assert other in parts, name
    assert taken.findings == report.repaired[0].findings


def test_a_sound_store_is_not_written_to(tmp_path):
    saver, backend, _ = counted_saver()
    chain = Chain(saver)
    for i in range(5):
        chain.put(m=list(range(i)), n=i)
        saver.put_writes(chain.at, [("n", i)], "task")
    backend.asked()
    report = saver.threads.repair(file=tmp_path / "out.tkq")
    assert (report.threads, report.repaired, report.unrepaired, report.file) == (1, (), (), None)
    assert backend.asked()[1] == 0
    assert list(tmp_path.iterdir()) == []


def damaged(saver, thread="t"):
    """Alter the manifest of a thread's newest checkpoint; return its id."""
    space = rows_in_memory(saver)[thread].namespaces[""]
    key = space.ids[-1]
    row = space.rows[key]
    space.rows[key] = row._replace(manifest=row.manifest[:-1] + b"?")
    return key


def test_somebody_writes_in_between(tmp_path, monkeypatch):
    saver = memory_saver()
    chain = Chain(saver)
    for i in range(3):
        chain.put(n=i)
    key = damaged(saver)
    inner, calls = rows.carry_out, []

    def late(engine, batch):
        calls.append(batch)
        if len(calls) == 1:
            fresh(saver).put_writes(config(checkpoint_id="00000001"), [("n", 5)], "late")
        return inner(engine, batch)

    monkeypatch.setattr(rows, "carry_out", late)
    report = fresh(saver).threads.repair(file=tmp_path / "out.tkq")
    assert len(calls) == 2
    assert len(list(read_quarantine(report.file))) == 2
    assert report.repaired[0].checkpoints == (("", key),)
    assert fresh(saver).get_tuple(config(checkpoint_id="00000001")).pending_writes
    assert fresh(saver).check().ok


def test_one_thread_of_several(tmp_path):
    saver = memory_saver()
    for thread in ("a", "b"):
        chain = Chain(saver, thread)
        chain.put(n=1)
        chain.put(n=2)
        damaged(saver, thread)
    report = fresh(saver).threads.repair("a", file=tmp_path / "out.tkq")
    assert [one.thread for one in report.repaired] == ["a"]
    assert {finding.thread for finding in fresh(saver).check().findings} == {"b"}


def test_a_thread_of_which_nothing_is_sound_is_empty_then(tmp_path):
    saver = memory_saver()
    Chain(saver).put(n=1)
    key = damaged(saver)
    report = fresh(saver).threads.repair(file=tmp_path / "out.tkq")
    (head,) = report.repaired[0].heads
    assert (head.namespace, head.before, head.after) == ("", key, None)
    assert fresh(saver).get_tuple(config()) is None
    assert fresh(saver).check().ok


def test_what_a_newer_release_wrote_is_left_alone(tmp_path):
    saver = memory_saver()
    chain = Chain(saver)
    chain.put(m=["x" * 900])
    log = rows_in_memory(saver)["t"].heap[1]
    start = log.starts[0]
    from binascii import crc32  # noqa: PLC0415

    data = log.segments[start].data
    head = bytes((data[0], 15 << 4))
    newer = head + crc32(data[6:], crc32(head)).to_bytes(4, "little") + data[6:]
    log.segments[start] = log.segments[start]._replace(data=newer)
    before = dict(rows_in_memory(saver)["t"].namespaces[""].rows)
    report = fresh(saver).threads.repair(file=tmp_path / "out.tkq")
    assert report.repaired == ()
    assert Kind.UNKNOWN in {finding.kind for finding in report.unrepaired}
    assert rows_in_memory(saver)["t"].namespaces[""].rows == before


def test_what_is_asked_for_in_a_wrong_way_changes_nothing(tmp_path):
    saver = memory_saver()
    Chain(saver).put(n=1)
    damaged(saver)
    file = tmp_path / "out.tkq"
    file.write_bytes(b"mine")
    with pytest.raises(InvalidArgumentError, match="quarantine file is needed"):
        saver.threads.repair()
    with pytest.raises(OpenError, match="exists already"):
        saver.threads.repair(file=file)
    with pytest.raises(OpenError, match="no folder"):
        saver.threads.repair(file=tmp_path / "absent" / "out.tkq")
    with pytest.raises(ThreadNotFoundError):
        saver.threads.repair(["t", "absent"], file=tmp_path / "other.tkq")
    assert file.read_bytes() == b"mine"
    assert not fresh(saver).check().ok
