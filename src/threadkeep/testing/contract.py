"""The whole contract, composed of its parts."""

from __future__ import annotations

from threadkeep.testing.batches import BatchContract, FenceContract
from threadkeep.testing.forks import ForkContract
from threadkeep.testing.groups import ConcurrencyContract, GroupContract, ScrubContract
from threadkeep.testing.reads import ReadContract, SegmentContract
from threadkeep.testing.registry import RegistryContract
from threadkeep.testing.threads import ScanContract, ThreadContract


class BackendContract(
    ReadContract,
    ScanContract,
    SegmentContract,
    BatchContract,
    FenceContract,
    ThreadContract,
    RegistryContract,
    ForkContract,
    GroupContract,
    ScrubContract,
    ConcurrencyContract,
):
    """Every promise that a backend makes. Implement `new_backend`, and `reopen` if durable."""
