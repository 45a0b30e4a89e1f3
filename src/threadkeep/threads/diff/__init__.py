"""Differences of values and of checkpoints.

Nothing that is compared is changed, none of its own code runs (`__eq__`, properties), and the
effort has a bound.
"""

from threadkeep.threads.diff.records import Change, ChannelDiff, DiffSide, StateDiff, TextEdit
from threadkeep.threads.diff.values import differences

__all__ = ["Change", "ChannelDiff", "DiffSide", "StateDiff", "TextEdit", "differences"]
