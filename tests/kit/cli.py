"""The command `threadkeep` as a process."""

import os
import pty
import subprocess
from contextlib import suppress
from typing import Any

from kit.forked import python

SECONDS = 60  # for a program that hangs


def command(*arguments: Any) -> list[str]:
    """Return the command line of a process."""
    return [*python(), "-m", "threadkeep", *map(str, arguments)]


def answering(answer: bytes, *arguments: Any) -> tuple[int, str, str]:
    """Run a command at a terminal and answer its question; return code, stdout and screen."""
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        command(*arguments), text=True, stdin=secondary, stderr=secondary, stdout=subprocess.PIPE
    ) as process:
        os.close(secondary)
        shown = b""
        with suppress(OSError):  # what Linux says where the other end has gone
            while read := os.read(primary, 1024):
                was_asked, shown = b"[y/N]" in shown, shown + read
                if b"[y/N]" in shown and not was_asked:
                    os.write(primary, answer)
        out = process.communicate(timeout=SECONDS)[0]
    os.close(primary)
    return process.returncode, out, shown.decode()


def threadkeep(*arguments: Any, **options: Any) -> tuple[int, list[str], list[str]]:
    """Run the command; return its exit code and its lines on stdout and stderr."""
    options = {"stderr": subprocess.PIPE, **options}
    done = subprocess.run(
        command(*arguments),
        check=False,
        text=True,
        timeout=SECONDS,
        stdout=subprocess.PIPE,
        **options,
    )
    return done.returncode, done.stdout.splitlines(), (done.stderr or "").splitlines()
