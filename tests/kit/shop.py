"""A graph that fails until it is repaired, and threads of it that have failed, ask and are done."""

import asyncio
import operator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated, Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from kit.graphs_to_look_at import asks, desk, named


class Order(MessagesState, total=False):
    """State of an order that is charged once it is approved."""

    paid: Annotated[list[str], operator.add]
    price: int


class Shop:
    """A graph whose node `charge` fails until it is repaired."""

    is_repaired = False

    def price(self, _: Order) -> dict[str, Any]:
        return {"price": 20}

    def ask(self, state: Order) -> dict[str, Any]:
        if "ask" in state["messages"][0].content:
            return {"paid": [f"asked: {interrupt('Charge it?')}"]}
        return {}

    async def charge(self, state: Order) -> dict[str, Any]:
        if not self.is_repaired:
            raise ValueError("The bank is closed")
        return {"paid": [f"{state['price']} euros"]}

    def answer(self, state: Order) -> dict[str, Any]:
        return {"messages": [AIMessage(f"Paid: {state['paid'][-1]}")]}

    def builder(self) -> Any:
        """Return the graph, to be compiled."""
        made = StateGraph(Order).add_sequence([self.price, self.ask, self.charge, self.answer])
        return made.add_edge(START, "price")


def fill(saver: Any, shop: Shop) -> None:
    """Make the threads failed, asks and done, and one of another graph."""

    async def run() -> None:
        graph = shop.builder().compile(checkpointer=saver)
        with suppress(ValueError):
            await graph.ainvoke(asks("Buy it"), named("failed"))
        await graph.ainvoke(asks("Buy it, but ask me"), named("asks"))
        shop.is_repaired = True
        await graph.ainvoke(asks("Buy it"), named("done"))
        shop.is_repaired = False

    with ThreadPoolExecutor(1) as pool:  # (a browser's event loop may run in this thread)
        pool.submit(asyncio.run, run()).result()
    desk(saver).invoke(asks("Where is it?"), named("other"))
