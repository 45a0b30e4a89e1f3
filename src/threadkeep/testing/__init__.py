"""The backend contract as tests: subclass `BackendContract`, and pytest runs them all.

    from threadkeep.testing import BackendContract

    class TestMyBackend(BackendContract):
        def new_backend(self, folder):
            return MyBackend(folder / "store")

        def reopen(self, folder):  # only if the store outlives `close`
            return MyBackend(folder / "store")

The docstring of each test is the promise that it checks, and a failure repeats it. Wrap a backend
with an async driver in `BlockingBackend`. Only this package of threadkeep needs pytest. See
docs/writing-a-backend.md.
"""
# ruff: noqa: E402 - pytest rewrites the asserts of modules that are registered before their import

import pytest

_PARTS = (
    *("batches", "forks", "groups", "leases", "prefixes", "reads", "records", "registry"),
    "threads",
)
pytest.register_assert_rewrite(*(f"threadkeep.testing.{name}" for name in _PARTS))

from threadkeep.testing.batches import BatchContract, FenceContract
from threadkeep.testing.forks import ForkContract
from threadkeep.testing.groups import ConcurrencyContract, GroupContract
from threadkeep.testing.leases import LeaseContract
from threadkeep.testing.prefixes import PrefixContract
from threadkeep.testing.reads import ReadContract, SegmentContract
from threadkeep.testing.records import BlockingBackend
from threadkeep.testing.registry import RegistryContract
from threadkeep.testing.threads import ScanContract, ThreadContract

__all__ = ["BackendContract", "BlockingBackend"]


class BackendContract(
    ReadContract,
    ScanContract,
    PrefixContract,
    SegmentContract,
    BatchContract,
    FenceContract,
    ThreadContract,
    RegistryContract,
    LeaseContract,
    ForkContract,
    GroupContract,
    ConcurrencyContract,
):
    """Every promise of a backend. Implement `new_backend`, and `reopen` if the store is durable."""
