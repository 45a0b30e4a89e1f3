"""Chat models that need no network: one that follows a script, one that plays a record.

The scripted model decides from what is in the conversation alone, so the same folder
gives the same run every time: it looks around, searches, reads what it found, and says
what it learned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

Tools: TypeAlias = Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool]

DEFINITION = re.compile(r"^\d+: *(?:class|def|async def) (\w+)", re.MULTILINE)
HIT = re.compile(r"^(.+?):(\d+): ", re.MULTILINE)
SIZE = re.compile(r"^(.+), (\d+) lines$", re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")
MAX_STEPS = 4  # rounds of tool calls in one turn


def result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])


class OfflineModel(BaseChatModel):
    """A model that accepts tools and needs nothing from outside."""

    def bind_tools(
        self, tools: Tools, *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Tools are known to the script already."""
        del tools, tool_choice
        return self.bind(**kwargs)

    @property
    def _llm_type(self) -> str:
        return "offline"


class ScriptedModel(OfflineModel):
    """Answers questions about a folder by calling the tools and reading their results."""

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - nothing to stop
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - nothing to tell
        **_options: Any,
    ) -> ChatResult:
        asked = max(n for n, m in enumerate(messages) if isinstance(m, HumanMessage))
        turn = messages[asked + 1 :]
        return result(decide(str(messages[asked].content), turn, len(messages)))


class RecordedModel(OfflineModel):
    """Says again what a model said in an earlier run, message by message."""

    record: list[AIMessage]
    said: int = 0

    def _generate(
        self,
        messages: list[BaseMessage],  # noqa: ARG002 - the record decides
        stop: list[str] | None = None,  # noqa: ARG002 - nothing to stop
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - nothing to tell
        **_options: Any,
    ) -> ChatResult:
        self.said += 1
        return result(self.record[self.said - 1].model_copy())


# -- the script ----------------------------------------------------------------------


def decide(question: str, turn: Sequence[BaseMessage], salt: int) -> AIMessage:
    """The next step: from the question at first, then from the newest tool results."""
    results = [message for message in turn if isinstance(message, ToolMessage)]
    rounds = sum(isinstance(message, AIMessage) for message in turn)
    if not results:
        return AIMessage("", tool_calls=first_calls(question, salt))
    after = follow_up(results[-1], salt + rounds) if rounds < MAX_STEPS else None
    if after is not None and not already_read(after, turn):
        return AIMessage("", tool_calls=[after])
    return AIMessage(summary(question, results))


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
    """What a result makes worth looking at: the first file found, or where a name is used."""
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


def summary(question: str, results: Sequence[ToolMessage]) -> str:
    """What was learned, from the results themselves."""
    lines = [f"On: {question}"]
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
