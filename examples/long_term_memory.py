"""An agent that remembers its users across threads, found by meaning; saved and restarted.

    python examples/long_term_memory.py [FILE]

No network, no key: the embedding model is in a package (threadkeep[embeddings,search]).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore

from threadkeep import LocalEmbeddings, open_all

TOLD = (
    ("Ada", "I only drink green tea."),
    ("Ada", "My dog is called Rex."),
    ("Ben", "My daughter plays the violin."),
    ("Ada", "The invoice for March was paid."),
)
ASKED = (("Ada", "Which drinks do I like?"), ("Ben", "What instrument does she play?"))


def remember(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    """Answer a question from the user's memories; remember everything else."""
    memories = ("memories", config["configurable"]["user_id"])
    text = str(state["messages"][-1].content)
    if text.endswith("?"):
        found = store.search(memories, query=text, limit=1)
        return {"messages": [("ai", f"You told me: {found[0].value['text']}")]}
    store.put(memories, f"memory-{len(store.search(memories, limit=1000))}", {"text": text})
    return {"messages": [("ai", "I will remember that.")]}


def main(file: Path) -> None:
    """Tell the agent some facts, restart it, and ask about them, each in its own thread."""
    builder = StateGraph(MessagesState)
    builder.add_node("remember", remember)
    builder.add_edge(START, "remember")
    url = f"sqlite:///{file}"
    index = {"embed": LocalEmbeddings(), "dims": 256, "fields": ["text"], "search": "hybrid"}
    for run, lines in (("told", TOLD), ("asked", ASKED)):
        with open_all(url, store={"index": index}) as (saver, store, cache):
            graph = builder.compile(checkpointer=saver, store=store, cache=cache)
            for number, (user, text) in enumerate(lines):
                thread = {"thread_id": f"{user}-{run}-{number}", "user_id": user}
                state = graph.invoke({"messages": [("user", text)]}, {"configurable": thread})
                print(f"{user}: {text}\n     {state['messages'][-1].content}")
            print(f"({len(store.search(('memories',), limit=1000))} memories in {file.name})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "agent.db")
