"""What differs between two checkpoints, and the forms it can be had in.

Invariant: a record is complete in itself, whatever became of the checkpoints since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from threadkeep.diff import (
    plain,
    render,
)
from threadkeep.diff.records import (
    ChannelDiff,
    DiffSide,
)


@dataclass(frozen=True, slots=True)
class StateDiff:
    """What differs between two checkpoints, channel by channel, in the order of their names."""

    before: DiffSide
    after: DiffSide
    channels: Mapping[str, ChannelDiff]

    @property
    def is_same(self) -> bool:
        """Whether all channels have the same values."""
        return all(channel.is_same for channel in self.channels.values())

    def as_data(self) -> dict[str, Any]:
        """The whole difference as JSON has it; values that JSON has not are told in text."""
        return plain.state(self.before, self.after, self.channels)

    def as_text(self, *, internal: bool = False, changes: int = 20, width: int = 100) -> str:
        """The difference for a person to read; unprintable characters are escaped.

        Args:
            internal: also tell of channels that LangGraph made.
            changes: how many changes of a channel to tell at most.
            width: characters a line, about.
        """
        told = [one for one in self.channels.values() if internal or not one.is_internal]
        return render.state(self.before, self.after, told, changes, width)
