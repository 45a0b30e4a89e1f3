"""Threads of a store, apart from running them: `saver.threads`, and its methods' results."""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

if _CHECKING:
    from threadkeep._core.engine.operation import Progress
    from threadkeep._core.engine.thread_entry import Lifecycle, Mark, ThreadStatus
    from threadkeep._run.lazy_values import LazyValues, LazyWrites
    from threadkeep.threads.answering import PendingInterrupt
    from threadkeep.threads.archives.offload import OffloadReport
    from threadkeep.threads.archives.tiering import ArchivedThread, TierReport
    from threadkeep.threads.diff import Change, ChannelDiff, DiffSide, StateDiff, TextEdit
    from threadkeep.threads.diff.checkpoints import ChannelVersion
    from threadkeep.threads.erasure_report import AccountReport, ErasedThread, EraseReport
    from threadkeep.threads.facade import Threads
    from threadkeep.threads.finding import FoundThread, FoundThreads
    from threadkeep.threads.forks import BranchCheckpoint, Branches
    from threadkeep.threads.growth import GrowthPoint, GrowthStep, ThreadGrowth
    from threadkeep.threads.merging import MergeConflict, MergeReport, MergeStrategy
    from threadkeep.threads.queries import filters_of
    from threadkeep.threads.registry import Filters, ThreadInfo, ThreadPage
    from threadkeep.threads.repair import read_quarantine
    from threadkeep.threads.repair.check import CheckReport, Finding
    from threadkeep.threads.repair.repair import RepairedThread, RepairReport
    from threadkeep.threads.retention.gc import CollectedThread, GcReport
    from threadkeep.threads.rotation import RotationReport
    from threadkeep.threads.shredding import ShredReport
    from threadkeep.threads.transfer.adopt import AdoptReport
    from threadkeep.threads.transfer.bundles import ExportReport, ImportReport
    from threadkeep.threads.transfer.leave import LeaveReport
    from threadkeep.threads.transfer.mirror import MirrorReport
    from threadkeep.threads.upgrading import UpgradedThread, UpgradeReport

__all__ = [
    "AccountReport",
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
    "FoundThread",
    "FoundThreads",
    "GcReport",
    "GrowthPoint",
    "GrowthStep",
    "ImportReport",
    "LazyValues",
    "LazyWrites",
    "LeaveReport",
    "Lifecycle",
    "Mark",
    "MergeConflict",
    "MergeReport",
    "MergeStrategy",
    "MirrorReport",
    "OffloadReport",
    "PendingInterrupt",
    "Progress",
    "RepairReport",
    "RepairedThread",
    "RotationReport",
    "ShredReport",
    "StateDiff",
    "TextEdit",
    "ThreadGrowth",
    "ThreadInfo",
    "ThreadPage",
    "ThreadStatus",
    "Threads",
    "TierReport",
    "UpgradeReport",
    "UpgradedThread",
    "filters_of",
    "read_quarantine",
]

_HOMES = {  # modules, which are imported when a name of theirs is used
    "threadkeep._core.engine.operation": ("Progress",),
    "threadkeep._core.engine.thread_entry": ("Lifecycle", "Mark", "ThreadStatus"),
    "threadkeep._run.lazy_values": ("LazyValues", "LazyWrites"),
    "threadkeep.threads.answering": ("PendingInterrupt",),
    "threadkeep.threads.archives.offload": ("OffloadReport",),
    "threadkeep.threads.archives.tiering": ("ArchivedThread", "TierReport"),
    "threadkeep.threads.diff": ("Change", "ChannelDiff", "DiffSide", "StateDiff", "TextEdit"),
    "threadkeep.threads.diff.checkpoints": ("ChannelVersion",),
    "threadkeep.threads.erasure_report": ("AccountReport", "EraseReport", "ErasedThread"),
    "threadkeep.threads.facade": ("Threads",),
    "threadkeep.threads.finding": ("FoundThread", "FoundThreads"),
    "threadkeep.threads.forks": ("BranchCheckpoint", "Branches"),
    "threadkeep.threads.growth": ("GrowthPoint", "GrowthStep", "ThreadGrowth"),
    "threadkeep.threads.merging": ("MergeConflict", "MergeReport", "MergeStrategy"),
    "threadkeep.threads.queries": ("filters_of",),
    "threadkeep.threads.registry": ("Filters", "ThreadInfo", "ThreadPage"),
    "threadkeep.threads.repair": ("read_quarantine",),
    "threadkeep.threads.repair.check": ("CheckReport", "Finding"),
    "threadkeep.threads.repair.repair": ("RepairReport", "RepairedThread"),
    "threadkeep.threads.retention.gc": ("CollectedThread", "GcReport"),
    "threadkeep.threads.rotation": ("RotationReport",),
    "threadkeep.threads.shredding": ("ShredReport",),
    "threadkeep.threads.transfer.adopt": ("AdoptReport",),
    "threadkeep.threads.transfer.bundles": ("ExportReport", "ImportReport"),
    "threadkeep.threads.transfer.leave": ("LeaveReport",),
    "threadkeep.threads.transfer.mirror": ("MirrorReport",),
    "threadkeep.threads.upgrading": ("UpgradeReport", "UpgradedThread"),
}


def __getattr__(name: str) -> _Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(_import(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
