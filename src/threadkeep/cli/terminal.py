"""What the commands say, and where: results on stdout, all else on stderr.

Invariant: nothing else in the package prints.
"""

from __future__ import annotations

import sys
from typing import TextIO

_AFRESH = "\r\x1b[K"  # a terminal's line begins anew, over how far it was


def say(text: str) -> None:
    """A line of the result."""
    _print(text, sys.stdout)


def say_wrong(text: str) -> None:
    """Why it could not be done, in one line."""
    start = _AFRESH if sys.stderr.isatty() else ""
    _print(f"{start}threadkeep: {' '.join(text.split())}", sys.stderr)


def progress(what: str, done: int, total: int) -> None:
    """How far it is, to whoever waits at a terminal; `total` 0 where nobody knows."""
    if sys.stderr.isatty():
        of = f" of {total}" if total else ""
        _print(f"{_AFRESH}{done}{of} {what}", sys.stderr, "\n" if done == total else "")


def _print(text: str, where: TextIO, end: str = "\n") -> None:
    print(text, file=where, end=end, flush=True)
