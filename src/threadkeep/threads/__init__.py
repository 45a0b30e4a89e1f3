"""Threads of a store beside running them: `saver.threads`, and what its methods return."""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

if _CHECKING:
    from threadkeep._core.engine.operation import Progress
    from threadkeep._core.engine.thread_entry import Mark, ThreadStatus
    from threadkeep.threads.archives.offload import OffloadReport
    from threadkeep.threads.archives.tiering import ArchivedThread, TierReport
    from threadkeep.threads.diff import Change, ChannelDiff, DiffSide, StateDiff, TextEdit
    from threadkeep.threads.diff.checkpoints import ChannelVersion
    from threadkeep.threads.erasure import ErasedThread, EraseReport
    from threadkeep.threads.facade import Threads
    from threadkeep.threads.forks import BranchCheckpoint, Branches
    from threadkeep.threads.merging import MergeConflict, MergeReport, MergeStrategy
    from threadkeep.threads.registry import Filters, ThreadInfo, ThreadPage
    from threadkeep.threads.repair import read_quarantine
    from threadkeep.threads.repair.check import CheckReport, Finding
    from threadkeep.threads.repair.repair import RepairedThread, RepairReport
    from threadkeep.threads.retention.gc import CollectedThread, GcReport
    from threadkeep.threads.transfer.adopt import AdoptReport
    from threadkeep.threads.transfer.bundles import ExportReport, ImportReport
    from threadkeep.threads.transfer.mirror import MirrorReport

__all__ = [
    "AdoptReport",
    "ArchivedThread",
    "BranchCheckpoint",
    "Branches",
    "Change",
    "ChannelDiff",
    "ChannelVersion",
    "CheckReport",
    "CollectedThread",
    "DiffSide",
    "EraseReport",
    "ErasedThread",
    "ExportReport",
    "Filters",
    "Finding",
    "GcReport",
    "ImportReport",
    "Mark",
    "MergeConflict",
    "MergeReport",
    "MergeStrategy",
    "MirrorReport",
    "OffloadReport",
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
    "AdoptReport": "threadkeep.threads.transfer.adopt",
    "ArchivedThread": "threadkeep.threads.archives.tiering",
    "BranchCheckpoint": "threadkeep.threads.forks",
    "Branches": "threadkeep.threads.forks",
    "Change": "threadkeep.threads.diff",
    "ChannelDiff": "threadkeep.threads.diff",
    "ChannelVersion": "threadkeep.threads.diff.checkpoints",
    "CheckReport": "threadkeep.threads.repair.check",
    "CollectedThread": "threadkeep.threads.retention.gc",
    "DiffSide": "threadkeep.threads.diff",
    "EraseReport": "threadkeep.threads.erasure",
    "ErasedThread": "threadkeep.threads.erasure",
    "ExportReport": "threadkeep.threads.transfer.bundles",
    "Filters": "threadkeep.threads.registry",
    "Finding": "threadkeep.threads.repair.check",
    "GcReport": "threadkeep.threads.retention.gc",
    "ImportReport": "threadkeep.threads.transfer.bundles",
    "Mark": "threadkeep._core.engine.thread_entry",
    "MergeConflict": "threadkeep.threads.merging",
    "MergeReport": "threadkeep.threads.merging",
    "MergeStrategy": "threadkeep.threads.merging",
    "MirrorReport": "threadkeep.threads.transfer.mirror",
    "OffloadReport": "threadkeep.threads.archives.offload",
    "Progress": "threadkeep._core.engine.operation",
    "RepairReport": "threadkeep.threads.repair.repair",
    "RepairedThread": "threadkeep.threads.repair.repair",
    "StateDiff": "threadkeep.threads.diff",
    "TextEdit": "threadkeep.threads.diff",
    "ThreadInfo": "threadkeep.threads.registry",
    "ThreadPage": "threadkeep.threads.registry",
    "ThreadStatus": "threadkeep._core.engine.thread_entry",
    "Threads": "threadkeep.threads.facade",
    "TierReport": "threadkeep.threads.archives.tiering",
    "read_quarantine": "threadkeep.threads.repair",
}


def __getattr__(name: str) -> _Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
