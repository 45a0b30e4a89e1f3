"""Redis servers of a test's own: to stop, to fill up, or three of them as a cluster.

`TK_TEST_REDIS_BIN` says where the program is (see `scripts/services`). Always holds: each server
has a folder and a free port of its own, and is stopped by its own process id.
"""

import atexit
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from threadkeep._core.engine.model import Batch

PATIENCE = 20.0
SLOTS = 16384
_HIGHEST = 50_000  # a cluster's node listens 10,000 ports above its own as well
_POLL = threading.Event()  # never set: waits for a moment


def locked_program() -> str:
    folder = os.environ.get("TK_TEST_REDIS_BIN")
    assert folder, "no redis-server: run the tests with `make test`, or scripts/services"
    return str(Path(folder, "redis-server"))


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    patience = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < patience, "the server does not get there"
        _POLL.wait(0.01)


def free_port() -> int:
    while True:
        port = random.randrange(20_000, _HIGHEST)
        try:
            for each in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", each))
        except OSError:
            continue
        return port


class Server:
    """A redis-server with these options, on a port of its own."""

    def __init__(self, *options: str, program: str = "") -> None:
        self.program = program or locked_program()
        self.folder = Path(tempfile.mkdtemp(prefix="threadkeep-redis-"))
        self.port = free_port()
        self.options = options
        self.admin = redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0))
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(self.folder), "--logfile", "log", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(self.answers)

    def answers(self) -> bool:
        try:
            return self.admin.info("server")["process_id"] == self.process.pid
        except redis.ConnectionError:  # (while it loads its data, too)
            assert self.process.poll() is None, (self.folder / "log").read_text()
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.admin.close()
        self.kill()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Sentinel(Server):
    """A sentinel that watches a primary, and promotes a replica soon after it is gone."""

    def __init__(self, primary: Server) -> None:
        self.watched = primary
        super().__init__()

    def start(self) -> None:
        settings = self.folder / "sentinel.conf"
        settings.write_text(
            f"port {self.port}\nbind 127.0.0.1\n"
            f"sentinel monitor main 127.0.0.1 {self.watched.port} 1\n"
            "sentinel down-after-milliseconds main 200\nsentinel failover-timeout main 2000\n"
        )
        command = [self.program, str(settings), "--sentinel", "--dir", str(self.folder)]
        self.process = subprocess.Popen([*command, "--logfile", "log"], stdout=subprocess.DEVNULL)
        until(self.answers)

    def knows_a_replica(self) -> bool:
        return self.admin.sentinel_master("main")["num-slaves"] > 0


class Writer:
    """Commits one batch after the other, in a thread, until the block ends."""

    def __init__(self, commit: Callable[[Batch], None], batch: Callable[[int], Batch]) -> None:
        self.commit, self.batch = commit, batch
        self.done = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.ended.is_set():
            self.commit(self.batch(self.done + 1))
            self.done += 1

    def wait_for(self, more: int) -> None:
        """Until so many more are committed."""
        wanted = self.done + more
        until(lambda: self.done >= wanted)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join(PATIENCE)


class Cluster:
    """Three nodes that share the slots."""

    def __init__(self) -> None:
        self.nodes = [Server("--cluster-enabled", "yes") for _ in range(3)]
        self.ids = [node.admin.cluster("MYID").decode() for node in self.nodes]
        for number, node in enumerate(self.nodes):
            first, stop = (SLOTS * at // len(self.nodes) for at in (number, number + 1))
            node.admin.cluster("ADDSLOTS", *range(first, stop))
            node.admin.cluster("SET-CONFIG-EPOCH", number + 1)  # (refused once it knows another)
        for node in self.nodes:
            for other in self.nodes:
                node.admin.cluster("MEET", "127.0.0.1", other.port)
        until(lambda: all(self._is_whole(node) for node in self.nodes))

    def _is_whole(self, node: Server) -> bool:
        info = node.admin.cluster("INFO")
        return (info["cluster_state"], info["cluster_slots_ok"]) == ("ok", str(SLOTS))

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def owner(self, key: str) -> int:
        """The node that has a key's slot, as that node itself sees it."""
        slot = key_slot(key.encode())
        for number, node in enumerate(self.nodes):
            try:
                node.admin.execute_command("CLUSTER COUNTKEYSINSLOT", slot)
                node.admin.exists(key)
            except redis.ResponseError:  # MOVED
                continue
            return number
        raise AssertionError("no node has the slot")

    def move(self, key: str, target: int) -> None:
        """Move a key's slot, and all that is in it, as redis-cli does."""
        slot, source = key_slot(key.encode()), self.owner(key)
        old, new = self.nodes[source].admin, self.nodes[target].admin
        new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.ids[source])
        old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.ids[target])
        while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
            place = ("127.0.0.1", self.nodes[target].port, "", 0, 5000)
            old.execute_command("MIGRATE", *place, "KEYS", *keys)
        for node in (new, old, *(node.admin for node in self.nodes)):
            node.execute_command("CLUSTER SETSLOT", slot, "NODE", self.ids[target])

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


@cache
def cluster() -> Cluster:
    """This process's cluster; it is stopped when the process ends."""
    made = Cluster()
    atexit.register(made.stop)
    return made
