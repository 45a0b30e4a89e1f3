"""Threads of a store beside running them: `saver.threads`, and what its methods return."""

from threadkeep.cold.offload import Offloaded
from threadkeep.cold.tiering import Archived, TierReport
from threadkeep.diff import Change, ChannelDiff, DiffSide, StateDiff, TextEdit
from threadkeep.diff.checkpoints import ChannelVersion
from threadkeep.engine.operation import Progress
from threadkeep.engine.thread_entry import Mark, ThreadStatus
from threadkeep.erasure.erase import ErasedThread, EraseReport
from threadkeep.forks.branches import BranchCheckpoint, Branches
from threadkeep.forks.merge import Merge, MergeConflict, MergeStrategy
from threadkeep.registry.filters import Filters
from threadkeep.registry.info import ThreadInfo, ThreadPage
from threadkeep.repair.check import CheckReport, Finding
from threadkeep.repair.repair import RepairedThread, RepairReport
from threadkeep.retention.gc import Collected, GcReport
from threadkeep.thread_methods.threads import Threads
from threadkeep.transfer.adopt import Adopted
from threadkeep.transfer.bundles import Exported, Imported
from threadkeep.transfer.mirror import Mirrored

__all__ = [
    "Adopted",
    "Archived",
    "BranchCheckpoint",
    "Branches",
    "Change",
    "ChannelDiff",
    "ChannelVersion",
    "CheckReport",
    "Collected",
    "DiffSide",
    "EraseReport",
    "ErasedThread",
    "Exported",
    "Filters",
    "Finding",
    "GcReport",
    "Imported",
    "Mark",
    "Merge",
    "MergeConflict",
    "MergeStrategy",
    "Mirrored",
    "Offloaded",
    "Progress",
    "RepairReport",
    "RepairedThread",
    "StateDiff",
    "TextEdit",
    "ThreadInfo",
    "ThreadPage",
    "ThreadStatus",
    "Threads",
    "TierReport",
]
