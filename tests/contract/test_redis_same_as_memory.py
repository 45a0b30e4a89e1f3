"""Random changes on Redis and in memory: the same refusals, and the same answers to every read.

The ids are unusual: empty, with NUL and its replacement, or a prefix of another id.
"""

import random
from collections import Counter, defaultdict

import pytest
from kit.redis import empty_prefix, url

from threadkeep._core.engine.model import (
    Batch,
    CheckpointRow,
    CopyThread,
    DropThread,
    FindThreads,
    HeadFence,
    ReadCheckpoint,
    ReadPath,
    ReadSegments,
    ReadThread,
    RowsFence,
    ScanCheckpoints,
    Segment,
    Span,
    StoredCheckpoint,
    ThreadRows,
    ThreadState,
    WriteRow,
    WritesFence,
)
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.redis.rows import (
    pack_number,
    pack_text,
    place,
    unpack_number,
    unpack_text,
)
from threadkeep.errors import ThreadkeepError
from threadkeep.testing.records import linked

IDS = (
    "",
    "\0",
    "\0\1",
    "\1",
    "\1\1",
    "\1\2",
    "\2",
    "a",
    "a\0",
    "a\0b",
    "a\1",
    "ab",
    "b",
    "é",
    "😀",
)
SPACES = ("", "\0", "n", "n\0", "n\1x")
THREADS = ("t", "{t}", "}{\0 :é", "")
BYTES = (b"", b"\0", b"\xff\0", b"x" * 100)


def some(chance, make, most):
    return tuple(make(chance) for _ in range(chance.choice((0, 0, 1, 1, most))))


def key(chance):
    return chance.choice(SPACES), chance.choice(IDS)


def checkpoint(chance):
    return CheckpointRow(
        *key(chance),
        parent=chance.choice((None, *IDS)),
        run=chance.choice((0, 7, -(2**63))),
        seen=chance.randrange(5),
        flags=chance.randrange(8),
        ts=chance.choice((0, -1, 2**62, "", "2024", "\0")),
        metadata=chance.choice(("{}", '{"source":"loop"}', '{"run_id":"r"}', '{"source":"é"}')),
        exact=chance.choice((None, *BYTES)),
        key_log=chance.randrange(3),
        key_pos=chance.randrange(12),
        manifest=chance.choice(BYTES),
    )


def write(chance):
    ids = (chance.choice(IDS), chance.choice(IDS))
    return WriteRow(*key(chance), chance.choice((0, 7)), 0, *ids, chance.choice(BYTES))


def segment(chance):
    log, start, count = where(chance)
    return Segment(log, start, count, chance.choice(BYTES))


def where(chance):
    return chance.randrange(3), chance.randrange(10), chance.choice((1, 1, 2, 5))


def fence(chance):
    match chance.randrange(8):
        case 0 | 1 | 2:
            return HeadFence(chance.choice(SPACES), chance.choice((None, *IDS)))
        case 3 | 4 | 5 | 6:
            return WritesFence(*key(chance), chance.choice((0, 7)), chance.randrange(3))
        case _:
            return RowsFence(chance.randrange(4), chance.randrange(4))


def change(chance, memory, given):
    thread = chance.choice(THREADS)
    (rows,) = memory.fetch([ReadThread(thread)])
    tips = tuple([tip for tip in rows.tips if tip in given])
    link = linked(*chance.choice(((), (), tips[:1], tips[-2:], (*tips[:1], 5))))
    match chance.randrange(20):
        case 0:
            return DropThread(thread, chance.randrange(9, 12), link=link)
        case 1 | 2:
            return CopyThread(thread, chance.choice(THREADS), 12)
    return Batch(
        thread,
        12,
        generation=chance.choice((None, None, None, 0, 1)),
        life=chance.choice((None, None, None, 0, rows.life, rows.life, 5)),
        fences=some(chance, fence, 1) if chance.randrange(2) else (),
        segments=some(chance, segment, 2),
        checkpoints=some(chance, checkpoint, 4),
        writes=some(chance, write, 4),
        drop_segments=some(chance, where, 9),
        drop_checkpoints=some(chance, key, 3),
        drop_writes=some(chance, lambda c: (*key(c), c.randrange(3)), 3),
        hide_checkpoints=some(chance, key, 2),
        bump_generation=not chance.randrange(5),
        link=link,
    )


