"""Failures of a Redis server, on servers that the tests start."""

import socket
from contextlib import contextmanager

import pytest
import redis
import redis.asyncio
from kit.contract import awaited
from kit.redis_servers import Sentinel, Server, Writer, cluster, free_port, until
from redis._parsers import BaseParser

import threadkeep
from threadkeep._core.engine.model import (
    Batch,
    CopyThread,
    DropThread,
    FindThreads,
    HeadFence,
    ReadCheckpoint,
    ReadDamage,
    ReadSizes,
    ReadThread,
    Segment,
)
from threadkeep._stores import servers
from threadkeep._stores.redis import clients
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.redis.server import mapped, passes
from threadkeep.cache import open_cache
from threadkeep.errors import (
    BackendError,
    DiskFullError,
    InvalidArgumentError,
    ReadOnlyError,
    ThreadExistsError,
    UnreachableError,
)
from threadkeep.testing.records import NOW, THREAD, checkpoint, segment, uid, write

HEAD = [ReadCheckpoint(THREAD, "")]


@pytest.fixture(scope="module")
def server():
    with Server() as started:
        yield started


@contextmanager
def backend_of(where, **options):
    backend = RedisBackend(where, **options)
    try:
        yield backend
    finally:
        backend.close()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(servers, "_PATIENCE", 0.05)


def batch(number):
    return Batch(
        THREAD,
        NOW,
        segments=(segment(number),),
        checkpoints=(checkpoint(number, number - 1),),
        writes=(write(number),),
    )


# -- scripts that are forgotten ----------------------------------------------------------


def test_a_server_that_forgot_the_scripts_is_told_again(server):
    with backend_of(server.url, prefix="forgot") as backend:
        for number in (1, 2):
            backend.commit(batch(number))
            server.admin.script_flush()
            assert backend.fetch(HEAD)[0].found.row.id == uid(number)
            server.admin.script_flush()
            assert backend.fetch([FindThreads(None, 9), *HEAD])[0] == [THREAD]
            server.admin.script_flush()
        for thread in "abc":
            backend.commit(CopyThread(THREAD, thread, NOW))
        server.admin.script_flush()
        assert backend.fetch([FindThreads(None, 9)]) == [["a", "b", "c", THREAD]]


def test_a_group_keeps_its_order_all_the_same(server):
    """The first kind of script is known, the second is not."""
    with backend_of(server.url, prefix="group") as backend:
        server.admin.script_flush()
        backend.commit(batch(1))
        group = [batch(2), DropThread(THREAD, NOW), batch(3)._replace(generation=1)]
        assert backend.commit_many(group) == [None, None, None]
        (rows,) = backend.fetch([ReadThread(THREAD)])
        assert [s.row.id for s in rows.checkpoints] == [uid(3)]


async def test_so_it_is_by_awaited_calls(server):
    backend = RedisBackend(server.url, prefix="forgot too").asynchronous
    for number in (1, 2):
        await backend.commit(batch(number))
        server.admin.script_flush()
    server.admin.script_flush()
    assert await backend.fetch([FindThreads(None, 9)]) == [[THREAD]]
    await backend.close()


# -- refusals ----------------------------------------------------------------------------


def large(number):
    return batch(number)._replace(segments=(Segment(1, number, 1, b"x" * 100_000),))


def commit_until_full(backend):
    """Return the number of batches stored before one was refused."""
    for number in range(1, 1000):
        try:
            backend.commit(large(number))
        except DiskFullError:
            return number - 1
    raise AssertionError("it is never full")


