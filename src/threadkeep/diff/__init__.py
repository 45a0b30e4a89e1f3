"""What differs between two values, or between two checkpoints.

Pure: no I/O, no clock, no locks. Invariant: nothing of the values compared is changed, none
of their own code runs (`__eq__`, properties), and the effort has a bound whatever they hold.
"""

from threadkeep.diff.records import (
    Change,
    ChannelDiff,
    DiffSide,
    TextEdit,
)
from threadkeep.diff.state import StateDiff
from threadkeep.diff.values import differences

__all__ = ["Change", "ChannelDiff", "DiffSide", "StateDiff", "TextEdit", "differences"]
