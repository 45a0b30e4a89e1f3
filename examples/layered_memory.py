"""A chat of 200 turns in a window of 20 messages: python examples/layered_memory.py.

The model is made up: no key and no network. Its input is counted.
"""

from textwrap import fill, indent

from langchain_core.messages import AIMessage
from langchain_core.messages.utils import count_tokens_approximately
from langgraph.graph import START, MessagesState, StateGraph

from threadkeep import LayeredCheckpointSaver, Layers, MemorySaver

TURNS = 200
TOPICS = ("the invoice", "a refund", "the delivery", "opening hours", "the warranty")
CONFIG = {"configurable": {"thread_id": "support"}}

sent = []  # messages and tokens of each call of the model


def bot(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Answer, and count the messages and tokens that a model would get."""
    messages = state["messages"]
    sent.append((len(messages), count_tokens_approximately(messages)))
    return {"messages": [AIMessage("I have looked at it: all is well.")]}


def question(turn: int) -> str:
    """Return the user's message of a turn."""
    if turn == 3:  # noqa: PLR2004 - the fact to ask for at the end
        return "My order number is TK-4711."
    return f"I have question {turn}, about {TOPICS[turn % len(TOPICS)]}."


def show(rows: list[tuple[str, str]]) -> None:
    """Print a table."""
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = ["─" * (width + 2) for width in widths]
    print(f"┌{lines[0]}┬{lines[1]}┐")
    for left, right in rows:
        print(f"│ {left:<{widths[0]}} │ {right:>{widths[1]}} │")
    print(f"└{lines[0]}┴{lines[1]}┘")


def main() -> None:
    """Chat, and print the results."""
    builder = StateGraph(MessagesState)
    builder.add_node("bot", bot)
    builder.add_edge(START, "bot")
    policy = Layers(full_window=20, summary_window=50, archive_threshold=100, batch=10)
    with LayeredCheckpointSaver(MemorySaver(), policy) as layered:  # or SqliteSaver("chat.db"), ...
        graph = builder.compile(checkpointer=layered)
        for turn in range(1, TURNS + 1):
            graph.invoke({"messages": [("user", question(turn))]}, CONFIG)

        usage = layered.usage("support")
        layers = layered.layers("support")
        show(
            [
                ("messages of the conversation", f"{usage.messages:,}"),
                ("messages the model was sent, at most", f"{max(sent)[0]:,}"),
                ("tokens of the conversation", f"{usage.tokens:,}"),
                ("tokens the model was sent, last turn", f"{sent[-1][1]:,}"),
                ("groups in the archive", str(sum(one.layer == "archive" for one in layers))),
            ]
        )

        print("\nThe view begins with")
        print(indent(fill(layered.load(CONFIG)[0].text, 76), "  "))

        print("\nRecalled by search_messages(query='order number'):")
        for found in layered.search_messages("support", query="order number"):
            print(f"  message {found.position}: {found.message.text}")

        states = [state for state in graph.get_state_history(CONFIG) if not state.next]
        earlier = states[-30]
        print("\nThe view that turn 30 left, 170 turns later:")
        print(f"  {len(earlier.values['messages'])} messages in view", end=", ")
        print(f"{len(layered.full_messages(earlier.config))} in full")

        new = layered.split("support")
        graph.invoke({"messages": [("user", "and now?")]}, new)
        print("\nSplit: a new thread begins with the summary.")
        print(f"  {len(layered.load(new))} messages in view", end=", ")
        print(f"{len(layered.full_messages(new))} in full")


if __name__ == "__main__":
    main()
