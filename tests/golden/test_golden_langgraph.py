"""Threads that LangGraph's own savers stored, from release 0.2.10 on, continue here.

The oracle is today's LangGraph saver on the same file, if it can read the file.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphsSaver
from langgraph_threads import FLAKY, KINDS, compiled, config
from make_langgraph import RELEASES, file_of

from threadkeep import MemorySaver, SqliteSaver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLDEST = "0.2.10"
"""Its JSON names classes by modules from which they have moved; LangGraph returns dicts."""

STEPS_OF_OLDEST = {
    "asks": ["in", "yes"],
    "before": ["in", "a", "b"],
    "failed": ["in", "mended", "good"],
    "send": ["in", "plan", "first", "second"],
    "subgraph": ["in", "in", "inner", "yes"],
}


@contextmanager
def opened(way: str, file: Path, *, verify: bool) -> Iterator[Any]:
    """Open a saver that has the threads of a file."""
    new, bundle = str(file.with_name("new.db")), file.with_name("all.tkb")
    with SqliteSaver(new, migrate_from=file if way == "migrate_from" else None) as saver:
        if way != "migrate_from":
            report = saver.threads.adopt(file, verify=verify)
            assert report.verified == report.checkpoints * verify
            assert saver.check().ok
        if way != "bundle":
            yield saver
            return
        saver.threads.export_bundle(None, bundle)
    with MemorySaver() as saver:
        saver.threads.import_bundle(bundle)
        yield saver


def continued(kind: str, saver: Any) -> dict[str, Any]:
    """Return a thread's state, and its state after a run that continues it."""
    graph = compiled(kind, saver)
    state = graph.get_state(config(kind), subgraphs=True)
    graph.invoke(KINDS[kind].rest(state), config(kind))
    after = graph.get_state(config(kind))
    tasks = [(task.name, task.error, task.interrupts) for task in state.tasks]
    return {"values": state.values, "tasks": tasks, "after": after.values, "next": after.next}


@pytest.mark.drawn(6)
@pytest.mark.parametrize("way", ["adopt", "migrate_from", "bundle"])
@pytest.mark.parametrize("release", RELEASES)
def test_each_thread_continues(
    release: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FLAKY, "mended", True)
    own, copy = (shutil.copy(file_of(release), tmp_path / name) for name in ("own.db", "copy.db"))
    has_oracle = release != OLDEST
    with (
        LangGraphsSaver.from_conn_string(str(copy)) as theirs,
        opened(way, own, verify=has_oracle) as ours,
    ):
        kinds = {one.config["configurable"]["thread_id"] for one in theirs.list(None)}
        assert kinds >= {*STEPS_OF_OLDEST, "chat"}
        for kind in sorted(kinds):
            found = continued(kind, ours)
            if has_oracle or kind == "chat":
                assert found == continued(kind, theirs), kind
            else:
                assert (found["after"]["steps"], found["next"]) == (STEPS_OF_OLDEST[kind], ())


def test_each_waiting_question_has_its_id() -> None:
    with MemorySaver() as saver:
        saver.threads.adopt(file_of("0.4.8"))
        for kind in ("asks", "asks_again", "asks_twice", "subgraph"):
            found = compiled(kind, saver).get_state(config(kind)).interrupts
            listed = saver.threads.interrupts(kind)
            assert {one.id: one.value for one in listed} == {one.id: one.value for one in found}
            assert found
