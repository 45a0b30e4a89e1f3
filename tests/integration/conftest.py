"""Fixtures: a saver on each backend, and several savers on one file."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS, SHARED, open_backend
from kit.selection import stores_left_out

HERE = os.path.dirname(__file__)  # noqa: PTH120


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each case on one of the stores, in a full run on all of them."""
    own = [item for item in items if str(item.path).startswith(HERE)]
    if left_out := stores_left_out(own, BACKENDS):
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def saver_options() -> dict[str, Any]:
    """Options of the savers; a module may have its own."""
    return {}


@pytest.fixture(params=BACKENDS)
def saver(
    request: pytest.FixtureRequest, tmp_path: Path, saver_options: dict[str, Any]
) -> Iterator[Any]:
    """A fresh saver, once for each backend."""
    with open_backend(request.param, tmp_path, **saver_options) as opened:
        yield opened


@pytest.fixture
def ours(tmp_path: Path, saver_options: dict[str, Any]) -> Iterator[Any]:
    """One on SQLite, for what does not depend on the store."""
    with open_backend("sqlite", tmp_path, **saver_options) as opened:
        yield opened


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """The folder of a cold store."""
    return tmp_path / "cold"


class Looking:
    """Asks for something of `saver.threads` by both APIs, which must agree."""

    def __init__(self, saver: Any) -> None:
        self.saver = saver

    async def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        threads = self.saver.threads
        found = await getattr(threads, f"a{name}")(*args, **options)
        assert getattr(threads, name)(*args, **options) == found
        return found

    async def refuses(self, error: Any, name: str, *args: Any, **options: Any) -> Any:
        threads = self.saver.threads
        with pytest.raises(error):
            getattr(threads, name)(*args, **options)
        with pytest.raises(error) as caught:
            await getattr(threads, f"a{name}")(*args, **options)
        return caught.value


@pytest.fixture(params=BACKENDS)
async def look(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Looking]:
    """A `Look` at the threads of a fresh saver, for each backend."""
    async with open_backend(request.param, tmp_path) as saver:
        yield Looking(saver)


@pytest.fixture(params=SHARED)
def another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens one more saver on the same store, as another process would."""
    with ExitStack() as stack:

        def open_one_more(**options: Any) -> Any:
            return stack.enter_context(open_backend(request.param, tmp_path, **options))

        yield open_one_more
