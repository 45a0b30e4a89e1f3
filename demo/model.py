"""Both sides of the conversation, without a network: questions, and models that answer them.

The scripted model decides from the conversation alone, so the same folder gives the same
run every time.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolCall,
    ToolMessage,
    messages_from_dict,
)

from demo.tools import MAX_BYTES, Folder

Model: TypeAlias = Callable[[Sequence[BaseMessage]], BaseMessage]

DEFINITION = re.compile(r"^\d+: *(?:class|def|async def) (\w+)", re.MULTILINE)
HIT = re.compile(r"^(.+?):(\d+): ", re.MULTILINE)
SIZE = re.compile(r"^(.+), (\d+) lines$", re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")
MAX_STEPS = 4  # rounds of tool calls in one turn
MAX_FILES = 2_000  # that questions are about
WORDS = ("open", "return", "error", "name", "size", "read", "write", "close", "import", "value")


class Questions:
    """Questions about the files of a folder; number `n` is the same in every process.

    Raises:
        ValueError: if the folder holds no file to ask about.
    """

    def __init__(self, root: Path) -> None:
        folder = Folder(root)
        some = islice(folder.files(folder.root), MAX_FILES)
        self.files = [folder.name(path) for path in some if 0 < path.stat().st_size < MAX_BYTES]
        if not self.files:
            raise ValueError(f"{root} holds no files to read (hidden files do not count)")

    def __getitem__(self, turn: int) -> str:
        chance = random.Random(turn)
        one, other = chance.choice(self.files), chance.choice(self.files)
        directory = one.rpartition("/")[0] or "."
        return chance.choice(
            (
                f"What does `{one}` do?",
                f"Please read `{one}` for me and say what it defines.",
                f"What is in the folder `{directory}`?",
                f"Please search for `{chance.choice(WORDS)}` in `{directory}`.",
                f"Please compare `{one}` with `{other}`.",
            )
        )


def scripted(messages: Sequence[BaseMessage]) -> AIMessage:
    """Answer the last question by calling the tools and reading their results."""
    start = max(n for n, message in enumerate(messages) if isinstance(message, HumanMessage))
    return decide(str(messages[start].content), messages[start + 1 :], len(messages))


def recorded(file: Path) -> Model:
    """Return a model that repeats what a model said in an earlier run."""
    said = iter(messages_from_dict(json.loads(file.read_text(encoding="utf-8"))))
    return lambda _messages: next(said)


def decide(question: str, turn: Sequence[BaseMessage], salt: int) -> AIMessage:
    """Return the next step: from the question at first, then from the newest tool results."""
    results = [message for message in turn if isinstance(message, ToolMessage)]
    rounds = sum(isinstance(message, AIMessage) for message in turn)
    if not results:
        return AIMessage("", tool_calls=first_calls(question, salt))
    after = follow_up(results[-1], salt + rounds) if rounds < MAX_STEPS else None
    if after is not None and not already_read(after, turn):
        return AIMessage("", tool_calls=[after])
    return AIMessage(summary(results))


def call(name: str, salt: int, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, args=arguments, id=f"call_{salt:06}_{name}")


def first_calls(question: str, salt: int) -> list[ToolCall]:
    named = QUOTED.findall(question)
    about = named[0] if named else "."
    if "search" in question:
        where = named[1] if len(named) > 1 else "."
        return [call("search", salt, text=about, directory=where)]
    if "compare" in question:
        return [call("read_file", salt + n, path=name) for n, name in enumerate(named)]
    if "folder" in question:
        return [call("list_files", salt, directory=about)]
    return [call("read_file", salt, path=about)]


def follow_up(last: ToolMessage, salt: int) -> ToolCall | None:
    """Return a call that reads the first file found, or searches for a name; else None."""
    text = str(last.content)
    if last.name == "search" and (hit := HIT.search(text)):
        start = max(1, int(hit[2]) - 10)
        return call("read_file", salt, path=hit[1], start=start, lines=30)
    if last.name == "list_files":
        files = [name for name in text.splitlines() if name.endswith((".py", ".md", ".txt"))]
        return call("read_file", salt, path=files[salt % len(files)]) if files else None
    if last.name == "read_file" and (found := DEFINITION.findall(text)) and salt % 3 == 0:
        return call("search", salt, text=found[0], directory=parent(text))
    return None


def parent(text: str) -> str:
    opened = SIZE.search(text)
    return opened[1].rpartition("/")[0] or "." if opened else "."


def already_read(wanted: ToolCall, turn: Sequence[BaseMessage]) -> bool:
    made = [c for m in turn if isinstance(m, AIMessage) for c in m.tool_calls]
    return any(c["name"] == wanted["name"] and c["args"] == wanted["args"] for c in made)


def summary(results: Sequence[ToolMessage]) -> str:
    """Report the findings, from the results themselves."""
    lines = []
    for message in results:
        text = str(message.content)
        if text.startswith("error: "):
            lines.append(f"- {message.name} failed: {text.removeprefix('error: ')}")
        elif opened := SIZE.search(text):
            names = ", ".join(DEFINITION.findall(text)[:6]) or "nothing in what I read"
            lines.append(f"- {opened[1]} has {opened[2]} lines and defines {names}")
        elif found := HIT.findall(text):
            places = ", ".join(f"{path} line {line}" for path, line in found[:4])
            lines.append(f"- found {len(found)} places: {places}")
        else:
            lines.append(f"- {message.name} gave {len(text.splitlines())} lines")
    return "\n".join(lines)
