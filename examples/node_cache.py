"""A graph that skips nodes whose results are cached, also those of another process.

    python examples/node_cache.py [FILE]

Answers questions by a slow node; no network, no key.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy

from threadkeep import NodeCache, SqliteSaver


class State(TypedDict, total=False):
    """State of the graph."""

    question: str
    answer: str


async def answer(state: State) -> State:
    """Stand in for a model that takes a while."""
    print(f"  thinking about {state['question']!r}")
    await asyncio.sleep(0.05)
    return {"answer": state["question"].replace("?", ".").capitalize()}


def question_of(state: dict[str, Any]) -> str:
    """Return the cache key of a question."""
    return str(state["question"])


async def main(file: Path) -> None:
    """Ask questions in turn, then one question many times at once."""
    builder = StateGraph(State)
    policy = CachePolicy(key_func=question_of, ttl=3600)
    builder.add_node("answer", answer, cache_policy=policy)
    builder.add_edge(START, "answer")

    # One file, and one set of connections, for checkpoints and for cached results.
    async with SqliteSaver(str(file)) as saver, NodeCache(saver.backend, lease=60) as cache:
        graph = builder.compile(checkpointer=saver, cache=cache)

        async def ask(thread: str, question: str) -> str:
            config = {"configurable": {"thread_id": thread}}
            return str((await graph.ainvoke({"question": question}, config))["answer"])

        for thread, question in (("ann", "is it late?"), ("bob", "is it late?"), ("bob", "why?")):
            print(f"{thread}: {await ask(thread, question)}")

        print("Five users ask the same at once: one run computes, the others wait.")
        asked = [ask(f"user {n}", "who is there?") for n in range(5)]
        print(f"{len(await asyncio.gather(*asked))} answers")

        await graph.aclear_cache(["answer"])
        print(f"ann, after the cache was cleared: {await ask('ann', 'why?')}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(Path(folder, "threads.db")))
