"""The names that the examples of docs/ take for granted, by page.

`archives` makes the names of docs/archives.md, in an empty working directory. All pages have the
names of `COMMON`.
"""

import operator
import sys
import warnings
from contextlib import suppress
from dataclasses import make_dataclass
from pathlib import Path
from secrets import token_hex
from types import ModuleType
from typing import Annotated, Any, TypedDict

import prometheus_client
from fastapi import FastAPI
from kit.damage import damaging
from kit.postgres import url_for
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from threadkeep import (
    KeyRing,
    LayeredCheckpointSaver,
    Layers,
    MemorySaver,
    PostgresSaver,
    SqliteSaver,
    stream_saved,
)
from threadkeep.ui import app

INPUTS = {"messages": [("user", "hi")]}


def config(thread):
    return {"configurable": {"thread_id": thread}}


def chat(answer=None):
    """Return a graph with one node, not yet compiled."""
    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer or (lambda _: {"messages": [("ai", "Hello " + "you " * 9)]}))
    builder.add_edge(START, "answer")
    return builder


def said(*threads, turns=1, **options):
    """Return a saver of threads.db, and its graph, which has had the threads of user u1."""
    saver = SqliteSaver("threads.db", **options)
    graph = chat().compile(checkpointer=saver)
    for thread in threads:
        saver.threads.create(thread, metadata={"user_id": "u1"})
        for _ in range(turns):
            graph.invoke(INPUTS, config(thread))
    return saver, graph


def common():
    return {
        "inputs": INPUTS,
        "builder": chat(),
        "Command": Command,
        "PostgresSaver": PostgresSaver,
        "config": config,
    }


def archives(_):
    saver, graph = said("order-7")
    for text in (token_hex(99_999), "seen"):  # the first one is an old value
        graph.update_state(config("order-7"), {"messages": [HumanMessage(text, id="page")]})
    saver.close()
    return {"graph": said(cold=f"file://{Path.cwd()}/cold")[1]}


def changing_state(patch):
    def shop(name, *fields):
        module = ModuleType(f"shop.{name}")
        module.Order = make_dataclass("Order", fields)
        module.Order.__module__ = module.__name__
        patch.setitem(sys.modules, module.__name__, module)
        return module.Order

    patch.setitem(sys.modules, "shop", ModuleType("shop"))
    old = shop("models", ("name", str), ("price", float))
    builder = StateGraph(TypedDict("State", {"order": Any}))
    builder.add_node("assistant", lambda state: {"order": state["order"]})
    builder.add_edge(START, "assistant")
    with SqliteSaver("threads.db") as saver:
        builder.compile(checkpointer=saver).invoke({"order": old("tea", 1.5)}, config("42"))
    patch.delitem(sys.modules, "shop.models")
    shop("orders", ("name", str), ("price", float), ("currency", str))

    def save_again(saver):
        graph = builder.compile(checkpointer=saver)
        graph.update_state(config("42"), graph.get_state(config("42")).values)

    return {"save_again": save_again}


def check_and_repair(_):
    saver, graph = said("42")
    head = graph.get_state(config("42")).config["configurable"]["checkpoint_id"]
    damaging("sqlite", saver, Path.cwd()).manifest("42", head)
    return {"saver": saver}


def encryption(_):
    return {"url": "sqlite:///encrypted.db"}


def erasure(_):
    said("order-7", turns=12)[0].close()
    saver, _graph = said("order-8", turns=3)
    saver.threads.fork("order-8", None, "what if")
    saver.threads.update("what if", metadata={"user_id": "u2"})
    return {"saver": saver}


def langgraph_server(patch):
    patch.delenv("DATABASE_URL", raising=False)
    return {}


def layered_memory(_):
    with LayeredCheckpointSaver(SqliteSaver("threads.db"), Layers()) as saver:
        saver.save(config("support"), [("user", f"order number {n}") for n in range(120)])
    model = GenericFakeChatModel(messages=iter(["They talk of orders."] * 9))
    return {"model": model, "tools": []}


def long_term_memory(_):
    def embed(texts):
        return [[float(len(text)), *[1.0] * 1535] for text in texts]

    return {"url": "sqlite:///agent.db", "embed": embed}


