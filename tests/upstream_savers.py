"""Pytest plugin that runs LangGraph's own tests of graphs on our savers (`scripts/upstream`).

Its fixtures take the place of those of LangGraph's `conftest`, and only tests that use one of
them run. `DESELECTED` names those that assert what is no saver's behaviour, each with its reason.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from integration.backends import BACKENDS, open_backend

STORES = tuple(filter(None, os.environ.get("TK_UPSTREAM_STORES", "").split(","))) or BACKENDS

DESELECTED: dict[str, str] = {}
"""Patterns of names, as pytest shows them, and why such a test says nothing of a saver."""


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, dropped, used = [], [], set[str]()
    for item in items:
        matching = {p for p in DESELECTED if fnmatchcase(item.nodeid, p)}
        used |= matching
        runs = not matching and not OURS.keys().isdisjoint(getattr(item, "fixturenames", ()))
        (kept if runs else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)
