"""Sessions beside a store of whole states as JSON: `python -m bench.sessions`.

An asyncio service of many sessions, each a growing list of messages, saved at every step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
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


def service(folder: Path, sessions: int, steps: int) -> None:
    config = CheckpointConfig(max_checkpoints=_KEEP)
    managers = [
        CheckpointManager(SqliteSaver(str(folder / "sessions.db")), config),
        CheckpointManager(SqliteSaver(str(folder / "automatic.db")), config),
        CheckpointManager(MemorySaver(), config),
    ]
    stores: dict[str, Save] = {
        "JSON in SQLite": naive(folder / "json.db"),
        "SQLite": managed(managers[0], automatic=False),
        "SQLite, AutoSaver": managed(managers[1], automatic=True),
        "memory": managed(managers[2], automatic=False),
    }
    for name, save in stores.items():
        rate, cpu = asyncio.run(serve(save, sessions, steps))
        print(f"{name:20} {rate:7.0f} saves/s  {cpu:6.3f} CPU ms a save")
    for manager in managers:
        manager.close()
    for path in sorted(folder.glob("*.db")):
        print(f"{path.name:20} {path.stat().st_size / 1e6:7.1f} MB")


def listing(folder: Path, checkpoints: int, workflows: int) -> None:
    """Print how long reads take in a session of many checkpoints."""
    config = CheckpointConfig(max_checkpoints=None, retention_days=None)
    file = str(folder / "listing.db")
    with CheckpointManager(SqliteSaver(file, synchronous="normal"), config) as manager:
        for step in range(checkpoints):
            manager.create_checkpoint("s", f"flow-{step % workflows}", {"message": message(step)})
        calls: dict[str, Callable[[], object]] = {
            "latest of the session": lambda: manager.get_latest_checkpoint("s"),
            "latest of a workflow": lambda: manager.get_latest_checkpoint("s", "flow-7"),
            "newest 20 of a workflow": lambda: manager.list_checkpoints("s", "flow-7", limit=20),
            "all of a workflow": lambda: manager.list_checkpoints("s", "flow-7"),
            "all of the session": lambda: manager.list_checkpoints("s"),
            "cleanup to 1,000": lambda: manager.cleanup_old_checkpoints("s", 1000),
        }
        for name, call in calls.items():
            times = []
            for _ in range(1 if name.startswith("cleanup") else 5):
                begun = time.perf_counter()
                call()
                times.append(time.perf_counter() - begun)
            print(f"{name:25} {min(times) * 1e3:8.2f} ms")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench.sessions", description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        service(Path(folder), options.sessions, options.steps)
        listing(Path(folder), options.checkpoints, workflows=50)


if __name__ == "__main__":
    main(sys.argv[1:])
