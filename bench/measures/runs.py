"""Many async runs at once in one process: how many supersteps a second.

Each run plays recorded conversations on threads of its own. Invariant: every saver plays
the same conversations, in a fresh process, and all runs begin together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from langgraph.checkpoint.base import BaseCheckpointSaver

from bench.conversations import Conversation, load, made_up
from bench.errors import BenchError
from bench.lanes import apart, config_of
from bench.savers import KINDS
from bench.sizes import Sizes
from bench.workloads import Replay


@dataclass(frozen=True)
class RunsFigures:
    """Figures of the runs of one saver."""

    kind: str
    runs: int
    supersteps: int
    seconds: float

    @property
    def speed(self) -> float:
        """Supersteps a second."""
        return self.supersteps / self.seconds


def measure(kind: str, sizes: Sizes, data: Path | None, folder: Path) -> RunsFigures:
    """Play `sizes.runs` conversations at once, after a few that do not count."""
    found: RunsFigures = apart(play, kind, sizes, data, folder / f"runs-{kind}.db")
    return found


def play(kind: str, sizes: Sizes, data: Path | None, file: Path) -> RunsFigures:
    conversations = load(data) if data else made_up(sizes.runs)
    return asyncio.run(play_all(kind, sizes.runs, conversations, file))


async def play_all(
    kind: str, runs: int, conversations: Sequence[Conversation], file: Path
) -> RunsFigures:
    opener = KINDS[kind].open_async
    if opener is None:
        raise BenchError(f"{KINDS[kind].label} cannot be awaited")
    chosen = [conversations[n % len(conversations)] for n in range(runs)]
    async with opener(file) as saver:
        await together(saver, chosen[:4], "warm")
        start = perf_counter()
        supersteps = await together(saver, chosen, "run")
        return RunsFigures(kind, runs, supersteps, perf_counter() - start)


async def together(
    saver: BaseCheckpointSaver[str], conversations: Sequence[Conversation], name: str
) -> int:
    runs = [one_run(saver, c, f"{name} {n}") for n, c in enumerate(conversations)]
    return sum(await asyncio.gather(*runs))


async def one_run(saver: BaseCheckpointSaver[str], conversation: Conversation, thread: str) -> int:
    """Play one conversation to its end; how many supersteps it took."""
    replay = Replay("", [conversation], awaits=True)
    graph = replay.graph(saver, delta=False)
    for call in replay.turns():
        await graph.ainvoke(call.input, config_of(thread))
    return replay.supersteps
