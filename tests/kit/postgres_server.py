"""PostgreSQL servers and PgBouncers of a test's own, to be stopped, restarted and starved.

Needs what `scripts/services` says of itself. A server listens on 127.0.0.1 and keeps its data
in a folder that is removed with it.
"""

import atexit
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

SECONDS = 60  # for a program that hangs
QUICK = ("fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories=", "jit=off")


def identity():
    """The user that servers run as, since they refuse root."""
    if os.geteuid() != 0:
        return {}
    user = int(os.environ["TK_TEST_USER"])
    return {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}


def new_folder():
    """A folder that servers can use."""
    folder = Path(tempfile.mkdtemp(prefix="own-", dir=os.environ["TK_TEST_FOLDER"]))
    if owner := identity():
        os.chown(folder, owner["user"], owner["group"])
    return folder


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program(name, *arguments):
    """Run one of PostgreSQL's programs; what it did wrong is shown."""
    folder = os.environ.get("TK_TEST_POSTGRES_BIN")
    assert folder, "no programs of PostgreSQL: run the tests with `make test`, or scripts/services"
    command = [Path(folder, name), *arguments]
    # Not a pipe: the server that pg_ctl leaves behind would keep it open.
    with tempfile.TemporaryFile() as said:
        to = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, **identity(), **to, cwd="/", check=False, timeout=SECONDS)
        said.seek(0)
        assert done.returncode == 0, said.read().decode(errors="replace")


@cache
def template():
    """The data of a fresh server, to be copied: a fifth of the time that initdb takes."""
    folder = new_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    role = ("--username=threadkeep", "--auth=trust")
    program("initdb", "-D", folder / "data", *role, "--encoding=UTF8", "--no-locale", "--no-sync")
    return folder / "data"


class Server:
    """A PostgreSQL on a port of its own."""

    def __init__(self, data, *settings):
        self.data, self.log = data, data.with_suffix(".log")
        self.settings = (*QUICK, *settings)
        self.port = free_port()

    def control(self, *arguments):
        program("pg_ctl", "-D", self.data, "-w", "-t", str(SECONDS), *arguments)

    def start(self):
        options = " ".join(
            f"-c {shlex.quote(setting)}" for setting in (f"port={self.port}", *self.settings)
        )
        self.control("-l", self.log, "-o", options, "start")

    def restart(self):
        """Stop as in a crash: without notice to clients, and with a replay of the log."""
        self.control("-m", "immediate", "restart")

    def stop(self):
        if (self.data / "postmaster.pid").exists():
            self.control("-m", "immediate", "stop")

    def url(self, **parts):
        return url_at(self.port, **parts)


def url_at(port, *, user="threadkeep", database="postgres"):
    return f"postgresql://{user}@127.0.0.1:{port}/{database}"


@contextmanager
def server(*settings, base=None):
    """A server that runs until the block ends; `base` makes its data in place of a fresh one."""
    folder = new_folder()
    own = Server(folder / "data", *settings)
    try:
        if base is None:
            shutil.copytree(template(), own.data, symlinks=True)
        else:
            base(own.data)
        if owner := identity():
            for path in (own.data, *own.data.rglob("*")):
                os.chown(path, owner["user"], owner["group"])
        own.data.chmod(0o700)
        own.start()
        yield own
    finally:
        own.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def bouncer(url, **settings):
    """A PgBouncer in transaction mode before the server at `url`; its own URL."""
    named = os.environ.get("TK_TEST_PGBOUNCER_BIN")
    if not named:
        missing = "no pgbouncer: install it, or name the program with TK_TEST_PGBOUNCER_BIN"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    to = conninfo_to_dict(url)
    folder, port = new_folder(), free_port()
    lines = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "max_client_conn": 200,
        "default_pool_size": 4,
        **settings,
    }
    said = "\n".join(f"{name} = {value}" for name, value in lines.items())
    target = f"host={to['host']} port={to['port']} dbname={to['dbname']} user={to['user']}"
    config = folder / "pgbouncer.ini"
    config.write_text(f"[databases]\n{to['dbname']} = {target}\n[pgbouncer]\n{said}\n")
    config.chmod(0o644)
    log = (folder / "log").open("wb")
    outputs = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
    process = subprocess.Popen([named, config], **identity(), **outputs, cwd="/")
    own = url_at(lines["listen_port"], user=to["user"], database=to["dbname"])
    try:
        wait_for(own, process)
        yield own
    finally:
        process.kill()
        process.wait(SECONDS)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(url, process):
    """Until it answers; each attempt waits for the process to end, so that nothing spins."""
    for _ in range(SECONDS * 20):
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"{process.args[0]} ended with {process.returncode}")
        else:
            return
    pytest.fail(f"{process.args[0]} does not answer")
