"""Layered memory: long conversations through a graph. `python -m bench.memory --data FILE`."""

from __future__ import annotations

import argparse
import cProfile
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pstats import Stats
from statistics import median
from threading import RLock
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from rich.console import Console
from rich.table import Table

from bench.conversations import Turn, joined, load, made_up
from bench.messages import from_assistant, from_tool
from bench.profiling import CALLS, watched
from threadkeep import MemorySaver, SqliteSaver
from threadkeep.memory import LayeredCheckpointSaver, Layers

Row = tuple[str, ...]
THREAD: Any = {"configurable": {"thread_id": "thread"}}
SOME = 100  # turns at the beginning and at the end
FACTS = 200


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@dataclass
class Talk:
    """A conversation through a graph: a model that repeats the recorded answers."""

    saver: Any
    said: list[BaseMessage] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    shared: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tape: list[BaseMessage] = []
        self._last: list[str] = []
        builder = StateGraph(State)
        builder.add_node("model", self._model)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", lambda _: "model" if self._tape else END)
        self._graph = builder.compile(checkpointer=self.saver)

    def _model(self, state: State) -> Any:
        self._prompt = [*state["messages"]]
        return {"messages": [self._tape.pop(0)] if self._tape else []}

    def turn(self, turn: Turn) -> None:
        """Run a turn, and record its cost."""
        question = HumanMessage(turn.user["content"] or "")
        makers = {"assistant": from_assistant, "tool": from_tool}
        self._tape = [makers[one["role"]](one) for one in turn.replies]
        self.said += [question, *self._tape]
        begun, used = time.perf_counter(), time.process_time()
        self._graph.invoke({"messages": [question]}, THREAD, durability="sync")
        self.ms.append((time.perf_counter() - begun) * 1000)
        self.cpu.append((time.process_time() - used) * 1000)
        self._note()

    def _note(self) -> None:
        """Note the tokens of the prompt, and the share of it that begins as the last turn's."""
        prompt = self._prompt
        texts = [f"{one.type} {one.content} {getattr(one, 'tool_calls', '')}" for one in prompt]
        pairs = zip(texts, self._last, strict=False)
        equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.tokens.append(count_tokens_approximately(prompt))
        self.shared.append(count_tokens_approximately(prompt[:equal]) / max(1, self.tokens[-1]))
        self._last = texts


def turns(data: Path | None, messages: int) -> Iterator[Turn]:
    """Yield turns of the conversations, again and again, until there are so many messages."""
    found = joined(load(data) if data else made_up(100)).turns
    count = 0
    for turn in itertools.cycle(found):
        yield turn
        count += 1 + len(turn.replies)
        if count >= messages:
            return


def sqlite(folder: Path, name: str, synchronous: Any) -> Any:
    return SqliteSaver(str(folder / f"{name}.db"), synchronous=synchronous)


