"""Conversations as data: read from a file, or made up with the same proportions.

Nothing here knows LangGraph. A conversation is a system text and turns; a turn is one
user message and what the assistant and its tools answered, in the OpenAI chat format.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bench.errors import BenchError

Message: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    user: Message
    replies: tuple[Message, ...]


@dataclass(frozen=True)
class Conversation:
    name: str
    system: str
    turns: tuple[Turn, ...]


def load(path: Path) -> list[Conversation]:
    """The conversations of a `.jsonl` or `.jsonl.gz` file, one JSON object a line.

    Each line: `{"conversation": "name", "messages": [...]}`, the messages with `role`,
    `content`, `tool_calls`, `tool_call_id` and `name` as in the OpenAI chat format.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            found = [parse(line, n, path) for n, line in enumerate(lines, 1) if line.strip()]
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise BenchError(f"cannot read {path}: {error}") from error
    if not any(conversation.turns for conversation in found):
        raise BenchError(f"{path} holds no conversation with a user message")
    return found


def parse(line: str, number: int, path: Path) -> Conversation:
    try:
        record = json.loads(line)
        messages = [dict(message) for message in record["messages"]]
        roles = [message["role"] for message in messages]
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(
            f"{path}, line {number}: not a conversation: wanted "
            f'{{"conversation": name, "messages": [{{"role": ..., "content": ...}}]}} ({error!r})'
        ) from error
    system = next((m["content"] for m, r in zip(messages, roles, strict=True) if r == "system"), "")
    return Conversation(str(record.get("conversation", number)), system, tuple(split(messages)))


def split(messages: Iterable[Message]) -> Iterator[Turn]:
    """Cut at the user messages; what comes before the first is left out."""
    user: Message | None = None
    replies: list[Message] = []
    for message in messages:
        if message["role"] == "user":
            if user is not None:
                yield Turn(user, tuple(replies))
            user, replies = message, []
        elif message["role"] in {"assistant", "tool"}:
            replies.append(message)
    if user is not None:
        yield Turn(user, tuple(replies))


def joined(conversations: Iterable[Conversation]) -> Conversation:
    """All of them as one endless conversation under the first one's system text."""
    found = list(conversations)
    return Conversation("endless", found[0].system, tuple(t for c in found for t in c.turns))


# -- made up, for a run without a file -----------------------------------------------

WORDS = (
    *("flight", "seat", "change", "date", "order", "please", "confirm", "refund", "card"),
    *("member", "economy", "window", "booking", "return", "morning", "evening", "price"),
    *("upgrade", "passenger", "policy", "bag", "insurance", "cabin", "route", "city"),
)


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(WORDS, k=count))


def made_up(count: int, seed: int = 7) -> list[Conversation]:
    """`count` conversations of about seven turns and a tool call in most turns."""
    chance = random.Random(seed)
    system = words(chance, 900)
    return [
        Conversation(f"made-up-{n}", system, tuple(made_up_turn(chance) for _ in range(7)))
        for n in range(count)
    ]


def made_up_turn(chance: random.Random) -> Turn:
    replies: list[Message] = []
    for _ in range(chance.choice((0, 1, 1, 1))):
        replies.extend(tool_round(chance))
    replies.append({"role": "assistant", "content": words(chance, 60)})
    return Turn({"role": "user", "content": words(chance, 25)}, tuple(replies))


def tool_round(chance: random.Random) -> tuple[Message, Message]:
    call = f"call_{chance.getrandbits(96):024x}"
    function = {"name": "look_up", "arguments": json.dumps({"query": words(chance, 4)})}
    result = json.dumps({f"field_{n}": words(chance, 8) for n in range(12)})
    return (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call, "name": "look_up", "content": result},
    )
