"""Tips of commits, and replies of stores without these random numbers."""

from typing import Any

from threadkeep._core.engine.model import ThreadRows, ThreadState
from threadkeep._core.engine.tips import Link, Proof


def without_tips(reply: Any) -> Any:
    """The reply with the number of a thread's tips, and whether a life of it has ended."""
    if isinstance(reply, ThreadState | ThreadRows):
        return reply._replace(tips=(0,) * len(reply.tips), life=int(reply.life > 0))
    return reply


def link(tip: int, *base: int) -> Link:
    """The link of a change that has this tip, and builds on these."""
    return Link(Proof(0), base, tip)
