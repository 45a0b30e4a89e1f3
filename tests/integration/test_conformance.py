"""The published conformance suite of LangGraph's checkpointers, each test a case of its own.

It calls the async methods only, so each backend runs it twice: with its own async API,
and through `SyncFace`, whose async methods call the sync API. A tenant's saver runs it too.
"""

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.sync_face import FACES
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer

WITH_TENANTS = {**FACES, "tenant": lambda saver: saver.for_tenant("acme")}
SUITE = "langgraph.checkpoint.conformance.spec.test_"


def published(capability: Capability) -> list[Any]:
    """All tests that the suite has for one capability."""
    module = importlib.import_module(SUITE + capability.value)
    return list(getattr(module, f"ALL_{capability.name}_TESTS"))


CASES = [
    pytest.param(test, id=f"{capability.value}-{test.__name__.removeprefix('test_')}")
    for capability in Capability
    for test in published(capability)
]


@asynccontextmanager
async def opened(backend: str, face: str, folder: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    async with open_backend(backend, folder) as saver:
        yield WITH_TENANTS[face](saver)


@pytest.mark.parametrize("face", WITH_TENANTS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
async def test_case(case: Any, backend: str, face: str, tmp_path: Path) -> None:
    async with opened(backend, face, tmp_path) as saver:
        await case(saver)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("face", WITH_TENANTS)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_every_capability_is_detected_and_passes(
    backend: str, face: str, tmp_path: Path
) -> None:
    async def factory() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        async with opened(backend, face, tmp_path) as saver:
            yield saver

    report = await validate(RegisteredCheckpointer(name=backend, factory=factory))
    results = report.results
    assert set(results) == {c.value for c in Capability}
    assert {n: r.failures for n, r in results.items() if r.failures} == {}
    assert [n for n, r in results.items() if not r.detected] == []
    passed = {n: r.tests_passed for n, r in results.items()}
    assert passed == {c.value: len(published(c)) for c in Capability}
