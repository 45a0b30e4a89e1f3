"""Everything one run measured, and how it is written down."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.measures.copies import CopyFigures
from bench.measures.crowd import CrowdFigures
from bench.measures.puts import PutFigures
from bench.measures.reads import ColdFigures
from bench.measures.resident import ResidentFigures
from bench.measures.runs import RunsFigures
from bench.measures.turns import TurnFigures
from bench.servers import Server

PACKAGES = (
    "threadkeep",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "psycopg",
    "redis",
)


@dataclass
class Results:
    """The figures of every part that was run; `last` turns count for "ms a turn"."""

    sizes: str
    last: int
    turns: dict[str, TurnFigures] = field(default_factory=dict)
    cold: list[ColdFigures] = field(default_factory=list)
    puts: list[PutFigures] = field(default_factory=list)
    crowd: list[CrowdFigures] = field(default_factory=list)
    resident: list[ResidentFigures] = field(default_factory=list)
    runs: list[RunsFigures] = field(default_factory=list)
    copies: list[CopyFigures] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)  # that the stores are on

    def any(self) -> bool:
        """True if anything was measured."""
        return bool(self.turns or self.puts or self.crowd or self.resident or self.runs)


def machine() -> dict[str, Any]:
    """Machine and versions of a measurement."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in PACKAGES},
    }


def write(results: Results, targets: list[dict[str, Any]], path: Path) -> None:
    """Write all figures, in milliseconds and bytes, as JSON."""
    record = {"machine": machine(), **asdict(results), "targets": targets}
    for figures in record["turns"].values():
        for lane in figures["lanes"]:
            del lane["file"]  # gone by now
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
