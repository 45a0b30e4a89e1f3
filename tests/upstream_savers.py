"""Pytest plugin that runs LangGraph's own tests of graphs on our savers (`scripts/upstream`).

Its fixtures take the place of those of LangGraph's `conftest`, and our `MemorySaver` that of
`InMemorySaver` in modules that import it; all other tests are left out. `DESELECTED` names those
that assert what is no saver's behaviour, each with its reason.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from integration.backends import BACKENDS, open_backend
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep import MemorySaver

STORES = tuple(filter(None, os.environ.get("TK_UPSTREAM_STORES", "").split(","))) or BACKENDS

_RACE = "expects two tasks to end in the order of their starts, 10 ms apart, on a busy machine too"
_TIMES = "expects times to the tenth of a second, on a busy machine too"
DESELECTED = {
    "tests/test_channels.py::test_delta_channel_snapshot_version_based": (
        "reads the attribute `blobs` of InMemorySaver"
    ),
    "tests/test_pregel_async.py::test_checkpoint_errors": (
        "expects a serializer's own ValueError; ours is an UnserializableError, caused by it"
    ),
    "tests/test_pregel.py::test_stream_subgraphs_during_execution": _TIMES,
    "tests/test_pregel.py::test_stream_buffering_single_node": _TIMES,
    "tests/test_pregel_async.py::test_stream_subgraphs_during_execution": _TIMES,
    "tests/test_pregel_async.py::test_stream_buffering_single_node": _TIMES,
    "tests/test_pregel_async.py::test_imp_nested[postgres": _RACE,
    "tests/test_pregel_async.py::test_imp_nested[redis": _RACE,
}
"""How names of tests begin, and why they say nothing of a saver."""


@pytest.fixture(params=STORES)
def sync_checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with open_backend(request.param, tmp_path) as saver:
        yield saver


@pytest.fixture(params=STORES)
async def async_checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    async with open_backend(request.param, tmp_path) as saver:
        yield saver


OURS = {"sync_checkpointer": sync_checkpointer, "async_checkpointer": async_checkpointer}


@pytest.hookimpl(tryfirst=True)
def pytest_plugin_registered(plugin: object) -> None:
    """Replace the fixtures of LangGraph's `conftest` before pytest has looked at it."""
    if isinstance(plugin, ModuleType) and plugin.__name__ == "tests.conftest":
        for name, fixture in OURS.items():
            assert hasattr(plugin, name), f"LangGraph's conftest has no {name} any more"
            setattr(plugin, name, fixture)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    in_memory = {module for module in {item.module for item in items} if _replaced(module)}
    kept, dropped = [], []
    for item in items:
        ours = item.module in in_memory or not OURS.keys().isdisjoint(item.fixturenames)
        (kept if ours and not item.nodeid.startswith(tuple(DESELECTED)) else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


def _replaced(module: ModuleType) -> bool:
    """Whether the module uses InMemorySaver: ours from now on, if the memory store is asked for."""
    names = [name for name, value in vars(module).items() if value is InMemorySaver]
    for name in names:
        setattr(module, name, MemorySaver)
    return bool(names) and "memory" in STORES
