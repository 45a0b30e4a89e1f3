"""Threads of a store beside running them: `saver.threads`, and what its methods return."""

from threadkeep._core.engine.operation import Progress
from threadkeep._core.engine.thread_entry import Mark, ThreadStatus
from threadkeep.threads.archives.offload import Offloaded
from threadkeep.threads.archives.tiering import Archived, TierReport
from threadkeep.threads.diff import Change, ChannelDiff, DiffSide, StateDiff, TextEdit
from threadkeep.threads.diff.checkpoints import ChannelVersion
from threadkeep.threads.erasure.erase import ErasedThread, EraseReport
from threadkeep.threads.facade import Threads
from threadkeep.threads.forks.branches import BranchCheckpoint, Branches
from threadkeep.threads.forks.merge import Merge, MergeConflict, MergeStrategy
from threadkeep.threads.registry.filters import Filters
from threadkeep.threads.registry.info import ThreadInfo, ThreadPage
from threadkeep.threads.repair.check import CheckReport, Finding
from threadkeep.threads.repair.repair import RepairedThread, RepairReport
from threadkeep.threads.retention.gc import Collected, GcReport
from threadkeep.threads.transfer.adopt import Adopted
from threadkeep.threads.transfer.bundles import Exported, Imported
from threadkeep.threads.transfer.mirror import Mirrored

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
