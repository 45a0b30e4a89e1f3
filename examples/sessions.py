"""Save, interrupt and resume a workflow that does not use LangGraph.

    python examples/sessions.py [FILE]

Researches topics step by step, as an agent would; no network, no key.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from threadkeep import AutoSaver, CheckpointConfig, CheckpointManager, SqliteSaver, checkpointed

TOPICS = ("rivers", "bridges", "tides", "harbours", "lighthouses", "maps")


@dataclass
class Research:
    """State of the workflow."""

    notes: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)


async def look_up(topic: str) -> str:
    """Stand in for a tool that takes a while."""
    await asyncio.sleep(0)
    return f"All that is known about {topic}."


async def research(state: Research) -> AsyncIterator[Research]:
    """Look up each topic that has no note yet; each yield is a step."""
    for topic in TOPICS:
        if topic in state.notes:
            continue
        state.notes[topic] = await look_up(topic)
        state.log.append(f"looked up {topic}")
        yield state


async def run(manager: CheckpointManager, session_id: str, stop_after: int | None = None) -> None:
    """Begin a session, or continue from its last save."""
    session = AutoSaver(manager, session_id, "research")
    state = await session.arestore(Research) or Research()
    print(f"{session_id}: begins with {len(state.notes)} notes")
    async for now in checkpointed(session, event="tool_call")(research)(state):
        if stop_after is not None and len(now.notes) >= stop_after:
            print(f"{session_id}: interrupted after {len(now.notes)} notes")
            return
    print(f"{session_id}: done, {len(state.notes)} notes")


async def main(file: Path) -> None:
    """Run two sessions at once, and one of them again."""
    config = CheckpointConfig(max_checkpoints=10)
    async with CheckpointManager(SqliteSaver(str(file)), config) as manager:
        await asyncio.gather(run(manager, "ann", stop_after=2), run(manager, "bob"))

    # Another process, later:
    async with CheckpointManager(SqliteSaver(str(file)), config) as manager:
        await run(manager, "ann")
        found = await manager.alist_checkpoints("ann", workflow_id="research")
        print(f"ann has {len(found)} checkpoints:")
        for one in found:
            print(f"  step {one.metadata['step']}, {len(one.state_data.notes)} notes")
        second = await manager.arestore_from_checkpoint("ann", found[-2].id)
        print(f"the second one: {second.log}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(Path(folder, "sessions.db")))
