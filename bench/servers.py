"""Servers to measure on: their URLs.

Only where a server is, what a path is called there, and what the report says of a server
live here. A file's path stands for a part of a server (a database, a prefix), as it does for
a file of SQLite: lanes need not know their server.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench.errors import BenchError

CONNECTIONS = 16  # of every pool


@dataclass(frozen=True)
class Server:
    """A server and how it was set; `round_trip`: milliseconds of the shortest question."""

    name: str
    settings: str
    round_trip: float

    def __str__(self) -> str:
        return f"{self.name} {self.settings}; round trip {self.round_trip:.3g} ms"


def url(backend: str) -> str:
    """Return the URL of a backend's server, from `scripts/services` or the user."""
    variable = f"TK_TEST_{backend.upper()}"
    found = os.environ.get(variable)
    if not found:
        raise BenchError(f"{variable} names no server: run `make bench BACKEND={backend}`")
    return found


def part(path: Path) -> str:
    """The name, on a server, of what a path stands for."""
    return "bench_" + sha256(str(path).encode()).hexdigest()[:16]


def round_trip(ask: Callable[[], Any]) -> float:
    """The median of many asked one after the other, in milliseconds, after some to warm up."""
    times = []
    for _ in range(200):
        start = perf_counter()
        ask()
        times.append((perf_counter() - start) * 1_000)
    return median(times[20:])
