"""Python processes without the start of Python: forked from one that has imported our packages.

`python()` stands for `sys.executable` in a command: what it starts has its own arguments, streams,
folder and environment, gets signals and ends with its own exit code. Only the imports are shared,
one or two seconds of each process. Not for tests of imports, of variables that Python itself
reads (but PYTHONPATH), or of hash seeds.
"""

import atexit
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


def python() -> list[str]:
    """The words that start a process."""
    return [sys.executable, "-IS", str(HERE / "forked_client.py"), _server()]


@cache
def _server() -> str:
    """Start the server of this process; the path of its socket."""
    folder = tempfile.mkdtemp(prefix="tk-")  # (a socket's path is 100 characters at most)
    path = f"{folder}/socket"
    server = subprocess.Popen(
        [sys.executable, str(HERE / "forked_server.py"), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=HERE.parents[1],
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    server.stdout.close()

    def stop() -> None:
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder)

    atexit.register(stop)
    return path
