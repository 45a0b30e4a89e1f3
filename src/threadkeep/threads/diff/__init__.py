"""Compare values and checkpoints.

A comparison changes nothing, runs no code of the compared values (`__eq__`, properties), and has a
limit on its steps.
"""

from threadkeep.threads.diff.records import Change, ChannelDiff, DiffSide, StateDiff, TextEdit
from threadkeep.threads.diff.values import differences

__all__ = ["Change", "ChannelDiff", "DiffSide", "StateDiff", "TextEdit", "differences"]
