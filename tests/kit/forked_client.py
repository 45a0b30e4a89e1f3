"""Asks the server for a process, and stands for that process to its parent.

It imports next to nothing: it is started in place of a Python that imports everything.
"""

import _signal
import _socket
import marshal
import os
import sys


def number(link):
    """The next number that the server says."""
    data = b""
    while len(data) < 4:
        part = link.recv(4 - len(data))
        if not part:
            sys.exit("the server of forked processes has gone")
        data += part
    return int.from_bytes(data, "big", signed=True)


def main():
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    link.connect(sys.argv[1])
    asked = marshal.dumps((sys.argv[2:], os.getcwd(), dict(os.environ)))  # noqa: PTH109
    streams = b"".join(one.to_bytes(4, sys.byteorder) for one in (0, 1, 2))
    head = len(asked).to_bytes(4, "big")
    link.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    link.sendall(asked)
    pid = number(link)
    for one in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(one, lambda given, _: os.kill(pid, given))
    for one in (0, 1, 2):
        os.close(one)  # (their reader waits only for the process)
    code = number(link)
    if code < 0:
        if code != -_signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
