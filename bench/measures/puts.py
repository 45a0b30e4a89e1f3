"""Cost of one put beside the least a durable put can cost: a raw commit of two small rows.

Both in the same process, one after the other, over and over, in the same synchronous
setting. Three ways a message comes: in a put of its own, in `put_writes`, and in the put
that follows that `put_writes`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from bench.lanes import apart, config_of, milliseconds
from bench.savers import KINDS
from bench.sizes import Sizes

TEXT = "one more message of about a hundred characters, as most messages of a chat are, or so."


@dataclass
class PutFigures:
    """Milliseconds of each call, on a thread that grows to `messages` messages."""

    kind: str
    messages: int
    raw: list[float] = field(default_factory=list)
    put: list[float] = field(default_factory=list)
    put_writes: list[float] = field(default_factory=list)
    put_after_writes: list[float] = field(default_factory=list)


class RawCommit:
    """Two rows of 200 bytes, committed through the standard library's sqlite3 in WAL mode."""

    def __init__(self, file: Path, synchronous: str) -> None:
        self.connection = sqlite3.connect(file, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute(f"PRAGMA synchronous={synchronous}")
        self.connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, data BLOB)")

    def __call__(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute("INSERT INTO rows (data) VALUES (?)", (b"x" * 200,))
        self.connection.execute("INSERT INTO rows (data) VALUES (?)", (b"y" * 200,))
        self.connection.execute("COMMIT")


class Writer:
    """Puts checkpoints of a message list as LangGraph's loop does: load once, then put on."""

    def __init__(self, saver: BaseCheckpointSaver[Any], thread: str, length: int) -> None:
        self.saver = saver
        self.messages: list[BaseMessage] = [
            HumanMessage(f"{n} {TEXT}", id=str(n)) for n in range(length)
        ]
        self.version = saver.get_next_version(None, None)
        self.step = -1
        self.config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        self.put(self.messages)
        loaded = saver.get_tuple(config_of(thread))
        if loaded is None:
            raise RuntimeError("the checkpoint just put is not there")
        self.config = loaded.config
        self.messages = loaded.checkpoint["channel_values"]["messages"]

    def checkpoint(self, messages: list[BaseMessage]) -> Checkpoint:
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self.step))
        checkpoint["channel_values"] = {"messages": messages}
        checkpoint["channel_versions"] = {"messages": self.version}
        checkpoint["versions_seen"] = {"agent": {"messages": self.version}}
        checkpoint["updated_channels"] = ["messages"]
        return checkpoint

    def put(self, messages: list[BaseMessage]) -> float:
        """Milliseconds of one put."""
        checkpoint = self.checkpoint(messages)
        new = {"messages": self.version}
        time = milliseconds(
            lambda: self.saver.put(
                self.config,
                checkpoint,
                {"source": "loop", "step": self.step, "parents": {}},
                new,
            )
        )
        place = {**self.config["configurable"], "checkpoint_id": checkpoint["id"]}
        self.config = {**self.config, "configurable": place}
        self.version = self.saver.get_next_version(self.version, None)
        self.step += 1
        self.messages = messages
        return time

    def new_message(self) -> AIMessage:
        return AIMessage(f"{self.step} {TEXT}", id=f"a{self.step}")

    def grow(self) -> float:
        return self.put([*self.messages, self.new_message()])

    def write_and_grow(self) -> tuple[float, float]:
        """Milliseconds of put_writes with a new message, and of the put that absorbs it."""
        message = self.new_message()
        writes: Sequence[tuple[str, Any]] = [("messages", [message])]
        task = str(uuid6())
        first = milliseconds(lambda: self.saver.put_writes(self.config, writes, task, "~"))
        return first, self.put([*self.messages, message])


def measure(kind: str, sizes: Sizes, folder: Path) -> list[PutFigures]:
    """The figures of one kind, a row per thread length."""
    found: list[PutFigures] = apart(lengths, kind, sizes, folder)
    return found


def lengths(kind: str, sizes: Sizes, folder: Path) -> list[PutFigures]:
    synchronous = "normal" if kind.endswith("normal") else "full"
    file = folder / f"raw-{kind}.db"
    with KINDS[kind].open(folder / f"put-{kind}.db") as saver:
        raw = RawCommit(file, synchronous)
        with closing(raw.connection):
            return [
                at_length(kind, length, saver, raw, sizes.put_repeats)
                for length in sizes.put_lengths
            ]


def at_length(
    kind: str, length: int, saver: BaseCheckpointSaver[Any], raw: RawCommit, repeats: int
) -> PutFigures:
    figures = PutFigures(kind, length)
    alone = Writer(saver, f"alone-{length}", max(1, length - repeats))
    pairs = Writer(saver, f"pairs-{length}", max(1, length - repeats))
    for _ in range(repeats):
        figures.raw.append(milliseconds(raw))
        figures.put.append(alone.grow())
        first, second = pairs.write_and_grow()
        figures.put_writes.append(first)
        figures.put_after_writes.append(second)
    return figures
