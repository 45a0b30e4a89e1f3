"""Threads of a store beside running them: `saver.threads`, and what its methods return."""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

if _CHECKING:
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
    from threadkeep.threads.repair.quarantine import read_quarantine
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
    "read_quarantine",
]

_HOMES = {  # where a name is, which is imported when it is used
    "Adopted": "threadkeep.threads.transfer.adopt",
    "Archived": "threadkeep.threads.archives.tiering",
    "BranchCheckpoint": "threadkeep.threads.forks.branches",
    "Branches": "threadkeep.threads.forks.branches",
    "Change": "threadkeep.threads.diff",
    "ChannelDiff": "threadkeep.threads.diff",
    "ChannelVersion": "threadkeep.threads.diff.checkpoints",
    "CheckReport": "threadkeep.threads.repair.check",
    "Collected": "threadkeep.threads.retention.gc",
    "DiffSide": "threadkeep.threads.diff",
    "EraseReport": "threadkeep.threads.erasure.erase",
    "ErasedThread": "threadkeep.threads.erasure.erase",
    "Exported": "threadkeep.threads.transfer.bundles",
    "Filters": "threadkeep.threads.registry.filters",
    "Finding": "threadkeep.threads.repair.check",
    "GcReport": "threadkeep.threads.retention.gc",
    "Imported": "threadkeep.threads.transfer.bundles",
    "Mark": "threadkeep._core.engine.thread_entry",
    "Merge": "threadkeep.threads.forks.merge",
    "MergeConflict": "threadkeep.threads.forks.merge",
    "MergeStrategy": "threadkeep.threads.forks.merge",
    "Mirrored": "threadkeep.threads.transfer.mirror",
    "Offloaded": "threadkeep.threads.archives.offload",
    "Progress": "threadkeep._core.engine.operation",
    "RepairReport": "threadkeep.threads.repair.repair",
    "RepairedThread": "threadkeep.threads.repair.repair",
    "StateDiff": "threadkeep.threads.diff",
    "TextEdit": "threadkeep.threads.diff",
    "ThreadInfo": "threadkeep.threads.registry.info",
    "ThreadPage": "threadkeep.threads.registry.info",
    "ThreadStatus": "threadkeep._core.engine.thread_entry",
    "Threads": "threadkeep.threads.facade",
    "TierReport": "threadkeep.threads.archives.tiering",
    "read_quarantine": "threadkeep.threads.repair.quarantine",
}


def __getattr__(name: str) -> _Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
