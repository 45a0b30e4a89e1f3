"""Counts of a Redis store: pages of threads, damaged entries, expired threads, a cluster."""

from contextlib import closing
from typing import Any

import pytest
import redis
from kit.redis import empty_prefix, url
from kit.redis_servers import cluster

from threadkeep._core.engine.model import OWN_NS, Batch, ReadSizes
from threadkeep._core.engine.thread_entry import CountThreads, ThreadEntry, ThreadQuery
from threadkeep._core.engine.thread_sizes import usage as counted_usage
from threadkeep._core.engine.usage import DAY, HOUR, ReadUsage
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.redis import threads, usage
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.redis.rows import keys_of
from threadkeep.testing.records import NOW, checkpoint, uid, write

NAMES = [*[f"t{number}" for number in range(7)], "ä b%", "", "deleted"]
READ = ReadUsage(NOW, NOW - 30 * DAY, 4)


def fill(backend: RedisBackend) -> None:
    """Store threads with one checkpoint more each, made in different hours and with parents."""
    for number, name in enumerate(NAMES):
        rows = [
            checkpoint(1 + at, ts=NOW - at * HOUR, parent=uid(at) if at else None)
            for at in range(number)
        ]
        rows.append(checkpoint(90, ts="yesterday"))
        state = "forked" if number % 3 else "active"
        entry = ThreadEntry(name, state, NOW, NOW - number)
        backend.commit(
            Batch(name, NOW, checkpoints=tuple(rows), writes=(write(1),) * number, entry=entry)
        )
    own = f"{OWN_NS}x"
    backend.commit(Batch(own, NOW, entry=ThreadEntry(own, "active", NOW, NOW)))


@pytest.fixture
def backend() -> Any:
    with closing(RedisBackend(url(), prefix=empty_prefix())) as opened:
        yield opened


def with_small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("_PAGE", 3), ("_STATES", 2), ("_THREADS", 2), ("_MANY", 2)):
        monkeypatch.setattr(usage, name, number)


def asked(backend: RedisBackend, read: Any) -> Any:
    (found,) = backend.fetch([read])
    return found


def test_counts_are_those_of_the_other_reads(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(backend)
    with_small_pages(monkeypatch)
    found = asked(backend, READ)
    other = LayeredBackend(backend).run(counted_usage(READ, counts_usage=False))
    assert found == other
    assert (found.threads, found.checkpoints) == (len(NAMES), sum(range(1, len(NAMES) + 1)))
    assert sum(hour.checkpoints for hour in found.hours) == sum(range(len(NAMES)))


def test_states_are_counted_as_entries_are(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways of counting agree: states alone, and whole entries, which few threads take."""
    fill(backend)
    with_small_pages(monkeypatch)
    queries = [ThreadQuery(), ThreadQuery(states=("active", "deleted"))]
    queries += [ThreadQuery(states=(state,)) for state in ("active", "forked", "archived")]
    first = [asked(backend, CountThreads(query)) for query in queries]
    monkeypatch.setattr(threads, "_FEW", -1)
    assert [asked(backend, CountThreads(query)) for query in queries] == first
    assert first == [len(NAMES) + 1, 5, 5, 6, 0]


def test_damaged_entries(backend: RedisBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged entry counts as one thread, and its size and rows do not count."""
    fill(backend)
    for name, field, value in (("t1", "state", b"\xff"), ("t2", "size", b"x"), ("t3", "state", "")):
        with redis.Redis.from_url(url()) as client:
            client.hset(keys_of(backend.face.prefix, name)[0], field, value)  # type: ignore[attr-defined]
    assert asked(backend, CountThreads(ThreadQuery())) == len(NAMES) + 1
    found = asked(backend, READ)
    assert found.threads == len(NAMES) - 3
    monkeypatch.setattr(threads, "_FEW", -1)
    assert asked(backend, CountThreads(ThreadQuery(states=("active",)))) == 5 - 1


def test_damaged_times_of_checkpoints_do_not_count(backend: RedisBackend) -> None:
    backend.commit(Batch("t", NOW, entry=ThreadEntry("t", "active", NOW, NOW)))
    backend.commit(Batch("t", NOW, checkpoints=(checkpoint(1, ts=NOW),)))
    with redis.Redis.from_url(url()) as client:
        key = keys_of(backend.face.prefix, "t")[1]  # type: ignore[attr-defined]
        (member,) = client.zrange(key, 0, -1)
        client.zadd(key, {member[:60].replace(uid(1).encode(), uid(2).encode()): 0})
    found = asked(backend, READ)
    assert (found.checkpoints, found.hours[-1].checkpoints) == (2, 1)


def test_too_many_checkpoints_are_noted(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads written last count; the others' checkpoints are not read."""
    fill(backend)
    monkeypatch.setattr(usage, "_MANY", 2)
    monkeypatch.setattr(usage, "_MOST_RECENT", 5)
    found = asked(backend, READ)
    assert found.notes == ("of the last 24 hours, 6 checkpoints of the newest threads",)
    assert sum(hour.checkpoints for hour in found.hours) == 0 + 1 + 2 + 3
    assert [one.thread for one in found.busiest] == ["t3", "t2", "t1"]
    assert found.threads == len(NAMES)


def test_sizes_continue_after_a_thread(backend: RedisBackend) -> None:
    """The bytes of the store are read once, for the first page."""
    fill(backend)
    whole = asked(backend, ReadSizes(None, 99))
    page = asked(backend, ReadSizes(None, 4))
    rest = asked(backend, ReadSizes(page.threads[-1].thread, 99))
    assert (*page.threads, *rest.threads) == whole.threads
    assert (page.total, rest.total) == (whole.total, 0)
    assert whole.total > sum(one.row_bytes + one.segment_bytes for one in whole.threads)


def test_a_cluster_counts_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    node = f"redis+cluster://127.0.0.1:{cluster().nodes[0].port}"
    with closing(RedisBackend(node, prefix="usage")) as backend:
        fill(backend)
        with_small_pages(monkeypatch)
        found = asked(backend, READ)
        other = LayeredBackend(backend).run(counted_usage(READ, counts_usage=False))
        assert found == other
        assert asked(backend, CountThreads(ThreadQuery())) == len(NAMES) + 1
