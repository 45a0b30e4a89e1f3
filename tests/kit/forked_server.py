"""Imports our packages once, and forks a process for each client.

Run as a program with the path of a socket; it ends with its stdin, and every process that it
has forked ends with its client.
"""

import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import threading
import types
import warnings
from contextlib import suppress

MODULES = (
    "threadkeep.cli",
    "threadkeep._stores.memory.backend",
    "threadkeep._stores.postgres.backend",
    "threadkeep._stores.redis.backend",
    "threadkeep._stores.sqlite.backend",
    "threadkeep.memory",
    "threadkeep.testing",
    "langgraph.graph",
    "langgraph.prebuilt",
    "langgraph.checkpoint.sqlite",
    "pytest",
    "rich.live",
    "rich.progress",
)
del sys.path[0]  # (this folder has a module `redis`)
OWN = os.environ.get("PYTHONPATH", "").split(os.pathsep)
PATH = [one for one in sys.path if one not in OWN]
FILTERS = list(warnings.filters)


def main(path: str) -> None:
    warnings.filterwarnings("error", module=r"threadkeep(\.|$)")
    for name in MODULES:
        with suppress(ImportError):  # (the lowest versions lack some, or what these need)
            importlib.import_module(name)
    assert threading.active_count() == 1  # a forked process would not have the others
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready\n")
    with listener:
        asked = serve(listener)
    if asked:
        become(*asked)


def serve(listener: socket.socket) -> tuple[list[str], str, dict[str, str]] | None:
    """Answer clients; in a forked process, return what its client asked for."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    clients: dict[socket.socket, int] = {}
    while True:
        ready = select.select([0, wake, listener, *clients], [], [])[0]
        if 0 in ready:
            return None
        if wake in ready:
            os.read(wake, 4096)
            bury(clients)
        for link in [one for one in ready if one in clients]:
            os.kill(clients.pop(link), signal.SIGKILL)
            link.close()
        if listener in ready:
            link, _ = listener.accept()
            asked, streams = heard(link)
            pid = os.fork()
            if not pid:
                take(streams, [wake, woken], [listener, link, *clients])
                return asked
            for stream in streams:
                os.close(stream)
            clients[link] = pid
            link.sendall(pid.to_bytes(4, "big"))


def take(streams: list[int], pipes: list[int], links: list[socket.socket]) -> None:
    """Take the streams of the client, and close those of the server."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for one in (*pipes, *streams):
        os.close(one)
    for link in links:
        link.close()


def heard(link: socket.socket) -> tuple[tuple[list[str], str, dict[str, str]], list[int]]:
    """A client's request, and its streams."""
    head, streams, _, _ = socket.recv_fds(link, 4, 3)
    left = int.from_bytes(head, "big")
    data = b""
    while len(data) < left:
        data += link.recv(left - len(data))
    return marshal.loads(data), streams


def bury(clients: dict[socket.socket, int]) -> None:
    """Tell the clients of processes that have ended."""
    by_pid = {pid: link for link, pid in clients.items()}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        link = by_pid.pop(pid, None)
        if link is not None and clients.pop(link, None):
            code = os.waitstatus_to_exitcode(status)
            link.sendall(code.to_bytes(4, "big", signed=True))
            link.close()


def become(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be a Python that was started so."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    reopen(bool(environment.get("PYTHONUNBUFFERED")))
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        del arguments[:2]
    else:
        warnings.filters[:] = FILTERS  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
    above = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[:] = [*above, *[one for one in PATH if one not in above]]
    start, *rest = arguments
    if start == "-m":
        sys.path.insert(0, folder)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif start == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), vars(module))
    else:
        sys.path.insert(0, os.path.dirname(start))  # noqa: PTH120
        sys.argv = arguments
        runpy.run_path(start, run_name="__main__")


def reopen(is_unbuffered: bool) -> None:
    """Give Python the streams that the process has now."""
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = open(  # noqa: SIM115
            number,
            "w",
            buffering=1 if number == 2 or os.isatty(number) else -1,
            errors="backslashreplace" if number == 2 else None,
            closefd=False,
        )
        stream.reconfigure(write_through=is_unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


main(sys.argv[1])