def looking_at_threads(_):
    def answer(_):
        text = "The order leaves on Monday, and arrives on Friday."
        return {"messages": [AIMessage(text, id="a1")]}

    def ids(graph):
        history = {one.metadata["step"]: one for one in graph.get_state_history(config("t1"))}
        return [history[step].config["configurable"]["checkpoint_id"] for step in (2, 7)]

    saver = SqliteSaver("threads.db")
    bot = chat(answer).compile(checkpointer=saver)
    bot.invoke({"messages": [HumanMessage("When does my order leave?", id="h1")]}, config("chat"))
    names = {"saver": saver, "config": config("t1"), "ids": ids}
    names |= {"chat": bot, "chat_config": config("chat"), "operator": operator, "START": START}
    names |= {"StateGraph": StateGraph, "TypedDict": TypedDict, "Annotated": Annotated}
    return names | {"RemoveMessage": RemoveMessage, "AIMessage": AIMessage}


def monitoring(patch):
    warnings.filterwarnings("ignore", "'imghdr'")  # of apprise
    patch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    Path("metrics").mkdir()
    patch.setenv("PROMETHEUS_MULTIPROC_DIR", "metrics")
    said("user-040")[0].close()
    return {}


def moving_threads(_):
    def ask(saver, thread):
        chat().compile(checkpointer=saver).invoke(INPUTS, config(thread))

    def both_changed():
        with LangGraphSaver.from_conn_string("old.db") as old:
            ask(old, "alice")
        ask(saver := SqliteSaver("threads.db"), "alice")
        return saver

    def pair():
        saver = MemorySaver()
        for thread in ("alice", "bob"):
            ask(saver, thread)
        return saver, MemorySaver()

    with LangGraphSaver.from_conn_string("old.db") as old:
        for thread in ("alice", "bob"):
            ask(old, thread)
    names = {"ask": ask, "both_changed": both_changed, "pair": pair, "graph": chat().compile()}
    return names | {"langgraph_url": "old.db", "url": url_for(Path.cwd())}


def node_caches(_):
    builder = StateGraph(MessagesState)
    builder.add_edge(START, "answer")
    return {"builder": builder, "answer": lambda _: {}, "saver": MemorySaver()}


def page(_):
    saver, graph = said("1")
    names = {"saver": saver, "graph": graph, "service": FastAPI()}
    return names | {"app": app, "authorize": lambda _: "ann"}


def production(patch):
    patch.setenv("TK_KEYS", KeyRing.generate().as_text())
    patch.setenv("DATABASE_URL", "sqlite:///threads.db")
    return {}


def retention(_):
    said("order-7", turns=40)[0].close()
    saver, graph = said("order-8", turns=3)
    head = graph.get_state(config("order-7")).config
    saver.close()
    return {"id": head["configurable"]["checkpoint_id"]}


def sessions(_):
    def work(state):
        state["messages"].append("more")
        return True

    async def look_up(topic):
        return topic

    names = {"saver": MemorySaver(), "done": lambda state: len(state["messages"]) > 4, "work": work}
    notes = make_dataclass("Notes", ["notes"])([])
    return names | {"topics": ["tea", "coffee"], "look_up": look_up, "notes": notes}


def streaming(_):
    dies = False

    class Model(GenericFakeChatModel):
        def _stream(self, *given, **options):
            for chunk in super()._stream(*given, **options):
                if dies and chunk.text == "it":
                    raise ConnectionError
                yield chunk

    def answer(state):
        poem = iter(["The sea at night is never still, it sings"])
        return {"messages": [Model(messages=poem).invoke(state["messages"])]}

    def die():
        nonlocal dies
        dies = True
        with suppress(ConnectionError):
            [*stream_saved(graph, question, config("poem"))]
        dies = False

    saver, question = SqliteSaver("threads.db"), {"messages": [("user", "A poem!")]}
    graph = chat(answer).compile(checkpointer=saver)
    names = {"saver": saver, "graph": graph, "question": question, "answer": ["The ", "sea"]}
    return names | {"die": die, "base_saver": SqliteSaver("other.db")}


def threads(_):
    builder = StateGraph(TypedDict("State", {"order": dict[str, Any]}))
    builder.add_node("pay", lambda _: {"order": {"paid": interrupt("Pay?")}})
    builder.add_edge(START, "pay")
    saver = SqliteSaver("threads.db")
    return {"saver": saver, "graph": builder.compile(checkpointer=saver)}


def writing_a_backend(patch):
    patch.syspath_prepend(Path(__file__).parents[2] / "examples")
    return {}


def you_know(patch):
    patch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    serde = EncryptedSerializer(KeyRing.from_environment().langgraph_cipher())
    said("order-7", serde=serde)[0].close()
    return {}
