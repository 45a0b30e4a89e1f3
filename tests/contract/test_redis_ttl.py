"""Threads that live for a while: all keys of one expire at the same moment, or none does."""

import pytest
import redis
from kit.redis import empty_prefix, url

from threadkeep._core.engine.model import (
    Batch,
    CopyThread,
    DropThread,
    FindThreads,
    ReadCheckpoint,
    ReadSizes,
    ReadThread,
    ScanCheckpoints,
    ThreadState,
)
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.redis.rows import (
    index_of,
    keys_of,
)
from threadkeep.errors import InvalidArgumentError, ThreadDeletedError
from threadkeep.testing.records import NOW, THREAD, checkpoint, segment, write

HOUR = 3600


@pytest.fixture
def prefix():
    return empty_prefix()


@pytest.fixture
def client():
    with redis.Redis.from_url(url()) as opened:
        yield opened


@pytest.fixture
def store(prefix):
    """Makes backends under the prefix; closes them in the end."""
    made = []

    def make(**options):
        made.append(RedisBackend(url(), prefix=prefix, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def batch(number=1, thread=THREAD):
    return Batch(
        thread,
        NOW,
        segments=(segment(number),),
        checkpoints=(checkpoint(number, number - 1),),
        writes=(write(number),),
    )


def remaining(client, prefix, thread=THREAD):
    """Milliseconds that the keys which are there live on; -1: for ever.

    Read in one transaction, because time passes between two commands.
    """
    pipeline = client.pipeline()
    for key in keys_of(prefix, thread):
        pipeline.pttl(key)
    found = [left for left in pipeline.execute() if left != -2]
    assert max(found) - min(found) <= 1
    return max(found)


def shorten(client, prefix, milliseconds, thread=THREAD):
    """Bring the end near, as if time had gone by."""
    pipeline = client.pipeline()
    for key in keys_of(prefix, thread):
        pipeline.pexpire(key, milliseconds)
    pipeline.execute()


def test_without_a_ttl_nothing_expires(store, client, prefix):
    store().commit(batch())
    assert remaining(client, prefix) == -1


def test_all_keys_of_a_thread_expire_together(store, client, prefix):
    backend = store(ttl=HOUR)
    backend.commit(batch())
    assert client.exists(*keys_of(prefix, THREAD)) == 6
    assert HOUR * 1000 - 60_000 < remaining(client, prefix) <= HOUR * 1000
    assert client.ttl(index_of(prefix)) == -1


def test_each_write_refreshes(store, client, prefix):
    backend = store(ttl=HOUR)
    backend.commit(Batch(THREAD, NOW, writes=(write(1),)))  # some keys only
    shorten(client, prefix, 60_000)
    backend.commit(batch())
    assert remaining(client, prefix) > HOUR * 1000 - 60_000


def test_a_saver_without_a_ttl_keeps_the_threads_own(store, client, prefix):
    store(ttl=HOUR).commit(Batch(THREAD, NOW, writes=(write(1),)))
    shorten(client, prefix, 60_000)
    store().commit(batch())
    assert remaining(client, prefix) > HOUR * 1000 - 60_000


def test_a_saver_with_another_ttl_changes_it(store, client, prefix):
    store(ttl=HOUR).commit(batch())
    store(ttl=60).commit(batch(2))
    assert 0 < remaining(client, prefix) <= 60_000


@pytest.mark.parametrize("refreshes", [True, False])
def test_reads_refresh_where_asked_to(store, client, prefix, refreshes):
    backend = store(ttl=HOUR, ttl_refresh_on_read=refreshes)
    backend.commit(batch())
    for read in (
        ReadCheckpoint(THREAD, ""),
        ScanCheckpoints(THREAD, None, None, None, {}, None, 10),
    ):
        shorten(client, prefix, 60_000)
        backend.fetch([read])
        assert (remaining(client, prefix) > 60_000) == refreshes


def test_a_dict_as_langgraphs_saver_takes_it_has_minutes(store, client, prefix):
    backend = store(ttl={"default_ttl": 30, "refresh_on_read": True})
    backend.commit(batch())
    shorten(client, prefix, 60_000)
    backend.fetch([ReadCheckpoint(THREAD, "")])
    assert 1_740_000 < remaining(client, prefix) <= 1_800_000
    store(ttl={"refresh_on_read": True}).commit(batch(2, "ever"))
    assert remaining(client, prefix, "ever") == -1
    with pytest.raises(InvalidArgumentError, match="with minutes"):
        store(ttl={"minutes": 5})


def test_who_looks_after_all_threads_keeps_none_alive(store, client, prefix):
    backend = store(ttl=HOUR, ttl_refresh_on_read=True)
    backend.commit(batch())
    shorten(client, prefix, 60_000)
    reads = [FindThreads(None, 9), FindThreads(None, 9, ("r",)), ReadSizes(None, 9)]
    backend.fetch([*reads, ReadThread(THREAD)])
    assert remaining(client, prefix) <= 60_000


def test_a_tombstone_expires_too(store, client, prefix):
    backend = store(ttl=HOUR)
    backend.commit(batch())
    backend.commit(DropThread(THREAD, NOW))
    assert 0 < remaining(client, prefix) <= HOUR * 1000
    with pytest.raises(ThreadDeletedError):
        backend.commit(Batch(THREAD, NOW, life=0))


def test_a_copy_lives_as_its_savers_threads_do(store, client, prefix):
    store().commit(batch())
    store(ttl=HOUR).commit(CopyThread(THREAD, "copy", NOW))
    assert 0 < remaining(client, prefix, "copy") <= HOUR * 1000
    assert remaining(client, prefix) == -1


def test_an_expired_thread_is_as_if_it_had_never_been(store, client, prefix):
    backend = store(ttl=HOUR)
    backend.commit(batch())
    backend.commit(batch(thread="stays"))
    shorten(client, prefix, 1)
    wait_until_gone(client, prefix)
    (state,) = backend.fetch([ReadCheckpoint(THREAD, "")])
    assert state == ThreadState(state.generation, 0)  # (without tips and life)
    (page,) = backend.fetch([ScanCheckpoints(None, None, None, None, {}, None, 10)])
    assert [found.thread for found in page] == ["stays"]
    (sizes,) = backend.fetch([ReadSizes(None, 10)])
    assert [size.thread for size in sizes.threads] == ["stays"]
    assert client.zcard(index_of(prefix)) == 2
    for empty in (False, True):
        assert backend.fetch([FindThreads(None, 10, empty=empty)]) == [["stays"]]
    assert client.zrange(index_of(prefix), 0, -1) == [b"stays"]
    backend.commit(batch())
    assert backend.fetch([FindThreads(None, 10)]) == [["stays", THREAD]]


def wait_until_gone(client, prefix):
    while client.exists(*keys_of(prefix, THREAD)):
        pass


def test_a_tiny_ttl_is_kept(store, client, prefix):
    store(ttl=0.001).commit(batch())
    wait_until_gone(client, prefix)
    assert client.zrange(index_of(prefix), 0, -1) == [THREAD.encode()]
