"""A run that streams for ever, until it is killed: `python -m tests.crash.streamer URL INTERVAL`.

It prints `TIME NUMBER` for each token that its caller has seen.
"""

import itertools
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import START, MessagesState, StateGraph

from threadkeep import open_saver
from threadkeep.streaming import stream_saved

CONFIG: Any = {"configurable": {"thread_id": "thread"}}
QUESTION = {"messages": [("user", "count")]}


class Counting(BaseChatModel):
    """Streams the numbers for ever; answers at once if its output is not streamed."""

    @property
    def _llm_type(self) -> str:
        return "counting"

    def _stream(self, *given: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        for number in itertools.count():
            time.sleep(0.001)
            yield ChatGenerationChunk(message=AIMessageChunk(f"{number} ", id="answer"))

    def _generate(self, *given: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("done", id="answer"))])


def graph(saver: Any) -> Any:
    builder: StateGraph[MessagesState] = StateGraph(MessagesState)
    answer = Counting()
    builder.add_node("bot", lambda state: {"messages": [answer.invoke(state["messages"])]})
    builder.add_edge(START, "bot")
    return builder.compile(checkpointer=saver)


def main() -> None:
    url, interval = sys.argv[1], float(sys.argv[2])
    with open_saver(url) as saver:
        seen = stream_saved(
            graph(saver), QUESTION, CONFIG, stream_mode="messages", interval=interval
        )
        for chunk, _ in seen:
            os.write(1, f"{time.monotonic()} {chunk.content}\n".encode())


if __name__ == "__main__":
    main()
