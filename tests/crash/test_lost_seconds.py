"""Servers that lose their last seconds while two workers live on.

A Redis that keeps snapshots is killed and started again; a standby of PostgreSQL that lacks the
last commits is promoted.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import psycopg
import pytest
from kit import postgres_server, redis_servers
from kit.losses import Workers

from threadkeep import open_saver

AFTER = 1000
"""No turn has so many requests: the loss is between two turns."""


@pytest.fixture(scope="module")
def redis_server() -> Iterator[redis_servers.Server]:
    with redis_servers.Server() as server:
        yield server


@pytest.mark.drawn(1)
@pytest.mark.parametrize("back", [AFTER, 3], ids=["between two runs", "during a run"])
async def test_redis_without_an_append_only_file_is_killed(
    redis_server: redis_servers.Server, back: int
) -> None:
    def saved() -> Callable[[], object]:
        redis_server.admin.save()

        def restart() -> None:
            redis_server.kill()
            redis_server.start()

        return restart

    redis_server.admin.flushall()
    with ExitStack() as stack:
        opened = partial(open_saver, redis_server.url)
        saver = stack.enter_context(opened())
        workers = Workers(saver, opened, saved)
        stack.callback(workers.other.close)
        await workers.play(copied=-1, back=back, turns=1, awaited=False)


class Pair:
    """A primary, and a standby that replicates without its waiting."""

    def __init__(self, primary: postgres_server.Server, standby: postgres_server.Server) -> None:
        self.primary, self.standby = primary, standby

    @property
    def url(self) -> str:
        ports = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://threadkeep@{ports}/postgres?target_session_attrs=read-write"

    def cut(self) -> Callable[[], object]:
        """Let the standby receive everything up to now, and nothing from now on."""
        with (
            psycopg.connect(self.primary.url(), autocommit=True) as primary,
            psycopg.connect(self.standby.url(), autocommit=True) as standby,
        ):
            (end,) = primary.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
            reached = "SELECT pg_last_wal_replay_lsn() >= %s"
            redis_servers.until(lambda: standby.execute(reached, [end]).fetchone() == (True,))
            standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            standby.execute("SELECT pg_reload_conf()")
            receives = "SELECT count(*) FROM pg_stat_wal_receiver"
            redis_servers.until(lambda: standby.execute(receives).fetchone() == (0,))
        return self.fail_over

    def fail_over(self) -> None:
        self.primary.stop()
        self.standby.control("promote")


@contextmanager
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        primary = stack.enter_context(postgres_server.server())

        def base(data: os.PathLike[str]) -> None:
            of = ("-d", primary.url(), "-c", "fast", "-X", "stream", "-R", "--no-sync")
            postgres_server.program("pg_basebackup", "-D", data, *of)

        yield Pair(primary, stack.enter_context(postgres_server.server(base=base)))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("back", [AFTER, 3], ids=["between two runs", "during a run"])
async def test_a_standby_of_postgres_without_the_last_commits_is_promoted(back: int) -> None:
    with pair() as servers, ExitStack() as stack:
        opened = partial(open_saver, servers.url, max_size=2)
        saver = stack.enter_context(opened())
        saver.setup()
        workers = Workers(saver, opened, servers.cut)
        stack.enter_context(closing(workers.other))
        await workers.play(copied=-1, back=back, turns=1, awaited=False)
