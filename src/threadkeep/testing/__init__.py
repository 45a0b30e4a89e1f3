"""The backend contract as tests: subclass `BackendContract`, and pytest runs them all.

    from threadkeep.testing import BackendContract

    class TestMyBackend(BackendContract):
        def new_backend(self, folder):
            return MyBackend(folder / "store")

        def reopen(self, folder):  # only where what is stored outlives `close`
            return MyBackend(folder / "store")

The docstring of each test is the sentence of `engine.model` or `backends.base` that it
checks. A backend with a native async driver is wrapped in `Blocking`. Importing this
package needs pytest; nothing else in threadkeep does. See docs/writing-a-backend.md.
"""

import pytest

_PARTS = ("batches", "forks", "groups", "reads", "registry", "threads")
pytest.register_assert_rewrite(*(f"threadkeep.testing.{name}" for name in _PARTS))

from threadkeep.testing.contract import BackendContract  # noqa: E402 - as above
from threadkeep.testing.records import Blocking  # noqa: E402 - after the rewrite hook

__all__ = ["BackendContract", "Blocking"]
