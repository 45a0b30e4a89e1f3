"""What can be done with threads beside running them: `saver.threads`.

One module for each capability; its logic is operations (generators, see `drive`), which
`Threads` runs on the saver's store, blocking or awaited. Invariant: whatever the store is, the
same operation serves it.
"""

from threadkeep.differences import Change, ChannelDiff, DiffSide, StateDiff, TextEdit
from threadkeep.engine.labels import Mark
from threadkeep.threads.branches import BranchCheckpoint, Branches, Branching
from threadkeep.threads.diff import Comparing
from threadkeep.threads.info import ThreadInfo, ThreadPage
from threadkeep.threads.registry import Registry
from threadkeep.threads.retention import Collected, GcReport, Retaining
from threadkeep.threads.versions import ChannelVersion, Versions

__all__ = [
    "BranchCheckpoint",
    "Branches",
    "Change",
    "ChannelDiff",
    "ChannelVersion",
    "Collected",
    "DiffSide",
    "GcReport",
    "Mark",
    "StateDiff",
    "TextEdit",
    "ThreadInfo",
    "ThreadPage",
    "Threads",
]


class Threads(Branching, Comparing, Registry, Retaining, Versions):
    """The threads of a store; each method has an `a` twin that is awaited."""
