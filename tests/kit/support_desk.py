"""A support desk to take pictures of: ten threads, some with forks, questions and errors."""

import json
import operator
from contextlib import suppress
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from kit.graphs_to_look_at import named

ASKED = {
    "late-parcel-1041": "Where is my parcel? It was due on Tuesday.",
    "wrong-size-1038": "The jacket is too small. Can I have it in L?",
    "refund-1042": "The kettle arrived broken. I would like my money back.",
    "invoice-1029": "Please send me the invoice again, with our tax number.",
    "gift-card-1040": "My gift card is not accepted.",
    "address-1043": "Can you send it to our new address?",
    "warranty-1017": "The lamp has stopped working after a year.",
    "cancel-1044": "Please cancel my order.",
    "return-label-1035": "The return label does not print.",
    "stock-1039": "When is the blue one in stock again?",
}
"""The threads, and their first messages."""

_REPLY = """Your order **{order}** left Rotterdam and is on its way.

| stop | day | state |
|------|-----|-------|
| Rotterdam | Mon | left |
| Hannover | Wed | arrived |
| Berlin | Thu | expected |

1. You get a message when it is out for delivery.
2. If it is not there on Friday, we send a new one at no cost.
"""


class Ticket(MessagesState, total=False):
    """State of a ticket."""

    order: dict[str, Any]
    steps: Annotated[list[str], operator.add]
    summary: str
    priority: str


def _order(state: Ticket) -> str:
    return f"ORDER-{state['messages'][0].id.rpartition('-')[2]}"


def triage(state: Ticket) -> dict[str, Any]:
    call = {
        "name": "find_order",
        "args": {"number": _order(state)},
        "id": f"c{len(state['messages'])}",
    }
    thought = {
        "type": "reasoning",
        "reasoning": "The order number is known: look at its state first.",
    }
    said = [thought, {"type": "text", "text": "I look at your order."}]
    return {"messages": [AIMessage(said, tool_calls=[call])], "priority": "normal"}


def find_order(state: Ticket) -> dict[str, Any]:
    call = state["messages"][-1].tool_calls[0]
    order = {
        "number": _order(state),
        "state": "in transit",
        "weight_kg": 1.4,
        "stops": ["Rotterdam", "Hannover"],
    }
    if order["number"] == "ORDER-1035" and len(state["messages"]) > 2:
        raise TimeoutError("The carrier's service does not answer")
    text = json.dumps(order)
    return {
        "messages": [ToolMessage(text, tool_call_id=call["id"], name="find_order")],
        "order": order,
        "steps": [f"looked up {order['number']}"],
    }


def reply(state: Ticket) -> dict[str, Any]:
    count = len(state["messages"]) + 1
    summary = f"A customer asks about {_order(state)}; {count} messages so far."
    return {"messages": [AIMessage(_REPLY.format(order=_order(state)))], "summary": summary}


def approve(state: Ticket) -> dict[str, Any]:
    if _order(state) == "ORDER-1042":
        question: Any = {"question": "Refund 240 euros?", "order": "ORDER-1042", "limit": 200}
    elif _order(state) == "ORDER-1044":
        cancel = {
            "name": "cancel_order",
            "args": {"number": "ORDER-1044", "fee": 0},
            "description": "The parcel is packed, and not sent yet.",
        }
        review = {"action_name": "cancel_order", "allowed_decisions": ["approve", "edit", "reject"]}
        question = {"action_requests": [cancel], "review_configs": [review]}
    else:
        return {}
    return {"steps": [f"decided: {interrupt(question)}"]}


def desk(saver: Any) -> Any:
    """Return the graph."""
    builder = StateGraph(Ticket)
    builder.add_sequence([triage, find_order, approve, reply])
    builder.add_edge(START, "triage")
    return builder.compile(checkpointer=saver)


def fill(saver: Any) -> None:
    """Make the threads."""
    graph = desk(saver)
    for number, (name, text) in enumerate([*ASKED.items()][::-1], 1):
        config = named(
            name, channel=("web", "mail", "app")[number % 3], customer=f"c-{2000 + 7 * number}"
        )
        order = name.rpartition("-")[2]
        graph.invoke({"messages": [HumanMessage(text, id=f"q-{order}")]}, config)
        for turn in range(
            {"late-parcel-1041": 5, "return-label-1035": 1, "wrong-size-1038": 2}.get(name, 0)
        ):
            again = HumanMessage("Is there any news?", id=f"again-{turn}")
            with suppress(TimeoutError):
                graph.invoke({"messages": [again]}, config)
    late = named("late-parcel-1041")
    old = [one.config for one in graph.get_state_history(late)][6]
    graph.update_state(old, {"priority": "high", "summary": "The parcel is lost: send a new one."})
    graph.invoke({"messages": [HumanMessage("Then please send a new one.", id="new")]}, late)
    saver.threads.fork(
        "late-parcel-1041", old["configurable"]["checkpoint_id"], "late-parcel-1041-trial"
    )
    what = HumanMessage("What if it was lost?", id="trial")
    graph.invoke({"messages": [what]}, named("late-parcel-1041-trial"))
    saver.threads.tag("late-parcel-1041", "vip")
    saver.threads.tag("refund-1042", "damaged")
    saver.threads.pin("warranty-1017")
