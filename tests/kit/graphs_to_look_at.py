"""Threads to look at, made by running graphs: conversations, interrupts, forks, errors."""

import base64
import operator
from contextlib import suppress
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
    )
).decode()
"""A picture of one pixel, as base64."""

HOSTILE = (
    '<img src="https://evil.example/a.png" onerror="alert(1)"><script>alert(2)</script>'
    '<svg onload="alert(3)"></svg> [click](javascript:alert(4))'
    " ![picture](https://evil.example/b.png) <iframe src='https://evil.example'></iframe>"
)

ANSWER = """Your parcel **left Rotterdam** on Tuesday and is due on Friday.

| stop | day |
|------|-----|
| Rotterdam | Tue |
| Hannover | Wed |

1. Keep the `ORDER-17` number at hand.
2. Write to us if it is late: <help@example.com>.

```python
track("ORDER-17", notify=True)
```
"""


class Desk(MessagesState, total=False):
    """State of a help desk."""

    order: dict[str, Any]
    notes: Annotated[list[str], operator.add]
    summary: str


def look_up(state: Desk) -> dict[str, Any]:
    call = {"name": "find_order", "args": {"number": "ORDER-17", "full": True}, "id": "call-1"}
    thought = {"type": "reasoning", "reasoning": "The number is in the question: look it up."}
    said = [thought, {"type": "text", "text": "I look that up."}]
    return {"messages": [AIMessage(said, tool_calls=[call], id=f"ai-{len(state['messages'])}")]}


def find_order(state: Desk) -> dict[str, Any]:
    found = '{"number": "ORDER-17", "state": "in transit", "stops": ["Rotterdam", "Hannover"]}'
    number = len(state["messages"])
    return {
        "messages": [
            ToolMessage(found, tool_call_id="call-1", name="find_order", id=f"t-{number}")
        ],
        "order": {"number": "ORDER-17", "state": "in transit", "weight": 1.5, "stops": [1, 2, 3]},
        "notes": [f"looked up ORDER-17 at message {number}"],
    }


def answer(state: Desk) -> dict[str, Any]:
    count = len(state["messages"])
    summary = f"A customer asks about ORDER-17. So far there are {count} messages."
    return {"messages": [AIMessage(ANSWER, id=f"ai-{count}")], "summary": summary}


def desk(saver: Any) -> Any:
    """Return a graph that looks an order up and answers."""
    builder = StateGraph(Desk)
    builder.add_sequence([look_up, find_order, answer])
    builder.add_edge(START, "look_up")
    return builder.compile(checkpointer=saver)


class Refund(MessagesState, total=False):
    """State of a refund that people approve."""

    approved: Annotated[list[str], operator.add]


def ask_manager(_: Refund) -> dict[str, Any]:
    question = {"question": "Refund 240 euros?", "order": "ORDER-17", "limit": 200}
    return {"approved": [f"manager: {interrupt(question)}"]}


def ask_finance(_: Refund) -> dict[str, Any]:
    return {"approved": [f"finance: {interrupt('Which account pays?')}"]}


def refund(saver: Any) -> Any:
    """Return a graph that waits for two answers at once."""
    builder = StateGraph(Refund)
    builder.add_node("ask_manager", ask_manager)
    builder.add_node("ask_finance", ask_finance)
    builder.add_edge(START, "ask_manager")
    builder.add_edge(START, "ask_finance")
    return builder.compile(checkpointer=saver)


def send_mail(_: Refund) -> dict[str, Any]:
    request = {
        "action_requests": [
            {"name": "send_mail", "args": {"to": "a@example.com"}, "description": "Send a mail"},
            {"name": "delete_order", "args": {"number": "ORDER-17"}},
        ],
        "review_configs": [
            {"action_name": "send_mail", "allowed_decisions": ["approve", "edit", "reject"]},
            {"action_name": "delete_order", "allowed_decisions": ["approve", "reject"]},
        ],
    }
    return {"approved": [str(interrupt(request))]}


