"""The processes of scripts/services: servers, the command, and signals.

Invariants: each process is registered for its stop as soon as it is started; signals are recorded
and checked, never raised.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from programs import ServiceError, identity, own, system_program

PATIENCE = 60.0  # seconds for a server to answer: the machine may be busy


class Interrupt:
    """A signal to end: recorded, never raised, so that no started server is lost."""

    def __init__(self) -> None:
        self.number = 0
        self.command: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.note)

    def note(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        # A terminal's Ctrl-C reaches the command too: sent twice, pytest would not clean up.
        if self.command and not (number == signal.SIGINT and sys.stdin.isatty()):
            self.command.send_signal(number)

    def check(self) -> None:
        if self.number:
            raise SystemExit(128 + self.number)

    def run(self, command: list[str], environment: dict[str, str]) -> int:
        """The command's exit code, as a shell returns it."""
        self.check()
        try:
            self.command = subprocess.Popen(command, env=environment)
        except OSError as error:
            print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
            return 127
        if self.number:  # a signal between the check and the start
            self.command.send_signal(self.number)
        code = self.command.wait()
        return code if code >= 0 else 128 - code


class Server:
    """A server that was started here."""

    def __init__(self, name: str, log: Path, stop: signal.Signals) -> None:
        self.name = name
        self.log = log
        self.stop_signal = stop
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        command: Callable[[int], list[str]],
        answers: Callable[[int, int], bool],
        user: int | None,
        interrupt: Interrupt,
    ) -> int:
        """Start it on a free port and return that once it answers.

        A port may be taken between our look and its start: then another one is tried.
        """
        for _ in range(5):
            port = free_port()
            with self.log.open("wb") as log:
                process = self.process = subprocess.Popen(
                    command(port),
                    **identity(user),
                    cwd="/",
                    env=os.environ | {"LC_ALL": "C"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # a terminal's Ctrl-C must not reach it
                )
            if self.wait(process, partial(answers, port, process.pid), interrupt):
                return port
            if "Address already in use" not in self.tail():
                break
        raise ServiceError(f"{self.name} did not start; the end of its log:\n{self.tail()}")

    def wait(
        self, process: subprocess.Popen[bytes], answers: Callable[[], bool], interrupt: Interrupt
    ) -> bool:
        """Wait until it answers (True) or ends (False)."""
        patience = time.monotonic() + PATIENCE
        while not answers():
            interrupt.check()
            if time.monotonic() > patience:
                raise ServiceError(
                    f"{self.name} does not answer after {PATIENCE:.0f} s; "
                    f"the end of its log:\n{self.tail()}"
                )
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            return False
        return True

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_postgres(
    programs: Path,
    folder: Path,
    user: int | None,
    settings: tuple[str, ...],
    stack: ExitStack,
    interrupt: Interrupt,
) -> str:
    data = folder / "postgres"
    data.mkdir(mode=0o700)
    own(user, data)
    initialise(programs, data, user)
    # Its data is discarded, so SIGQUIT saves the checkpoint of an orderly shutdown.
    server = Server("PostgreSQL", folder / "postgres.log", signal.SIGQUIT)
    stack.callback(server.stop)
    own_settings = "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200"
    port = server.start(
        lambda port: [
            *(str(programs / "postgres"), "-D", str(data), "-p", str(port)),
            *(part for setting in (*own_settings, *settings) for part in ("-c", setting)),
        ],
        lambda port, _pid: is_postgres(postgres_url(port, "postgres"), data),
        user,
        interrupt,
    )
    create_database(postgres_url(port, "postgres"))
    return postgres_url(port, "threadkeep")


def postgres_url(port: int, database: str) -> str:
    return f"postgresql://threadkeep@127.0.0.1:{port}/{database}"


def initialise(programs: Path, data: Path, user: int | None) -> None:
    role = ["--username=threadkeep", "--auth=trust"]
    done = subprocess.run(
        [programs / "initdb", "-D", data, *role, "--encoding=UTF8", "--no-locale", "--no-sync"],
        **identity(user),
        cwd="/",
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise ServiceError(f"initdb failed:\n{done.stdout}")


def is_postgres(url: str, data: Path) -> bool:
    """Return True if our server answers, not another that was given the port in between."""
    import psycopg  # noqa: PLC0415  missing if only Redis is needed

    try:
        with psycopg.connect(url, connect_timeout=5) as db:
            row = db.execute("SHOW data_directory").fetchone()
    except psycopg.OperationalError:
        return False
    return row == (str(data),)


def create_database(url: str) -> None:
    import psycopg  # noqa: PLC0415

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE DATABASE threadkeep")


def start_redis(programs: Path, folder: Path, stack: ExitStack, interrupt: Interrupt) -> str:
    data = folder / "redis"
    data.mkdir()
    server = Server("Redis", folder / "redis.log", signal.SIGTERM)
    stack.callback(server.stop)
    options = ["--bind", "127.0.0.1", "--save", "", "--dir", str(data)]
    program = str(programs / "redis-server")
    port = server.start(
        lambda port: [program, "--port", str(port), *options], is_redis, None, interrupt
    )
    return f"redis://127.0.0.1:{port}/0"


def is_redis(port: int, pid: int) -> bool:
    """Return True if our server answers, not another that was given the port in between."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"INFO server\r\n")
            return f"process_id:{pid}\r\n".encode() in connection.recv(1 << 16)
    except OSError:
        return False


# Its data is discarded, so there is little log. (A test of a killed client needs no more.)
MYSQL_OPTIONS = (
    *("--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=400"),
    *("--innodb-log-file-size=32M", "--innodb-buffer-pool-size=256M"),
)


def start_mysql(
    program: str,
    folder: Path,
    user: int | None,
    settings: tuple[str, ...],
    stack: ExitStack,
    interrupt: Interrupt,
) -> str:
    data = folder / "mysql"
    data.mkdir(mode=0o700)
    own(user, data)
    own_files = [f"--datadir={data}", f"--socket={data / 'socket'}", f"--pid-file={data / 'pid'}"]
    # (a server removes the temporary tables that it finds when it starts, also those of others)
    own_files.append(f"--tmpdir={data}")
    made = subprocess.run(
        [
            *(system_program("mariadb-install-db"), "--no-defaults", own_files[0]),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
        ],
        **identity(user),
        cwd="/",
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if made.returncode:
        raise ServiceError(f"mariadb-install-db failed:\n{made.stdout}")
    server = Server("MariaDB", folder / "mysql.log", signal.SIGTERM)
    stack.callback(server.stop)
    port = server.start(
        lambda port: [
            *(program, "--no-defaults", *own_files, f"--port={port}", *MYSQL_OPTIONS, *settings)
        ],
        lambda port, _pid: is_mysql(port, data),
        user,
        interrupt,
    )
    with mysql(port) as db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE threadkeep")
    return f"mysql://root@127.0.0.1:{port}/threadkeep"


def mysql(port: int) -> Any:
    import pymysql  # noqa: PLC0415  missing if only other servers are needed

    return pymysql.connect(host="127.0.0.1", port=port, user="root", connect_timeout=5)


def is_mysql(port: int, data: Path) -> bool:
    """Return True if our server answers, not another that was given the port in between."""
    import pymysql  # noqa: PLC0415

    try:
        with mysql(port) as db, db.cursor() as cursor:
            cursor.execute("SELECT @@datadir")
            return Path(cursor.fetchone()[0]) == data
    except pymysql.err.Error:
        return False
