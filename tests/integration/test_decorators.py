"""Savers in front of LangGraph's own ones offer what those offer, and no more.

LangGraph's server and its conformance suite look at the class of a saver: what it does not override
has a fallback there.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep import MemorySaver
from threadkeep.errors import InvalidArgumentError
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.monitor import observe
from threadkeep.streaming import StreamingCheckpointSaver

from .foreign import FOREIGN, foreign
from .inner import Inner

DECORATORS: dict[str, Callable[[Any], Any]] = {
    "observe": observe,
    "streaming": StreamingCheckpointSaver,
    "layered": LayeredCheckpointSaver,
    "two": lambda saver: observe(StreamingCheckpointSaver(saver)),
}
OPTIONAL = ["delete_thread", "delete_for_runs", "copy_thread", "prune"]


def overridden(saver: Any) -> list[str]:
    names = [*OPTIONAL, *[f"a{name}" for name in OPTIONAL]]
    base: Any = BaseCheckpointSaver
    return [name for name in names if getattr(type(saver), name) is not getattr(base, name)]


@pytest.mark.parametrize("name", FOREIGN)
async def test_what_is_offered(name: str, tmp_path: Path) -> None:
    async with foreign(name, tmp_path) as saver:
        for decorate in DECORATORS.values():
            one = decorate(saver)
            assert overridden(one) == overridden(saver)
            assert overridden(one.with_allowlist({("a", "B")})) == overridden(saver)


def test_what_is_inside_stays() -> None:
    for saver in (MemorySaver(), Inner()):
        for decorate in DECORATORS.values():
            assert overridden(decorate(saver)) == overridden(saver)


def test_the_class_is_that_of_the_decorator() -> None:
    saver = StreamingCheckpointSaver(InMemorySaver())
    assert isinstance(saver, StreamingCheckpointSaver)
    assert type(saver).__name__ == "StreamingCheckpointSaver"
    assert type(saver) is type(StreamingCheckpointSaver(InMemorySaver()))
    with pytest.raises(NotImplementedError):
        saver.copy_thread("1", "2")


def test_a_method_of_a_program_s_subclass_stays() -> None:
    class Copying(StreamingCheckpointSaver):
        def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None: ...

    assert "copy_thread" in overridden(Copying(InMemorySaver()))
    assert "acopy_thread" not in overridden(Copying(InMemorySaver()))


async def outcome(name: str, decorate: Callable[[Any], Any], folder: Path) -> Any:
    """Results of LangGraph's suite: passed, failed and missing capabilities."""

    async def factory() -> AsyncIterator[Any]:
        async with foreign(name, folder) as inner, decorate(inner) as saver:
            yield saver

    report = await validate(RegisteredCheckpointer(name=name, factory=factory))
    found = report.results
    failures = [failure for one in found.values() for failure in one.failures]
    missing = {name for name, one in found.items() if not one.detected}
    return sum(one.tests_passed for one in found.values()), failures, missing


@pytest.mark.parametrize("decorator", ["observe", "streaming", "layered"])
async def test_published_suite(decorator: str, tmp_path: Path) -> None:
    missing = {"delete_for_runs", "copy_thread", "prune"}
    assert await outcome("memory", DECORATORS[decorator], tmp_path) == (58, [], missing)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("decorator", ["observe", "streaming", "layered"])
async def test_published_suite_on_a_saver_that_prunes(decorator: str, tmp_path: Path) -> None:
    missing = {"delete_for_runs", "copy_thread"}
    assert await outcome("aiopostgres", DECORATORS[decorator], tmp_path) == (66, [], missing)


def test_layers_refuse_to_prune_archived_messages_of_another_saver() -> None:
    class Pruning(InMemorySaver):
        pruned: ClassVar[list[Any]] = []

        def prune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
            self.pruned.append((thread_ids, strategy))

    saver = LayeredCheckpointSaver(Pruning(), Layers(full_window=2, summary_window=4))
    saver.save("short", [HumanMessage("one", id="1")])
    saver.save("long", [HumanMessage(str(n), id=str(n)) for n in range(20)])
    saver.prune(["short"])
    with pytest.raises(InvalidArgumentError, match=r"archived messages.*'long'"):
        saver.prune(["short", "long"])
    saver.prune(["long"], strategy="delete")
    assert Pruning.pruned == [(["short"], "keep_latest"), (["long"], "delete")]