def approval(saver: Any) -> Any:
    """Return a graph that waits for decisions as LangChain's human-in-the-loop asks for them."""
    builder = StateGraph(Refund)
    builder.add_node("send_mail", send_mail)
    builder.add_edge(START, "send_mail")
    return builder.compile(checkpointer=saver)


SCHEMAS = {
    "Send it?": {"type": "boolean"},
    "How many?": {"type": "integer"},
    "Which one?": {"enum": ["first", "second", "third"]},
    "What else?": {"type": "object"},
    "Why?": {"type": "string"},
}


def typed(saver: Any) -> Any:
    """Return a graph that waits for answers of several types."""
    builder = StateGraph(Refund)
    for number, (text, schema) in enumerate(SCHEMAS.items()):

        def ask(_: Refund, text: str = text, schema: Any = schema) -> dict[str, Any]:
            return {"approved": [str(interrupt(text, response_schema=schema))]}

        builder.add_node(f"ask-{number}", ask)
        builder.add_edge(START, f"ask-{number}")
    return builder.compile(checkpointer=saver)


def nested(saver: Any) -> Any:
    """Return a graph with a subgraph."""
    inner = StateGraph(Desk)
    inner.add_sequence([look_up, find_order])
    inner.add_edge(START, "look_up")
    outer = StateGraph(Desk)
    outer.add_node("research", inner.compile(checkpointer=True))
    outer.add_node("answer", answer)
    outer.add_edge(START, "research")
    outer.add_edge("research", "answer")
    outer.add_edge("answer", END)
    return outer.compile(checkpointer=saver)


def fail(_: Desk) -> dict[str, Any]:
    raise ValueError("The carrier's service is down")


def failing(saver: Any) -> Any:
    """Return a graph whose second node fails."""
    builder = StateGraph(Desk)
    builder.add_sequence([look_up, fail])
    builder.add_edge(START, "look_up")
    return builder.compile(checkpointer=saver)


def named(thread: str, **metadata: Any) -> Any:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread}, "metadata": metadata}


def asks(text: Any, number: int = 0) -> Any:
    """Return a question as input."""
    return {"messages": [HumanMessage(text, id=f"q-{number}")]}


def fill(saver: Any, *, extras: bool = True) -> None:
    """Make the threads. Without `extras`, only calls that LangGraph's own savers have too.

    order-17 is a conversation of three turns, pictures a question with a picture, refund waits
    for two answers, mail for two decisions, nested has a subgraph, failed an error, hostile HTML
    and links that must not run. `order/17 & more?` has a name that an address must escape.
    """
    graph = desk(saver)
    for turn in range(3):
        config = named("order-17", user_id="u-1", channel="web")
        graph.invoke(asks(f"Where is my parcel? (question {turn + 1})", turn), config)
    for name in ("order-18", "order/17 & more?", "订单-19"):
        graph.invoke(asks("Hello"), named(name, user_id="u-2"))
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    graph.invoke(asks([{"type": "text", "text": "What is this?"}, picture]), named("pictures"))
    graph.invoke(asks(HOSTILE), named("hostile", note="<b>bold</b>"))
    refund(saver).invoke(asks("Please refund me"), named("refund", user_id="u-1"))
    approval(saver).invoke(asks("Write to the customer"), named("mail", user_id="u-3"))
    nested(saver).invoke(asks("Research, please"), named("nested"))
    with suppress(ValueError):
        failing(saver).invoke(asks("Try this"), named("failed"))
    old = [one.config for one in graph.get_state_history(named("order-17"))][4]
    graph.update_state(old, {"summary": "Corrected by hand"})
    graph.invoke(None, old)
    if extras:
        fork = saver.threads.fork("order-17", new_thread_id="order-17-fork")
        graph.invoke(asks("And now?", 9), named(fork.id))
        saver.threads.tag("order-17", "vip", "parcel")
        saver.threads.pin("order-18")
