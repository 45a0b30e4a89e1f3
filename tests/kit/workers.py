"""A server of several processes behind one port that begins with a fork, as those of gunicorn.

Run as a program, with a folder. It prints its port. At the end each process prints what its saver,
store and cache have counted in it, and the first one the metrics of all.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from threadkeep import open_all
from threadkeep._core.engine.usage import Counters
from threadkeep.monitor import observe, prometheus

WORKERS = 4
prometheus._EVERY = 0.1


class State(TypedDict):
    count: int


saver, store, cache = open_all(f"sqlite:///{sys.argv[1]}/threads.db")
observed = observe(store, registry=REGISTRY)


def node(state: State) -> State:
    observed.put(("n",), str(state["count"]), {"n": 1})
    return {"count": state["count"] + 1}


builder = StateGraph(State)
builder.add_node("n", node, cache_policy=CachePolicy())
builder.add_edge(START, "n")
graph = builder.compile(
    checkpointer=observe(saver, registry=REGISTRY), cache=observe(cache, registry=REGISTRY)
)


def turn(thread: str) -> None:
    graph.invoke({"count": int(thread) % 20}, {"configurable": {"thread_id": thread}})


def metrics() -> bytes:
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return generate_latest(registry)


def counted() -> Counters:
    return saver.counters() + store.counters() + cache.counters()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            body = metrics()
        else:
            turn(self.path[1:])
            body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # (at once, as others write there)


def report(before: dict[str, Any]) -> None:
    after = asdict(counted())
    say(json.dumps({name: after[name] - before[name] for name in after}))


def work(listening: socket.socket) -> None:
    before = asdict(counted())
    prometheus._update_all()
    say("ready")  # (prometheus_client cannot read files that are being made)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket = listening
    with suppress(SystemExit):
        server.serve_forever()
    report(before)


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    listening.setblocking(False)
    turn("0")  # (what the first process has counted is not counted by its children)
    workers: set[int] = set()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    for _ in range(WORKERS):
        pid = os.fork()
        if not pid:
            work(listening)
            return
        workers.add(pid)
    say(" ".join(map(str, [listening.getsockname()[1], *workers])))
    with suppress(SystemExit):
        while True:
            workers.remove(os.wait()[0])
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    for _ in workers:
        os.wait()
    report(asdict(Counters()))
    prometheus._update_all()
    say(json.dumps(metrics().decode()))


if __name__ == "__main__":
    main()
