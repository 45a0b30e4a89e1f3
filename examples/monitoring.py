"""A graph whose saver exports its operations: python examples/monitoring.py.

The metrics are those that Prometheus would scrape. No key and no network.
"""

import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from prometheus_client import CollectorRegistry, generate_latest

from threadkeep import SqliteSaver, observe
from threadkeep.errors import InvalidConfigError

CONFIG: RunnableConfig = {"configurable": {"thread_id": "1"}}
SHOWN = ("_count", "written_bytes_total", "saved_bytes_total", "cache_hits_total")


def build() -> StateGraph[MessagesState]:
    """Make a graph with one node, which always says the same."""
    builder = StateGraph(MessagesState)
    builder.add_node("bot", lambda _: {"messages": [("ai", "So many words. " * 10)]})
    builder.add_edge(START, "bot")
    return builder


def main() -> None:
    """Run some turns and a failing operation, and print the exported metrics."""
    logger = logging.getLogger("example")
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
    registry = CollectorRegistry()
    with TemporaryDirectory() as folder:
        inner = SqliteSaver(Path(folder) / "threads.db")
        with observe(inner, registry=registry, logger=logger) as saver:
            graph = build().compile(checkpointer=saver)
            for _ in range(20):
                graph.invoke({"messages": [("user", "hello")]}, CONFIG)
            try:
                saver.get_tuple({"configurable": {}})
            except InvalidConfigError as error:
                print(f"{error.message} It is logged above. The metrics:")
            for line in generate_latest(registry).decode().splitlines():
                if line.partition("{")[0].endswith(SHOWN):
                    print(line)


if __name__ == "__main__":
    main()
