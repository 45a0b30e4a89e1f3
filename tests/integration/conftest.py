"""Fixtures: a saver on each backend, and several savers on one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from .backends import BACKENDS, SHARED, open_backend

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=BACKENDS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A fresh saver, once for each backend."""
    with open_backend(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture(params=SHARED)
def another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens one more saver on the same store, as another process would."""
    with ExitStack() as stack:

        def open_one_more(**options: Any) -> Any:
            return stack.enter_context(open_backend(request.param, tmp_path, **options))

        yield open_one_more
