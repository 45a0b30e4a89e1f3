"""A saver of another library that counts its calls, and fails on chosen ones."""

import threading
from collections.abc import Callable
from typing import Any

from kit.engine import checkpoint, config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver


class Inner(InMemorySaver):
    """LangGraph's saver in memory, with a housekeeping that it lacks."""

    def __init__(self, serde: Any = None) -> None:
        super().__init__(serde=serde)
        self.asked: list[str] = []
        self.bad: set[str] = set()
        self.stored = threading.Event()
        self.meanwhile: Callable[[], Any] | None = None  # called once, in the middle of a read
        self.ended: list[Any] = []

    def get_tuple(self, config: Any) -> Any:
        self.asked.append("get_tuple")
        found = super().get_tuple(config)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found

    def put(self, config: Any, *rest: Any) -> Any:
        self._change("put", config["configurable"]["thread_id"])
        return super().put(config, *rest)

    def put_writes(self, config: Any, *rest: Any, **named: Any) -> None:
        self._change("put_writes", config["configurable"]["thread_id"])
        super().put_writes(config, *rest, **named)

    def _change(self, what: str, thread: str) -> None:
        if thread in self.bad:
            message = f"{thread} is bad"
            raise OSError(message)
        self.asked.append(f"{what} {thread}")
        self.stored.set()

    def prune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        for thread in thread_ids:
            assert strategy == "delete"
            self.delete_thread(thread)

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        self.prune(thread_ids, strategy=strategy)

    def copy_thread(self, source: str, target: str) -> None:
        for found in [*InMemorySaver.list(self, config(source))][::-1]:
            versions = found.checkpoint["channel_versions"]
            super().put(config(target), found.checkpoint, found.metadata, versions)

    async def acopy_thread(self, source: str, target: str) -> None:
        self.copy_thread(source, target)

    def delete_for_runs(self, run_ids: Any) -> None:
        for found in [*InMemorySaver.list(self, None)]:
            if found.metadata.get("run_id") in run_ids:
                self.delete_thread(found.config["configurable"]["thread_id"])

    async def adelete_for_runs(self, run_ids: Any) -> None:
        self.delete_for_runs(run_ids)

    def close(self) -> None:
        self.ended.append("closed")

    def __exit__(self, *error: object) -> None:
        self.ended.append(error[0])

    async def __aexit__(self, *error: object) -> None:
        self.ended.append(error[0])


class OnlyAwaited(BaseCheckpointSaver[Any]):
    """A saver without blocking methods, whose loop is unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.threads: set[str] = set()

    async def aget_tuple(self, config: Any) -> Any:
        return self.inner.get_tuple(config)

    async def aput(self, *given: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        return self.inner.put(*given)

    async def aput_writes(self, *given: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.inner.put_writes(*given)


def put(saver: Any, thread: str = "t", number: int = 1, **values: Any) -> Any:
    """Put a checkpoint of these values."""
    return saver.put(*arguments(thread, number, **values))


async def aput(saver: Any, thread: str = "t", number: int = 1, **values: Any) -> Any:
    """The same, awaited."""
    return await saver.aput(*arguments(thread, number, **values))


def arguments(thread: str, number: int, **values: Any) -> tuple[Any, Any, Any, Any]:
    """Arguments of `put`."""
    versions = dict.fromkeys(values, number)
    made = checkpoint(number, values, versions)
    return config(thread), made, {"source": "loop", "run_id": f"run of {thread}"}, versions


def values(saver: Any, thread: str = "t") -> Any:
    """Return the value of the thread's head, or None if it has none."""
    found = saver.get_tuple(config(thread))
    return None if found is None else found.checkpoint["channel_values"]


async def avalues(saver: Any, thread: str = "t") -> Any:
    """The same, awaited."""
    found = await saver.aget_tuple(config(thread))
    return None if found is None else found.checkpoint["channel_values"]
