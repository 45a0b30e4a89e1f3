"""The command `threadkeep` as a process, for the tests that look at it from outside."""

from __future__ import annotations

import subprocess
from typing import Any

from kit.forked import python

SECONDS = 60  # for a program that hangs


def command(*arguments: Any) -> list[str]:
    """The words that start it."""
    return [*python(), "-m", "threadkeep", *map(str, arguments)]


def threadkeep(*arguments: Any, **options: Any) -> tuple[int, list[str], list[str]]:
    """Run it: its exit code, and the lines that it said on stdout and stderr."""
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
