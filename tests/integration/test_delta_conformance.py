"""The checks of `delta_spec`, each for every backend by both APIs."""

from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS

from .delta_spec import ALL_DELTA_TESTS
from .test_conformance import FACES, opened

CASES = [pytest.param(t, id=t.__name__.removeprefix("test_")) for t in ALL_DELTA_TESTS]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
async def test_case(case: Any, backend: str, face: str, tmp_path: Path) -> None:
    async with opened(backend, face, tmp_path) as saver:
        await case(saver)
