"""LayeredMemoryMiddleware: LangChain agents see the view of a conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from threadkeep.errors import invalid
from threadkeep.memory import window
from threadkeep.memory.saver import LayeredCheckpointSaver


class LayeredMemoryMiddleware(AgentMiddleware[Any, Any, Any]):
    """Middleware for `create_agent` that sends the model the view of the conversation.

    It never changes the agent's state. The agent's checkpointer may be the same
    `LayeredCheckpointSaver` or any other saver. Without one, the config still has to name a thread.
    If the user's last message has left the window during a long turn, it is sent too. Put this
    middleware first, so that it sees the messages of the state.

    Args:
        layered: the saver whose policy and summarizer make the view, and whose store archives.

    Raises:
        InvalidArgumentError: `layered` is not a `LayeredCheckpointSaver`.
    """

    def __init__(self, layered: LayeredCheckpointSaver) -> None:
        if not isinstance(layered, LayeredCheckpointSaver):
            raise invalid("layered", layered, "Use LayeredCheckpointSaver(saver).")
        super().__init__()
        self._layered = layered

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Call the model with the view. See `AgentMiddleware`."""
        return handler(_with(request, self._layered.view(_place(), request.messages)))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Async variant of `wrap_model_call`."""
        return await handler(_with(request, await self._layered.aview(_place(), request.messages)))


def _place() -> RunnableConfig:
    """Return the config of the root graph's checkpoint during a call of the model."""
    found = get_config()["configurable"]
    at = found.get("checkpoint_map", {}).get("")
    return {"configurable": {"thread_id": found.get("thread_id"), "checkpoint_id": at}}


def _with(request: ModelRequest[Any], view: Sequence[BaseMessage]) -> ModelRequest[Any]:
    """Return the request with a view in place of its messages.

    Summaries become the user's messages, because several models take only one system message, and
    want a message of the user first. The user's last message follows if it has left the window.
    """
    messages: list[Any] = [
        HumanMessage(one.content, id=one.id) if window.is_marker(one) else one for one in view
    ]
    asked = [one for one in request.messages if _is_asked(one)]
    if asked and not any(_is_asked(one) for one in messages):
        at = next((at for at, one in enumerate(messages) if window.is_marker(one)), -1)
        messages.insert(at + 1, asked[-1])
    return request.override(messages=messages)


def _is_asked(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and not window.is_marker(message)
