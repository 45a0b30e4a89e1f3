"""Stop a run in the middle of an answer, and keep the half: python examples/streaming.py.

The model is made up: no key and no network.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from threadkeep import SqliteSaver, astream_saved

POEM = "The sea at night is never still, it turns its pages without end."
CONFIG: RunnableConfig = {"configurable": {"thread_id": "poem"}}


def build() -> StateGraph[MessagesState]:
    """Make a graph with one node, which asks the model."""
    model = GenericFakeChatModel(messages=iter([AIMessage(POEM), AIMessage(POEM)]))

    async def write(state: MessagesState) -> dict[str, list[AIMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("write", write)
    builder.add_edge(START, "write")
    return builder


async def main() -> None:
    """Stream half of an answer, stop, read the saved half, and resume."""
    with TemporaryDirectory() as folder:
        async with SqliteSaver(Path(folder) / "threads.db") as saver:
            graph = build().compile(checkpointer=saver)
            question = {"messages": [("user", "A poem, please.")]}
            stream = astream_saved(graph, question, CONFIG, stream_mode="messages")
            async for chunk, _ in stream:
                print(chunk.content, end="", flush=True)
                if chunk.content == "still,":
                    break
            await stream.aclose()  # as if the client is gone, or the process was killed
            print()

            left = (await saver.apartial("poem"))[0]
            print(f"{left.status}, from node {left.messages[0].node}: {left.text!r}")

            async for chunk, _ in astream_saved(graph, None, CONFIG, stream_mode="messages"):
                print(chunk.content, end="", flush=True)
            print()
            for one in await saver.apartial("poem"):
                print(one.status, repr(one.text))


if __name__ == "__main__":
    asyncio.run(main())
