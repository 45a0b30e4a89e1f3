"""Sessions beside a store of whole states as JSON: `python -m bench.sessions`.

An asyncio service of many sessions, each a growing list of messages, saved at every step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from threadkeep import MemorySaver, SqliteSaver
from threadkeep.sessions import AutoSaver, CheckpointConfig, CheckpointManager

Save = Callable[[str, dict[str, Any]], Awaitable[object]]

_KEEP = 100


def message(step: int) -> dict[str, Any]:
    return {"role": "user", "text": f"message {step}: " + "so many words " * 10, "step": step}


async def serve(save: Save, sessions: int, steps: int) -> tuple[float, float]:
    """Run all sessions at once; saves a second, and CPU ms a save."""

    async def one(name: str) -> None:
        state: dict[str, Any] = {"messages": [], "step": 0, "topic": name}
        for step in range(steps):
            state["messages"].append(message(step))
            state["step"] = step
            await save(name, state)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one(f"session-{number}") for number in range(sessions)))
    saves = sessions * steps
    return saves / (time.perf_counter() - wall), (time.process_time() - cpu) / saves * 1e3


def naive(path: Path) -> Save:
    """Save whole states as JSON, one row each, and keep the newest of a session."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE c (session TEXT, id INTEGER, state TEXT, PRIMARY KEY (session, id))")

    async def save(name: str, state: dict[str, Any]) -> None:
        with db:
            db.execute("INSERT INTO c VALUES (?, ?, ?)", (name, state["step"], json.dumps(state)))
            db.execute("DELETE FROM c WHERE session = ? AND id <= ?", (name, state["step"] - _KEEP))

    return save


def managed(manager: CheckpointManager, *, automatic: bool) -> Save:
    savers: dict[str, AutoSaver] = {}

    async def save(name: str, state: dict[str, Any]) -> object:
        if automatic:
            session = savers.setdefault(name, AutoSaver(manager, name, "chat"))
            return await session.astep(state)
        return await manager.acreate_checkpoint(name, "chat", state)

    return save


def measure(sessions: int, steps: int) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "threads.db")
        config = CheckpointConfig(max_checkpoints=_KEEP)
        stores: dict[str, Save] = {
            "JSON in SQLite": naive(Path(folder, "naive.db")),
            "SQLite": managed(CheckpointManager(SqliteSaver(file), config), automatic=False),
            "SQLite, AutoSaver": managed(
                CheckpointManager(SqliteSaver(Path(folder, "auto.db")), config), automatic=True
            ),
            "memory": managed(CheckpointManager(MemorySaver(), config), automatic=False),
        }
        for name, save in stores.items():
            tracemalloc.start() if name == "none" else None
            rate, cpu = asyncio.run(serve(save, sessions, steps))
            print(f"{name:20} {rate:7.0f} saves/s  {cpu:6.3f} CPU ms a save")
        for path in sorted(Path(folder).glob("*.db")):
            print(f"{path.name:20} {path.stat().st_size / 1e6:7.1f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    measure(arguments.sessions, arguments.steps)
