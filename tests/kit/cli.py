"""The command `threadkeep` as a process."""

from __future__ import annotations

import subprocess
from typing import Any

from kit.forked import python

SECONDS = 60  # for a program that hangs


def command(*arguments: Any) -> list[str]:
    """Return the command line of a process."""
    return [*python(), "-m", "threadkeep", *map(str, arguments)]


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