def reads(chance):
    thread, (ns, checkpoint_id) = chance.choice(THREADS), key(chance)
    after = (chance.choice(IDS), chance.choice(THREADS), chance.choice(SPACES))
    yield ReadCheckpoint(thread, ns)
    yield ReadCheckpoint(thread, ns, checkpoint_id)
    yield ReadSegments(thread, tuple(span(chance) for _ in range(3)))
    # (a checkpoint may be its own ancestor here)
    yield ReadPath(thread, ns, checkpoint_id, chance.randrange(5))
    for among, inside in ((thread, ns), (thread, None), (None, ns), (None, None)):
        yield ScanCheckpoints(
            among,
            inside,
            chance.choice((None, None, None, *IDS[:3])),
            chance.choice((None, None, *IDS)),
            {},
            chance.choice((None, None, after)),
            chance.randrange(12),
        )
    yield FindThreads(chance.choice((None, *THREADS)), chance.randrange(5))
    yield FindThreads(None, 9, ("r",))
    yield FindThreads(None, 9, empty=True)


def span(chance):
    start = chance.randrange(12)
    return Span(chance.randrange(3), start, start + chance.randrange(6))


def counted(writes):
    """Writes with their place among those of their checkpoint in place of `seq`."""
    counts = Counter()
    found = []
    for row in writes:
        counts[row.ns, row.checkpoint_id] += 1
        found.append(row._replace(seq=counts[row.ns, row.checkpoint_id]))
    return tuple(found)


def numbered(backend, what):
    """A batch whose places of writes are replaced by their `seq` in this store."""
    if not isinstance(what, Batch):
        return what
    (rows,) = backend.fetch([ReadThread(what.thread)])
    numbers = defaultdict(list)
    for row in (*rows.orphans, *[row for stored in rows.checkpoints for row in stored.writes]):
        numbers[row.ns, row.checkpoint_id].append(row.seq)

    def number(ns, key, place):
        found = numbers[ns, key][:place]
        return found[-1] if found else 0

    fences = [
        fence._replace(seen=number(fence.ns, fence.checkpoint_id, fence.seen))
        if isinstance(fence, WritesFence)
        else fence
        for fence in what.fences
    ]
    drops = [(ns, key, number(ns, key, place)) for ns, key, place in what.drop_writes]
    return what._replace(fences=tuple(fences), drop_writes=tuple(drops))


def comparable(reply, given):
    """A reply without what each store decides for itself: random tips, `seq`, ends of logs."""
    if isinstance(reply, list):
        return [comparable(one, given) for one in reply]
    if isinstance(reply, StoredCheckpoint):
        return reply._replace(writes=counted(reply.writes))
    if isinstance(reply, ThreadState):
        found = None if reply.found is None else comparable(reply.found, given)
        reply = reply._replace(found=found, logs={})
    elif isinstance(reply, ThreadRows):
        checkpoints = tuple([comparable(one, given) for one in reply.checkpoints])
        reply = reply._replace(checkpoints=checkpoints, orphans=counted(reply.orphans))
    else:
        return reply
    return reply._replace(tips=[tip if tip in given else None for tip in reply.tips])


def outcome(backend, what):
    try:
        backend.commit(what)
    except ThreadkeepError as error:
        return type(error), error.namespace, error.checkpoint
    return None


@pytest.mark.drawn(5)
@pytest.mark.parametrize("seed", range(20))
def test_the_same_as_in_memory(seed):
    chance = random.Random(seed)
    memory, stored = MemoryBackend(), RedisBackend(url(), prefix=empty_prefix())
    given = set()
    for step in range(60):
        what = change(chance, memory, given)
        told = outcome(stored, numbered(stored, what))
        assert told == outcome(memory, numbered(memory, what)), f"step {step}: {what}"
        given.add(getattr(what, "tip", 0))
        asked = [*reads(chance), *(ReadThread(thread) for thread in THREADS)]
        for read, got, want in zip(asked, stored.fetch(asked), memory.fetch(asked), strict=True):
            assert comparable(got, given) == comparable(want, given), f"step {step}: {read}"
    stored.close()


def test_packed_texts_keep_their_order():
    pairs = [(ns, key) for ns in IDS for key in IDS]
    assert sorted(pairs, key=lambda pair: place(*pair) + b"\0") == sorted(pairs)
    assert [unpack_text(pack_text(text)) for text in IDS] == list(IDS)


@pytest.mark.parametrize("number", [0, 1, 255, 2**40, 2**63 - 1, -1, -(2**63)])
def test_packed_numbers_come_back(number):
    assert unpack_number(pack_number(number)) == number
