"""What can be done with threads beside running them: `saver.threads`.

One module for each capability; its logic is operations (generators, see `drive`), which
`Threads` runs on the saver's store, blocking or awaited. Invariant: whatever the store is, the
same operation serves it.
"""

from threadkeep.diff import (
    Change,
    ChannelDiff,
    DiffSide,
    StateDiff,
    TextEdit,
)
from threadkeep.engine.thread_entry import Mark
from threadkeep.erasure.rows import ErasedThread
from threadkeep.erasure.workflow import EraseReport
from threadkeep.forks.merge import (
    Merge,
    MergeConflict,
)
from threadkeep.repair.workflow import (
    RepairedThread,
    RepairReport,
)
from threadkeep.threads.adopting import Adopting
from threadkeep.threads.archiving import Archiving
from threadkeep.threads.branches import BranchCheckpoint, Branches, Branching
from threadkeep.threads.diff import Comparing
from threadkeep.threads.erasing import Erasing
from threadkeep.threads.exchanging import Exchanging
from threadkeep.threads.forks import Forks
from threadkeep.threads.info import ThreadInfo, ThreadPage
from threadkeep.threads.registry import Registry
from threadkeep.threads.repairing import Repairing
from threadkeep.threads.retention import Collected, GcReport, Retaining
from threadkeep.threads.syncing import Syncing
from threadkeep.threads.tiering import Archived, Offloaded, Placing, TierReport
from threadkeep.threads.versions import ChannelVersion, Versions
from threadkeep.transfer.adopting import Adopted
from threadkeep.transfer.portable import Exported, Imported
from threadkeep.transfer.syncing import Synced

__all__ = [
    "Adopted",
    "Archived",
    "BranchCheckpoint",
    "Branches",
    "Change",
    "ChannelDiff",
    "ChannelVersion",
    "Collected",
    "DiffSide",
    "EraseReport",
    "ErasedThread",
    "Exported",
    "GcReport",
    "Imported",
    "Mark",
    "Merge",
    "MergeConflict",
    "Offloaded",
    "RepairReport",
    "RepairedThread",
    "StateDiff",
    "Synced",
    "TextEdit",
    "ThreadInfo",
    "ThreadPage",
    "Threads",
    "TierReport",
]


class Threads(
    Registry,
    Branching,
    Comparing,
    Versions,
    Forks,
    Retaining,
    Archiving,
    Placing,
    Exchanging,
    Adopting,
    Syncing,
    Repairing,
    Erasing,
):
    """The threads of a store; each method has an `a` twin that is awaited."""