def test_a_full_server_refuses_and_lets_threads_be_dropped():
    options = ("--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    with Server(*options) as full, backend_of(full.url) as backend:
        done = commit_until_full(backend)
        with pytest.raises(DiskFullError, match="maxmemory"):
            backend.commit(large(done + 1))
        (rows,) = backend.fetch([ReadThread(THREAD)])
        assert len(rows.checkpoints) == len(rows.segments) == done
        assert all(len(stored.writes) == 1 for stored in rows.checkpoints)
        drops = tuple((1, number, 1) for number in range(1, 20))
        backend.commit(Batch(THREAD, NOW, drop_segments=drops, bump_generation=True))
        backend.commit(batch(1001))
        backend.commit(DropThread(THREAD, NOW))


def test_nothing_is_sent_behind_what_a_full_server_refused():
    """It may build on that: a checkpoint must not be stored without its segments."""
    options = ("--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    with Server(*options) as full, backend_of(full.url) as backend:
        for number in range(1, 9):
            backend.commit(large(number)._replace(thread="other"))
        done = commit_until_full(backend)
        drops = tuple((1, number, 1) for number in range(1, 9))
        with pytest.raises(DiskFullError):
            backend.commit_many(
                [
                    large(done + 1),
                    Batch("other", NOW, drop_segments=drops),  # now there is room again
                    batch(done + 2),
                ]
            )
        (rows,) = backend.fetch([ReadThread(THREAD)])
        assert len(rows.checkpoints) == done


def test_a_replica_is_read_only(server):
    server.admin.config_set("repl-diskless-sync-delay", 0)
    with Server("--replicaof", "127.0.0.1", str(server.port)) as replica:
        until(lambda: replica.admin.info("replication")["master_link_status"] == "up")
        with (
            backend_of(server.url, prefix="r") as first,
            backend_of(replica.url, prefix="r") as other,
        ):
            first.commit(batch(1))
            until(lambda: other.fetch(HEAD)[0].found is not None)
            with pytest.raises(ReadOnlyError, match="replica"):
                other.commit(batch(2))
            replica.admin.replicaof("NO", "ONE")
            other.commit(batch(2))
            (rows,) = other.fetch([ReadThread(THREAD)])
            assert [s.row.id for s in rows.checkpoints] == [uid(1), uid(2)]
            assert all(len(s.writes) == 1 for s in rows.checkpoints)


def test_a_server_that_cannot_save_refuses(server, tmp_path):
    with Server() as broken, backend_of(broken.url) as backend:
        broken.admin.config_set("dbfilename", "there")
        (broken.folder / "there").mkdir()  # where the file ought to go
        broken.admin.config_set("save", "3600 1")
        broken.admin.config_set("stop-writes-on-bgsave-error", "yes")
        broken.admin.bgsave()
        until(lambda: broken.admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        with pytest.raises(BackendError, match="save"):
            backend.commit(batch(1))
        assert backend.fetch(HEAD)[0].found is None


def test_passwords_are_asked_for_and_not_shown():
    with Server() as locked:
        rights = ("~tk:*", "+@all", "-@dangerous")
        locked.admin.execute_command("ACL", "SETUSER", "agent", "on", ">sesame", *rights)
        locked.admin.execute_command("ACL", "SETUSER", "guest", "on", ">sesame", "~tk:*", "+get")
        locked.admin.config_set("requirepass", "admins-own")
        for user, kind in (
            ("", "no password"),
            ("agent:wrong@", "wrong"),
            ("guest:sesame@", "guest"),
        ):
            with backend_of(f"redis://{user}127.0.0.1:{locked.port}") as backend:
                wanted = BackendError if kind == "guest" else UnreachableError
                with pytest.raises(wanted) as caught:
                    backend.commit(batch(1))
                assert caught.value.hint
                assert not any(word in str(caught.value) for word in ("wrong:", "sesame"))
        with backend_of(f"redis://agent:sesame@127.0.0.1:{locked.port}") as backend:
            backend.commit(batch(1))
            backend.commit(CopyThread(THREAD, "copy", NOW))
            assert backend.fetch([FindThreads(None, 9)]) == [["copy", THREAD]]
            backend.fetch([ReadThread(THREAD), ReadSizes(None, 9), ReadDamage()])


def test_a_cluster_must_be_named_as_one():
    named = pytest.raises(InvalidArgumentError, match="redis\\+cluster://")
    with backend_of(cluster().nodes[0].url) as backend, named:
        commit_to_all_nodes(backend)


def commit_to_all_nodes(backend):
    for number in range(9):
        backend.commit(Batch(f"thread {number}", NOW))


def test_keys_of_another_program(server):
    server.admin.set("taken:{thread-1}:c", "mine")
    refused = pytest.raises(BackendError, match="prefix")
    with backend_of(server.url, prefix="taken") as backend, refused:
        backend.commit(batch(1))


# -- servers that may evict keys ---------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "ttl", "warns"),
    [
        ("allkeys-lru", None, True),
        ("volatile-lru", 60.0, True),
        ("volatile-lru", None, False),  # no key expires
        ("noeviction", 60.0, False),
    ],
)
@pytest.mark.parametrize("holds", ["threads", "items"])
def test_a_server_that_may_evict_keys_is_warned_of(policy, ttl, warns, holds, caplog):
    limits = ("--maxmemory", "100mb", "--maxmemory-policy", policy)
    with Server(*limits) as limited, backend_of(limited.url, ttl=ttl) as backend:
        for number in (1, 2):
            if holds == "threads":
                backend.commit(batch(number))
            else:
                with threadkeep.Store(backend) as items:
                    items.put(("a",), f"key {number}", {})
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warns
    assert policy in caplog.text or not warns


def test_eviction_from_a_cache_is_no_cause_for_a_warning(caplog):
    with (
        Server("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as limited,
        open_cache(limited.url) as cache,
    ):
        cache.set({(("a",), "key"): (1, 60)})
    assert not caplog.records


# -- sentinels ---------------------------------------------------------------------------


@pytest.mark.drawn(1)
@pytest.mark.parametrize("face", ["blocking", "awaited"])
def test_sentinels_name_the_promoted_replica(face):
    """One of them is enough to begin."""
    with Server() as first, Server("--replicaof", "127.0.0.1", str(first.port)) as second:
        until(lambda: second.admin.info("replication")["master_link_status"] == "up")
        with Sentinel(first) as sentinel:
            until(sentinel.knows_a_replica)
            hosts = f"127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}"
            backend = RedisBackend(f"redis+sentinel://{hosts}/main")
            told = backend if face == "blocking" else awaited(backend)
            with Writer(told.commit, batch) as writer:
                writer.wait_for(10)
            stored = first.admin.info("replication")["master_repl_offset"]
            until(lambda: second.admin.info("replication")["slave_repl_offset"] >= stored)
            first.kill()
            with Writer(told.commit, lambda number: batch(writer.done + number)) as later:
                later.wait_for(5)
            assert second.admin.info("replication")["role"] == "master"
            (rows,) = told.fetch([ReadThread(THREAD)])
            assert len(rows.checkpoints) == writer.done + later.done
            told.close()
            if face == "awaited":
                told.stop()
                backend.close()


def test_a_service_that_sentinels_do_not_know(server):
    with Sentinel(server) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/other/3"
        with backend_of(url) as backend, pytest.raises(UnreachableError, match="'other'"):
            backend.fetch(HEAD)


# -- a server that is away -----------------------------------------------------------------


@pytest.fixture
def tries(monkeypatch):
    """Return the number of retries."""
    pauses = []

    async def pause(_source, seconds):
        pauses.append(seconds)

    monkeypatch.setattr(clients.OwnClient, "pause", pause)
    return pauses


def test_nobody_listens(tries):
    unreachable = pytest.raises(UnreachableError)
    url = f"redis://user:secret@127.0.0.1:{free_port()}"
    with backend_of(url) as backend, unreachable as caught:
        backend.fetch(HEAD)
    assert caught.value.retryable
    assert "secret" not in str(caught.value)
    assert not tries  # a server never reached is no lost connection


def test_a_server_that_went_away(impatient, tries):
    with Server() as mortal, backend_of(mortal.url) as backend:
        backend.fetch(HEAD)
        mortal.kill()
        with pytest.raises(UnreachableError):
            backend.fetch(HEAD)
    assert tries


@pytest.mark.parametrize(
    ("said", "kind", "again"),
    [
        ("TRYAGAIN Multiple keys request during rehashing of slot", UnreachableError, True),
        ("CLUSTERDOWN The cluster is down", UnreachableError, True),
        ("CLUSTERDOWN Hash slot not served", UnreachableError, True),
        ("LOADING Redis is loading the dataset in memory", UnreachableError, True),
        ("MASTERDOWN Link with MASTER is down", UnreachableError, True),
        ("BUSY Redis is busy running a script.", UnreachableError, True),
        ("NOAUTH Authentication required.", UnreachableError, False),
        ("WRONGPASS invalid username-password pair", UnreachableError, False),
        ("OOM command not allowed when used memory > 'maxmemory'.", DiskFullError, False),
        ("READONLY You can't write against a read only replica.", ReadOnlyError, False),
        ("NOREPLICAS Not enough good replicas to write.", ReadOnlyError, False),
        ("MISCONF Redis is configured to save RDB snapshots", BackendError, False),
        ("NOPERM this user has no permissions", BackendError, False),
        ("CROSSSLOT Keys in request don't hash to the same slot", InvalidArgumentError, False),
        ("WRONGTYPE Operation against a key", BackendError, False),
        ("ERR something else", BackendError, False),
    ],
)
@pytest.mark.parametrize("form", ["{}", "Error running script (call to f_0): @user_script:9: -{}"])
def test_what_errors_mean(said, kind, again, form):
    error = BaseParser.parse_error(form.format(said))
    assert passes(error) == again
    assert type(mapped(error, "Redis")) is kind
    assert mapped(error, "Redis").hint


def test_no_node_of_a_cluster_listens(tries):
    url = f"redis+cluster://127.0.0.1:{free_port()}"
    with backend_of(url) as backend, pytest.raises(UnreachableError):
        backend.fetch(HEAD)


def test_a_server_that_does_not_answer(tries):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with backend_of(url, timeout=0.05) as backend, pytest.raises(UnreachableError):
            backend.fetch(HEAD)


def test_a_pool_that_stays_busy(server):
    with backend_of(server.url, max_connections=1, timeout=0.05) as backend:
        backend.fetch(HEAD)
        pool = backend.face._source._own.get().connection_pool
        busy = pool.get_connection()
        with pytest.raises(UnreachableError) as caught:
            backend.fetch(HEAD)
        assert "max_connections" in caught.value.hint
        pool.release(busy)
        backend.fetch(HEAD)


@pytest.mark.parametrize("face", ["blocking", "awaited"])
def test_a_failure_of_the_clients_own_code_is_a_lost_connection(server, tries, face, monkeypatch):
    """As when a connection is closed while another call connects it."""
    module = redis if face == "blocking" else redis.asyncio
    sent, failures = module.Redis.execute_command, [True]

    def fail(self, *words, **options):
        if failures and words[0] == "EVALSHA":
            failures.pop()
            raise AttributeError("'NoneType' object has no attribute 'writelines'")
        return sent(self, *words, **options)

    monkeypatch.setattr(module.Redis, "execute_command", fail)
    with backend_of(server.url, prefix=f"untyped {face}") as backend:
        told = backend if face == "blocking" else awaited(backend)
        with pytest.raises(UnreachableError, match="writelines"):
            told.fetch(HEAD)  # (never reached)
        told.fetch(HEAD)
        told.commit(batch(1))
        failures.append(True)
        told.commit(batch(2))
        assert not failures
        if face == "awaited":
            told.close()
            told.stop()


class Losing:
    """A source that loses the answer to each first writing call."""

    is_cluster = False

    def __init__(self, inner):
        self.inner, self.lost = inner, []
        self.pause, self.mend = inner.pause, inner.mend

    async def send(self, calls):
        answers = await self.inner.send(calls)
        if calls not in self.lost:
            self.lost.append(calls)
            raise redis.ConnectionError("Connection closed by server.")
        return answers


def test_changes_whose_answer_was_lost(server, tries):
    with backend_of(server.url, prefix="lost") as backend:
        backend.commit(batch(1))
        backend.face._source = Losing(backend.face._source)
        backend.commit(batch(2)._replace(fences=(HeadFence("", uid(1)),)))
        backend.commit(CopyThread(THREAD, "copy", NOW))
        with pytest.raises(ThreadExistsError):
            backend.commit(CopyThread(THREAD, "copy", NOW))
        backend.commit(DropThread(THREAD, NOW))
        (rows, copy) = backend.fetch([ReadThread(THREAD), ReadThread("copy")])
        assert (len(rows.checkpoints), rows.deleted_at) == (0, NOW)
        assert [s.row.id for s in copy.checkpoints] == [uid(1), uid(2)]
        assert copy.generation > 0
        assert backend.retries == len(backend.face._source.lost)
        backend.face._source = backend.face._source.inner


@pytest.mark.parametrize("face", ["blocking", "awaited"])
def test_a_killed_server_comes_back_with_all_that_was_acknowledged(face):
    """With `appendfsync always`; waiting callers continue."""
    with Server("--appendonly", "yes", "--appendfsync", "always") as mortal:
        backend = RedisBackend(mortal.url)
        told = backend if face == "blocking" else awaited(backend)
        with Writer(told.commit, batch) as writer:
            for _ in range(2):
                writer.wait_for(20)
                mortal.kill()
                mortal.start()
            writer.wait_for(20)
        (rows,) = told.fetch([ReadThread(THREAD)])
        told.close()
        if face == "awaited":
            told.stop()
            backend.close()
        assert [s.row.id for s in rows.checkpoints] == [uid(n) for n in range(1, writer.done + 1)]
        assert all(s.writes for s in rows.checkpoints)