def size(folder: Path, name: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{name}.db*"))


# -- parts -----------------------------------------------------------------------------


def talks(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Long conversations on some savers."""
    kinds = {
        "sqlite full, batch 1": (1, "full"),
        "sqlite full, batch 10": (10, "full"),
        "sqlite normal, batch 1": (1, "normal"),
        "sqlite normal, batch 10": (10, "normal"),
        "memory, batch 10": (10, None),
        "langgraph's memory, batch 10": (10, "lg"),
        "sqlite normal, no layers": (0, "normal"),
    }
    for number, (name, (batch, mode)) in enumerate(kinds.items()):
        file = f"talk-{number}"
        inner: Any = MemorySaver() if mode is None else InMemorySaver()
        if mode in ("full", "normal"):
            inner = sqlite(folder, file, str(mode))
        saver: Any = LayeredCheckpointSaver(inner, Layers(batch=batch)) if batch else inner
        talk = Talk(saver)
        count = options.messages if batch else min(options.messages, options.plain)
        for turn in turns(options.data, count):
            talk.turn(turn)
        is_equal = not batch or saver.full_messages("thread") == talk.said
        if hasattr(saver, "close"):
            saver.close()
        yield row(name, talk, size(folder, file), is_equal=is_equal)


def row(name: str, talk: Talk, size: int, *, is_equal: bool) -> Row:
    first, last = median(talk.ms[:SOME]), median(talk.ms[-SOME:])
    cpu, cpu_last = median(talk.cpu[:SOME]), median(talk.cpu[-SOME:])
    return (
        name,
        f"{len(talk.said):,}",
        f"{first:.1f} -> {last:.1f} ({last / first:.2f} x)",
        f"{cpu:.1f} -> {cpu_last:.1f}",
        f"{max(talk.tokens):,} / {sum(talk.tokens) / len(talk.tokens):,.0f}",
        f"{sum(talk.shared) / len(talk.shared):.0%}",
        f"{size / 1e6:.1f}" if size else "",
        "yes" if is_equal else "NO",
    )


def views(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """The time to show a view, warm and by a saver that is just opened."""
    saver = LayeredCheckpointSaver(sqlite(folder, "views", "normal"), Layers(batch=10))
    limits = [int(text) for text in options.views.split(",")]
    count = 0
    for limit in limits:
        while count < limit:
            some = [
                HumanMessage(f"message {count + at} of a view", id=f"{count + at}")
                for at in range(50)
            ]
            saver.save(THREAD, [*saver.load(THREAD), *some])
            count += len(some)
        warm = timed(lambda: saver.get_tuple(THREAD))
        inner = sqlite(folder, "views", "normal")
        cold = timed(partial(opened_view, inner))
        full = timed(lambda: saver.full_messages("thread"), 3)
        inner.close()
        yield f"{count:,}", f"{warm:.2f}", f"{cold:.2f}", f"{full:.0f}"
    saver.close()


def opened_view(inner: Any) -> None:
    LayeredCheckpointSaver(inner, Layers(batch=10)).get_tuple(THREAD)


def timed(call: Any, times: int = 30) -> float:
    """Return the median of so many calls, in ms."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        found.append((time.perf_counter() - begun) * 1000)
    return median(found)


def facts(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Planted facts, found by the archive's search and by a scan."""
    chance = random.Random(7)
    saver = LayeredCheckpointSaver(sqlite(folder, "facts", "normal"), Layers(batch=10))
    talk, planted = Talk(saver), list[str]()
    every = max(1, options.messages // FACTS // 8)
    for number, turn in enumerate(turns(options.data, options.messages)):
        is_old = len(talk.said) < 0.95 * options.messages  # (the window is not searched)
        if number % every == 0 and len(planted) < FACTS and is_old:
            code = f"{chance.getrandbits(40):010x}"
            planted.append(f"locker {code}")
            fact = {"role": "user", "content": f"Remember: the key is in locker {code}, please."}
            talk.turn(Turn(fact, ()))
        talk.turn(turn)
    begun = time.perf_counter()
    found = sum(
        any(
            query in str(one.message.content)
            for one in saver.search_messages("thread", query=query, limit=5)
        )
        for query in planted
    )
    searched = (time.perf_counter() - begun) * 1000 / len(planted)
    texts = [str(one.content) for one in saver.full_messages("thread")]
    scanned = sum(any(query in text for text in texts) for query in planted)
    scan = timed(lambda: [planted[0] in str(one.content) for one in saver.full_messages("thread")])
    saver.close()
    yield "search_messages(query=)", f"{found} of {len(planted)}", f"{searched:.2f}"
    yield "a scan", f"{scanned} of {len(planted)}", f"{scan:.2f}"


def profile(options: argparse.Namespace, folder: Path) -> None:
    """Print how the saver spends its time in the last turns."""
    saver = LayeredCheckpointSaver(sqlite(folder, "profile", "normal"), Layers(batch=10))
    talk, profiler, lock = Talk(saver), cProfile.Profile(), RLock()
    found = list(turns(options.data, options.messages))
    for number, turn in enumerate(found):
        if number == max(0, len(found) - SOME):
            for name in CALLS:
                setattr(saver, name, watched(getattr(saver, name), profiler, lock))
        talk.turn(turn)
    Stats(profiler).sort_stats(options.profile).print_stats(60)


PARTS = {
    "talks": (
        talks,
        (
            "saver",
            "messages",
            "ms a turn",
            "CPU ms",
            "tokens most / mean",
            "same start",
            "MB",
            "equal",
        ),
    ),
    "views": (views, ("messages", "view ms", "just opened ms", "full_messages ms")),
    "facts": (facts, ("search", "found", "ms each")),
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench.memory", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="recorded conversations, .jsonl or .jsonl.gz (else made-up ones)")
    add("--messages", type=int, default=10_000, help="of a conversation")
    add("--plain", type=int, default=2_000, help="of a conversation without layers, at most")
    add("--views", default="1000,10000,100000", help="messages at which the view is timed")
    add("--only", default=",".join(PARTS), help="some of the parts")
    add("--profile", choices=("cumtime", "tottime"), help="profile the last turns instead")
    options = parser.parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=130)
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
        if options.profile:
            profile(options, Path(folder))
            return
        for name in options.only.split(","):
            part, columns = PARTS[name]
            table = Table(*columns, title=str(part.__doc__))
            for line in part(options, Path(folder)):
                table.add_row(*line)
            console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
