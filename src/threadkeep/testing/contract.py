"""The whole contract, composed of its parts."""

from __future__ import annotations

from threadkeep.testing.batches import BatchContract
from threadkeep.testing.concurrency import ConcurrencyContract
from threadkeep.testing.fences import FenceContract
from threadkeep.testing.forks import ForkContract
from threadkeep.testing.groups import GroupContract, ScrubContract
from threadkeep.testing.reads import ReadContract
from threadkeep.testing.registry import RegistryContract
from threadkeep.testing.scans import ScanContract
from threadkeep.testing.segments import SegmentContract
from threadkeep.testing.threads import ThreadContract


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
